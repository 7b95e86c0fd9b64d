//! A step allocates nothing: all memory is had at prepare.
#![allow(clippy::unwrap_used, unsafe_code)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{Shape, decoder, ids, options};
use tenon_backend::{Backend, DType, SeqSpan, StepInputs};
use tenon_cpu::CpuBackend;

/// The same step this often.
const REPEATS: usize = 10;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: passes every call on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn steps_do_not_allocate() {
    let shape = Shape { head_norm: true, bias: true, ..Shape::small(DType::Q4_1) };
    let program = decoder(&shape, 1);
    let tokens = ids(600, shape.vocab, 4);
    let blocks: Vec<u32> = (0..38).collect();
    for threads in [1, 3] {
        let mut cpu = CpuBackend::prepare(program.clone(), &options(threads)).unwrap();
        // A long prompt, then a decode whose context is cut among the threads.
        for (start, end) in [(0, 599), (599, 600)] {
            let positions: Vec<u32> = (start..end).collect();
            let seq = SeqSpan {
                row: 0,
                token_start: 0,
                num_tokens: end - start,
                context_len: end,
                prompt_len: end,
                table_start: 0,
                table_len: end.div_ceil(16),
            };
            let inputs = StepInputs {
                token_ids: &tokens[start as usize..end as usize],
                positions: &positions,
                slot_mapping: &positions,
                seqs: &[seq],
                block_tables: &blocks[..seq.table_len as usize],
                logits_rows: &[0],
                block_copies: &[],
            };
            // Threads that start meanwhile allocate, too: what a step allocates, each one does.
            let allocations = (0..REPEATS).map(|_| {
                let before = ALLOCATIONS.load(Ordering::Relaxed);
                let ticket = cpu.forward(&inputs).unwrap();
                cpu.wait(ticket).unwrap();
                ALLOCATIONS.load(Ordering::Relaxed) - before
            });
            assert_eq!(allocations.min(), Some(0), "{} tokens, {threads} threads", end - start);
        }
    }
}
