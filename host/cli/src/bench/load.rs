//! The load on a server: threads that send one request after the other, at once or at the arrivals
//! of a Poisson process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::args::ServeBenchArgs;
use super::prompts::Rng;
use super::stream::{Target, Timing};

/// How all requests went.
pub struct Outcome {
    /// Those that were answered whole.
    pub timings: Vec<Timing>,
    /// Those that were not.
    pub num_failed: usize,
    /// Why one of those was not.
    pub error: Option<anyhow::Error>,
    /// From the first request to the last answer.
    pub duration_s: f64,
}

/// Sends all requests and waits for all answers.
pub fn run(args: &ServeBenchArgs, target: &Target) -> Outcome {
    let mut rng = Rng::new(args.seed);
    let vocab_size = args.vocab_size as u32;
    let shared = rng.tokens(args.shared_prefix_len, vocab_size);
    let own_len = args.input_len - args.shared_prefix_len;
    let prompts: Vec<Vec<u32>> = (0..args.num_prompts)
        .map(|_| [shared.as_slice(), &rng.tokens(own_len, vocab_size)].concat())
        .collect();
    let arrivals = args.request_rate.map(|rate| arrivals(&mut rng, rate, args.num_prompts));
    let next = AtomicUsize::new(0);
    let outcome = Mutex::new(Outcome {
        timings: Vec::with_capacity(args.num_prompts),
        num_failed: 0,
        error: None,
        duration_s: 0.0,
    });
    let origin = Instant::now();
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(prompt) = prompts.get(index) else { return };
            if let Some(arrivals) = &arrivals {
                let due = Duration::from_secs_f64(arrivals[index]);
                std::thread::sleep(due.saturating_sub(origin.elapsed()));
            }
            let result = target.complete(prompt, args.output_len, origin);
            let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
            match result {
                Ok(timing) => outcome.timings.push(timing),
                Err(error) => {
                    outcome.num_failed += 1;
                    outcome.error.get_or_insert(error);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..args.concurrency.min(args.num_prompts) {
            scope.spawn(work);
        }
    });
    let duration_s = origin.elapsed().as_secs_f64();
    let outcome = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
    Outcome { duration_s, ..outcome }
}

/// Seconds from the beginning; the first request is sent at once.
fn arrivals(rng: &mut Rng, rate: f64, num: usize) -> Vec<f64> {
    let mut at = 0.0;
    (0..num)
        .map(|_| {
            let this = at;
            at += rng.gap_s(rate);
            this
        })
        .collect()
}
