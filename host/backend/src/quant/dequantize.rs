//! Exact decoding of every weight encoding to f32: the definition that fast kernels are tested
//! against, and what a float path uses at load.
//!
//! Byte layouts are those of GGUF's ggml blocks, little-endian. Products of a half-precision scale
//! and a small integer are exact in f32, so each element is rounded at most once.

use half::{bf16, f16};

use super::DType;

/// Decodes one row: `bytes` holds whole blocks of `dtype`, `out` one f32 per element.
///
/// Panics when the two lengths do not belong together: loaders check shapes before.
pub fn dequantize_row(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    let (len, size) = (dtype.block_len(), dtype.block_bytes());
    assert!(out.len().is_multiple_of(len), "a row of {} is not whole blocks of {len}", out.len());
    assert_eq!(bytes.len(), out.len() / len * size, "bytes of a {dtype:?} row");
    let decode = match dtype {
        DType::F32 => f32_element,
        DType::F16 => f16_element,
        DType::BF16 => bf16_element,
        DType::Q4_0 => q4_0,
        DType::Q4_1 => q4_1,
        DType::Q5_0 => q5_0,
        DType::Q5_1 => q5_1,
        DType::Q8_0 => q8_0,
        DType::Q4K => q4_k,
        DType::Q5K => q5_k,
        DType::Q6K => q6_k,
    };
    for (block, values) in bytes.chunks_exact(size).zip(out.chunks_exact_mut(len)) {
        decode(block, values);
    }
}

/// Scale and minimum (6 bits each) of sub-block `j` of 8, from the 12 bytes of Q4_K and Q5_K.
pub fn k_scale_min(j: usize, packed: &[u8]) -> [u8; 2] {
    if j < 4 {
        [packed[j] & 63, packed[j + 4] & 63]
    } else {
        let scale = (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4);
        let min = (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4);
        [scale, min]
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn f32_element(block: &[u8], out: &mut [f32]) {
    out[0] = f32::from_bits(u32_at(block, 0));
}

fn f16_element(block: &[u8], out: &mut [f32]) {
    out[0] = half_at(block, 0);
}

fn bf16_element(block: &[u8], out: &mut [f32]) {
    out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32();
}

// { d: f16, qs: [u8; 16] }: element i in the low nibble of qs[i], element 16 + i in the high one.
fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, &q) in block[2..18].iter().enumerate() {
        out[i] = d * f32::from(i16::from(q & 15) - 8);
        out[i + 16] = d * f32::from(i16::from(q >> 4) - 8);
    }
}

// { d: f16, m: f16, qs: [u8; 16] }
fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (i, &q) in block[4..20].iter().enumerate() {
        out[i] = d * f32::from(q & 15) + m;
        out[i + 16] = d * f32::from(q >> 4) + m;
    }
}

// The fifth bit of elements i and 16 + i, moved to bit 4.
fn fifth_bits(high: u32, i: usize) -> [u8; 2] {
    [((high >> i) as u8 & 1) << 4, ((high >> (i + 16)) as u8 & 1) << 4]
}

// { d: f16, qh: u32, qs: [u8; 16] }
fn q5_0(block: &[u8], out: &mut [f32]) {
    let (d, high) = (half_at(block, 0), u32_at(block, 2));
    for (i, &q) in block[6..22].iter().enumerate() {
        let [low_bit, high_bit] = fifth_bits(high, i);
        out[i] = d * f32::from(i16::from(q & 15 | low_bit) - 16);
        out[i + 16] = d * f32::from(i16::from(q >> 4 | high_bit) - 16);
    }
}

// { d: f16, m: f16, qh: u32, qs: [u8; 16] }
fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m, high) = (half_at(block, 0), half_at(block, 2), u32_at(block, 4));
    for (i, &q) in block[8..24].iter().enumerate() {
        let [low_bit, high_bit] = fifth_bits(high, i);
        out[i] = d * f32::from(q & 15 | low_bit) + m;
        out[i + 16] = d * f32::from(q >> 4 | high_bit) + m;
    }
}

// { d: f16, qs: [i8; 32] }
fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (x, &q) in out.iter_mut().zip(&block[2..34]) {
        *x = d * f32::from(q as i8);
    }
}

// { d: f16, dmin: f16, scales: [u8; 12], qs: [u8; 128] }: bytes 32c..32c+32 of qs hold sub-block 2c
// in the low nibbles and 2c + 1 in the high ones.
fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (j, values) in out.chunks_exact_mut(32).enumerate() {
        let [scale, min] = k_scale_min(j, &block[4..16]);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (i, x) in values.iter_mut().enumerate() {
            let q = block[16 + 32 * (j / 2) + i] >> (4 * (j % 2)) & 15;
            *x = scale * f32::from(q) - min;
        }
    }
}

// { d: f16, dmin: f16, scales: [u8; 12], qh: [u8; 32], qs: [u8; 128] }: bit j of qh[i] is the fifth
// bit of element i of sub-block j.
fn q5_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (j, values) in out.chunks_exact_mut(32).enumerate() {
        let [scale, min] = k_scale_min(j, &block[4..16]);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (i, x) in values.iter_mut().enumerate() {
            let low = block[48 + 32 * (j / 2) + i] >> (4 * (j % 2)) & 15;
            let high = (block[16 + i] >> j & 1) << 4;
            *x = scale * f32::from(low | high) - min;
        }
    }
}

// { ql: [u8; 128], qh: [u8; 64], scales: [i8; 16], d: f16 }, in two halves of 128 elements; quarter
// k of a half has its low nibbles in ql[32 * (k % 2)..] (high nibbles for k >= 2) and its two high
// bits at 2k of qh. Scales are per 16 elements.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 208);
    for (e, x) in out.iter_mut().enumerate() {
        let (half, k, i) = (e / 128, e % 128 / 32, e % 32);
        let low = block[64 * half + 32 * (k % 2) + i] >> (4 * (k / 2)) & 15;
        let high = (block[128 + 32 * half + i] >> (2 * k) & 3) << 4;
        let scale = d * f32::from(block[192 + e / 16] as i8);
        *x = scale * f32::from(i16::from(low | high) - 32);
    }
}
