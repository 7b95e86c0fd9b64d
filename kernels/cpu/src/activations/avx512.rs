//! 8-bit activations with AVX-512: a block of one row at a time, or of eight rows at once, whose
//! scales and sums are vectors then.

use std::arch::x86_64::*;

use super::{BLOCK, INVERSE_127, Quantized, SMALLEST};

/// As `quantize_tile_any`, with the same results.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub fn quantize_tile(x: &[f32], cols: usize, rows: usize, out: Quantized<'_>) {
    let len = x.len() / BLOCK;
    assert!(cols.is_multiple_of(BLOCK) && x.len() == rows * cols && out.codes.len() == x.len());
    assert!(out.scales.len() == len && out.scaled_sums.len() == len);
    assert!(out.minus_sums.len() == len && out.minus_first_sums.len() == len);
    if rows == ROWS {
        // SAFETY: the lengths were checked.
        unsafe { quantize_eight(x, cols, out) }
    } else {
        quantize_rows(x, cols, rows, out);
    }
}

/// Rows that are quantized at once: 32-bit lanes of a 256-bit vector.
const ROWS: usize = 8;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn quantize_rows(x: &[f32], cols: usize, rows: usize, out: Quantized<'_>) {
    let codes = out.codes.as_chunks_mut::<BLOCK>().0;
    for (row, x) in x.chunks_exact(cols).enumerate() {
        for (b, x) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
            let at = b * rows + row;
            // SAFETY: a block is 32 floats.
            let [lo, hi] = unsafe { load(x.as_ptr()) };
            let largest = _mm512_max_epi32(magnitude(lo), magnitude(hi));
            let largest = f32::from_bits(_mm512_reduce_max_epi32(largest) as u32);
            let inverse = if largest > SMALLEST { 127.0 / largest } else { 0.0 };
            let sums = put_codes(lo, hi, inverse, &mut codes[at]);
            let first = _mm_cvtsi128_si32(sum_of_lanes(_mm256_castsi256_si128(sums)));
            let second = _mm_cvtsi128_si32(sum_of_lanes(_mm256_extracti128_si256::<1>(sums)));
            let scale = largest * INVERSE_127;
            out.scales[at] = scale;
            out.scaled_sums[at] = scale * (first + second) as f32;
            out.minus_sums[at] = -(first + second);
            out.minus_first_sums[at] = -first;
        }
    }
}

// SAFETY: `x` is 8 rows of `cols` columns, and `out` a tile of them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn quantize_eight(x: &[f32], cols: usize, out: Quantized<'_>) {
    let codes = out.codes.as_chunks_mut::<BLOCK>().0;
    for b in 0..cols / BLOCK {
        let at = b * ROWS;
        // SAFETY: by this function's contract.
        let block = |row: usize| unsafe { load(x.as_ptr().add(row * cols + b * BLOCK)) };
        let largest: [__m256i; ROWS] = std::array::from_fn(|row| {
            let [lo, hi] = block(row);
            let both = _mm512_max_epi32(magnitude(lo), magnitude(hi));
            let high = _mm512_extracti64x4_epi64::<1>(both);
            _mm256_max_epi32(_mm512_castsi512_si256(both), high)
        });
        let [low, high] = fold_rows(largest, |a, b| _mm256_max_epi32(a, b));
        let largest = _mm256_castsi256_ps(_mm256_max_epi32(low, high));
        let is_some = _mm256_cmp_ps_mask::<_CMP_GT_OQ>(largest, _mm256_set1_ps(SMALLEST));
        let mut inverse = [0.0f32; ROWS];
        let quotient = _mm256_maskz_div_ps(is_some, _mm256_set1_ps(127.0), largest);
        // SAFETY: eight floats.
        unsafe { _mm256_storeu_ps(inverse.as_mut_ptr(), quotient) };
        let sums: [__m256i; ROWS] = std::array::from_fn(|row| {
            let [lo, hi] = block(row);
            put_codes(lo, hi, inverse[row], &mut codes[at + row])
        });
        let [first, second] = fold_rows(sums, |a, b| _mm256_add_epi32(a, b));
        let total = _mm256_add_epi32(first, second);
        let scale = _mm256_mul_ps(largest, _mm256_set1_ps(INVERSE_127));
        let minus = |x| _mm256_sub_epi32(_mm256_setzero_si256(), x);
        // SAFETY: by this function's contract.
        unsafe {
            let scaled = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(total));
            _mm256_storeu_ps(out.scales.as_mut_ptr().add(at), scale);
            _mm256_storeu_ps(out.scaled_sums.as_mut_ptr().add(at), scaled);
            _mm256_storeu_si256(out.minus_sums.as_mut_ptr().add(at).cast(), minus(total));
            _mm256_storeu_si256(out.minus_first_sums.as_mut_ptr().add(at).cast(), minus(first));
        }
    }
}

// SAFETY: `x` is a block.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn load(x: *const f32) -> [__m512; 2] {
    // SAFETY: by this function's contract.
    unsafe { [_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(16))] }
}

#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
fn magnitude(x: __m512) -> __m512i {
    _mm512_castps_si512(_mm512_abs_ps(x))
}

// A block's codes; gives back their sums: lanes 0 to 3 together that of the first half, the others
// that of the second.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2")]
#[inline]
fn put_codes(lo: __m512, hi: __m512, inverse: f32, codes: &mut [i8; BLOCK]) -> __m256i {
    let inverse = _mm512_set1_ps(inverse);
    let code = |x| _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x, inverse)));
    let both = _mm256_set_m128i(code(hi), code(lo));
    // SAFETY: a block is 32 codes.
    unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), both) };
    _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), both)
}

// In all lanes.
#[target_feature(enable = "avx2")]
#[inline]
fn sum_of_lanes(x: __m128i) -> __m128i {
    let x = _mm_add_epi32(x, _mm_shuffle_epi32::<0b01_00_11_10>(x));
    _mm_add_epi32(x, _mm_shuffle_epi32::<0b10_11_00_01>(x))
}

// Folds the low four lanes of each row to one lane, and the high four.
#[target_feature(enable = "avx2")]
#[inline]
fn fold_rows(rows: [__m256i; ROWS], f: impl Fn(__m256i, __m256i) -> __m256i) -> [__m256i; 2] {
    let two = |a, b| f(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let four = |a, b| f(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let low = four(two(rows[0], rows[1]), two(rows[2], rows[3]));
    let high = four(two(rows[4], rows[5]), two(rows[6], rows[7]));
    [_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high)]
}
