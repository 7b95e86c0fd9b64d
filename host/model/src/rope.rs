//! Rotary frequencies: the base, and the ways that models stretch them for long contexts.
//!
//! Everything is computed in f64 and rounded once.

use std::f64::consts::PI;

use tenon_backend::{RopeStyle, RopeTable};

use crate::config::RopeScaling;

/// Builds the table of one rotary embedding.
///
/// `dims` elements of each head are rotated (even); `factors` divides each frequency when the file
/// stores its own (`[dims / 2]`).
pub fn rope_table(
    style: RopeStyle,
    dims: usize,
    theta: f64,
    scaling: RopeScaling,
    factors: Option<&[f32]>,
) -> RopeTable {
    let mut inv_freq: Vec<f64> =
        (0..dims / 2).map(|i| theta.powf(-2.0 * i as f64 / dims as f64)).collect();
    let mut magnitude = 1.0;
    match scaling {
        RopeScaling::None => {}
        RopeScaling::Linear { factor } => inv_freq.iter_mut().for_each(|f| *f /= factor),
        RopeScaling::Llama3 { .. } => inv_freq.iter_mut().for_each(|f| *f = llama3(*f, scaling)),
        RopeScaling::Yarn { attention_factor, .. } => {
            magnitude = attention_factor;
            yarn(&mut inv_freq, dims, theta, scaling);
        }
    }
    if let Some(factors) = factors {
        assert_eq!(factors.len(), inv_freq.len(), "checked when the factors were read");
        inv_freq.iter_mut().zip(factors).for_each(|(f, &by)| *f /= f64::from(by));
    }
    RopeTable {
        style,
        inv_freq: inv_freq.into_iter().map(|f| f as f32).collect(),
        magnitude: magnitude as f32,
    }
}

fn llama3(freq: f64, scaling: RopeScaling) -> f64 {
    let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } =
        scaling
    else {
        return freq;
    };
    let wavelength = 2.0 * PI / freq;
    if wavelength < original_context / high_freq_factor {
        return freq;
    }
    if wavelength > original_context / low_freq_factor {
        return freq / factor;
    }
    let smooth =
        (original_context / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
    (1.0 - smooth) * freq / factor + smooth * freq
}

/// Dimensions that turn often are kept, those that turn rarely are stretched, a ramp between.
fn yarn(inv_freq: &mut [f64], dims: usize, theta: f64, scaling: RopeScaling) {
    let RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, .. } = scaling else {
        return;
    };
    // The dimension that makes `rotations` turns over the original context.
    let dim_of = |rotations: f64| {
        dims as f64 * (original_context / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln())
    };
    let low = dim_of(beta_fast).floor().max(0.0);
    let high = dim_of(beta_slow).ceil().min(dims as f64 - 1.0);
    let width = (high - low).max(0.001);
    for (i, freq) in inv_freq.iter_mut().enumerate() {
        let stretched = ((i as f64 - low) / width).clamp(0.0, 1.0);
        *freq = *freq / factor * stretched + *freq * (1.0 - stretched);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn freqs(scaling: RopeScaling) -> Vec<f32> {
        rope_table(RopeStyle::Half, 64, 10_000.0, scaling, None).inv_freq
    }

    #[test]
    fn plain_frequencies_fall_from_one() {
        let plain = freqs(RopeScaling::None);
        assert_eq!(plain.len(), 32);
        assert_eq!(plain[0], 1.0);
        assert!((plain[16] - 0.01).abs() < 1e-7);
    }

    #[test]
    fn linear_divides_every_frequency() {
        let plain = freqs(RopeScaling::None);
        let scaled = freqs(RopeScaling::Linear { factor: 8.0 });
        assert!(plain.iter().zip(&scaled).all(|(p, s)| (p / 8.0 - s).abs() <= f32::EPSILON * p));
    }

    #[test]
    fn llama3_keeps_high_and_stretches_low_frequencies() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192.0,
        };
        let table = |s| rope_table(RopeStyle::Half, 128, 500_000.0, s, None).inv_freq;
        let (plain, scaled) = (table(RopeScaling::None), table(scaling));
        assert_eq!(plain[0], scaled[0]);
        assert!((plain[63] / 8.0 - scaled[63]).abs() < 1e-12);
        assert!(scaled.windows(2).all(|w| w[0] > w[1]), "stays monotonic");
        // Pair 30: wavelength 2950 lies between 2048 and 8192.
        let smooth = (8192.0 / (2.0 * PI / f64::from(plain[30])) - 1.0) / 3.0;
        let expected = f64::from(plain[30]) * ((1.0 - smooth) / 8.0 + smooth);
        assert!((f64::from(scaled[30]) - expected).abs() < 1e-9);
    }

    #[test]
    fn yarn_ramps_between_kept_and_stretched() {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            original_context: 4096.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.1,
        };
        let (plain, scaled) = (freqs(RopeScaling::None), freqs(scaling));
        assert_eq!(plain[0], scaled[0]);
        assert!((plain[31] / 4.0 - scaled[31]).abs() < 1e-9);
        let ratios: Vec<f32> = plain.iter().zip(&scaled).map(|(p, s)| p / s).collect();
        assert!(ratios.windows(2).all(|w| w[0] <= w[1] + 1e-5), "{ratios:?}");
    }

    #[test]
    fn stored_factors_divide() {
        let factors: Vec<f32> = (0..32).map(|i| 1.0 + i as f32).collect();
        let table =
            rope_table(RopeStyle::Half, 64, 10_000.0, RopeScaling::None, Some(&factors)).inv_freq;
        let plain = freqs(RopeScaling::None);
        assert!((table[31] - plain[31] / 32.0).abs() < 1e-12);
    }
}
