//! Time per row of the sampler, by feature and vocabulary. `cargo bench -p tenon-runner`.
//!
//! Logits imitate a language model's: mostly low, a few high. The best of several rounds counts.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use tenon_engine::{Admitted, Dry, RequestId, Row, SamplingParams, StepPlan};
use tenon_runner::batch::LogitsUse;
use tenon_runner::rows::Rows;
use tenon_runner::sampler::Sampler;

const NUM_ROUNDS: usize = 30;

fn logits(vocab_size: usize, spread: f32) -> Vec<f32> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u64 << 24) as f32
    };
    (0..vocab_size).map(|_| spread * (0..6).map(|_| uniform() - 0.5).sum::<f32>()).collect()
}

/// Microseconds for one row.
fn time(params: &SamplingParams, prompt: &[u32], logits: &[f32]) -> f64 {
    let mut rows = Rows::new(1, 1, 0, vec![0]);
    let mut plan = StepPlan::default();
    plan.admitted.push(Admitted {
        row: Row(0),
        request: RequestId(0),
        index: 0,
        prompt: prompt.into(),
        output: Vec::new(),
        params: Arc::new(params.clone()),
        max_len: prompt.len() + 1000,
    });
    rows.apply(&plan);
    let mut sampler = Sampler::new(logits.len());
    let mut results = Vec::new();
    let mut best = f64::INFINITY;
    for _ in 0..NUM_ROUNDS {
        let mut logits = logits.to_vec();
        results.clear();
        let start = Instant::now();
        sampler.sample(&mut rows, &[LogitsUse::Next(Row(0))], &mut logits, &mut results).unwrap();
        best = best.min(start.elapsed().as_secs_f64() * 1e6);
        black_box(&results);
    }
    best
}

fn main() {
    let base = SamplingParams { temperature: 0.8, seed: Some(1), ..Default::default() };
    let cases = [
        ("greedy", SamplingParams { temperature: 0.0, ..base.clone() }),
        ("temperature", base.clone()),
        ("min-p 0.05", SamplingParams { min_p: 0.05, ..base.clone() }),
        ("top-k 40", SamplingParams { top_k: 40, ..base.clone() }),
        ("top-p 0.95", SamplingParams { top_p: 0.95, ..base.clone() }),
        ("top-k 40, top-p 0.95", SamplingParams { top_k: 40, top_p: 0.95, ..base.clone() }),
        (
            "penalties, greedy",
            SamplingParams {
                temperature: 0.0,
                repetition_penalty: 1.1,
                presence_penalty: 0.5,
                ..base.clone()
            },
        ),
        (
            "logprobs 5, greedy",
            SamplingParams { temperature: 0.0, logprobs: Some(5), ..base.clone() },
        ),
        ("logprobs 0, temperature", SamplingParams { logprobs: Some(0), ..base.clone() }),
    ];
    let prompt: Vec<u32> = (0..200).collect();
    for (what, spread) in [("peaked", 10.0), ("flat", 1.5)] {
        for (name, params) in &cases {
            let times = [49_152, 151_936].map(|size| time(params, &prompt, &logits(size, spread)));
            println!("{what:>6}  {name:<22} {:>8.1} us {:>8.1} us", times[0], times[1]);
        }
    }
    // The longest context there is, of nothing but repetitions.
    let dry =
        Dry { multiplier: 0.8, base: 1.75, allowed_length: 2, range: 0, breakers: [9].into() };
    let params = SamplingParams { temperature: 0.0, dry: Some(dry), ..base };
    for len in [1_000, 8_000, 32_000] {
        let best = time(&params, &vec![3; len], &logits(49_152, 10.0));
        println!("   dry, greedy, {len:>5} tokens {best:>14.1} us");
    }
}
