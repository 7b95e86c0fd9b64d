//! The two products of attention, for a tile of query rows against groups of 16 slots, and the
//! softmax between them. All arithmetic is in f32, in the order of dims and of positions.

use super::cache::{GROUP, GroupPtrs, KvElement, padded_dim};
use crate::isa::{Isa, for_each_isa};
use crate::math::{LANES, exp, fold, tanh};

/// Positions of a partition, the unit that softmax runs over.
pub const PARTITION: usize = 256;
/// Groups of a partition.
pub const GROUPS: usize = PARTITION / GROUP;
/// Most query rows of a tile.
pub const MAX_ROWS: usize = 16;

/// A tile of query rows against the groups of one partition.
pub struct TileJob<'a, R> {
    /// Groups in the order of positions; at most [`GROUPS`].
    pub groups: &'a [GroupPtrs<R>],
    /// Width of a head.
    pub head_dim: usize,
    /// Slots that hold a token, over all groups: the last group may be part filled.
    pub num_slots: usize,
}

/// `scores[row][slot] = Σ q[dim][row] * key[dim][slot]` for `rows` (1, 2, 4, 8 or 16) rows, by
/// groups; `q` is `[head_dim][rows]`, `scores` `[rows][PARTITION]`.
///
/// # Safety
/// The groups' pointers are valid for heads of `head_dim`.
pub unsafe fn scores<E: KvElement>(
    isa: Isa,
    job: &TileJob<'_, E::Raw>,
    rows: usize,
    q: &[f32],
    scores: &mut [f32],
) {
    assert!(q.len() >= job.head_dim * rows && scores.len() >= rows * PARTITION);
    assert!(job.groups.len() <= GROUPS);
    // SAFETY: by this function's contract and the lengths just checked.
    unsafe {
        match rows {
            1 => scores_of::<E, 1>(isa, job, q, scores),
            2 => scores_of::<E, 2>(isa, job, q, scores),
            4 => scores_of::<E, 4>(isa, job, q, scores),
            8 => scores_of::<E, 8>(isa, job, q, scores),
            _ => scores_of::<E, 16>(isa, job, q, scores),
        }
    }
}

/// `out[row][dim] = Σ p[row][slot] * value[slot][dim]` over the filled slots; `p` is
/// `[rows][PARTITION]`, `out` `[rows][padded dim]`.
///
/// # Safety
/// The groups' pointers are valid for heads of `head_dim`.
pub unsafe fn weighted_values<E: KvElement>(
    isa: Isa,
    job: &TileJob<'_, E::Raw>,
    rows: usize,
    p: &[f32],
    out: &mut [f32],
) {
    assert!(p.len() >= rows * PARTITION && out.len() >= rows * padded_dim(job.head_dim));
    assert!(job.groups.len() <= GROUPS && job.num_slots <= job.groups.len() * GROUP);
    // SAFETY: by this function's contract and the lengths just checked.
    unsafe {
        match rows {
            1 => values_of::<E, 1>(isa, job, p, out),
            2 => values_of::<E, 2>(isa, job, p, out),
            4 => values_of::<E, 4>(isa, job, p, out),
            8 => values_of::<E, 8>(isa, job, p, out),
            _ => values_of::<E, 16>(isa, job, p, out),
        }
    }
}

// SAFETY: as for `scores`, with `T` rows.
unsafe fn scores_of<E: KvElement, const T: usize>(
    isa: Isa,
    job: &TileJob<'_, E::Raw>,
    q: &[f32],
    scores: &mut [f32],
) {
    for (g, group) in job.groups.iter().enumerate() {
        // SAFETY: by this function's contract.
        unsafe {
            let out = scores.as_mut_ptr().add(g * GROUP);
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 => {
                    let next = job.groups.get(g + 1).map_or(group.keys, |next| next.keys);
                    let ahead = [next, group.values];
                    avx512::scores::<E, T>(group.keys, job.head_dim, q.as_ptr(), out, ahead);
                }
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => scores_avx2::<E, T>(group.keys, job.head_dim, q.as_ptr(), out),
                _ => scores_any::<E, T>(group.keys, job.head_dim, q.as_ptr(), out),
            }
        }
    }
}

// SAFETY: as for `weighted_values`, with `T` rows.
unsafe fn values_of<E: KvElement, const T: usize>(
    isa: Isa,
    job: &TileJob<'_, E::Raw>,
    p: &[f32],
    out: &mut [f32],
) {
    // SAFETY: by this function's contract.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 => avx512::values::<E, T>(job, p.as_ptr(), out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => values_avx2::<E, T>(job, p.as_ptr(), out),
            _ => values_any::<E, T>(job, p.as_ptr(), out),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scores_avx2<E: KvElement, const T: usize>(
    keys: *const E::Raw,
    dim: usize,
    q: *const f32,
    out: *mut f32,
) {
    // SAFETY: the contract is the same.
    unsafe { scores_any::<E, T>(keys, dim, q, out) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn values_avx2<E: KvElement, const T: usize>(
    job: &TileJob<'_, E::Raw>,
    p: *const f32,
    out: &mut [f32],
) {
    // SAFETY: the contract is the same.
    unsafe { values_any::<E, T>(job, p, out) }
}

// SAFETY: `keys` is a group's, `q` `[dim][T]`, and `out` the group's part of `[T][PARTITION]`.
#[inline(always)]
unsafe fn scores_any<E: KvElement, const T: usize>(
    keys: *const E::Raw,
    dim: usize,
    q: *const f32,
    out: *mut f32,
) {
    let mut acc = [[0.0f32; GROUP]; T];
    // SAFETY: by this function's contract.
    unsafe {
        for d in 0..dim {
            let keys: &[E::Raw; GROUP] = &*keys.add(d * GROUP).cast();
            let q: &[f32; T] = &*q.add(d * T).cast();
            for (acc, q) in acc.iter_mut().zip(q) {
                for (acc, key) in acc.iter_mut().zip(keys) {
                    *acc = E::load(*key).mul_add(*q, *acc);
                }
            }
        }
        for (row, acc) in acc.iter().enumerate() {
            out.add(row * PARTITION).cast::<[f32; GROUP]>().write(*acc);
        }
    }
}

// SAFETY: as for `weighted_values`, with `T` rows.
#[inline(always)]
unsafe fn values_any<E: KvElement, const T: usize>(
    job: &TileJob<'_, E::Raw>,
    p: *const f32,
    out: &mut [f32],
) {
    let padded = padded_dim(job.head_dim);
    for d in (0..padded).step_by(GROUP) {
        let mut acc = [[0.0f32; GROUP]; T];
        for slot in 0..job.num_slots {
            let group = &job.groups[slot / GROUP];
            // SAFETY: by this function's contract.
            unsafe {
                let values = group.values.add(slot % GROUP * padded + d);
                let values: &[E::Raw; GROUP] = &*values.cast();
                for (row, acc) in acc.iter_mut().enumerate() {
                    let p = *p.add(row * PARTITION + slot);
                    for (acc, value) in acc.iter_mut().zip(values) {
                        *acc = E::load(*value).mul_add(p, *acc);
                    }
                }
            }
        }
        for (row, acc) in acc.iter().enumerate() {
            out[row * padded + d..][..GROUP].copy_from_slice(acc);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use tenon_backend::KvDType;

    use super::{GROUP, KvElement, PARTITION, TileJob, padded_dim};
    use crate::linear::for_tokens;

    // SAFETY: 16 elements at `p`.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load<E: KvElement>(p: *const E::Raw) -> __m512 {
        // SAFETY: by this function's contract.
        unsafe {
            match E::DTYPE {
                KvDType::F32 => _mm512_loadu_ps(p.cast()),
                KvDType::BF16 => {
                    let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
                }
                KvDType::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())),
                KvDType::Int8 => unreachable!("refused when the cache is made"),
            }
        }
    }

    // While it computes it asks for what is read later, the next group's keys and this group's
    // values: groups are scattered over the pool, so the core does not foresee them.
    // SAFETY: as for `scores_any`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub unsafe fn scores<E: KvElement, const T: usize>(
        keys: *const E::Raw,
        dim: usize,
        q: *const f32,
        out: *mut f32,
        ahead: [*const E::Raw; 2],
    ) {
        let mut acc = [_mm512_setzero_ps(); T];
        // SAFETY: by this function's contract.
        unsafe {
            for d in 0..dim {
                if T < GROUP {
                    _mm_prefetch::<_MM_HINT_T0>(ahead[0].wrapping_add(d * GROUP).cast());
                    _mm_prefetch::<_MM_HINT_T0>(ahead[1].wrapping_add(d * GROUP).cast());
                }
                let key = load::<E>(keys.add(d * GROUP));
                let q = q.add(d * T);
                for_tokens!(T, t => {
                    acc[t] = _mm512_fmadd_ps(key, _mm512_set1_ps(*q.add(t)), acc[t]);
                });
            }
            for_tokens!(T, t => {
                _mm512_storeu_ps(out.add(t * PARTITION), acc[t]);
            });
        }
    }

    // SAFETY: as for `weighted_values`, with `T` rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub unsafe fn values<E: KvElement, const T: usize>(
        job: &TileJob<'_, E::Raw>,
        p: *const f32,
        out: &mut [f32],
    ) {
        let padded = padded_dim(job.head_dim);
        for d in (0..padded).step_by(GROUP) {
            let mut acc = [_mm512_setzero_ps(); T];
            let mut left = job.num_slots;
            let mut p = p;
            for group in job.groups {
                // SAFETY: by this function's contract.
                unsafe {
                    for slot in 0..left.min(GROUP) {
                        let value = load::<E>(group.values.add(slot * padded + d));
                        let p = p.add(slot);
                        for_tokens!(T, t => {
                            let p = _mm512_set1_ps(*p.add(t * PARTITION));
                            acc[t] = _mm512_fmadd_ps(value, p, acc[t]);
                        });
                    }
                    p = p.add(GROUP);
                }
                left -= left.min(GROUP);
            }
            // SAFETY: `out` holds `T` rows of `padded`, checked by the caller.
            unsafe {
                for_tokens!(T, t => {
                    _mm512_storeu_ps(out.as_mut_ptr().add(t * padded + d), acc[t]);
                });
            }
        }
    }
}

/// What a partition says about one query row.
#[derive(Debug, Clone, Copy)]
pub struct RowStats {
    /// Its largest score; minus infinity when it sees no slot.
    pub max: f32,
    /// Sum of `exp(score - max)`.
    pub sum: f32,
}

for_each_isa! {
    /// Turns a row's scores into `exp(score - max)`, 0 outside of `first..end`. `scores` is whole
    /// groups.
    pub fn softmax_row(
        scores: &mut [f32], first: usize, end: usize, softcap: Option<f32>,
    ) -> RowStats = softmax_row_any;
    /// `acc = acc * a + x * b`
    pub fn scale_add(acc: &mut [f32], a: f32, x: &[f32], b: f32) = scale_add_any;
    /// `out = x * factor`
    pub fn scaled(out: &mut [f32], x: &[f32], factor: f32) = scaled_any;
}

#[inline(always)]
fn softmax_row_any(scores: &mut [f32], first: usize, end: usize, softcap: Option<f32>) -> RowStats {
    if first >= end {
        scores.fill(0.0);
        return RowStats { max: f32::NEG_INFINITY, sum: 0.0 };
    }
    scores[..first].fill(f32::NEG_INFINITY);
    scores[end..].fill(f32::NEG_INFINITY);
    if let Some(cap) = softcap {
        scores[first..end].iter_mut().for_each(|x| *x = cap * tanh(*x / cap));
    }
    let groups = scores.as_chunks_mut::<LANES>().0;
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut largest = [f32::NEG_INFINITY; LANES];
    for group in groups.iter() {
        for (lane, x) in largest.iter_mut().zip(group) {
            *lane = larger(*lane, *x);
        }
    }
    let max = fold(largest, larger);
    let mut sums = [0.0; LANES];
    for group in groups.iter_mut() {
        for (sum, x) in sums.iter_mut().zip(group) {
            *x = exp(*x - max);
            *sum += *x;
        }
    }
    RowStats { max, sum: fold(sums, |a, b| a + b) }
}

#[inline(always)]
fn scale_add_any(acc: &mut [f32], a: f32, x: &[f32], b: f32) {
    acc.iter_mut().zip(x).for_each(|(acc, x)| *acc = acc.mul_add(a, x * b));
}

#[inline(always)]
fn scaled_any(out: &mut [f32], x: &[f32], factor: f32) {
    out.iter_mut().zip(x).for_each(|(out, x)| *out = x * factor);
}
