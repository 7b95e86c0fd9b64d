//! Encoding of rows: round-to-nearest with the obvious scales, for tests and synthetic models.
//!
//! Quality is not the aim (no search for better scales); validity is: every block decodes to within
//! the step of its encoding.

use half::{bf16, f16};

use super::DType;

/// Encodes `values` as one row of `dtype` into `out`, which is exactly `dtype.row_bytes(len)` long.
///
/// Panics when the two lengths do not belong together.
pub fn quantize_row(dtype: DType, values: &[f32], out: &mut [u8]) {
    let (len, size) = (dtype.block_len(), dtype.block_bytes());
    assert!(values.len().is_multiple_of(len), "a row of {} is not whole blocks", values.len());
    assert_eq!(out.len(), values.len() / len * size, "bytes of a {dtype:?} row");
    for (values, block) in values.chunks_exact(len).zip(out.chunks_exact_mut(size)) {
        block.fill(0);
        match dtype {
            DType::F32 => block.copy_from_slice(&values[0].to_le_bytes()),
            DType::F16 => block.copy_from_slice(&f16::from_f32(values[0]).to_le_bytes()),
            DType::BF16 => block.copy_from_slice(&bf16::from_f32(values[0]).to_le_bytes()),
            DType::Q4_0 => symmetric(values, 8, block),
            DType::Q5_0 => symmetric(values, 16, block),
            DType::Q4_1 => asymmetric(values, 15, block),
            DType::Q5_1 => asymmetric(values, 31, block),
            DType::Q8_0 => q8_0(values, block),
            DType::Q4K => q45_k(values, 15, block),
            DType::Q5K => q45_k(values, 31, block),
            DType::Q6K => q6_k(values, block),
        }
    }
}

// Writes `value` as f16 at `at`; gives back what was stored.
fn put_half(block: &mut [u8], at: usize, value: f32) -> f32 {
    let half = f16::from_f32(value);
    block[at..at + 2].copy_from_slice(&half.to_le_bytes());
    half.to_f32()
}

fn code(x: f32, step: f32, offset: i32, max: i32) -> u8 {
    if step == 0.0 {
        return offset as u8;
    }
    ((x / step).round() as i32 + offset).clamp(0, max) as u8
}

fn max_abs(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |a: f32, x| a.max(x.abs()))
}

// Nibbles of 32 codes as Q4_0..Q5_1 have them; the fifth bits, if any, at `high_at`.
fn put_codes(block: &mut [u8], codes: &[u8; 32], high_at: Option<usize>) {
    let nibbles = block.len() - 16;
    for i in 0..16 {
        block[nibbles + i] = codes[i] & 15 | (codes[i + 16] & 15) << 4;
    }
    if let Some(at) = high_at {
        let high = codes.iter().enumerate().fold(0u32, |h, (i, c)| h | u32::from(c >> 4) << i);
        block[at..at + 4].copy_from_slice(&high.to_le_bytes());
    }
}

fn symmetric(values: &[f32], zero: i32, block: &mut [u8]) {
    let step = put_half(block, 0, max_abs(values) / (zero - 1) as f32);
    let codes = std::array::from_fn(|i| code(values[i], step, zero, 2 * zero - 1));
    put_codes(block, &codes, (zero == 16).then_some(2));
}

fn asymmetric(values: &[f32], levels: i32, block: &mut [u8]) {
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let step = put_half(block, 0, (high - low) / levels as f32);
    let low = put_half(block, 2, low);
    let codes = std::array::from_fn(|i| code(values[i] - low, step, 0, levels));
    put_codes(block, &codes, (levels == 31).then_some(4));
}

fn q8_0(values: &[f32], block: &mut [u8]) {
    let step = put_half(block, 0, max_abs(values) / 127.0);
    for (q, &x) in block[2..].iter_mut().zip(values) {
        *q = code(x, step, 128, 255) ^ 0x80;
    }
}

fn put_k_scale_min(packed: &mut [u8], j: usize, scale: u8, min: u8) {
    if j < 4 {
        packed[j] |= scale;
        packed[j + 4] |= min;
    } else {
        packed[j + 4] |= scale & 15 | (min & 15) << 4;
        packed[j - 4] |= (scale >> 4) << 6;
        packed[j] |= (min >> 4) << 6;
    }
}

fn q45_k(values: &[f32], levels: i32, block: &mut [u8]) {
    let nibbles = block.len() - 128;
    let low = |v: &[f32]| -v.iter().copied().fold(0.0, f32::min);
    let range = |v: &[f32]| v.iter().copied().fold(0.0, f32::max) + low(v);
    let blocks = || values.chunks_exact(32);
    let widest = blocks().map(range).fold(0.0, f32::max) / levels as f32;
    let lowest = blocks().map(low).fold(0.0, f32::max);
    let d = put_half(block, 0, widest / 63.0);
    let dmin = put_half(block, 2, lowest / 63.0);
    for (j, sub) in values.chunks_exact(32).enumerate() {
        let scale = code(range(sub) / levels as f32, d, 0, 63);
        let min = code(low(sub), dmin, 0, 63);
        put_k_scale_min(&mut block[4..16], j, scale, min);
        let (step, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (i, &x) in sub.iter().enumerate() {
            let q = code(x + min, step, 0, levels);
            block[nibbles + 32 * (j / 2) + i] |= (q & 15) << (4 * (j % 2));
            if levels == 31 {
                block[16 + i] |= (q >> 4) << j;
            }
        }
    }
}

fn q6_k(values: &[f32], block: &mut [u8]) {
    let d = put_half(block, 208, max_abs(values) / 31.0 / 127.0);
    for (j, sub) in values.chunks_exact(16).enumerate() {
        let scale = code(max_abs(sub) / 31.0, d, 0, 127);
        block[192 + j] = scale;
        for (i, &x) in sub.iter().enumerate() {
            let e = 16 * j + i;
            let (half, k, i) = (e / 128, e % 128 / 32, e % 32);
            let q = code(x, d * f32::from(scale), 32, 63);
            block[64 * half + 32 * (k % 2) + i] |= (q & 15) << (4 * (k / 2));
            block[128 + 32 * half + i] |= (q >> 4) << (2 * k);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::super::{DType, dequantize_row, k_scale_min, quantize_row};

    // The largest error, relative to the largest magnitude of a block, that encoding may make.
    fn tolerance(dtype: DType) -> f32 {
        match dtype {
            DType::F32 => 0.0,
            DType::F16 => 1.0 / 2048.0,
            DType::BF16 => 1.0 / 256.0,
            DType::Q8_0 => 0.6 / 127.0,
            DType::Q6K => 1.6 / 31.0,
            DType::Q5_0 | DType::Q5_1 | DType::Q5K => 2.2 / 31.0,
            DType::Q4_0 | DType::Q4_1 | DType::Q4K => 2.2 / 15.0,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn decoding_inverts_encoding_within_the_step(
            values in proptest::collection::vec(-4.0f32..4.0, 512),
        ) {
            for dtype in DType::ALL {
                let mut bytes = vec![0; dtype.row_bytes(values.len())];
                let mut back = vec![0.0; values.len()];
                quantize_row(dtype, &values, &mut bytes);
                dequantize_row(dtype, &bytes, &mut back);
                for (block, (x, y)) in values.chunks(256).zip(back.chunks(256)).flat_map(|(b, c)| {
                    b.iter().zip(c).map(move |p| (b, p))
                }) {
                    let largest = super::max_abs(block);
                    prop_assert!((x - y).abs() <= tolerance(dtype) * largest, "{dtype:?}: {x} {y}");
                }
            }
        }
    }

    // One block of each encoding written by hand from the layout's definition.
    #[test]
    fn known_blocks() {
        let one = half::f16::from_f32(1.0).to_le_bytes();
        let half = half::f16::from_f32(0.5).to_le_bytes();
        let check = |dtype: DType, bytes: &[u8], expected: &[(usize, f32)]| {
            let mut out = vec![0.0; dtype.block_len()];
            dequantize_row(dtype, bytes, &mut out);
            for &(i, x) in expected {
                assert_eq!(out[i], x, "{dtype:?} element {i}");
            }
        };
        let nibbles: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
        let block = |parts: &[&[u8]]| parts.concat();
        check(DType::Q4_0, &block(&[&half, &nibbles]), &[(0, -4.0), (15, 3.5), (16, 3.5)]);
        check(DType::Q4_1, &block(&[&half, &one, &nibbles]), &[(0, 1.0), (3, 2.5), (16, 8.5)]);
        let high = 0x8000_0001u32.to_le_bytes();
        check(DType::Q5_0, &block(&[&one, &high, &nibbles]), &[(0, 0.0), (1, -15.0), (31, 0.0)]);
        check(DType::Q5_1, &block(&[&one, &half, &high, &nibbles]), &[(0, 16.5), (31, 16.5)]);
        let signed: Vec<u8> = (0..32).map(|i| (i as i8 - 16) as u8).collect();
        check(DType::Q8_0, &block(&[&half, &signed]), &[(0, -8.0), (31, 7.5)]);
    }

    #[test]
    fn known_k_blocks() {
        let one = half::f16::from_f32(1.0).to_le_bytes();
        let half = half::f16::from_f32(0.5).to_le_bytes();
        // Sub-block 0: scale 3, min 5. Sub-block 7: scale 0x2a, min 0x15.
        let mut scales = [0u8; 12];
        (scales[0], scales[4]) = (3, 5);
        scales[11] = 0x5a;
        scales[3] = 0x80;
        scales[7] = 0x40;
        assert_eq!(k_scale_min(0, &scales), [3, 5]);
        assert_eq!(k_scale_min(7, &scales), [0x2a, 0x15]);
        let mut q4 = [&one[..], &half, &scales, &[0u8; 128]].concat();
        (q4[16], q4[16 + 127]) = (0x0f, 0x20);
        let mut out = vec![0.0; 256];
        dequantize_row(DType::Q4K, &q4, &mut out);
        assert_eq!((out[0], out[1], out[255]), (42.5, -2.5, 84.0 - 10.5));
        let mut q5 = [&one[..], &half, &scales, &[0u8; 160]].concat();
        (q5[16], q5[47], q5[48]) = (1, 0x80, 1);
        dequantize_row(DType::Q5K, &q5, &mut out);
        assert_eq!((out[0], out[255]), (3.0 * 17.0 - 2.5, 42.0 * 16.0 - 10.5));
        let mut q6 = vec![0u8; 210];
        q6[208..].copy_from_slice(&one);
        (q6[0], q6[128], q6[192]) = (0x05, 0x02, 2); // element 0: 5 | 2 << 4 = 37
        (q6[127], q6[191], q6[207]) = (0x90, 0xc0, 0xff); // element 255: 9 | 3 << 4 = 57, scale -1
        dequantize_row(DType::Q6K, &q6, &mut out);
        assert_eq!((out[0], out[255], out[1]), (10.0, -25.0, -64.0));
    }
}
