//! Products with a weight matrix, each row decoded once.

use tenon_backend::{Tensor, quant::dequantize_row};

/// `[num_rows, weight.rows]` from `input` `[num_rows, weight.cols]`: `input · weightᵀ + bias`.
pub fn linear(input: &[f32], weight: &Tensor, bias: Option<&[f32]>, num_rows: usize) -> Vec<f32> {
    let bytes = weight.dtype.row_bytes(weight.cols);
    let mut out = vec![0.0; num_rows * weight.rows];
    let mut row = vec![0.0; weight.cols];
    for (r, encoded) in weight.data.chunks_exact(bytes).enumerate() {
        dequantize_row(weight.dtype, encoded, &mut row);
        for (t, x) in input.chunks_exact(weight.cols).enumerate() {
            let dot: f32 = x.iter().zip(&row).map(|(a, b)| a * b).sum();
            out[t * weight.rows + r] = dot + bias.map_or(0.0, |b| b[r]);
        }
    }
    out
}
