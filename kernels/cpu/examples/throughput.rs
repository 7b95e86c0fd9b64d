//! Decode and prefill speed of a model of SmolLM2-135M's shapes with random weights (Q4_1, Q8_0
//! embedding): `throughput [threads] [repeats]`. Prints the best of the repeats and the median.
//!
//! `FORMATS=all` measures other encodings, too, `ISA=avx2` other kernels, `KV=int8` another cache;
//! `PHASES` is a list of `prefill`, batch sizes, and `CONTEXTxBATCH` for long contexts.
#![allow(clippy::unwrap_used)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Instant;

use support::{PlannedStep, Shape, Span, decoder, ids};
use tenon_backend::{
    Activation, Backend, DType, KvDType, KvGroup, PrepareOptions, RopeStyle, WeightMode,
};
use tenon_cpu::{CpuBackend, Isa};

const BLOCK: usize = 16;
/// Blocks of a sequence: 8448 tokens.
const BLOCKS: usize = 528;
/// Steps that are timed at a long context.
const LONG_STEPS: usize = 48;

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<usize>().unwrap());
    let threads = args.next().unwrap_or(2);
    let repeats = args.next().unwrap_or(5);
    let formats: &[(&str, DType, WeightMode)] = &[
        ("Q4_1", DType::Q4_1, WeightMode::Native),
        ("Q4_0", DType::Q4_0, WeightMode::Native),
        ("Q8_0", DType::Q8_0, WeightMode::Native),
        ("Q5_0", DType::Q5_0, WeightMode::Native),
        ("BF16", DType::BF16, WeightMode::Native),
        ("F16", DType::F16, WeightMode::Native),
        ("Q4_1 as F32", DType::Q4_1, WeightMode::Float32),
    ];
    let wanted = std::env::var("FORMATS").unwrap_or("Q4_1".into());
    for (name, linear, weights) in formats {
        if wanted == "all" || wanted == *name {
            measure(name, *linear, *weights, threads, repeats);
        }
    }
}

fn measure(name: &str, linear: DType, weights: WeightMode, threads: usize, repeats: usize) {
    let shape = Shape {
        layers: 30,
        hidden: 576,
        mlp: 1536,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        vocab: 49_152,
        linear,
        embedding: if linear.block_len() == 1 { linear } else { DType::Q8_0 },
        tied: true,
        bias: false,
        head_norm: false,
        window: None,
        full_every: 0,
        softcap: None,
        style: RopeStyle::Interleaved,
        act: Activation::Silu,
    };
    let options = PrepareOptions {
        weights,
        kv_dtype: kv_dtype(),
        hybrid_kv: false,
        num_blocks: 32 * BLOCKS,
        block_size: BLOCK,
        max_step_tokens: 512,
        max_logits_rows: 64,
        num_threads: threads,
    };
    let program = decoder(&shape, 1);
    let start = Instant::now();
    let mut cpu = CpuBackend::prepare_with(program, &options, isa()).unwrap();
    println!("{name}: {}, prepared in {:.3} s", cpu.describe(), start.elapsed().as_secs_f64());
    let tokens = ids(512, shape.vocab, 1);
    let phases =
        std::env::var("PHASES").unwrap_or("prefill,1,192x8,192x16,192x32,4096x1,4096x8".into());
    for phase in phases.split(',') {
        if let Some((context, batch)) = phase.split_once('x') {
            let (context, batch) = (context.parse().unwrap(), batch.parse().unwrap());
            long_context(&mut cpu, context, batch, &tokens);
            continue;
        }
        let Ok(batch) = phase.parse::<usize>() else {
            let prefill = (0..repeats).map(|_| step(&mut cpu, &[(0, &tokens)], 0)).collect();
            report("prefill 512", prefill, 512.0);
            continue;
        };
        // 128 tokens of context before, 64 steps.
        let steps = (0..repeats).map(|_| {
            let mut times: Vec<f64> = (0..64)
                .map(|i| {
                    let spans: Vec<_> = (0..batch).map(|_| (128 + i, &tokens[i..i + 1])).collect();
                    step(&mut cpu, &spans, 0)
                })
                .collect();
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        report(&format!("decode batch {batch}"), steps.collect(), batch as f64);
    }
}

// Fills the caches of `batch` sequences (memory that nobody wrote is read from one page), then
// decodes at their ends.
fn long_context(cpu: &mut CpuBackend, context: usize, batch: usize, tokens: &[u32]) {
    for start in (0..context).step_by(tokens.len()) {
        let tokens = &tokens[..tokens.len().min(context - start)];
        for s in 0..batch {
            step(cpu, &[(start, tokens)], s);
        }
    }
    let spans: Vec<_> = (0..batch).map(|_| (context, &tokens[..1])).collect();
    let steps = (0..LONG_STEPS).map(|_| step(cpu, &spans, 0)).collect();
    report(&format!("decode batch {batch} at {context}"), steps, batch as f64);
}

fn kv_dtype() -> KvDType {
    match std::env::var("KV").as_deref() {
        Ok("f32") => KvDType::F32,
        Ok("f16") => KvDType::F16,
        Ok("int8") => KvDType::Int8,
        _ => KvDType::BF16,
    }
}

fn isa() -> Isa {
    let wanted = std::env::var("ISA").unwrap_or_default();
    Isa::ALL.into_iter().find(|isa| isa.name() == wanted).unwrap_or(Isa::detect())
}

fn report(what: &str, mut seconds: Vec<f64>, tokens: f64) {
    seconds.sort_by(f64::total_cmp);
    let (best, median) = (tokens / seconds[0], tokens / seconds[seconds.len() / 2]);
    println!("  {what}: {best:.1} tok/s best, {median:.1} median");
}

// Seconds of one step of (tokens computed before, tokens) for each sequence from `first` on.
fn step(cpu: &mut CpuBackend, spans: &[(usize, &[u32])], first: usize) -> f64 {
    let blocks = |s: usize| (s * BLOCKS) as u32..((s + 1) * BLOCKS) as u32;
    let blocks: Vec<Vec<u32>> = (0..spans.len()).map(|s| blocks(first + s).collect()).collect();
    let pairs = spans.iter().zip(&blocks);
    let spans: Vec<_> =
        pairs.map(|(&(computed, tokens), blocks)| Span { tokens, computed, blocks }).collect();
    PlannedStep::new(&spans, BLOCK, &[KvGroup { window: None }]).last_rows().time(cpu)
}
