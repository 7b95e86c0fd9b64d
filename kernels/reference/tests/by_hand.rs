//! The oracle itself, against values worked out by hand.
#![allow(clippy::unwrap_used)]

use tenon_backend::{
    Activation, Backend, BufferId, DType, KvDType, KvLayer, LinearPart, Op, PrepareOptions,
    Program, RopeId, RopeStyle, RopeTable, SeqSpan, StepInputs, Tensor, TensorBytes, WeightId,
    WeightMode,
};
use tenon_reference::ReferenceBackend;

fn f32_tensor(name: &str, rows: usize, values: &[f32]) -> Tensor {
    let data = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let cols = values.len() / rows;
    let data = TensorBytes::owned(data);
    Tensor { name: name.into(), dtype: DType::F32, rows, cols, data }
}

fn options(kv_dtype: KvDType) -> PrepareOptions {
    PrepareOptions {
        weights: WeightMode::Native,
        kv_dtype,
        hybrid_kv: false,
        num_blocks: 8,
        block_size: 2,
        max_step_tokens: 8,
        max_logits_rows: 8,
        num_threads: 1,
    }
}

// The program: embed, the given operations on buffer 0 (scratch: 1, 2, 3), all rows as logits.
struct Case {
    embedding: Vec<f32>,
    rows: usize,
    weights: Vec<Tensor>,
    ops: Vec<Op>,
    buffers: Vec<usize>,
    layers: Vec<KvLayer>,
    rope: Option<RopeTable>,
    result: BufferId,
}

fn case(rows: usize, embedding: &[f32]) -> Case {
    let width = embedding.len() / rows;
    Case {
        embedding: embedding.to_vec(),
        rows,
        weights: vec![],
        ops: vec![],
        buffers: vec![width; 4],
        layers: vec![],
        rope: None,
        result: BufferId(0),
    }
}

// Runs the tokens 0, 1, … in one step, in blocks 5, 2, 7, ….
fn run(case: Case, kv_dtype: KvDType) -> Vec<f32> {
    let mut buffers = case.buffers;
    let logits = BufferId(buffers.len() as u32);
    buffers.push(buffers[case.result.0 as usize]);
    let mut weights = vec![f32_tensor("embedding", case.rows, &case.embedding)];
    weights.extend(case.weights);
    let mut ops = vec![Op::Embed { weight: WeightId(0), scale: 1.0, out: BufferId(0) }];
    ops.extend(case.ops);
    ops.push(Op::TakeLogitsRows { input: case.result, out: logits });
    let program = Program {
        name: "by hand".into(),
        ops,
        buffers,
        weights,
        ropes: case.rope.into_iter().collect(),
        kv_layers: case.layers,
        logits,
        max_position: 16,
    };
    let tokens: Vec<u32> = (0..case.rows as u32).collect();
    let blocks = [5, 2, 7, 0];
    let slots: Vec<u32> = tokens.iter().map(|p| blocks[*p as usize / 2] * 2 + p % 2).collect();
    let table_len = case.rows.div_ceil(2);
    let seq = SeqSpan {
        row: 0,
        token_start: 0,
        num_tokens: case.rows as u32,
        context_len: case.rows as u32,
        prompt_len: case.rows as u32,
        table_start: 0,
        table_len: table_len as u32,
    };
    let mut backend = ReferenceBackend::prepare(program, &options(kv_dtype)).unwrap();
    let inputs = StepInputs {
        token_ids: &tokens,
        positions: &tokens,
        slot_mapping: &slots,
        seqs: &[seq],
        block_tables: &blocks[..table_len],
        logits_rows: &tokens,
        block_copies: &[],
    };
    let ticket = backend.forward(&inputs).unwrap();
    backend.wait(ticket).unwrap().to_vec()
}

fn close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() < 1e-5, "{found:?} is not {expected:?}");
    }
}

#[test]
fn norm() {
    let mut case = case(1, &[3.0, 4.0]);
    case.weights = vec![f32_tensor("norm", 1, &[1.0, 2.0])];
    let (input, out) = (BufferId(0), BufferId(1));
    case.ops = vec![Op::RmsNorm { input, weight: WeightId(1), eps: 0.5, out }];
    case.result = out;
    let rms = 13.0f32.sqrt(); // sqrt((9 + 16) / 2 + 0.5)
    close(&run(case, KvDType::F32), &[3.0 / rms, 8.0 / rms]);
}

#[test]
fn linear_with_bias_and_gate() {
    let mut case = case(2, &[1.0, 2.0, -1.0, 0.5]);
    case.weights =
        vec![f32_tensor("w", 2, &[1.0, 10.0, 100.0, -1.0]), f32_tensor("bias", 1, &[0.25, 0.5])];
    let part = LinearPart { weight: WeightId(1), bias: Some(WeightId(2)), out: BufferId(1) };
    let (gate, up, out) = (BufferId(0), BufferId(1), BufferId(2));
    case.ops = vec![
        Op::Linear { input: BufferId(0), parts: vec![part] },
        Op::GatedMlp { gate, up, out, act: Activation::Silu },
    ];
    case.result = out;
    let silu = |x: f32| x / (1.0 + (-x).exp());
    let expected = [silu(1.0) * 21.25, silu(2.0) * 98.5, silu(-1.0) * 4.25, silu(0.5) * -100.0];
    close(&run(case, KvDType::F32), &expected);
}

#[test]
fn rope_turns_pairs_and_leaves_the_rest() {
    for style in [RopeStyle::Half, RopeStyle::Interleaved] {
        // Two heads of four dims, of which two turn by a quarter per position.
        let head = [1.0, 0.0, 5.0, 6.0, 0.0, 1.0, 7.0, 8.0];
        let mut case = case(2, &[head, head].concat());
        let inv_freq = vec![std::f32::consts::FRAC_PI_2];
        case.rope = Some(RopeTable { style, inv_freq, magnitude: 2.0 });
        case.ops = vec![Op::Rope { buf: BufferId(0), head_dim: 4, rope: RopeId(0) }];
        let first = [2.0, 0.0, 5.0, 6.0, 0.0, 2.0, 7.0, 8.0];
        let second = [0.0, 2.0, 5.0, 6.0, -2.0, 0.0, 7.0, 8.0];
        close(&run(case, KvDType::F32), &[first, second].concat());
    }
}

// Queries and keys are zero in all but the case's score: values are then averaged.
fn averaging(window: Option<u32>, kv_dtype: KvDType, values: &[f32]) -> Vec<f32> {
    let mut case = case(values.len(), values);
    case.weights = vec![f32_tensor("zero", 1, &[0.0]), f32_tensor("one", 1, &[1.0])];
    let part = |weight, out| LinearPart { weight: WeightId(weight), bias: None, out };
    let (q, k, v, out) = (BufferId(1), BufferId(2), BufferId(3), BufferId(4));
    case.buffers.push(1);
    case.layers = vec![KvLayer { num_kv_heads: 1, head_dim: 1, window }];
    let attention =
        Op::Attention { layer: 0, q, k, v, out, num_heads: 1, scale: 1.0, softcap: None };
    let parts = vec![part(1, q), part(1, k), part(2, v)];
    case.ops = vec![Op::Linear { input: BufferId(0), parts }, attention];
    case.result = out;
    run(case, kv_dtype)
}

#[test]
fn attention_is_causal_and_windowed() {
    let values = [2.0, 4.0, 6.0, 8.0, 10.0];
    close(&averaging(None, KvDType::F32, &values), &[2.0, 3.0, 4.0, 5.0, 6.0]);
    close(&averaging(Some(2), KvDType::F32, &values), &[2.0, 3.0, 5.0, 7.0, 9.0]);
    close(&averaging(Some(1), KvDType::F32, &values), &values);
}

#[test]
fn attention_reads_rounded_values() {
    let value = 1.0 + 1.0 / 256.0; // a tie: bfloat16 rounds to the even 1.0, half keeps it
    assert_eq!(averaging(None, KvDType::BF16, &[value]), [1.0]);
    assert_eq!(averaging(None, KvDType::F16, &[value]), [value]);
    // The transform of (2, 1) is (3, 1) / √2: 3 is 127 steps, 1 rounds from 42.33 to 42 of them.
    let mut case = case(1, &[2.0, 1.0]);
    let (x, out) = (BufferId(0), BufferId(1));
    case.layers = vec![KvLayer { num_kv_heads: 1, head_dim: 2, window: None }];
    let (q, k, v) = (x, x, x);
    case.ops =
        vec![Op::Attention { layer: 0, q, k, v, out, num_heads: 1, scale: 1.0, softcap: None }];
    case.result = out;
    let one = 3.0 * 42.0 / 127.0;
    close(&run(case, KvDType::Int8), &[(3.0 + one) / 2.0, (3.0 - one) / 2.0]);
}

#[test]
fn attention_weighs_by_the_softmax_of_capped_scores() {
    // q = k = v = x: token 1 scores 2 * 0.5 * 1 and 2 * 0.5 * 2 before the cap.
    for softcap in [None, Some(0.75)] {
        let mut case = case(2, &[1.0, 2.0]);
        let (x, out) = (BufferId(0), BufferId(1));
        case.layers = vec![KvLayer { num_kv_heads: 1, head_dim: 1, window: None }];
        case.ops = vec![Op::Attention {
            layer: 0,
            q: x,
            k: x,
            v: x,
            out,
            num_heads: 1,
            scale: 0.5,
            softcap,
        }];
        case.result = out;
        let cap = |s: f32| softcap.map_or(s, |c| c * (s / c).tanh());
        let (a, b) = (cap(1.0).exp(), cap(2.0).exp());
        close(&run(case, KvDType::F32), &[1.0, (a + 2.0 * b) / (a + b)]);
    }
}
