//! Elementary functions that the compiler can vectorize, with the same result for every
//! instruction set, and reductions in a fixed order.

/// Lanes of every reduction, whatever the width of the machine's vectors.
pub const LANES: usize = 16;

/// Adding and subtracting this rounds a small float to an integer, ties to even.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// `e^x` to 2 ulp; 0 below -87 and infinite above 88; 1 exactly at 0.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // x = n ln 2 + r, |r| <= ln 2 / 2; Cephes' polynomial for e^r.
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4;
    p = r.mul_add(p, 1.398_199_9e-3);
    p = r.mul_add(p, 8.333_452e-3);
    p = r.mul_add(p, 4.166_579_6e-2);
    p = r.mul_add(p, 1.666_666_5e-1);
    p = r.mul_add(p, 0.5);
    p = (r * r).mul_add(p, r) + 1.0;
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let power = f32::from_bits((exponent.wrapping_add(127) as u32) << 23);
    let y = p * power;
    let y = if x < -87.0 { 0.0 } else { y };
    if x > 88.0 { f32::INFINITY } else { y }
}

/// `tanh(x)`, to 2e-7 absolute.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// `x * sigmoid(x)`
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// GELU, tanh approximation: `x * sigmoid(2u)` with `u` the argument of its tanh.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let u = SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x);
    x / (1.0 + exp(-2.0 * u))
}

/// Nearest integer, ties to even; `|x|` below 2^22.
#[inline(always)]
pub fn round_to_int(x: f32) -> i32 {
    ((x + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32)
}

/// Sum of squares.
#[inline(always)]
pub fn sum_of_squares(x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = x.mul_add(*x, *lane);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = x.mul_add(*x, *lane);
    }
    fold(lanes, |a, b| a + b)
}

/// Hadamard transform of each run of as many elements as the largest power of two that divides
/// the length, normalized: it is its own inverse, keeps dot products, and spreads outliers.
#[inline(always)]
pub fn hadamard(x: &mut [f32]) {
    let len = 1usize << x.len().trailing_zeros().min(usize::BITS - 1);
    let norm = 1.0 / (len as f32).sqrt();
    for run in x.chunks_exact_mut(len) {
        let mut half = 1;
        while half < len {
            for pair in run.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        run.iter_mut().for_each(|x| *x *= norm);
    }
}

/// Combines 16 lanes pairwise.
#[inline(always)]
pub fn fold(mut lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = f(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::{exp, gelu_tanh, hadamard, round_to_int, tanh};

    #[test]
    fn hadamard_is_its_own_inverse_and_spreads() {
        for len in [1usize, 7, 8, 24, 64, 80, 128] {
            let x: Vec<f32> = (0..len).map(|i| ((i * 37) % 11) as f32 - 5.0).collect();
            let mut y = x.clone();
            hadamard(&mut y);
            let norm = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>();
            assert!((norm(&x) - norm(&y)).abs() <= 1e-4 * norm(&x), "{len}");
            hadamard(&mut y);
            assert!(x.iter().zip(&y).all(|(x, y)| (x - y).abs() < 1e-4), "{len}");
        }
        let mut spike = [0.0; 64];
        spike[5] = 8.0;
        hadamard(&mut spike);
        assert!(spike.iter().all(|x| x.abs() == 1.0));
    }

    #[test]
    fn exp_is_accurate_and_exact_where_it_must_be() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        for i in -86_000..88_000 {
            let x = i as f32 / 1000.0;
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) - expected).abs() / expected;
            assert!(error < 2.5e-7, "exp({x}) is off by {error}");
        }
    }

    #[test]
    fn tanh_and_gelu_agree_with_the_standard_library() {
        for i in -20_000..20_000 {
            let x = i as f32 / 1000.0;
            assert!((tanh(x) - x.tanh()).abs() < 3e-7, "tanh({x})");
            let u = 0.797_884_6 * (x + 0.044_715 * x * x * x);
            assert!((gelu_tanh(x) - 0.5 * x * (1.0 + u.tanh())).abs() < 2e-6, "gelu({x})");
        }
    }

    #[test]
    fn rounding_is_to_even() {
        for (x, expected) in [(0.5, 0), (1.5, 2), (-2.5, -2), (126.6, 127), (-127.0, -127)] {
            assert_eq!(round_to_int(x), expected);
        }
    }
}
