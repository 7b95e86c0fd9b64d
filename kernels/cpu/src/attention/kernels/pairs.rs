//! Products of bfloat16 pairs, two multiplications and additions per lane and instruction: queries
//! and weights are rounded as keys and values are. In the order of pairs of dims and of positions.

use std::arch::x86_64::*;

use super::{GROUP, PARTITION, TileJob, padded_dim};
use crate::linear::for_tokens;

// SAFETY: `p` is readable and aligned to 4.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn broadcast(p: *const f32) -> __m512bh {
    // SAFETY: by this function's contract; the types are of the same size.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(*p.cast())) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn pairs(x: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes of plain data.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(x) }
}

/// See [`super::put_query`].
///
/// # Safety
/// `words` holds `q.len() / 2`, rounded up, times `rows`, and `row` is below `rows`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub unsafe fn put_query(row: usize, rows: usize, q: &[f32], scale: f32, words: &mut [f32]) {
    let scale = _mm512_set1_ps(scale);
    let out = words.as_mut_ptr().wrapping_add(row);
    for (i, q) in q.chunks(2 * GROUP).enumerate() {
        let mask = |first: usize| {
            let count = q.len().saturating_sub(first).min(GROUP);
            ((1u32 << count) - 1) as __mmask16
        };
        let mut pairs = [0.0f32; GROUP];
        // SAFETY: the masks keep reads within the queries, and by this function's contract.
        unsafe {
            let low = _mm512_maskz_loadu_ps(mask(0), q.as_ptr());
            let high = _mm512_maskz_loadu_ps(mask(GROUP), q.as_ptr().wrapping_add(GROUP));
            let both = _mm512_cvtne2ps_pbh(_mm512_mul_ps(high, scale), _mm512_mul_ps(low, scale));
            let both = std::mem::transmute::<__m512bh, __m512i>(both);
            _mm512_storeu_si512(pairs.as_mut_ptr().cast(), both);
            for (j, pair) in pairs.iter().enumerate().take(q.len().div_ceil(2)) {
                *out.add((i * GROUP + j) * rows) = *pair;
            }
        }
    }
}

/// [`super::scores`] for `T` rows; `q` is `[dim / 2][T]` of pairs.
///
/// # Safety
/// As there; `out` is `[T][PARTITION]`; `R` is the element of a bfloat16 cache.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub unsafe fn scores<R, const T: usize>(job: &TileJob<'_, R>, q: &[f32], out: *mut f32) {
    let num_pairs = job.head_dim.div_ceil(2);
    for (g, group) in job.groups.iter().enumerate() {
        // Groups are scattered over the pool: the core does not foresee the next one.
        let next = job.groups.get(g + 1).map_or(group.keys, |next| next.keys).cast::<u8>();
        let (keys, values) = (group.keys.cast::<u8>(), group.values.cast::<u8>());
        let mut acc = [_mm512_setzero_ps(); T];
        // SAFETY: by this function's contract.
        unsafe {
            for i in 0..num_pairs {
                if T < GROUP {
                    _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(i * 64).cast());
                    _mm_prefetch::<_MM_HINT_T0>(values.wrapping_add(i * 64).cast());
                }
                let key = pairs(_mm512_loadu_si512(keys.add(i * 64).cast()));
                let q = q.as_ptr().add(i * T);
                for_tokens!(T, t => {
                    acc[t] = _mm512_dpbf16_ps(acc[t], key, broadcast(q.add(t)));
                });
            }
            for_tokens!(T, t => {
                _mm512_storeu_ps(out.add(t * PARTITION + g * GROUP), acc[t]);
            });
        }
    }
}

/// [`super::weighted_values`] for `T` rows; `p` holds values of bfloat16.
///
/// # Safety
/// As there; `R` is the element of a bfloat16 cache.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub unsafe fn values<R, const T: usize>(job: &TileJob<'_, R>, p: &mut [f32], out: &mut [f32]) {
    for row in p.chunks_exact_mut(PARTITION).take(T) {
        // SAFETY: a partition is whole groups; halves are written behind the floats still to read.
        unsafe { pack(row.as_mut_ptr(), job.groups.len()) };
    }
    let padded = padded_dim(job.head_dim);
    for d in (0..padded).step_by(GROUP) {
        let mut acc = [_mm512_setzero_ps(); T];
        let mut left = job.num_slots;
        let mut p = p.as_ptr();
        for group in job.groups {
            let values = group.values.cast::<u8>();
            // SAFETY: by this function's contract.
            unsafe {
                let filled = left.min(GROUP);
                for i in 0..filled / 2 {
                    let value = _mm512_loadu_si512(values.add((i * padded + d) * 4).cast());
                    let p = p.add(i);
                    for_tokens!(T, t => {
                        acc[t] =
                            _mm512_dpbf16_ps(acc[t], pairs(value), broadcast(p.add(t * PARTITION)));
                    });
                }
                if filled % 2 == 1 {
                    // The other slot of the pair holds no token, but maybe something not finite.
                    let i = filled / 2;
                    let value = _mm512_loadu_si512(values.add((i * padded + d) * 4).cast());
                    let value = _mm512_and_si512(value, _mm512_set1_epi32(0xffff));
                    let p = p.add(i);
                    for_tokens!(T, t => {
                        acc[t] =
                            _mm512_dpbf16_ps(acc[t], pairs(value), broadcast(p.add(t * PARTITION)));
                    });
                }
                left -= filled;
                p = p.add(GROUP / 2);
            }
        }
        // SAFETY: `out` holds `T` rows of `padded`, checked by the caller.
        unsafe {
            for_tokens!(T, t => {
                _mm512_storeu_ps(out.as_mut_ptr().add(t * padded + d), acc[t]);
            });
        }
    }
}

// Floats that are values of bfloat16 to these, in place.
// SAFETY: `row` is `groups` groups.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn pack(row: *mut f32, groups: usize) {
    for g in 0..groups {
        // SAFETY: by this function's contract; group g is read before its place is written.
        unsafe {
            let x = _mm512_loadu_si512(row.add(g * GROUP).cast());
            let high = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(x));
            _mm256_storeu_si256(row.cast::<u8>().add(g * 32).cast(), high);
        }
    }
}
