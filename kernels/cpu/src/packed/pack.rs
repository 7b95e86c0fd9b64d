//! From rows as a file has them to a panel. Runs once per weight, at load, on all threads.

use tenon_backend::quant::{dequantize_row, k_scale_min};
use tenon_backend::{DType, Tensor};

use super::{BLOCK, PANEL_ROWS, PanelLayout, Stripe, is_quantized};

/// Packs rows `16 * index..` of `tensor` into `out`, which is `layout.bytes` long.
///
/// `layout` is of the tensor's own encoding or of F32. Rows beyond the last are zero.
pub fn pack_panel(tensor: &Tensor, index: usize, layout: &PanelLayout, out: &mut [u8]) {
    out.fill(0);
    let first = index * PANEL_ROWS;
    let row_bytes = tensor.dtype.row_bytes(tensor.cols);
    let rows = PANEL_ROWS.min(tensor.rows - first);
    for r in 0..rows {
        let row = &tensor.data[(first + r) * row_bytes..][..row_bytes];
        if layout.dtype != tensor.dtype {
            assert_eq!(layout.dtype, DType::F32, "weights are kept as stored or as F32");
            pack_decoded(tensor.dtype, row, r, out);
        } else if is_quantized(layout.dtype) {
            pack_quantized(layout, row, r, out);
        } else {
            pack_plain(layout.dtype, row, r, out);
        }
    }
}

fn pack_decoded(dtype: DType, row: &[u8], r: usize, out: &mut [u8]) {
    let mut values = [0.0f32; 256];
    let len = dtype.block_len();
    for (b, block) in row.chunks_exact(dtype.block_bytes()).enumerate() {
        dequantize_row(dtype, block, &mut values[..len]);
        for (i, x) in values[..len].iter().enumerate() {
            let at = ((b * len + i) * PANEL_ROWS + r) * 4;
            out[at..at + 4].copy_from_slice(&x.to_ne_bytes());
        }
    }
}

fn pack_plain(dtype: DType, row: &[u8], r: usize, out: &mut [u8]) {
    match dtype {
        DType::F32 => {
            for (c, x) in row.as_chunks::<4>().0.iter().enumerate() {
                put_word(out, c * PANEL_ROWS + r, u32::from_le_bytes(*x));
            }
        }
        DType::F16 => {
            for (c, x) in row.as_chunks::<2>().0.iter().enumerate() {
                put_half(out, c * PANEL_ROWS + r, *x);
            }
        }
        _ => {
            for (c, x) in row.as_chunks::<2>().0.iter().enumerate() {
                put_half(out, (c / 2 * PANEL_ROWS + r) * 2 + c % 2, *x);
            }
        }
    }
}

fn put_word(out: &mut [u8], index: usize, word: u32) {
    out[index * 4..index * 4 + 4].copy_from_slice(&word.to_ne_bytes());
}

fn put_half(out: &mut [u8], index: usize, half: [u8; 2]) {
    out[index * 2..index * 2 + 2].copy_from_slice(&u16::from_le_bytes(half).to_ne_bytes());
}

fn word(bytes: &[u8], index: usize) -> u32 {
    let at = index * 4;
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn half(bytes: &[u8], at: usize) -> [u8; 2] {
    [bytes[at], bytes[at + 1]]
}

fn pack_quantized(layout: &PanelLayout, row: &[u8], r: usize, out: &mut [u8]) {
    let dtype = layout.dtype;
    let stripe = Stripe::new(dtype);
    let blocks_per_stripe = stripe.blocks * BLOCK / dtype.block_len();
    for (i, block) in row.chunks_exact(dtype.block_bytes()).enumerate() {
        let out = &mut out[i / blocks_per_stripe * stripe.bytes..][..stripe.bytes];
        let b = i % blocks_per_stripe;
        match dtype {
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => {
                pack_q45(dtype, &stripe, b, block, r, out);
            }
            DType::Q8_0 => {
                for j in 0..8 {
                    let codes = word(&block[2..], j) ^ 0x8080_8080;
                    put_word(out, (b * 8 + j) * PANEL_ROWS + r, codes);
                }
                put_half(&mut out[stripe.scales..], b * PANEL_ROWS + r, half(block, 0));
            }
            DType::Q4K | DType::Q5K => pack_q45_k(dtype, &stripe, block, r, out),
            _ => pack_q6_k(&stripe, block, r, out),
        }
    }
}

// Sixteen nibble pairs, paired as the layout wants them, as four words.
fn put_nibbles(out: &mut [u8], b: usize, r: usize, words: [u32; 4]) {
    for (j, word) in words.into_iter().enumerate() {
        put_word(out, (b * 4 + j) * PANEL_ROWS + r, word);
    }
}

// One high bit per column of block `b`: byte c gets columns c, 4 + c, 8 + c, … in its bits.
fn put_fifth_bits(stripe: &Stripe, b: usize, r: usize, high: u32, out: &mut [u8]) {
    for c in 0..4 {
        let mut bits = high >> c & 0x1111_1111;
        bits = (bits | bits >> 3) & 0x0303_0303;
        bits = (bits | bits >> 6) & 0x000f_000f;
        bits |= bits >> 12;
        out[stripe.high + (b * PANEL_ROWS + r) * 4 + c] = bits as u8;
    }
}

fn pack_q45(dtype: DType, stripe: &Stripe, b: usize, block: &[u8], r: usize, out: &mut [u8]) {
    let has_min = matches!(dtype, DType::Q4_1 | DType::Q5_1);
    let nibbles = &block[block.len() - 16..];
    put_nibbles(out, b, r, [0, 1, 2, 3].map(|j| word(nibbles, j)));
    put_half(&mut out[stripe.scales..], b * PANEL_ROWS + r, half(block, 0));
    if has_min {
        put_half(&mut out[stripe.mins..], b * PANEL_ROWS + r, half(block, 2));
    }
    if matches!(dtype, DType::Q5_0 | DType::Q5_1) {
        let at = if has_min { 4 } else { 2 };
        let high = [block[at], block[at + 1], block[at + 2], block[at + 3]];
        put_fifth_bits(stripe, b, r, u32::from_le_bytes(high), out);
    }
}

fn pack_q45_k(dtype: DType, stripe: &Stripe, block: &[u8], r: usize, out: &mut [u8]) {
    put_half(&mut out[stripe.supers..], r, half(block, 0));
    put_half(&mut out[stripe.supers..], PANEL_ROWS + r, half(block, 2));
    let codes = &block[block.len() - 128..];
    for b in 0..stripe.blocks {
        let [scale, min] = k_scale_min(b, &block[4..16]);
        out[stripe.scales + b * PANEL_ROWS + r] = scale;
        out[stripe.mins + b * PANEL_ROWS + r] = min;
        let shift = 4 * (b % 2);
        let nibble = |i: usize| word(&codes[32 * (b / 2)..], i) >> shift & 0x0f0f_0f0f;
        put_nibbles(out, b, r, [0, 1, 2, 3].map(|i| nibble(i) | nibble(i + 4) << 4));
        if dtype == DType::Q5K {
            let bits = block[16..48].iter().enumerate();
            let high = bits.fold(0u32, |h, (i, q)| h | u32::from(q >> b & 1) << i);
            put_fifth_bits(stripe, b, r, high, out);
        }
    }
}

fn pack_q6_k(stripe: &Stripe, block: &[u8], r: usize, out: &mut [u8]) {
    put_half(&mut out[stripe.supers..], r, half(block, 208));
    for b in 0..stripe.blocks {
        let (side, k) = (b / 4, b % 4);
        let low = &block[64 * side + 32 * (k % 2)..];
        let nibble = |i: usize| word(low, i) >> (4 * (k / 2)) & 0x0f0f_0f0f;
        put_nibbles(out, b, r, [0, 1, 2, 3].map(|i| nibble(i) | nibble(i + 4) << 4));
        let high = &block[128 + 32 * side..];
        let pair = |i: usize| word(high, i) >> (2 * k) & 0x0303_0303;
        for h in 0..2 {
            let bits = (0..4).fold(0, |bits, i| bits | pair(4 * h + i) << (2 * i));
            put_word(&mut out[stripe.high..], (b * 2 + h) * PANEL_ROWS + r, bits);
            out[stripe.scales + (b * 2 + h) * PANEL_ROWS + r] = block[192 + 2 * b + h];
        }
    }
}
