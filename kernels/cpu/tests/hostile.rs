//! Inconsistent programs, options and steps are refused with messages that name what is wrong.
#![allow(clippy::unwrap_used)]

mod support;

use support::{Shape, decoder, options};
use tenon_backend::{
    Backend, BackendError, BufferId, DType, Op, PrepareOptions, Program, RopeId, SeqSpan,
    StepInputs, TensorBytes, WeightId,
};
use tenon_cpu::CpuBackend;
use tenon_reference::ReferenceBackend;

fn refused(change: impl Fn(&mut Program), names: &str) {
    let mut program = decoder(&Shape::small(DType::Q4_0), 1);
    change(&mut program);
    let cpu = CpuBackend::prepare(program.clone(), &options(1)).err().unwrap();
    let reference = ReferenceBackend::prepare(program, &options(1)).err().unwrap();
    for error in [cpu, reference] {
        assert!(matches!(error, BackendError::Unsupported { .. }));
        assert!(error.to_string().contains(names), "{error}");
    }
}

fn attention(program: &mut Program) -> &mut Op {
    program.ops.iter_mut().find(|op| matches!(op, Op::Attention { .. })).unwrap()
}

#[test]
fn programs() {
    refused(|p| p.ops.clear(), "no operation takes the logits rows");
    refused(|p| p.ops.reverse(), "operation 0");
    refused(|p| p.logits = BufferId(99), "`99`");
    refused(|p| p.buffers[0] = 0, "width `0`");
    refused(|p| p.buffers[0] += 1, "width");
    refused(|p| p.weights[0].data = TensorBytes::owned(vec![0; 7]), "`7` bytes");
    refused(|p| p.weights[0].rows = usize::MAX, "weight `w0`");
    refused(|p| p.weights[2].cols = 33, "`33` columns");
    refused(|p| p.weights[1].dtype = DType::F16, "weight `w1`");
    refused(|p| p.ropes.clear(), "rotary table `0`");
    refused(|p| p.ropes[0].inv_freq = vec![1.0; 64], "128 rotated dims");
    refused(|p| p.ropes[0].inv_freq[0] = f32::NAN, "rotary table 0");
    refused(|p| p.kv_layers.truncate(1), "KV layer `1`");
    refused(|p| p.kv_layers[0].window = Some(0), "window of `0`");
    refused(|p| p.kv_layers[0].num_kv_heads = 3, "`4` heads over 3");
    refused(|p| p.kv_layers[0].head_dim = 0, "heads of `0`");
    refused(
        |p| {
            if let Op::Attention { out, q, .. } = attention(p) {
                *out = *q;
            }
        },
        "both input and output",
    );
    refused(
        |p| {
            if let Op::Attention { scale, .. } = attention(p) {
                *scale = f32::INFINITY;
            }
        },
        "scale is `inf`",
    );
    refused(|p| p.ops.push(p.ops[1].clone()), "token rows where logits rows");
    refused(|p| p.ops.push(p.ops[0].clone()), "after the logits rows");
    let rope = Op::Rope { buf: BufferId(4), head_dim: 8, rope: RopeId(7) };
    refused(|p| p.ops.insert(3, rope.clone()), "rotary table `7`");
    let cap = Op::Softcap { buf: BufferId(0), cap: -1.0 };
    refused(|p| p.ops.insert(1, cap.clone()), "cap is `-1`");
    let empty = Op::Linear { input: BufferId(0), parts: vec![] };
    refused(|p| p.ops.insert(1, empty.clone()), "without parts");
    let norm = Op::HeadNorm { buf: BufferId(0), weight: WeightId(1), head_dim: 0, eps: 0.0 };
    refused(|p| p.ops.insert(1, norm.clone()), "heads of `0`");
}

#[test]
fn prepare_options() {
    let program = decoder(&Shape::small(DType::Q4_0), 1);
    let check = |change: fn(&mut PrepareOptions), names: &str| {
        let mut options = options(1);
        change(&mut options);
        let error = CpuBackend::prepare(program.clone(), &options).err().unwrap().to_string();
        assert!(error.contains(names), "{error}");
    };
    check(|o| o.num_threads = 0, "`num_threads` is `0`");
    check(|o| o.num_threads = 1 << 20, "`num_threads`");
    check(|o| o.block_size = 0, "`block_size` is `0`");
    check(|o| o.num_blocks = usize::MAX, "`num_blocks`");
    check(|o| o.max_step_tokens = 0, "`max_step_tokens` is `0`");
    check(|o| (o.num_blocks, o.block_size) = (1 << 20, 1 << 20), "32-bit slots");
}

// Two tokens of a sequence at positions 3 and 4, in blocks 7 and 2 of four slots.
struct Step {
    ids: Vec<u32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
    seqs: Vec<SeqSpan>,
    tables: Vec<u32>,
    rows: Vec<u32>,
}

type Change<'a> = &'a dyn Fn(&mut Step);

fn valid() -> Step {
    let seq = SeqSpan {
        row: 0,
        token_start: 0,
        num_tokens: 2,
        context_len: 5,
        prompt_len: 5,
        table_start: 0,
        table_len: 2,
    };
    Step {
        ids: vec![1, 2],
        positions: vec![3, 4],
        slots: vec![31, 8],
        seqs: vec![seq],
        tables: vec![7, 2],
        rows: vec![1],
    }
}

#[test]
fn step_inputs() {
    let program = decoder(&Shape::small(DType::Q4_0), 1);
    let options =
        PrepareOptions { block_size: 4, max_step_tokens: 2, max_logits_rows: 2, ..options(1) };
    let mut cpu = CpuBackend::prepare(program.clone(), &options).unwrap();
    let mut reference = ReferenceBackend::prepare(program, &options).unwrap();
    let mut forward = |change: &dyn Fn(&mut Step)| {
        let mut s = valid();
        change(&mut s);
        let inputs = StepInputs {
            token_ids: &s.ids,
            positions: &s.positions,
            slot_mapping: &s.slots,
            seqs: &s.seqs,
            block_tables: &s.tables,
            logits_rows: &s.rows,
            block_copies: &[],
        };
        let found = cpu.forward(&inputs).map_err(|e| e.to_string());
        let expected = reference.forward(&inputs).map_err(|e| e.to_string());
        assert_eq!(found.as_ref().err(), expected.as_ref().err());
        found.map(|ticket| cpu.wait(ticket).unwrap().len())
    };
    assert_eq!(forward(&|_| ()), Ok(41));
    assert_eq!(forward(&|s| s.rows.clear()), Ok(0));
    let cases: [(Change<'_>, &str); 15] = [
        (&|s| s.ids[0] = 41, "token id `41`"),
        (&|s| s.ids.push(1), "step of `3` tokens"),
        (&|s| s.ids.clear(), "step of `0` tokens"),
        (&|s| s.rows = vec![2], "logits row `2`"),
        (&|s| s.rows = vec![0; 3], "`3` logits rows"),
        (&|s| s.slots[1] = 9, "slot `9`"),
        (&|s| s.positions[0] = 2, "position `2`"),
        (&|s| s.tables[0] = 96, "block `96`"),
        (&|s| s.tables.truncate(1), "block table ends at `2`"),
        (&|s| s.seqs[0].table_len = 1, "`1` blocks"),
        (&|s| s.seqs[0].num_tokens = 1, "position `3` where 4"),
        (&|s| (s.seqs[0].num_tokens, s.positions[0]) = (1, 4), "slot `31`"),
        (&|s| s.seqs[0].num_tokens = 7, "`7` tokens"),
        (&|s| s.seqs[0].token_start = 1, "start at `1`"),
        (&|s| s.seqs.clear(), "cover `0` of 2"),
    ];
    for (change, names) in cases {
        let error = forward(change).unwrap_err();
        assert!(error.contains(names), "{error}");
    }
    assert_eq!(forward(&|_| ()), Ok(41), "a refused step changes nothing");
}

#[test]
fn only_the_latest_ticket_is_taken() {
    let program = decoder(&Shape::small(DType::Q4_0), 1);
    let mut cpu = CpuBackend::prepare(program, &options(1)).unwrap();
    assert!(cpu.wait(tenon_backend::Ticket(3)).is_err());
}
