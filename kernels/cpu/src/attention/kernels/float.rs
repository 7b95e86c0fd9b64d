//! Products in f32, in the order of dims and of positions: the same for every instruction set.

#[cfg(target_arch = "x86_64")]
use super::{FEW_ROWS, GroupPtrs};
use super::{GROUP, KvElement, PARTITION, TileJob, padded_dim};
use crate::attention::cache::{key_at, value_at};
use crate::isa::Isa;

/// [`super::scores`] for `T` rows.
///
/// # Safety
/// As there; `out` is `[T][PARTITION]`.
pub unsafe fn scores_of<E: KvElement, const T: usize>(
    isa: Isa,
    job: &TileJob<'_, E::Raw>,
    q: &[f32],
    out: *mut f32,
) {
    for (g, group) in job.groups.iter().enumerate() {
        // SAFETY: by this function's contract.
        unsafe {
            let out = out.add(g * GROUP);
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 => {
                    avx512::scores::<E, T>(group, job.head_dim, q.as_ptr(), out);
                }
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => scores_avx2::<E, T>(group.keys, job.head_dim, q.as_ptr(), out),
                _ => scores_any::<E, T>(group.keys, job.head_dim, q.as_ptr(), out),
            }
        }
    }
}

/// [`super::weighted_values`] for `T` rows.
///
/// # Safety
/// As there.
pub unsafe fn values_of<E: KvElement, const T: usize>(
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
            let q: &[f32; T] = &*q.add(d * T).cast();
            let keys: [f32; GROUP] =
                std::array::from_fn(|lane| E::load(*keys.add(key_at::<E>(d, lane))));
            for (acc, q) in acc.iter_mut().zip(q) {
                for (acc, key) in acc.iter_mut().zip(&keys) {
                    *acc = key.mul_add(*q, *acc);
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
                let at = |lane| value_at::<E>(padded, slot % GROUP, d + lane);
                let values: [f32; GROUP] =
                    std::array::from_fn(|lane| E::load(*group.values.add(at(lane))));
                for (row, acc) in acc.iter_mut().enumerate() {
                    let p = *p.add(row * PARTITION + slot);
                    for (acc, value) in acc.iter_mut().zip(&values) {
                        *acc = value.mul_add(p, *acc);
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

    use super::{FEW_ROWS, GROUP, GroupPtrs, KvElement, PARTITION, TileJob, padded_dim};
    use crate::linear::for_tokens;

    // The elements of one pack: the second vector says nothing where a pack is one element.
    // SAFETY: 16 packs at `p`.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load<E: KvElement>(p: *const E::Raw) -> [__m512; 2] {
        // SAFETY: by this function's contract.
        unsafe {
            match E::DTYPE {
                KvDType::F32 => [_mm512_loadu_ps(p.cast()), _mm512_setzero_ps()],
                KvDType::F16 => {
                    [_mm512_cvtph_ps(_mm256_loadu_si256(p.cast())), _mm512_setzero_ps()]
                }
                KvDType::BF16 => {
                    let pairs = _mm512_loadu_si512(p.cast());
                    let odd = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000u32 as i32));
                    [_mm512_slli_epi32::<16>(pairs), odd].map(|x| _mm512_castsi512_ps(x))
                }
                KvDType::Int8 => unreachable!("its products are of integers"),
            }
        }
    }

    // While it computes it asks for the group's values: groups are scattered over the pool, so the
    // core does not foresee them.
    // SAFETY: as for `scores_any`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub unsafe fn scores<E: KvElement, const T: usize>(
        group: &GroupPtrs<E::Raw>,
        dim: usize,
        q: *const f32,
        out: *mut f32,
    ) {
        let mut acc = [_mm512_setzero_ps(); T];
        // SAFETY: by this function's contract.
        unsafe {
            for i in 0..dim.div_ceil(E::PACK) {
                let at = i * GROUP * E::PACK;
                if T < FEW_ROWS {
                    _mm_prefetch::<_MM_HINT_T1>(group.values.wrapping_add(at).cast());
                }
                let pack = load::<E>(group.keys.add(at));
                for (c, key) in pack.into_iter().enumerate().take(E::PACK) {
                    let q = q.add((i * E::PACK + c) * T);
                    for_tokens!(T, t => {
                        acc[t] = _mm512_fmadd_ps(key, _mm512_set1_ps(*q.add(t)), acc[t]);
                    });
                }
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
            for (g, group) in job.groups.iter().enumerate() {
                if let Some(ahead) = job.ahead.get(g).filter(|_| T < FEW_ROWS && d == 0) {
                    for i in 0..job.head_dim.div_ceil(E::PACK) {
                        let keys = ahead.keys.wrapping_add(i * GROUP * E::PACK);
                        _mm_prefetch::<_MM_HINT_T1>(keys.cast());
                    }
                }
                // SAFETY: by this function's contract.
                unsafe {
                    let filled = left.min(GROUP);
                    for first in (0..filled).step_by(E::PACK) {
                        let pack = load::<E>(group.values.add(first * padded + d * E::PACK));
                        let slots = pack.into_iter().enumerate();
                        for (c, value) in slots.take(E::PACK.min(filled - first)) {
                            let p = p.add(first + c);
                            for_tokens!(T, t => {
                                let p = _mm512_set1_ps(*p.add(t * PARTITION));
                                acc[t] = _mm512_fmadd_ps(value, p, acc[t]);
                            });
                        }
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
