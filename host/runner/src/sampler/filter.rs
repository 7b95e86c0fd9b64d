//! min-p, top-k and top-p: which tokens stay in the draw.
//!
//! By partial selection: the vocabulary is scanned once or twice in vector code and only a few
//! candidates are sorted. Of equal logits the lower id is the better one.
//! Top-p: Holtzman et al. 2020; min-p: Nguyen et al. 2024.

use std::cmp::Ordering;

use tenon_engine::SamplingParams;

use super::math;

/// The distribution over a row's logits: `weight(x) = exp((x - max) / temperature)`, zero below
/// the min-p floor.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    max: f32,
    inverse_temperature: f32,
    // Scaled as `scaled` returns it.
    min_scaled: f32,
}

impl Shape {
    /// `max` is the largest logit, finite; the temperature is above zero.
    pub fn new(max: f32, params: &SamplingParams) -> Self {
        Shape {
            max,
            inverse_temperature: 1.0 / params.temperature,
            min_scaled: params.min_p.ln(), // -inf when off
        }
    }

    /// Log of the token's weight: at most 0, and 0 for the most likely one.
    #[inline(always)]
    pub fn scaled(&self, logit: f32) -> f32 {
        (logit - self.max) * self.inverse_temperature
    }

    /// Whether min-p lets it pass. The most likely token always passes.
    #[inline(always)]
    pub fn admits(&self, logit: f32) -> bool {
        let scaled = self.scaled(logit);
        scaled >= self.min_scaled && scaled > f32::NEG_INFINITY
    }

    /// Relative to the most likely token's, which is 1.
    #[inline(always)]
    pub fn weight(&self, logit: f32) -> f32 {
        if self.admits(logit) { math::exp(self.scaled(logit)) } else { 0.0 }
    }
}

/// A token that stays in the draw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Its logit.
    pub logit: f32,
    /// Its id.
    pub token: u32,
}

/// Best first, then lowest id. Logits are never NaN here.
fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    let by_logit = b.logit.partial_cmp(&a.logit).expect("NaN logits were refused");
    by_logit.then(a.token.cmp(&b.token))
}

/// Logits are scanned in runs of this many, of which most hold no candidate.
const RUN: usize = 64;
/// Top-k collects at least this many before it selects.
const MIN_COLLECT: usize = 1024;
/// How far below the maximum the nucleus is looked for first (in logs), then further, then all.
const DEPTHS: [f32; 4] = [5.0, 10.0, 20.0, f32::INFINITY];
/// Up to this many candidates are simply sorted.
const MAX_SORTED: usize = 256;
/// More are cut along bands of logits, each this narrow (in logs) ...
const BANDS_PER_UNIT: f32 = 64.0;
/// ... down to e^-16 of the most likely token; the last band holds the rest.
const NUM_BANDS: usize = 1024;

/// Scratch: the tokens that stay in the draw.
#[derive(Debug, Default)]
pub struct Candidates {
    list: Vec<Candidate>,
}

impl Candidates {
    /// What the last selection left; best first only after [`Candidates::take_top_k`].
    pub fn list(&self) -> &[Candidate] {
        &self.list
    }

    /// The `k` best of those that `admits` lets pass, best first.
    pub fn take_top_k(&mut self, logits: &[f32], k: usize, admits: impl Fn(f32) -> bool + Copy) {
        self.list.clear();
        if k == 0 {
            return;
        }
        let limit = (2 * k).max(MIN_COLLECT) + RUN;
        // Once k are known: the k-th. A later equal logit loses to it, its id is higher.
        let mut bar = f32::NEG_INFINITY;
        for (at, run) in logits.chunks(RUN).enumerate() {
            if !run.iter().fold(false, |hit, &x| hit | (x > bar)) {
                continue;
            }
            for (within, &logit) in run.iter().enumerate() {
                if logit > bar && admits(logit) {
                    self.list.push(Candidate { logit, token: (at * RUN + within) as u32 });
                }
            }
            if self.list.len() > limit - RUN {
                self.keep_best(k);
                bar = self.list.iter().map(|c| c.logit).fold(f32::INFINITY, f32::min);
            }
        }
        self.keep_best(k);
        self.list.sort_unstable_by(best_first);
    }

    /// The smallest set of best tokens whose weights reach `top_p` of all.
    pub fn take_nucleus(&mut self, logits: &[f32], shape: &Shape, top_p: f32) {
        let target = f64::from(top_p) * math::sum(logits, |x| shape.weight(x));
        for depth in DEPTHS {
            let mass = self.collect_above(logits, shape, -depth);
            if mass >= target {
                break;
            }
        }
        self.cut_to(target, shape);
    }

    /// Shortens the list to the smallest set of best ones that reaches `top_p` of its weight.
    pub fn cut_to_mass(&mut self, shape: &Shape, top_p: f32) {
        let all: f64 = self.list.iter().map(|c| f64::from(shape.weight(c.logit))).sum();
        self.cut_to(f64::from(top_p) * all, shape);
    }

    fn keep_best(&mut self, k: usize) {
        if self.list.len() > k {
            self.list.select_nth_unstable_by(k - 1, best_first);
            self.list.truncate(k);
        }
    }

    /// Collects what is admitted and scaled to at least `bound`; returns its weight.
    fn collect_above(&mut self, logits: &[f32], shape: &Shape, bound: f32) -> f64 {
        self.list.clear();
        let mut mass = 0.0;
        for (at, run) in logits.chunks(RUN).enumerate() {
            if !run.iter().fold(false, |hit, &x| hit | (shape.scaled(x) >= bound)) {
                continue;
            }
            for (within, &logit) in run.iter().enumerate() {
                if shape.scaled(logit) >= bound && shape.admits(logit) {
                    self.list.push(Candidate { logit, token: (at * RUN + within) as u32 });
                    mass += f64::from(shape.weight(logit));
                }
            }
        }
        mass
    }

    /// Keeps the smallest set of best candidates that weighs `target`, in no particular order:
    /// everything above one narrow band of logits, and of the band what it takes.
    fn cut_to(&mut self, target: f64, shape: &Shape) {
        let (mut mass, mut first) = (0.0, 0);
        if self.list.len() > MAX_SORTED {
            let mut bands = [0.0_f64; NUM_BANDS];
            for candidate in &self.list {
                bands[band_of(candidate, shape)] += f64::from(shape.weight(candidate.logit));
            }
            let mut band = 0;
            while band < NUM_BANDS - 1 && mass + bands[band] < target {
                mass += bands[band];
                band += 1;
            }
            self.list.retain(|c| band_of(c, shape) <= band);
            first = partition(&mut self.list, |c| band_of(c, shape) < band);
        }
        self.list[first..].sort_unstable_by(best_first);
        for at in first..self.list.len() {
            mass += f64::from(shape.weight(self.list[at].logit));
            if mass >= target {
                self.list.truncate(at + 1);
                return;
            }
        }
    }
}

fn band_of(candidate: &Candidate, shape: &Shape) -> usize {
    // The cast saturates: what is deeper falls into the last band.
    ((-shape.scaled(candidate.logit) * BANDS_PER_UNIT) as usize).min(NUM_BANDS - 1)
}

/// Moves those that `is_head` to the front and returns how many they are.
fn partition(list: &mut [Candidate], is_head: impl Fn(&Candidate) -> bool) -> usize {
    let mut count = 0;
    for at in 0..list.len() {
        if is_head(&list[at]) {
            list.swap(at, count);
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn logits() -> impl Strategy<Value = Vec<f32>> {
        let any_logit = prop_oneof![
            4 => -30.0_f32..10.0,
            // Ties are what goes wrong.
            4 => (-8_i32..3).prop_map(|x| x as f32),
            1 => Just(f32::NEG_INFINITY),
        ];
        prop::collection::vec(any_logit, 1..3000)
    }

    fn params(temperature: f32, min_p: f32) -> SamplingParams {
        SamplingParams { temperature, min_p, ..Default::default() }
    }

    /// The plain definition: sort everything.
    fn oracle(logits: &[f32], shape: &Shape, top_k: usize, top_p: f32) -> Vec<u32> {
        let mut all: Vec<Candidate> = (0..)
            .zip(logits)
            .map(|(token, &logit)| Candidate { logit, token })
            .filter(|c| shape.admits(c.logit))
            .collect();
        all.sort_by(best_first);
        all.truncate(top_k);
        let weight = |c: &Candidate| f64::from(shape.scaled(c.logit)).exp();
        let target = f64::from(top_p) * all.iter().map(weight).sum::<f64>();
        let mut mass = 0.0;
        let mut kept = Vec::new();
        for candidate in &all {
            kept.push(candidate.token);
            mass += weight(candidate);
            if top_p < 1.0 && mass >= target {
                break;
            }
        }
        kept
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]
        #[test]
        fn partial_selection_equals_sorting(
            logits in logits(),
            temperature in 0.2_f32..3.0,
            min_p in prop_oneof![Just(0.0_f32), 0.0001_f32..0.5],
            top_k in 1_usize..2500,
            top_p in 0.05_f32..0.999,
        ) {
            let Some(max) = math::max(&logits).filter(|m| *m > f32::NEG_INFINITY) else {
                return Ok(());
            };
            let shape = Shape::new(max, &params(temperature, min_p));
            let tokens = |c: &Candidates| {
                let mut list = c.list().to_vec();
                list.sort_by(best_first);
                list.iter().map(|c| c.token).collect::<Vec<_>>()
            };
            let mut candidates = Candidates::default();
            candidates.take_top_k(&logits, top_k, |x| shape.admits(x));
            prop_assert!(candidates.list().is_sorted_by(|a, b| best_first(a, b).is_le()));
            prop_assert_eq!(tokens(&candidates), oracle(&logits, &shape, top_k, 1.0));
            candidates.cut_to_mass(&shape, top_p);
            assert_same_cut(tokens(&candidates), oracle(&logits, &shape, top_k, top_p))?;
            candidates.take_nucleus(&logits, &shape, top_p);
            assert_same_cut(tokens(&candidates), oracle(&logits, &shape, usize::MAX, top_p))?;
        }
    }

    // The sums differ in their last bits, so the cut may fall one token earlier or later.
    fn assert_same_cut(got: Vec<u32>, want: Vec<u32>) -> Result<(), TestCaseError> {
        prop_assert!(got.len().abs_diff(want.len()) <= 1, "{} {}", got.len(), want.len());
        let common = got.len().min(want.len());
        prop_assert_eq!(&got[..common], &want[..common]);
        Ok(())
    }

    #[test]
    fn min_p_keeps_what_is_near_the_best() {
        // Probabilities 0.5, 0.3, 0.15, 0.05.
        let logits: Vec<f32> = [0.5_f32, 0.3, 0.15, 0.05].map(f32::ln).to_vec();
        let max = math::max(&logits).unwrap();
        let kept = |min_p| {
            let shape = Shape::new(max, &params(1.0, min_p));
            logits.iter().filter(|&&x| shape.admits(x)).count()
        };
        assert_eq!([0.0, 0.05, 0.2, 0.4, 0.7, 1.0].map(kept), [4, 4, 3, 2, 1, 1]);
    }
}
