//! One row of a panel back to f32, with the same roundings as decoding the file's row. Embedding
//! look-ups use it.

use half::{bf16, f16};
use tenon_backend::DType;

use super::{BLOCK, PANEL_ROWS, PanelLayout, Stripe};

/// Decodes row `r` of `panel` into `out`, `layout.cols` long.
pub fn decode_row(layout: &PanelLayout, panel: &[u8], r: usize, out: &mut [f32]) {
    let half = |index: usize| [panel[index * 2], panel[index * 2 + 1]];
    match layout.dtype {
        DType::F32 => {
            for (c, x) in out.iter_mut().enumerate() {
                let at = (c * PANEL_ROWS + r) * 4;
                let bytes = [panel[at], panel[at + 1], panel[at + 2], panel[at + 3]];
                *x = f32::from_ne_bytes(bytes);
            }
        }
        DType::F16 => {
            for (c, x) in out.iter_mut().enumerate() {
                *x = f16::from_ne_bytes(half(c * PANEL_ROWS + r)).to_f32();
            }
        }
        DType::BF16 => {
            for (c, x) in out.iter_mut().enumerate() {
                let index = (c / 2 * PANEL_ROWS + r) * 2 + c % 2;
                *x = bf16::from_ne_bytes(half(index)).to_f32();
            }
        }
        _ => {
            let stripe = Stripe::new(layout.dtype);
            for (b, values) in out.chunks_exact_mut(BLOCK).enumerate() {
                let bytes = &panel[b / stripe.blocks * stripe.bytes..][..stripe.bytes];
                decode_block(layout.dtype, &stripe, bytes, r, b % stripe.blocks, values);
            }
        }
    }
}

fn decode_block(dtype: DType, stripe: &Stripe, bytes: &[u8], r: usize, b: usize, out: &mut [f32]) {
    let half = |part: usize, index: usize| {
        let at = part + (index * PANEL_ROWS + r) * 2;
        f16::from_ne_bytes([bytes[at], bytes[at + 1]]).to_f32()
    };
    let byte = |part: usize, index: usize| bytes[part + index * PANEL_ROWS + r];
    let scale = || half(stripe.scales, b);
    for (k, x) in out.iter_mut().enumerate() {
        let q = code(dtype, stripe, bytes, r, b, k);
        let signed = |zero: i32| (i32::from(q) - zero) as f32;
        *x = match dtype {
            DType::Q4_0 => scale() * signed(8),
            DType::Q5_0 => scale() * signed(16),
            DType::Q8_0 => scale() * signed(128),
            DType::Q4_1 | DType::Q5_1 => scale() * f32::from(q) + half(stripe.mins, b),
            DType::Q6K => {
                let scale = f32::from(byte(stripe.scales, 2 * b + k / 16) as i8);
                half(stripe.supers, 0) * scale * signed(32)
            }
            _ => {
                let scale = half(stripe.supers, 0) * f32::from(byte(stripe.scales, b));
                let min = half(stripe.supers, 1) * f32::from(byte(stripe.mins, b));
                scale * f32::from(q) - min
            }
        };
    }
}

// The unsigned code of column `k` of block `b` of a stripe.
fn code(dtype: DType, stripe: &Stripe, bytes: &[u8], r: usize, b: usize, k: usize) -> u8 {
    let (j, c) = (k / 4, k % 4);
    if dtype == DType::Q8_0 {
        return bytes[((b * 8 + j) * PANEL_ROWS + r) * 4 + c];
    }
    let low = bytes[((b * 4 + j % 4) * PANEL_ROWS + r) * 4 + c] >> (4 * (j / 4)) & 15;
    let high = match dtype {
        DType::Q5_0 | DType::Q5_1 | DType::Q5K => {
            bytes[stripe.high + (b * PANEL_ROWS + r) * 4 + c] >> j & 1
        }
        DType::Q6K => {
            bytes[stripe.high + ((b * 2 + j / 4) * PANEL_ROWS + r) * 4 + c] >> (2 * (j % 4)) & 3
        }
        _ => 0,
    };
    low | high << 4
}
