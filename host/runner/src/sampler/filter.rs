//! min-p, top-k and top-p: which tokens stay in the draw.
//!
//! By partial selection: the vocabulary is scanned a few times in vector code and only a few
//! candidates are sorted. A nucleus that is most of a flat distribution is not listed at all: bands
//! of logits say where it ends. Of equal logits the lower id is the better one.
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
        (scaled >= self.min_scaled) & (scaled > f32::NEG_INFINITY)
    }

    /// Band of logits, 0 the best.
    #[inline(always)]
    fn band(&self, logit: f32) -> i32 {
        // Clamped before the conversion: minus infinity is in the last band.
        let depth = -self.scaled(logit) * BANDS_PER_UNIT;
        let last = (NUM_BANDS - 1) as f32;
        (if depth < last { depth } else { last }) as i32
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
/// Depths below the maximum (in logs) at which a nucleus is looked for.
const DEPTHS: [f32; 3] = [2.5, 5.0, 10.0];
/// If there are more tokens above such a depth, they are not listed but cut by a bound.
const MAX_LISTED: usize = 4096;
/// Bounds are found along bands of logits, each this narrow (in logs) ...
const BANDS_PER_UNIT: f32 = 64.0;
/// ... down to e^-16 of the most likely token; the last band holds the rest.
const NUM_BANDS: usize = 1024;
/// Up to this many candidates are simply sorted.
const MAX_SORTED: usize = 256;

/// Scratch: the tokens that stay in the draw.
#[derive(Debug)]
pub struct Candidates {
    list: Vec<Candidate>,
}

/// Where a nucleus is too large to list: the worst token that is in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    logit: f32,
    token: u32,
}

impl Bound {
    /// Whether a token is within it.
    #[inline(always)]
    pub fn keeps(&self, logit: f32, token: u32) -> bool {
        logit > self.logit || logit == self.logit && token <= self.token
    }
}

impl Candidates {
    /// For logits that are `vocab_size` wide.
    pub fn new(vocab_size: usize) -> Self {
        Candidates { list: Vec::with_capacity(vocab_size) }
    }

    /// What the last selection left; best first after [`Candidates::take_top_k`].
    pub fn list(&self) -> &[Candidate] {
        &self.list
    }

    /// The `k` best of those that `admits` lets pass, best first.
    pub fn take_top_k(&mut self, logits: &[f32], k: usize, admits: impl Fn(f32) -> bool) {
        self.list.clear();
        if k > 0 {
            math::vectorized(CollectTopK { list: &mut self.list, logits, k, admits });
            keep_best(&mut self.list, k);
            self.list.sort_unstable_by(best_first);
        }
    }

    /// The smallest set of best tokens whose weights reach `top_p` of all: in the list, in no
    /// particular order, or, if it is large, all tokens within a bound.
    pub fn take_nucleus(&mut self, logits: &[f32], shape: &Shape, top_p: f32) -> Option<Bound> {
        let (all, above) = math::vectorized(Measure { logits, shape });
        let target = f64::from(top_p) * all;
        let is_enough = |(_, above): &(f32, Above)| above.mass >= target;
        let depth = DEPTHS.into_iter().zip(above).find(is_enough);
        // A copy, and no branches, so that it is vector code.
        let shape = *shape;
        self.list.clear();
        if let Some((depth, Above { num_tokens, .. })) = depth
            && num_tokens <= MAX_LISTED
        {
            let is_wanted = move |x: f32| (shape.scaled(x) >= -depth) & shape.admits(x);
            math::vectorized(Collect { list: &mut self.list, logits, is_wanted });
            self.cut_to(target, 0.0, &shape);
            return None;
        }
        let (band, mass_above) = band_that_reaches(target, logits, &shape);
        let is_wanted = move |x: f32| (shape.band(x) == band) & shape.admits(x);
        math::vectorized(Collect { list: &mut self.list, logits, is_wanted });
        self.cut_to(target, mass_above, &shape);
        let worst = self.list.iter().copied().max_by(best_first);
        // All of them, where rounding left the last band empty.
        let none = Candidate { logit: f32::NEG_INFINITY, token: u32::MAX };
        let Candidate { logit, token } = worst.unwrap_or(none);
        Some(Bound { logit, token })
    }

    /// Shortens a list that is sorted to the smallest set of best ones that reaches `top_p` of its
    /// weight.
    pub fn cut_to_mass(&mut self, shape: &Shape, top_p: f32) {
        let weights = || self.list.iter().map(|c| f64::from(shape.weight(c.logit)));
        let target = f64::from(top_p) * weights().sum::<f64>();
        let mut mass = 0.0;
        let is_reached = |weight: f64| {
            mass += weight;
            mass >= target
        };
        if let Some(last) = weights().position(is_reached) {
            self.list.truncate(last + 1);
        }
    }

    /// Keeps the smallest set of best candidates that weighs `target` together with `mass`, which
    /// others have. By halves, as quickselect does: linear in the list.
    fn cut_to(&mut self, target: f64, mut mass: f64, shape: &Shape) {
        let weigh = |part: &[Candidate]| -> f64 {
            part.iter().map(|c| f64::from(shape.weight(c.logit))).sum()
        };
        let (mut low, mut high) = (0, self.list.len());
        while high - low > MAX_SORTED {
            let half = (high - low) / 2;
            self.list[low..high].select_nth_unstable_by(half, best_first);
            let head = weigh(&self.list[low..low + half]);
            if mass + head >= target {
                high = low + half;
            } else {
                mass += head;
                low += half;
            }
        }
        self.list.truncate(high);
        self.list[low..].sort_unstable_by(best_first);
        for at in low..high {
            mass += f64::from(shape.weight(self.list[at].logit));
            if mass >= target {
                self.list.truncate(at + 1);
                return;
            }
        }
    }
}

math::pass!(
    CollectTopK<'a, F: Fn(f32) -> bool> {
        list: &'a mut Vec<Candidate>, logits: &'a [f32], k: usize, admits: F
    } -> (),
    collect_top_k(list, logits, k, admits)
);
math::pass!(
    Collect<'a, F: Fn(f32) -> bool> {
        list: &'a mut Vec<Candidate>, logits: &'a [f32], is_wanted: F
    } -> (),
    collect(list, logits, is_wanted)
);
math::pass!(
    Measure<'a> { logits: &'a [f32], shape: &'a Shape } -> (f64, [Above; DEPTHS.len()]),
    measure(logits, shape)
);
math::pass!(
    FillBands<'a> {
        bands: &'a mut [[f64; 2]; NUM_BANDS], logits: &'a [f32], shape: &'a Shape
    } -> (),
    fill_bands(bands, logits, shape)
);

/// Collects the `k` best, and some more.
#[inline(always)]
fn collect_top_k(
    list: &mut Vec<Candidate>,
    logits: &[f32],
    k: usize,
    admits: impl Fn(f32) -> bool,
) {
    let limit = (2 * k).max(MIN_COLLECT) + RUN;
    // Once k are known: the k-th. A later equal logit loses to it, its id is higher.
    let mut bar = f32::NEG_INFINITY;
    for (at, run) in logits.chunks(RUN).enumerate() {
        if !run.iter().fold(false, |hit, &x| hit | (x > bar)) {
            continue;
        }
        for (within, &logit) in run.iter().enumerate() {
            if logit > bar && admits(logit) {
                list.push(Candidate { logit, token: (at * RUN + within) as u32 });
            }
        }
        if list.len() > limit - RUN {
            keep_best(list, k);
            bar = list.iter().map(|c| c.logit).fold(f32::INFINITY, f32::min);
        }
    }
}

fn keep_best(list: &mut Vec<Candidate>, k: usize) {
    if list.len() > k {
        list.select_nth_unstable_by(k - 1, best_first);
        list.truncate(k);
    }
}

/// Appends what `is_wanted`.
#[inline(always)]
fn collect(list: &mut Vec<Candidate>, logits: &[f32], is_wanted: impl Fn(f32) -> bool) {
    for (at, run) in logits.chunks(RUN).enumerate() {
        if !run.iter().fold(false, |hit, &x| hit | is_wanted(x)) {
            continue;
        }
        for (within, &logit) in run.iter().enumerate() {
            if is_wanted(logit) {
                list.push(Candidate { logit, token: (at * RUN + within) as u32 });
            }
        }
    }
}

/// What lies above a depth.
#[derive(Debug, Clone, Copy, Default)]
struct Above {
    mass: f64,
    num_tokens: usize,
}

/// What all weigh, and what lies above each of [`DEPTHS`]. Lanes within a chunk, chunks in f64, as
/// [`math::sum`].
#[inline(always)]
fn measure(logits: &[f32], shape: &Shape) -> (f64, [Above; DEPTHS.len()]) {
    const LANES: usize = 16;
    let mut all = 0.0;
    let mut above = [Above::default(); DEPTHS.len()];
    for chunk in logits.chunks(64 * LANES) {
        let (parts, rest) = chunk.as_chunks::<LANES>();
        // What is missing weighs nothing.
        let mut last = [f32::NEG_INFINITY; LANES];
        last[..rest.len()].copy_from_slice(rest);
        let mut total = [0.0_f32; LANES];
        let (mut masses, mut counts) =
            ([[0.0_f32; LANES]; DEPTHS.len()], [[0.0_f32; LANES]; DEPTHS.len()]);
        for part in parts.iter().chain([&last]) {
            for lane in 0..LANES {
                let weight = shape.weight(part[lane]);
                let scaled = shape.scaled(part[lane]);
                total[lane] += weight;
                // Products, since a sum under a condition becomes a store under a mask.
                let is_in = DEPTHS.map(|depth| if scaled >= -depth { 1.0 } else { 0.0 });
                masses[0][lane] += weight * is_in[0];
                masses[1][lane] += weight * is_in[1];
                masses[2][lane] += weight * is_in[2];
                counts[0][lane] += is_in[0];
                counts[1][lane] += is_in[1];
                counts[2][lane] += is_in[2];
            }
        }
        let sum = |lanes: &[f32; LANES]| lanes.iter().map(|&x| f64::from(x)).sum::<f64>();
        all += sum(&total);
        for (above, (masses, counts)) in above.iter_mut().zip(masses.iter().zip(&counts)) {
            above.mass += sum(masses);
            above.num_tokens += sum(counts) as usize;
        }
    }
    (all, above)
}

/// The band in which the best tokens reach `target`, and what those in better bands weigh.
fn band_that_reaches(target: f64, logits: &[f32], shape: &Shape) -> (i32, f64) {
    // Two sums per band: neighbours often fall into the same one, and would wait for each other.
    let mut bands = [[0.0_f64; 2]; NUM_BANDS];
    math::vectorized(FillBands { bands: &mut bands, logits, shape });
    let mut mass = 0.0;
    for (band, [even, odd]) in (0..).zip(bands) {
        if mass + even + odd >= target || band == NUM_BANDS as i32 - 1 {
            return (band, mass);
        }
        mass += even + odd;
    }
    unreachable!("the last band ends the search")
}

#[inline(always)]
fn fill_bands(bands: &mut [[f64; 2]; NUM_BANDS], logits: &[f32], shape: &Shape) {
    let (mut weights, mut at) = ([0.0_f64; RUN], [0_i32; RUN]);
    let (runs, rest) = logits.as_chunks::<RUN>();
    // What is missing weighs nothing.
    let mut last = [f32::NEG_INFINITY; RUN];
    last[..rest.len()].copy_from_slice(rest);
    for run in runs.iter().chain([&last]) {
        for within in 0..RUN {
            weights[within] = f64::from(shape.weight(run[within]));
            at[within] = shape.band(run[within]);
        }
        for within in 0..RUN {
            bands[at[within] as usize % NUM_BANDS][within % 2] += weights[within];
        }
    }
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
        // More of them, close together, than are ever listed; with ties.
        let flat =
            (any::<u64>(), 4000_u64..9000, 1_u64..5000).prop_map(|(seed, len, num_levels)| {
                let level = |i: u64| (i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
                (0..len).map(|i| -((level(i) % num_levels) as f32) * 1e-3).collect()
            });
        prop_oneof![3 => prop::collection::vec(any_logit, 1..3000), 1 => flat]
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
            let mut candidates = Candidates::new(logits.len());
            candidates.take_top_k(&logits, top_k, |x| shape.admits(x));
            prop_assert!(candidates.list().is_sorted_by(|a, b| best_first(a, b).is_le()));
            prop_assert_eq!(tokens(&candidates), oracle(&logits, &shape, top_k, 1.0));
            candidates.cut_to_mass(&shape, top_p);
            assert_same_cut(tokens(&candidates), oracle(&logits, &shape, top_k, top_p))?;
            let got = match candidates.take_nucleus(&logits, &shape, top_p) {
                None => tokens(&candidates),
                Some(bound) => {
                    let all = (0..).zip(&logits).map(|(token, &logit)| Candidate { logit, token });
                    let is_in = |c: &Candidate| {
                        shape.admits(c.logit) && bound.keeps(c.logit, c.token)
                    };
                    let mut list: Vec<_> = all.filter(is_in).collect();
                    list.sort_by(best_first);
                    list.iter().map(|c| c.token).collect()
                }
            };
            assert_same_cut(got, oracle(&logits, &shape, usize::MAX, top_p))?;
        }
    }

    #[test]
    fn a_flat_nucleus_is_a_bound() {
        let logits: Vec<f32> = (0..9000).map(|i| (i % 7) as f32 * 0.1).collect();
        let shape = Shape::new(0.6, &params(1.0, 0.0));
        let mut candidates = Candidates::new(logits.len());
        let bound = candidates.take_nucleus(&logits, &shape, 0.9).unwrap();
        let kept = (0..).zip(&logits).filter(|(t, x)| bound.keeps(**x, *t)).map(|(t, _)| t);
        let mut want = oracle(&logits, &shape, usize::MAX, 0.9);
        want.sort();
        assert_eq!(kept.collect::<Vec<u32>>(), want);
        assert!(candidates.take_nucleus(&logits, &shape, 0.1).is_some(), "all are near the best");
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
