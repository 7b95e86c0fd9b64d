//! Sampling by Gumbel-max: the token with the largest `scaled logit + noise` is a draw from the
//! softmax (Gumbel 1954; Maddison et al. 2014).
//!
//! The noise is a function of (seed, position, token id) and nothing else: no generator state, the
//! same draw in every batch, and candidates outside of a filter need no noise at all. Over a whole
//! vocabulary almost no noise is computed: an upper bound from the bits of the hash rules out
//! nearly every token.

use super::filter::{Candidate, Shape};
use super::math;

/// Selects the noise of one position of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct NoiseKey {
    low: u32,
    high: u32,
}

impl NoiseKey {
    /// Mixes both numbers fully (SplitMix64, Steele et al. 2014).
    pub fn new(seed: u64, position: u64) -> Self {
        let mixed = split_mix(split_mix(seed) ^ position);
        NoiseKey { low: mixed as u32, high: (mixed >> 32) as u32 }
    }

    /// 31 uniform bits for `token`: MurmurHash3's finalizer, keyed before and between.
    #[inline(always)]
    fn bits(self, token: u32) -> u32 {
        let mut x = token.wrapping_mul(0x9e37_79b9) ^ self.low;
        x ^= x >> 16;
        x = x.wrapping_mul(0x85eb_ca6b);
        x = x.wrapping_add(self.high);
        x ^= x >> 13;
        x = x.wrapping_mul(0xc2b2_ae35);
        x ^= x >> 16;
        x >> 1
    }

    /// Standard Gumbel noise: `-ln(-ln(1 - e))` with `e` uniform in (0, 1).
    fn noise(self, token: u32) -> f64 {
        let e = (f64::from(self.bits(token)) + 0.5) / f64::from(1_u32 << 31);
        -(-(-e).ln_1p()).ln()
    }

    /// At least the noise: `-ln(e)`, with the logarithm read off the float's bits, which is never
    /// above the true one and at most 0.06 below.
    #[inline(always)]
    fn noise_bound(self, token: u32) -> f32 {
        // Signed: unsigned conversion is no vector instruction before AVX-512.
        let e = (self.bits(token) as i32) as f32 + 0.5;
        let log2 = e.to_bits() as i32 as f32 * (1.0 / 8_388_608.0) - 127.0;
        (31.0 - log2) * std::f32::consts::LN_2
    }
}

/// Covers the rounding of the bound and of `scaled`.
const SLACK: f32 = 1e-3;
/// Above all noise: `-ln(2^-32)` and a little.
const MAX_NOISE: f32 = 22.5;
const RUN: usize = 64;

/// Draws from all tokens that `is_kept`, which depends on logit and id; the likeliest is.
pub fn choose(
    logits: &[f32],
    shape: &Shape,
    key: NoiseKey,
    is_kept: impl Fn(f32, u32) -> bool,
) -> u32 {
    math::vectorized(Choose { logits, shape, key, is_kept })
}

math::pass!(
    Choose<'a, F: Fn(f32, u32) -> bool> {
        logits: &'a [f32], shape: &'a Shape, key: NoiseKey, is_kept: F
    } -> u32,
    choose_pass(logits, shape, key, is_kept)
);

#[inline(always)]
fn choose_pass(
    logits: &[f32],
    shape: &Shape,
    key: NoiseKey,
    is_kept: impl Fn(f32, u32) -> bool,
) -> u32 {
    let mut best = Best::default();
    // [RUN] added without a check for overflow, which would keep the loop from being vector code.
    let within: [u32; RUN] = std::array::from_fn(|i| i as u32);
    for (at, run) in logits.chunks(RUN).enumerate() {
        let first = (at * RUN) as u32;
        // What the noise would have to add up to; -inf until there is a best.
        let bar = best.score as f32 - SLACK;
        let may_win = |&x: &f32| shape.scaled(x) + MAX_NOISE >= bar;
        if !run.iter().fold(false, |hit, x| hit | may_win(x)) {
            continue;
        }
        let mut is_hit = false;
        for (&logit, within) in run.iter().zip(within) {
            let bound = shape.scaled(logit) + key.noise_bound(first.wrapping_add(within));
            is_hit |= bound >= bar;
        }
        if is_hit {
            for (token, &logit) in (first..).zip(run) {
                if shape.admits(logit) && is_kept(logit, token) {
                    best.offer(token, shape.scaled(logit), key);
                }
            }
        }
    }
    best.token.expect("the most likely token is always admitted")
}

/// Draws from the candidates, which are admitted and not empty.
pub fn choose_of(candidates: &[Candidate], shape: &Shape, key: NoiseKey) -> u32 {
    let mut best = Best::default();
    for candidate in candidates {
        best.offer(candidate.token, shape.scaled(candidate.logit), key);
    }
    best.token.expect("the most likely token is always a candidate")
}

struct Best {
    score: f64,
    token: Option<u32>,
}

impl Default for Best {
    fn default() -> Self {
        Best { score: f64::NEG_INFINITY, token: None }
    }
}

impl Best {
    fn offer(&mut self, token: u32, scaled: f32, key: NoiseKey) {
        if scaled + key.noise_bound(token) < self.score as f32 - SLACK {
            return;
        }
        let score = f64::from(scaled) + key.noise(token);
        // Equal scores: the lowest id, in whatever order they come.
        let wins = match self.token {
            None => true,
            Some(held) => score > self.score || (score == self.score && token < held),
        };
        if wins {
            *self = Best { score, token: Some(token) };
        }
    }
}

fn split_mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tenon_engine::SamplingParams;

    #[test]
    fn the_bound_is_above_the_noise_and_near() {
        for seed in 0..20 {
            let key = NoiseKey::new(seed, seed * 7);
            for token in 0..20_000 {
                let (noise, bound) = (key.noise(token), f64::from(key.noise_bound(token)));
                assert!(bound + f64::from(SLACK) >= noise, "{bound} {noise}");
                // Far out the two agree: the bound is only good if it is tight there.
                assert!(noise < 3.0 || bound - noise < 0.12, "{bound} {noise}");
            }
        }
    }

    #[test]
    fn the_noise_has_the_moments_of_a_gumbel() {
        let (mut sum, mut squares, n) = (0.0, 0.0, 400_000);
        for i in 0..n {
            let noise = NoiseKey::new(3, i / 1000).noise((i % 1000) as u32);
            sum += noise;
            squares += noise * noise;
        }
        let mean = sum / n as f64;
        let variance = squares / n as f64 - mean * mean;
        // Euler's constant and pi^2/6; six standard errors.
        assert!((mean - 0.577_216).abs() < 6.0 * 1.2825 / (n as f64).sqrt(), "{mean}");
        assert!((variance - 1.644_934).abs() < 0.03, "{variance}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        // Ruling tokens out by the bound changes no draw.
        #[test]
        fn both_ways_draw_the_same(
            logits in prop::collection::vec(-12.0_f32..4.0, 1..2000),
            temperature in 0.1_f32..3.0,
            min_p in prop_oneof![Just(0.0_f32), 0.001_f32..0.5],
            seed in any::<u64>(),
            position in 0_u64..100_000,
        ) {
            let max = math::max(&logits).unwrap_or(0.0);
            let params = SamplingParams { temperature, min_p, ..Default::default() };
            let shape = Shape::new(max, &params);
            let mut all: Vec<Candidate> = (0..)
                .zip(&logits)
                .map(|(token, &logit)| Candidate { logit, token })
                .filter(|c| shape.admits(c.logit))
                .collect();
            let key = NoiseKey::new(seed, position);
            let drawn = choose(&logits, &shape, key, |_, _| true);
            prop_assert_eq!(drawn, choose_of(&all, &shape, key));
            all.reverse();
            prop_assert_eq!(drawn, choose_of(&all, &shape, key));
        }
    }
}
