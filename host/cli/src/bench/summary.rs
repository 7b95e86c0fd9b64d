//! Percentiles and kin of measured values.

use serde_json::{Map, Value, json};

/// The value below which a share `p` in [0, 1] of `sorted` lies, between two neighbours linearly
/// interpolated (as numpy does by default); None of nothing.
pub fn percentile(sorted: &[f64], p: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = p.clamp(0.0, 1.0) * last as f64;
    let low = position.floor() as usize;
    let (a, b) = (sorted[low], sorted[(low + 1).min(last)]);
    Some(a + (b - a) * (position - low as f64))
}

/// Values in order, NaN (which nothing here yields) last.
pub fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// The middle one; None of nothing.
pub fn median(values: Vec<f64>) -> Option<f64> {
    percentile(&sorted(values), 0.5)
}

/// Adds `mean_NAME_ms` and kin to a result; all 0 if there are no values.
pub fn add_latency(result: &mut Map<String, Value>, name: &str, values_ms: Vec<f64>) {
    let values = sorted(values_ms);
    let num = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / num;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / num;
    let at = |p| percentile(&values, p).unwrap_or(0.0);
    for (key, value) in
        [("mean", mean), ("median", at(0.5)), ("std", variance.sqrt()), ("p99", at(0.99))]
    {
        result.insert(format!("{key}_{name}_ms"), json!(value));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn percentiles_are_numpys() {
        assert_eq!(percentile(&[], 0.5), None);
        assert_eq!(percentile(&[7.0], 0.99), Some(7.0));
        let values = sorted(vec![4.0, 1.0, 3.0, 2.0]);
        for (p, expected) in [(0.0, 1.0), (0.25, 1.75), (0.5, 2.5), (1.0, 4.0), (2.0, 4.0)] {
            assert_eq!(percentile(&values, p), Some(expected), "{p}");
        }
        // numpy.percentile(range(1, 101), 99)
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert!((percentile(&hundred, 0.99).unwrap() - 99.01).abs() < 1e-9);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
    }

    #[test]
    fn latencies_are_summed_up() {
        let mut result = Map::new();
        add_latency(&mut result, "ttft", vec![3.0, 1.0]);
        assert_eq!(result["mean_ttft_ms"], 2.0);
        assert_eq!(result["median_ttft_ms"], 2.0);
        assert_eq!(result["std_ttft_ms"], 1.0);
        assert_eq!(result["p99_ttft_ms"], 2.98);
        add_latency(&mut result, "itl", Vec::new());
        assert_eq!(result["p99_itl_ms"], 0.0);
    }
}
