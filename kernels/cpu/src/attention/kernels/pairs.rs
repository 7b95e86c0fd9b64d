//! Products of bfloat16 pairs, two multiplications and additions per lane and instruction: queries
//! and weights are rounded as keys and values are. In the order of pairs of dims and of positions.

use std::arch::x86_64::*;

use super::{FEW_ROWS, GROUP, GroupPtrs, PARTITION, TileJob, padded_dim};
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

/// Groups that [`scores`] does at once for tiles of so many rows.
pub const fn groups_at_once(rows: usize) -> usize {
    match rows {
        1 => 8,
        2..=4 => 4,
        5..=8 => 2,
        _ => 1,
    }
}

/// Vectors of dims that [`values`] does at once for tiles of so many rows.
pub const fn vectors_at_once(rows: usize) -> usize {
    match rows {
        1..=4 => 4,
        5..=8 => 2,
        _ => 1,
    }
}

/// [`super::scores`] for `T` rows; `q` is `[dim / 2][T]` of pairs. `G` groups are done at once, for
/// enough independent sums to hide the latency of one.
///
/// # Safety
/// As there; `out` is `[T][PARTITION]`; `R` is the element of a bfloat16 cache.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub unsafe fn scores<R, const T: usize, const G: usize>(
    job: &TileJob<'_, R>,
    q: &[f32],
    out: *mut f32,
) {
    let (runs, rest) = job.groups.as_chunks::<G>();
    // SAFETY: by this function's contract.
    unsafe {
        for (i, groups) in runs.iter().enumerate() {
            scores_of::<R, T, G>(groups, job.head_dim, q, out.add(i * G * GROUP));
        }
        for (i, group) in rest.iter().enumerate() {
            let out = out.add((runs.len() * G + i) * GROUP);
            scores_of::<R, T, 1>(std::array::from_ref(group), job.head_dim, q, out);
        }
    }
}

// SAFETY: as for `scores`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
#[inline]
unsafe fn scores_of<R, const T: usize, const G: usize>(
    groups: &[GroupPtrs<R>; G],
    dim: usize,
    q: &[f32],
    out: *mut f32,
) {
    let num_sums = T * G;
    let mut acc = [_mm512_setzero_ps(); 16];
    // SAFETY: by this function's contract.
    unsafe {
        for i in 0..dim.div_ceil(2) {
            let keys: [__m512bh; G] = std::array::from_fn(|g| {
                let group = &groups[g];
                if T < FEW_ROWS {
                    let values = group.values.cast::<u8>().wrapping_add(i * 64);
                    _mm_prefetch::<_MM_HINT_T1>(values.cast());
                }
                pairs(_mm512_loadu_si512(group.keys.cast::<u8>().add(i * 64).cast()))
            });
            let q = q.as_ptr().add(i * T);
            for_tokens!(num_sums, n => {
                acc[n] = _mm512_dpbf16_ps(acc[n], keys[n / T], broadcast(q.add(n % T)));
            });
        }
        for_tokens!(num_sums, n => {
            _mm512_storeu_ps(out.add(n % T * PARTITION + n / T * GROUP), acc[n]);
        });
    }
}

/// [`super::weighted_values`] for `T` rows; `p` holds values of bfloat16. `C` vectors of dims are
/// done at once, for enough independent sums to hide the latency of one.
///
/// # Safety
/// As there; `R` is the element of a bfloat16 cache.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub unsafe fn values<R, const T: usize, const C: usize>(
    job: &TileJob<'_, R>,
    p: &mut [f32],
    out: &mut [f32],
) {
    for row in p.chunks_exact_mut(PARTITION).take(T) {
        // SAFETY: a partition is whole groups; halves are written behind the floats still to read.
        unsafe { pack(row.as_mut_ptr(), job.groups.len()) };
    }
    let padded = padded_dim(job.head_dim);
    let mut d = 0;
    // SAFETY: by this function's contract.
    unsafe {
        while d + C * GROUP <= padded {
            values_of::<R, T, C>(job, p, d, out);
            d += C * GROUP;
        }
        while d < padded {
            values_of::<R, T, 1>(job, p, d, out);
            d += GROUP;
        }
    }
}

// Dims `first` on, `C` vectors of them.
// SAFETY: as for `values`, with packed weights.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
#[inline]
unsafe fn values_of<R, const T: usize, const C: usize>(
    job: &TileJob<'_, R>,
    p: &[f32],
    first: usize,
    out: &mut [f32],
) {
    let padded = padded_dim(job.head_dim);
    let num_sums = T * C;
    let mut acc = [_mm512_setzero_ps(); 16];
    let mut left = job.num_slots;
    let key_lines = job.head_dim.div_ceil(2);
    for (g, group) in job.groups.iter().enumerate() {
        let filled = left.min(GROUP);
        left -= filled;
        if let Some(ahead) = job.ahead.get(g).filter(|_| T < FEW_ROWS && first == 0) {
            let keys = ahead.keys.cast::<u8>();
            for line in 0..key_lines {
                _mm_prefetch::<_MM_HINT_T1>(keys.wrapping_add(line * 64).cast());
            }
        }
        for i in 0..filled.div_ceil(2) {
            // The last pair's other slot may hold no token, but something not finite.
            let mask = _mm512_set1_epi32(if 2 * i + 1 < filled { -1 } else { 0xffff });
            // SAFETY: by this function's contract.
            unsafe {
                let at = group.values.cast::<u8>().add((i * padded + first) * 4);
                let values: [__m512bh; C] = std::array::from_fn(|c| {
                    pairs(_mm512_and_si512(_mm512_loadu_si512(at.add(c * 64).cast()), mask))
                });
                let p = p.as_ptr().add(g * (GROUP / 2) + i);
                for_tokens!(num_sums, n => {
                    let p = broadcast(p.add(n % T * PARTITION));
                    acc[n] = _mm512_dpbf16_ps(acc[n], values[n / T], p);
                });
            }
        }
    }
    // SAFETY: `out` holds `T` rows of `padded`, checked by the caller.
    unsafe {
        for_tokens!(num_sums, n => {
            let out = out.as_mut_ptr().add(n % T * padded + first + n / T * GROUP);
            _mm512_storeu_ps(out, acc[n]);
        });
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
