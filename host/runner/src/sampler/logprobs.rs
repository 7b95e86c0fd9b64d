//! Log-probabilities: natural logarithms of the softmax over the model's own logits, before
//! anything adjusts them.

use tenon_engine::{Logprob, TokenLogprobs};

use super::filter::{Candidate, Candidates};
use super::math;

/// What is taken from the logits before they are adjusted.
#[derive(Debug)]
pub struct RawLogprobs {
    // ln(sum of exp(logit))
    log_sum: f32,
    top: Vec<Logprob>,
}

impl RawLogprobs {
    /// Normalizes and takes the `k` most likely tokens. `max` is the largest logit.
    pub fn new(logits: &[f32], max: f32, k: usize, candidates: &mut Candidates) -> Self {
        // With every logit at -inf the row fails later on.
        let sum = math::sum(logits, |x| math::exp(x - max));
        let log_sum = (f64::from(max) + sum.ln()) as f32;
        candidates.take_top_k(logits, k, |_| true);
        let logprob = |(rank, c): (u32, &Candidate)| Logprob {
            token: c.token,
            logprob: c.logit - log_sum,
            rank,
        };
        RawLogprobs { log_sum, top: (1..).zip(candidates.list()).map(logprob).collect() }
    }

    /// Adds the chosen token; `raw` are the same logits again.
    pub fn finish(self, raw: &[f32], token: u32) -> TokenLogprobs {
        let known = self.top.iter().find(|t| t.token == token).copied();
        let chosen = known.unwrap_or_else(|| {
            let logit = raw[token as usize];
            Logprob { token, logprob: logit - self.log_sum, rank: rank(raw, token) }
        });
        TokenLogprobs { chosen, top: self.top }
    }
}

/// Better tokens, and equal ones with a lower id, come first.
fn rank(logits: &[f32], token: u32) -> u32 {
    let logit = logits[token as usize];
    let (head, tail) = logits.split_at(token as usize);
    1 + math::count(head, |x| x >= logit) + math::count(tail, |x| x > logit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_ranks() {
        let probabilities = [0.1_f32, 0.4, 0.1, 0.4];
        // Any offset: only differences count.
        let logits = probabilities.map(|p| p.ln() + 17.0);
        let mut candidates = Candidates::new(4);
        let max = logits[1];
        for (token, rank) in [(0_u32, 3), (1, 1), (2, 4), (3, 2)] {
            for k in [0, 2, 4, 9] {
                let raw = RawLogprobs::new(&logits, max, k, &mut candidates);
                let got = raw.finish(&logits, token);
                let want = probabilities[token as usize].ln();
                assert!((got.chosen.logprob - want).abs() < 1e-5);
                assert_eq!((got.chosen.token, got.chosen.rank), (token, rank), "k = {k}");
                let top: Vec<u32> = got.top.iter().map(|t| t.token).collect();
                assert_eq!(top, [1, 3, 0, 2][..k.min(4)]);
                assert!(got.top.iter().zip(1..).all(|(t, rank)| t.rank == rank));
            }
        }
    }
}
