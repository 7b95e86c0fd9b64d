//! Charts as inline SVG: a histogram and a line over time. Nothing here takes text from outside,
//! but labels are escaped all the same.

use std::fmt::Write as _;

use super::html::escape;
use super::summary::{percentile, sorted};

/// Bars of a histogram.
const NUM_BARS: usize = 40;

/// Most points of a line; more seconds are averaged.
const MAX_POINTS: usize = 600;

/// The drawing and its margins: left and bottom hold the labels of the axes.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 56.0;
const BOTTOM: f64 = 28.0;
const TOP: f64 = 10.0;

/// How often each value occurs, up to the 99th percentile (the last bar holds the rest).
pub fn histogram(values: &[f64], unit: &str) -> String {
    let values = sorted(values.to_vec());
    let (Some(&low), Some(high)) = (values.first(), percentile(&values, 0.99)) else {
        return "<p>no values</p>".to_owned();
    };
    let width = ((high - low) / NUM_BARS as f64).max(1e-9);
    let mut counts = [0usize; NUM_BARS];
    for value in &values {
        counts[(((value - low) / width) as usize).min(NUM_BARS - 1)] += 1;
    }
    let most = counts.iter().copied().max().unwrap_or(1).max(1) as f64;
    let bar = (WIDTH - LEFT) / NUM_BARS as f64;
    let mut marks = String::new();
    for (i, &count) in counts.iter().enumerate() {
        let height = count as f64 / most * (HEIGHT - TOP - BOTTOM);
        let (x, y) = (LEFT + i as f64 * bar, HEIGHT - BOTTOM - height);
        let from = low + i as f64 * width;
        // Writing to a string cannot fail.
        let _ = write!(
            marks,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\">\
             <title>{count} from {from:.2} {}</title></rect>",
            bar - 1.0,
            escape(unit)
        );
    }
    frame(&marks, (low, high), most, unit)
}

/// Values of successive seconds.
pub fn line(per_second: &[f64], unit: &str) -> String {
    if per_second.is_empty() {
        return "<p>no values</p>".to_owned();
    }
    let group = per_second.len().div_ceil(MAX_POINTS);
    let points: Vec<f64> = per_second
        .chunks(group)
        .map(|seconds| seconds.iter().sum::<f64>() / seconds.len() as f64)
        .collect();
    let most = points.iter().copied().fold(1e-9, f64::max);
    let step = (WIDTH - LEFT) / points.len() as f64;
    let mut path = String::new();
    for (i, value) in points.iter().enumerate() {
        let y = HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM);
        let (x, next) = (LEFT + i as f64 * step, LEFT + (i + 1) as f64 * step);
        let letter = if i == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{letter}{x:.1} {y:.1}L{next:.1} {y:.1}");
    }
    frame(&format!("<path d=\"{path}\"/>"), (0.0, per_second.len() as f64), most, unit)
}

/// The marks with both axes.
fn frame(marks: &str, (low, high): (f64, f64), most: f64, unit: &str) -> String {
    let base = HEIGHT - BOTTOM;
    let unit = escape(unit);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\
         <line x1=\"{LEFT}\" y1=\"{base}\" x2=\"{WIDTH}\" y2=\"{base}\"/>\
         <line x1=\"{LEFT}\" y1=\"{TOP}\" x2=\"{LEFT}\" y2=\"{base}\"/>{marks}\
         <text x=\"{LEFT}\" y=\"{y}\">{low:.1}</text>\
         <text x=\"{WIDTH}\" y=\"{y}\" text-anchor=\"end\">{high:.1} {unit}</text>\
         <text x=\"{x}\" y=\"{top}\" text-anchor=\"end\">{most:.0}</text></svg>",
        y = HEIGHT - 10.0,
        x = LEFT - 6.0,
        top = TOP + 10.0,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_a_bar() {
        let values: Vec<f64> = (0..1000).map(|i| f64::from(i * i % 313)).collect();
        let svg = histogram(&values, "ms");
        let counts = svg.split("<title>").skip(1).map(|t| t.split(' ').next().unwrap_or(""));
        assert_eq!(counts.filter_map(|c| c.parse::<usize>().ok()).sum::<usize>(), 1000);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn odd_input_is_drawn() {
        for values in [vec![], vec![0.0], vec![5.0; 9], vec![1.0; 5000]] {
            for svg in [histogram(&values, "ms"), line(&values, "s")] {
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
                assert!(svg.len() < 40_000, "{}", svg.len());
            }
        }
        assert!(line(&[1.0], "<s>").contains("&lt;s&gt;"));
    }
}
