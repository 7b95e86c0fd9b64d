//! Passes over a vocabulary that the compiler turns into vector code: lanes, no branches.
//!
//! What a pass computes does not depend on the width of the machine's vectors: sums have the same
//! lanes everywhere, and a product and a sum are never contracted into one.

const LANES: usize = 16;

/// Runs a [`pass!`] as it was compiled for the widest vectors that this machine has.
#[inline(always)]
pub fn vectorized<P: pulp::NullaryFnOnce>(pass: P) -> P::Output {
    pulp::Arch::new().dispatch(pass)
}

/// Names a function and its arguments as a pass for [`vectorized`]. The function must be
/// `#[inline(always)]`: what is inlined here is compiled for each kind of vectors. (A closure would
/// be compiled once, for the smallest.)
macro_rules! pass {
    ($name:ident<$life:lifetime $(, $f:ident: $bound:path)?>
        { $($field:ident: $ty:ty),+ } -> $out:ty, $run:expr) => {
        struct $name<$life $(, $f)?> { $($field: $ty),+ }
        impl<$life $(, $f: $bound)?> pulp::NullaryFnOnce for $name<$life $(, $f)?> {
            type Output = $out;
            #[inline(always)]
            fn call(self) -> $out {
                let $name { $($field),+ } = self;
                $run
            }
        }
    };
}
pub(super) use pass;

pass!(Max<'a> { logits: &'a [f32] } -> Option<f32>, max_pass(logits));
pass!(FirstIndex<'a> { logits: &'a [f32], value: f32 } -> u32, first_index_pass(logits, value));
pass!(
    Count<'a, F: Fn(f32) -> bool> { logits: &'a [f32], is_counted: F } -> u32,
    count_pass(logits, is_counted)
);
pass!(Sum<'a, F: Fn(f32) -> f32> { logits: &'a [f32], weight: F } -> f64, sum_pass(logits, weight));

/// The largest logit; none when one is NaN or +inf. Minus infinity stands for a masked token.
pub fn max(logits: &[f32]) -> Option<f32> {
    vectorized(Max { logits })
}

#[inline(always)]
fn max_pass(logits: &[f32]) -> Option<f32> {
    let mut best = [f32::NEG_INFINITY; LANES];
    let mut num_nan = [0_u32; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let x = chunk[lane];
            best[lane] = if x > best[lane] { x } else { best[lane] };
            num_nan[lane] |= u32::from(x.is_nan());
        }
    }
    for (lane, &x) in rest.iter().enumerate() {
        best[lane] = if x > best[lane] { x } else { best[lane] };
        num_nan[lane] |= u32::from(x.is_nan());
    }
    let max = best.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let is_usable = num_nan.iter().all(|&n| n == 0) && max < f32::INFINITY;
    is_usable.then_some(max)
}

/// The lowest index of `value`, which occurs.
pub fn first_index_of(logits: &[f32], value: f32) -> u32 {
    vectorized(FirstIndex { logits, value })
}

#[inline(always)]
fn first_index_pass(logits: &[f32], value: f32) -> u32 {
    for (at, chunk) in logits.chunks(8 * LANES).enumerate() {
        // Without an early exit, so that it is vector code.
        if chunk.iter().fold(false, |hit, &x| hit | (x == value)) {
            let within = chunk.iter().position(|&x| x == value).expect("the chunk was hit");
            return (at * 8 * LANES + within) as u32;
        }
    }
    unreachable!("the maximum occurs in the logits")
}

/// e^x for x <= 0, to about 2 units in the last place; 0 below -87.
///
/// Range reduction by powers of two and a polynomial (Cody and Waite 1980; coefficients of Cephes
/// `expf`), without branches and library calls.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // Adding it leaves the nearest integer in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
    let clamped = if x > -87.0 { x } else { -87.0 };
    let shifted = clamped * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let mut p = 1.987_569_2e-4_f32;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_6e-1;
    p = p * r + 0.5;
    p = p * r * r + r + 1.0;
    // n is in -126..=0: the scale is a normal float.
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    let scale = f32::from_bits(exponent << 23);
    if x > -87.0 { p * scale } else { 0.0 }
}

/// Sum of `weight` over the logits: lanes in f32 within a chunk, chunks in f64. The order is fixed,
/// so the sum is the same in every batch.
pub fn sum(logits: &[f32], weight: impl Fn(f32) -> f32) -> f64 {
    vectorized(Sum { logits, weight })
}

/// How many logits `is_counted`.
pub fn count(logits: &[f32], is_counted: impl Fn(f32) -> bool) -> u32 {
    vectorized(Count { logits, is_counted })
}

#[inline(always)]
fn count_pass(logits: &[f32], is_counted: impl Fn(f32) -> bool) -> u32 {
    let mut lanes = [0_u32; LANES];
    let (parts, rest) = logits.as_chunks::<LANES>();
    for part in parts {
        for lane in 0..LANES {
            // A check for overflow would keep this from being vector code.
            lanes[lane] = lanes[lane].wrapping_add(u32::from(is_counted(part[lane])));
        }
    }
    for (lane, &x) in rest.iter().enumerate() {
        lanes[lane] += u32::from(is_counted(x));
    }
    lanes.iter().sum()
}

#[inline(always)]
fn sum_pass(logits: &[f32], weight: impl Fn(f32) -> f32) -> f64 {
    let mut total = 0.0_f64;
    for chunk in logits.chunks(64 * LANES) {
        let mut lanes = [0.0_f32; LANES];
        let (parts, rest) = chunk.as_chunks::<LANES>();
        for part in parts {
            for lane in 0..LANES {
                lanes[lane] += weight(part[lane]);
            }
        }
        for (lane, &x) in rest.iter().enumerate() {
            lanes[lane] += weight(x);
        }
        total += lanes.iter().map(|&x| f64::from(x)).sum::<f64>();
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_finds_every_position_and_every_bad_value() {
        for len in [1, 15, 16, 17, 300] {
            for at in 0..len {
                let mut logits = vec![-1.0_f32; len];
                logits[at] = 2.0;
                assert_eq!(max(&logits), Some(2.0));
                assert_eq!(first_index_of(&logits, 2.0), at as u32);
                for bad in [f32::NAN, f32::INFINITY, -f32::NAN] {
                    logits[at] = bad;
                    assert_eq!(max(&logits), None, "{bad} at {at} of {len}");
                }
                logits[at] = f32::NEG_INFINITY;
                assert_eq!(max(&logits), Some(if len == 1 { f32::NEG_INFINITY } else { -1.0 }));
            }
        }
        assert_eq!(first_index_of(&[0.0, 3.0, 3.0], 3.0), 1);
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut worst = 0.0_f64;
        for i in 0..870_000 {
            let x = -(i as f32) * 1e-4;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
        }
        assert!(worst < 2.4e-7, "{worst}");
        assert_eq!((exp(0.0), exp(-88.0), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
    }

    #[test]
    fn sums_count_every_element_once() {
        for len in [0, 1, 15, 16, 1023, 1024, 1025, 5000] {
            let logits: Vec<f32> = (0..len).map(|i| i as f32).collect();
            assert_eq!(sum(&logits, |x| x), (0..len).map(|i| i as f64).sum::<f64>());
            assert_eq!(count(&logits, |x| x >= 3.0), (len as u32).saturating_sub(3));
        }
    }
}
