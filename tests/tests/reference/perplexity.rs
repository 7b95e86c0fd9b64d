//! Perplexity on a fixed text: what quantized kernels and small KV caches cost in quality, against
//! the same weights computed in f32 over an f32 cache.
//!
//! The demo model's matrices are encoded anew in every type, so that each type's kernels meet real
//! weights; K types only where a row is a whole number of their blocks. `--no-capture` shows the
//! table of docs/performance.md; `TENON_PERPLEXITY_TOKENS` takes more of the text.

use tenon_backend::quant::{dequantize_row, quantize_row};
use tenon_backend::{DType, KvDType, Op, Program, TensorBytes, WeightMode};
use tenon_cpu::CpuBackend;
use tenon_runner::load::LoadedModel;
use tenon_text::{Bos, Specials};

use crate::{GEMMA3, QWEN, SMOLLM2, load, options, run};

const PROSE: &str = include_str!("../../cases/prose.txt");

/// Tokens that see each other; the reference's block pool holds them.
const WINDOW: usize = 512;

/// Logits rows at a time.
const CHUNK: usize = 64;

/// How far a perplexity may be from that of the f32 path, as a share of it.
const TOLERANCE: f64 = 0.005;

/// Tokens of the text that are scored unless the variable says otherwise.
const NUM_TOKENS: usize = 4 * WINDOW;

fn prose(model: &LoadedModel) -> Vec<u32> {
    let wanted = std::env::var("TENON_PERPLEXITY_TOKENS");
    let wanted = wanted.map_or(NUM_TOKENS, |tokens| tokens.parse().unwrap());
    let mut tokens = model.tokenizer.encode(PROSE, Specials::AsText, Bos::Skip).unwrap();
    assert!(tokens.len() > 4000, "{} tokens", tokens.len());
    tokens.truncate(wanted);
    tokens
}

fn perplexity(program: &Program, tokens: &[u32], weights: WeightMode, kv: KvDType) -> f64 {
    let options = options(weights, kv);
    let mut backend = CpuBackend::prepare(program.clone(), &options).unwrap();
    let (mut sum, mut count) = (0.0, 0);
    for window in tokens.chunks(WINDOW) {
        let mut next = window[1..].iter();
        run(&mut backend, window, 0, CHUNK, |logits| {
            let Some(&next) = next.next() else { return };
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let exps: f64 = logits.iter().map(|&l| f64::from((l - max).exp())).sum();
            sum += f64::from(logits[next as usize] - max) - exps.ln();
            count += 1;
        });
    }
    (-sum / f64::from(count)).exp()
}

/// A block of Q4_0 as those who publish files encode it: the scale is searched around the one that
/// maps the largest value to -8, for the least squared error weighted by the squared value.
/// The obvious scale makes a model whose perplexity is half as much again.
fn encode_q4_0(values: &[f32], block: &mut [u8]) {
    let largest =
        values.iter().copied().fold(0.0, |a: f32, x| if x.abs() > a.abs() { x } else { a });
    let codes = |inverse: f32| {
        let code = |x: &f32| (x * inverse).round().clamp(-8.0, 7.0);
        values.iter().map(code).collect::<Vec<f32>>()
    };
    // The best scale for some codes, and how much error it takes away.
    let fit = |codes: &[f32]| {
        let weighted = |f: fn(f32, f32) -> f32| {
            values.iter().zip(codes).map(|(x, q)| x * x * f(*x, *q)).sum::<f32>()
        };
        let (xq, qq) = (weighted(|x, q| x * q), weighted(|_, q| q * q));
        if qq > 0.0 { (xq * xq / qq, xq / qq) } else { (0.0, 0.0) }
    };
    let inverses = (-9..=9).map(|i| -(8.0 + 0.1 * i as f32) / largest);
    let fits = inverses.filter(|inverse| inverse.is_finite()).map(|i| fit(&codes(i)));
    let (_, scale) = fits.fold((0.0, 0.0), |best, fit| if fit.0 > best.0 { fit } else { best });
    let mut stored = [0.0];
    quantize_row(DType::F16, &[scale], &mut block[..2]);
    dequantize_row(DType::F16, &block[..2], &mut stored);
    let inverse = if stored[0] == 0.0 { 0.0 } else { 1.0 / stored[0] };
    let codes: Vec<u8> = codes(inverse).iter().map(|q| (q + 8.0) as u8).collect();
    for i in 0..16 {
        block[2 + i] = codes[i] | codes[i + 16] << 4;
    }
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
            match dtype {
                DType::Q4_0 => {
                    let blocks = out.chunks_exact_mut(dtype.block_bytes());
                    row.chunks_exact(32).zip(blocks).for_each(|(x, out)| encode_q4_0(x, out));
                }
                _ => quantize_row(dtype, &row, out),
            }
        }
        (weight.dtype, weight.data) = (dtype, TensorBytes::owned(data));
    }
    (program, matrices.len())
}

fn exact(program: &Program, tokens: &[u32]) -> f64 {
    perplexity(program, tokens, WeightMode::Float32, KvDType::F32)
}

/// Perplexity here over that of the f32 path.
fn ratio(
    label: &str,
    (program, weights, kv): (&Program, WeightMode, KvDType),
    tokens: &[u32],
    exact: f64,
) -> f64 {
    let got = perplexity(program, tokens, weights, kv);
    println!("{label:32} {exact:9.4} {got:9.4} {:+8.3} %", 100.0 * (got / exact - 1.0));
    got / exact
}

#[test]
fn every_encoding_keeps_the_perplexity_of_the_demo_model() {
    let model = load(SMOLLM2).unwrap();
    let tokens = prose(&model);
    println!("{:32} {:>9} {:>9} {:>8}", "weights, KV", "f32", "here", "change");
    let as_floats = exact(&model.program, &tokens);
    for dtype in DType::ALL {
        let (program, num) = encoded_as(&model.program, dtype);
        // F16 holds the file's products of a scale and a code to 0.01 %, BF16 to 0.4 %.
        let is_float = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        let exact = if is_float { as_floats } else { exact(&program, &tokens) };
        let label = format!("{dtype:?} ({num} matrices), BF16");
        let here = (&program, WeightMode::Native, KvDType::BF16);
        let ratio = ratio(&label, here, &tokens, exact);
        assert!((ratio - 1.0).abs() <= TOLERANCE, "{label}: {ratio} times that of f32");
    }
}

#[test]
fn every_kv_encoding_keeps_the_perplexity_of_the_demo_model() {
    let model = load(SMOLLM2).unwrap();
    let tokens = prose(&model);
    let exact = exact(&model.program, &tokens);
    for kv in [KvDType::BF16, KvDType::F16, KvDType::Int8] {
        let label = format!("f32 weights, {kv:?}");
        let here = (&model.program, WeightMode::Float32, kv);
        let ratio = ratio(&label, here, &tokens, exact);
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
        let tokens = &tokens[..WINDOW];
        let exact = exact(&model.program, tokens);
        for kv in [KvDType::BF16, KvDType::Int8] {
            let label = format!("{} as stored, {kv:?}", &file[..10]);
            let ratio = ratio(&label, (&model.program, WeightMode::Native, kv), tokens, exact);
            assert!((0.9..1.15).contains(&ratio), "{label}: {ratio} times that of f32");
        }
    }
}
