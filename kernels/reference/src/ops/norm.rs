//! Root-mean-square norms (Zhang and Sennrich 2019).

/// Normalizes each run of `weight.len()` elements in place: `x / sqrt(mean(x²) + eps) * weight`.
pub fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    for run in x.chunks_exact_mut(weight.len()) {
        let mean = run.iter().map(|x| x * x).sum::<f32>() / run.len() as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        run.iter_mut().zip(weight).for_each(|(x, w)| *x = *x * scale * w);
    }
}
