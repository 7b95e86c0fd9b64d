//! AVX2: the portable kernels compiled for it, with a dot product of codes in intrinsics.

use std::arch::x86_64::*;

use tenon_backend::DType;

use super::portable::{Dot, dense, quantized};
use super::{Kernel, TileArgs, pick};

struct Avx2Dot;

impl Dot for Avx2Dot {
    #[inline(always)]
    fn dot<const WIDE: bool>(w: &[u8; 256], a: &[i8; 16]) -> [i32; 16] {
        // SAFETY: only `kernel` below hands this out, for machines with AVX2.
        unsafe { dot::<WIDE>(w, a) }
    }
}

// Codes of up to 6 bits times 7-bit magnitudes: pairs fit 16 bits. Wide codes are made signed, and
// their sign is moved to the activations: pairs are at most 2 * 128 * 127 and fit, too.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn dot<const WIDE: bool>(w: &[u8; 256], a: &[i8; 16]) -> [i32; 16] {
    let mut sums = [_mm256_setzero_si256(); 2];
    let ones = _mm256_set1_epi16(1);
    for j in 0..4 {
        // SAFETY: four codes at 4j of 16.
        let four = unsafe { a.as_ptr().add(4 * j).cast::<i32>().read_unaligned() };
        let a = _mm256_set1_epi32(four);
        for (side, sum) in sums.iter_mut().enumerate() {
            // SAFETY: 32 bytes at 64j + 32 * side of 256.
            let w = unsafe { _mm256_loadu_si256(w.as_ptr().add(j * 64 + side * 32).cast()) };
            let pairs = if WIDE {
                let signed = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
                _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(a, signed))
            } else {
                _mm256_maddubs_epi16(w, a)
            };
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
        }
    }
    // SAFETY: two vectors of eight are sixteen integers.
    unsafe { std::mem::transmute(sums) }
}

/// The kernel for weights of `dtype` and tiles of `len` tokens.
pub fn kernel(dtype: DType, len: usize) -> Kernel {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => pick!(dense_avx2, dtype, len, [F32, F16, BF16]),
        _ => pick!(quantized_avx2, dtype, len, [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4K, Q5K, Q6K]),
    }
}

// SAFETY: as for `portable::quantized`, on a machine with these features.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantized_avx2<const F: u8, const T: usize>(args: &TileArgs) {
    // SAFETY: by this function's contract.
    unsafe { quantized::<F, T, Avx2Dot>(args) }
}

// SAFETY: as for `portable::dense`, on a machine with these features.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dense_avx2<const F: u8, const T: usize>(args: &TileArgs) {
    // SAFETY: by this function's contract.
    unsafe { dense::<F, T>(args) }
}
