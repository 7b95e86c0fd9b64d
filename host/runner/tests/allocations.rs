//! A step of decoding sequences allocates nothing: plan, inputs, forward, sampling, settling.
#![allow(clippy::unwrap_used, unsafe_code)]

mod fake;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::mpsc::channel;

use tenon_backend::{KvDType, PrepareOptions, WeightMode};
use tenon_cpu::CpuBackend;
use tenon_engine::{EngineConfig, RequestId, SamplingParams, TokenBias};
use tenon_model::{TinyArch, TinyModel};
use tenon_runner::{GenerateRequest, WorkerConfig, spawn};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: passes every call on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
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

/// Output tokens of each sequence; the last steps are not looked at, nor are the first ones.
const NUM_TOKENS: u32 = 120;

/// Runs in which the six prompts may come in too far apart for the machine.
const NUM_RUNS: usize = 50;

#[test]
fn decode_steps_do_not_allocate() {
    for _ in 0..NUM_RUNS {
        let steps = steps();
        let both = |pair: &&[(usize, u64)]| pair[0].0 == 6 && pair[1].0 == 6;
        let steady: Vec<_> = steps.windows(2).filter(both).skip(5).collect();
        for (at, step) in steady.iter().enumerate() {
            assert_eq!(step[1].1 - step[0].1, 0, "allocations in steady step {at}");
        }
        if steady.len() > 80 {
            return;
        }
    }
    panic!("the sequences never decoded together");
}

/// (Sequences that spoke, allocations of the engine thread so far), by step.
fn steps() -> Vec<(usize, u64)> {
    let model = TinyModel::new(TinyArch::Llama, 3);
    let engine = EngineConfig {
        num_blocks: 400,
        max_num_seqs: 16,
        max_step_tokens: 256,
        max_prefill_chunk: 256,
        max_model_len: 200,
        eos_token_ids: vec![TinyModel::EOS],
        ..fake::config()
    };
    let options = PrepareOptions {
        weights: WeightMode::Native,
        kv_dtype: KvDType::BF16,
        hybrid_kv: false,
        num_blocks: engine.num_blocks,
        block_size: engine.block_size,
        max_step_tokens: engine.max_step_tokens,
        max_logits_rows: engine.max_num_seqs,
        num_threads: 1,
    };
    let backend = Box::new(CpuBackend::prepare(model.program(), &options).unwrap());
    let (sender, ended) = channel();
    // Room for all, so that the list itself does not allocate.
    let mut steps: Vec<(usize, u64)> = Vec::with_capacity(1000);
    let sink = Box::new(move |batch: &mut Vec<_>| {
        steps.push((batch.len(), ALLOCATIONS.with(Cell::get)));
        if steps.len() as u32 >= NUM_TOKENS - 10 {
            let _ = sender.send(std::mem::take(&mut steps));
        }
    });
    // Prompts as fast as can be, so that all decode together.
    let config = WorkerConfig {
        prefill_slowdown: 0.0,
        ..WorkerConfig::new(engine, TinyModel::VOCAB as u32)
    };
    let (handle, thread) = spawn(config, backend, sink, Box::new(|_| {})).unwrap();
    for id in 0..6 {
        let params = SamplingParams {
            max_tokens: NUM_TOKENS,
            ignore_eos: true,
            temperature: if id == 0 { 0.0 } else { 0.9 },
            top_p: if id == 1 { 0.9 } else { 1.0 },
            top_k: if id == 2 { 7 } else { 0 },
            logit_bias: vec![TokenBias { token: 5, bias: 1.0 }],
            ..SamplingParams::default()
        };
        let prompt: Vec<u32> = (0..9 + id as u32).map(|t| 20 + t * 7 % 90).collect();
        let request = GenerateRequest::new(RequestId(id), prompt.into(), params);
        handle.submit(request).unwrap();
    }
    let steps = ended.recv_timeout(fake::PATIENCE).unwrap();
    handle.stop();
    thread.join().unwrap();
    steps
}
