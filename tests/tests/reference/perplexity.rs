//! Perplexity on a fixed text: what quantized kernels and small KV caches cost in quality, against
//! the same weights computed in f32 over an f32 cache.
//!
//! The demo model's matrices are encoded anew in every type, so that each type's kernels meet real
//! weights; K types only where a row is a whole number of their blocks. `--no-capture` shows the
//! table of docs/performance.md.

use tenon_backend::quant::{dequantize_row, quantize_row};
use tenon_backend::{DType, KvDType, Op, Program, TensorBytes, WeightMode};
use tenon_cpu::CpuBackend;
use tenon_text::{Bos, Specials};

use crate::{GEMMA3, QWEN, SMOLLM2, load, logprobs, options};

const PROSE: &str = include_str!("../../cases/prose.txt");

/// Tokens that see each other; the reference's block pool holds them.
const WINDOW: usize = 512;

/// Logits rows at a time.
const CHUNK: usize = 64;

/// How far a perplexity may be from that of the f32 path, as a share of it.
const TOLERANCE: f64 = 0.005;

/// The same for Q4_0 made from the demo model's Q4_1, a much worse model, in which the rounding of
/// activations weighs more: measured 0.0057.
const Q4_0_TOLERANCE: f64 = 0.0075;

fn perplexity(program: &Program, tokens: &[u32], weights: WeightMode, kv: KvDType) -> f64 {
    let options = options(weights, kv);
    let mut backend = CpuBackend::prepare(program.clone(), &options).unwrap();
    let (mut sum, mut count) = (0.0, 0);
    for window in tokens.chunks(WINDOW) {
        let said = logprobs(&mut backend, window, 0, CHUNK);
        let next = said.iter().zip(&window[1..]);
        sum += next.clone().map(|(row, &next)| f64::from(row[next as usize])).sum::<f64>();
        count += next.count();
    }
    (-sum / count as f64).exp()
}

/// The program with every matrix of its linear operations encoded as `dtype`, where that fits; and
/// how many those are.
fn encoded_as(program: &Program, dtype: DType) -> (Program, usize) {
    let mut program = program.clone();
    let mut matrices: Vec<usize> = Vec::new();
    for op in &program.ops {
        if let Op::Linear { parts, .. } = op {
            matrices.extend(parts.iter().map(|part| part.weight.0 as usize));
        }
    }
    matrices.retain(|&at| program.weights[at].cols.is_multiple_of(dtype.block_len()));
    matrices.sort_unstable();
    matrices.dedup();
    for &at in &matrices {
        let weight = &mut program.weights[at];
        let (old, new) = (weight.dtype.row_bytes(weight.cols), dtype.row_bytes(weight.cols));
        let mut data = vec![0; weight.rows * new];
        let mut row = vec![0.0; weight.cols];
        for (bytes, out) in weight.data.chunks_exact(old).zip(data.chunks_exact_mut(new)) {
            dequantize_row(weight.dtype, bytes, &mut row);
            quantize_row(dtype, &row, out);
        }
        (weight.dtype, weight.data) = (dtype, TensorBytes::owned(data));
    }
    (program, matrices.len())
}

/// Perplexity here over that of the f32 path.
fn ratio(label: &str, program: &Program, tokens: &[u32], weights: WeightMode, kv: KvDType) -> f64 {
    let exact = perplexity(program, tokens, WeightMode::Float32, KvDType::F32);
    let got = perplexity(program, tokens, weights, kv);
    let change = got / exact - 1.0;
    println!("{label:32} {exact:9.4} {got:9.4} {:+8.3} %", 100.0 * change);
    got / exact
}

#[test]
fn every_encoding_keeps_the_perplexity_of_the_demo_model() {
    let model = load(SMOLLM2).unwrap();
    let tokens = model.tokenizer.encode(PROSE, Specials::AsText, Bos::Skip).unwrap();
    assert!(tokens.len() > 4000, "{} tokens", tokens.len());
    println!("{:32} {:>9} {:>9} {:>8}", "weights, KV", "f32", "here", "change");
    for dtype in DType::ALL {
        let (program, num) = encoded_as(&model.program, dtype);
        let label = format!("{dtype:?} ({num} matrices), BF16");
        let ratio = ratio(&label, &program, &tokens, WeightMode::Native, KvDType::BF16);
        let tolerance = if dtype == DType::Q4_0 { Q4_0_TOLERANCE } else { TOLERANCE };
        assert!((ratio - 1.0).abs() <= tolerance, "{label}: {ratio} times that of f32");
    }
}

#[test]
fn every_kv_encoding_keeps_the_perplexity_of_the_demo_model() {
    let model = load(SMOLLM2).unwrap();
    let tokens = model.tokenizer.encode(PROSE, Specials::AsText, Bos::Skip).unwrap();
    for kv in [KvDType::BF16, KvDType::F16, KvDType::Int8] {
        let label = format!("f32 weights, {kv:?}");
        let ratio = ratio(&label, &model.program, &tokens, WeightMode::Float32, kv);
        assert!((ratio - 1.0).abs() <= TOLERANCE, "{label}: {ratio} times that of f32");
    }
}

/// Models whose files mix K types and others. Their activations have larger outliers, their caches
/// too: the tolerance says how far this may go before something broke.
#[test]
fn other_models_stay_near_theirs() {
    for file in [QWEN, GEMMA3] {
        let Some(model) = load(file) else { continue };
        let tokens = model.tokenizer.encode(PROSE, Specials::AsText, Bos::Add).unwrap();
        for kv in [KvDType::BF16, KvDType::Int8] {
            let label = format!("{} as stored, {kv:?}", &file[..10]);
            let ratio = ratio(&label, &model.program, &tokens[..WINDOW], WeightMode::Native, kv);
            assert!((0.9..1.15).contains(&ratio), "{label}: {ratio} times that of f32");
        }
    }
}
