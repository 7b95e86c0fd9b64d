//! Weights laid out for the kernels: panels of 16 rows, interleaved so that one vector holds the
//! same columns of all 16.
//!
//! Every instruction set reads the same layout. Quantized formats keep their bits (unsigned codes,
//! scales as stored); decoding a packed row gives exactly what decoding the file's row gives.

mod decode;
mod pack;

use tenon_backend::DType;

pub use decode::decode_row;
pub use pack::pack_panel;

/// Rows of a panel: the f32 lanes of a 512-bit vector.
pub const PANEL_ROWS: usize = 16;
/// Columns that share an activation scale.
pub const BLOCK: usize = 32;

/// Where the parts of a stripe lie, in bytes from its start. A stripe is a few blocks of 32 columns
/// for the 16 rows, whole cache lines long; a panel of a quantized format is a row of stripes, so
/// that a kernel reads memory from end to end.
///
/// With `b` counting the stripe's blocks, `r` the row in the panel and all parts `[b]`-major:
/// - codes: 4-bit formats and the low bits of 5- and 6-bit ones `[b][4][r][4]` bytes, columns
///   `4i..4i + 4` in the low nibbles and `16 + 4i..` in the high ones; 8-bit `[b][8][r][4]`.
/// - high: 5-bit `[b][r][4]` bytes, bit `j` of byte `c` belongs to column `4j + c`; 6-bit
///   `[b][2][r][4]` bytes, bits `2j..2j + 2` of byte `c` of half `h` to column `16h + 4j + c`.
/// - scales: `[b][r]` f16; K formats `[b][r]` u8 (6-bit: `[b][2][r]` i8, one per 16 columns).
/// - mins: as scales, where the format has them.
/// - supers, K formats: `[r]` f16 for the scales, then (not 6-bit) `[r]` f16 for the mins.
#[derive(Debug, Clone, Copy)]
pub struct Stripe {
    /// Blocks of 32 columns; 0 for float formats, which have no stripes.
    pub blocks: usize,
    /// High bits.
    pub high: usize,
    /// Scales.
    pub scales: usize,
    /// Minimums.
    pub mins: usize,
    /// Scales of scales.
    pub supers: usize,
    /// Size, a multiple of 64.
    pub bytes: usize,
}

impl Stripe {
    /// Of an encoding.
    pub const fn new(dtype: DType) -> Stripe {
        // Blocks, and bytes per block of codes, high bits, scales and mins; bytes of supers.
        let [blocks, codes, high, scales, mins, supers] = match dtype {
            DType::F32 | DType::F16 | DType::BF16 => [0; 6],
            DType::Q4_0 => [2, 256, 0, 32, 0, 0],
            DType::Q4_1 => [2, 256, 0, 32, 32, 0],
            DType::Q5_0 => [2, 256, 64, 32, 0, 0],
            DType::Q5_1 => [2, 256, 64, 32, 32, 0],
            DType::Q8_0 => [2, 512, 0, 32, 0, 0],
            DType::Q4K => [8, 256, 0, 16, 16, 64],
            DType::Q5K => [8, 256, 64, 16, 16, 64],
            DType::Q6K => [8, 256, 128, 32, 0, 32],
        };
        let high_at = blocks * codes;
        let scales_at = high_at + blocks * high;
        let mins_at = scales_at + blocks * scales;
        let supers_at = mins_at + blocks * mins;
        let bytes: usize = supers_at + supers;
        let bytes = bytes.next_multiple_of(64);
        Stripe { blocks, high: high_at, scales: scales_at, mins: mins_at, supers: supers_at, bytes }
    }

    /// Of an encoding given as the number of its variant, as kernels are generic over it.
    pub const fn of(f: u8) -> Stripe {
        let mut i = 0;
        while DType::ALL[i] as u8 != f {
            i += 1;
        }
        Stripe::new(DType::ALL[i])
    }
}

/// How a matrix's panels are laid out: stripes for quantized formats; for floats F32 and F16
/// `[column][row]`, BF16 `[column / 2][row][2]`.
#[derive(Debug, Clone, Copy)]
pub struct PanelLayout {
    /// How the codes are encoded.
    pub dtype: DType,
    /// Columns.
    pub cols: usize,
    /// Size of a panel, a multiple of 64.
    pub bytes: usize,
}

impl PanelLayout {
    /// Of `cols` columns, whole blocks of `dtype`.
    pub fn new(dtype: DType, cols: usize) -> Self {
        let bytes = match dtype {
            DType::F32 => cols * PANEL_ROWS * 4,
            DType::F16 => (cols * PANEL_ROWS * 2).next_multiple_of(64),
            DType::BF16 => cols.div_ceil(2) * PANEL_ROWS * 4,
            _ => {
                let stripe = Stripe::new(dtype);
                (cols / BLOCK).div_ceil(stripe.blocks) * stripe.bytes
            }
        };
        PanelLayout { dtype, cols, bytes }
    }

    /// Bytes of a matrix of `rows` rows; `None` on overflow.
    pub fn matrix_bytes(&self, rows: usize) -> Option<usize> {
        rows.div_ceil(PANEL_ROWS).checked_mul(self.bytes)
    }
}

/// Whether activations are quantized for weights of this encoding.
pub fn is_quantized(dtype: DType) -> bool {
    !matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use tenon_backend::quant::{dequantize_row, quantize_row};
    use tenon_backend::{DType, Tensor, TensorBytes};

    use super::{PANEL_ROWS, PanelLayout, decode_row, pack_panel};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn packed_rows_decode_exactly(
            rows in 1usize..40, blocks in 1usize..4, seed in any::<u32>(),
        ) {
            for dtype in DType::ALL {
                let odd = if dtype.block_len() == 1 { seed as usize % 7 } else { 0 };
                let cols = blocks * dtype.block_len() + odd;
                let values = crate::testing::noise(rows * cols, seed, 2.0);
                let mut bytes = vec![0; rows * dtype.row_bytes(cols)];
                quantize_row(dtype, &values, &mut bytes);
                let name = "w".to_owned();
                let data = TensorBytes::owned(bytes.clone());
                let tensor = Tensor { name, dtype, rows, cols, data };
                for target in [dtype, DType::F32] {
                    let layout = PanelLayout::new(target, cols);
                    let mut panels = vec![0xaau8; layout.matrix_bytes(rows).unwrap()];
                    for (p, panel) in panels.chunks_exact_mut(layout.bytes).enumerate() {
                        pack_panel(&tensor, p, &layout, panel);
                    }
                    let (mut packed, mut plain) = (vec![0.0; cols], vec![0.0; cols]);
                    for (r, row) in bytes.chunks_exact(dtype.row_bytes(cols)).enumerate() {
                        let panel = &panels[r / PANEL_ROWS * layout.bytes..][..layout.bytes];
                        decode_row(&layout, panel, r % PANEL_ROWS, &mut packed);
                        dequantize_row(dtype, row, &mut plain);
                        prop_assert_eq!(&packed, &plain, "{:?} as {:?}, row {}", dtype, target, r);
                    }
                }
            }
        }
    }
}
