//! Products of an 8-bit cache, in integers: its codes are read as they are, queries and weights
//! become codes of 15 bits in two parts, `128 * high + low`. Sums of integers have no order, so
//! every instruction set gives the same result.
//!
//! Cached codes have 128 added: 128 times the sum of the other factor's codes is taken off. They
//! are of Hadamard transforms: queries are transformed, and results transformed back at the end.

#[cfg(target_arch = "x86_64")]
use super::FEW_ROWS;
use super::{GROUP, KvElement, MAX_CODES_DIM, MAX_ROWS, PARTITION, Queries, TileJob, padded_dim};
use crate::attention::cache::{key_at, value_at};
use crate::isa::{Isa, for_each_isa};
use crate::math::{hadamard, round_to_int};

/// Largest code: its high part is 127.
const LARGEST: f32 = 16_256.0;

// High part in -127..=127 and low part in -64..=63.
#[inline(always)]
fn split(code: i32) -> (i8, i8) {
    let high = (code + 64) >> 7;
    (high as i8, (code - (high << 7)) as i8)
}

/// See [`super::put_query`].
pub fn put_query(row: usize, rows: usize, q: &[f32], scale: f32, out: &mut Queries<'_>) {
    let dim = q.len();
    let mut spread = [0.0; MAX_CODES_DIM];
    spread.iter_mut().zip(q).for_each(|(s, q)| *s = q * scale);
    hadamard(&mut spread[..dim]);
    let q = |d: usize| spread[d];
    let largest = (0..dim).map(|d| q(d).abs()).fold(0.0f32, |a, b| if b > a { b } else { a });
    let is_usable = largest > 0.0 && (0..dim).all(|d| q(d).is_finite());
    let inverse = if is_usable { LARGEST / largest } else { 0.0 };
    let words = dim.div_ceil(4);
    let mut sum = 0;
    for i in 0..words {
        let (mut high, mut low) = ([0u8; 4], [0u8; 4]);
        for c in 0..4.min(dim - 4 * i) {
            let code = if is_usable { round_to_int(q(4 * i + c) * inverse) } else { 0 };
            let (h, l) = split(code);
            (high[c], low[c]) = (h as u8, l as u8);
            sum += code;
        }
        out.words[i * rows + row] = f32::from_bits(u32::from_le_bytes(high));
        out.words[(words + i) * rows + row] = f32::from_bits(u32::from_le_bytes(low));
    }
    // A row that is not finite says so in its scale.
    let is_broken = largest > 0.0 && !is_usable || (0..dim).any(|d| q(d).is_nan());
    out.scales[row] = if is_broken { f32::NAN } else { largest / LARGEST };
    out.offsets[row] = 128 * sum;
}

/// [`super::scores`] for `T` rows.
///
/// # Safety
/// As there; `out` is `[T][PARTITION]`.
pub unsafe fn scores_of<E: KvElement, const T: usize>(
    isa: Isa,
    job: &TileJob<'_, E::Raw>,
    q: &Queries<'_>,
    out: *mut f32,
) {
    // SAFETY: by this function's contract.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 => avx512::scores::<E::Raw, T>(job, q, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => scores_avx2::<E, T>(job, q, out),
            _ => scores_any::<E, T>(job, q, out),
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
    p: &mut [f32],
    out: &mut [f32],
) {
    let mut scales = [0.0f32; PARTITION];
    for (group, scales) in job.groups.iter().zip(scales.as_chunks_mut::<GROUP>().0) {
        // SAFETY: a group of an 8-bit cache has its scales.
        *scales = unsafe { *group.value_scales.cast::<[f32; GROUP]>() };
    }
    let mut weights = Weights { scales: [0.0; MAX_ROWS], offsets: [0; MAX_ROWS] };
    for (row, p) in p.as_chunks_mut::<PARTITION>().0.iter_mut().enumerate().take(T) {
        let (scale, sum) = put_weights(isa, p, &scales, job.num_slots);
        weights.scales[row] = scale;
        weights.offsets[row] = 128 * sum;
    }
    // SAFETY: by this function's contract.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 => {
                avx512::values::<E::Raw, T>(job, p.as_ptr().cast(), &weights, out);
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => values_avx2::<E, T>(job, p.as_ptr().cast(), &weights, out),
            _ => values_any::<E, T>(job, p.as_ptr().cast(), &weights, out),
        }
    }
}

// Of a tile's weights: what a code stands for, and 128 times the sum of a row's codes.
struct Weights {
    scales: [f32; MAX_ROWS],
    offsets: [i32; MAX_ROWS],
}

/// Where a row's low parts start, in bytes: its high parts are the first ones.
const LOW: usize = PARTITION;
/// Bytes of a row of weights: the floats that they are made of.
const ROW_BYTES: usize = PARTITION * 4;

for_each_isa! {
    // A row of weights, times the scales of the values, to codes in place. Gives the scale and sum.
    fn put_weights(
        p: &mut [f32; PARTITION], scales: &[f32; PARTITION], num_slots: usize,
    ) -> (f32, i32) = put_weights_any;
}

#[inline(always)]
fn put_weights_any(
    p: &mut [f32; PARTITION],
    scales: &[f32; PARTITION],
    num_slots: usize,
) -> (f32, i32) {
    let mut codes = [0u8; 2 * PARTITION];
    let mut largest = 0.0f32;
    let mut is_nan = false;
    for (p, scale) in p.iter_mut().zip(scales).take(num_slots) {
        // A slot that the row does not see may hold a scale that is not finite.
        *p = if *p > 0.0 || p.is_nan() { *p * scale } else { 0.0 };
        largest = if *p > largest { *p } else { largest };
        is_nan |= p.is_nan();
    }
    let is_finite = largest.is_finite() && !is_nan;
    let inverse = if largest > 0.0 && is_finite { LARGEST / largest } else { 0.0 };
    let mut sum = 0i32;
    let (high, low) = codes.split_at_mut(PARTITION);
    for ((p, high), low) in p.iter().zip(high).zip(low).take(num_slots) {
        let code = if is_finite { round_to_int(*p * inverse) } else { 0 };
        let (h, l) = split(code);
        (*high, *low) = (h as u8, l as u8);
        sum += code;
    }
    for (p, word) in p.iter_mut().zip(codes.as_chunks::<4>().0) {
        *p = f32::from_bits(u32::from_ne_bytes(*word));
    }
    (if is_finite { largest / LARGEST } else { f32::NAN }, sum)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scores_avx2<E: KvElement, const T: usize>(
    job: &TileJob<'_, E::Raw>,
    q: &Queries<'_>,
    out: *mut f32,
) {
    // SAFETY: the contract is the same.
    unsafe { scores_any::<E, T>(job, q, out) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn values_avx2<E: KvElement, const T: usize>(
    job: &TileJob<'_, E::Raw>,
    p: *const i8,
    weights: &Weights,
    out: &mut [f32],
) {
    // SAFETY: the contract is the same.
    unsafe { values_any::<E, T>(job, p, weights, out) }
}

// SAFETY: as for `scores_of`.
#[inline(always)]
unsafe fn scores_any<E: KvElement, const T: usize>(
    job: &TileJob<'_, E::Raw>,
    q: &Queries<'_>,
    out: *mut f32,
) {
    let words = job.head_dim.div_ceil(4);
    for (g, group) in job.groups.iter().enumerate() {
        for t in 0..T {
            let mut acc = [0i32; GROUP];
            for d in 0..job.head_dim {
                let part = |first: usize| {
                    let word = q.words[(first + d / 4) * T + t].to_bits();
                    i32::from((word >> (8 * (d % 4))) as i8)
                };
                let code = 128 * part(0) + part(words);
                for (lane, acc) in acc.iter_mut().enumerate() {
                    // SAFETY: by this function's contract.
                    let key = unsafe { *group.keys.cast::<u8>().add(key_at::<E>(d, lane)) };
                    *acc += code * i32::from(key);
                }
            }
            for (lane, acc) in acc.iter().enumerate() {
                // SAFETY: as above.
                unsafe {
                    let scale = q.scales[t] * *group.key_scales.add(lane);
                    let score = (acc - q.offsets[t]) as f32 * scale;
                    out.add(t * PARTITION + g * GROUP + lane).write(score);
                }
            }
        }
    }
}

// SAFETY: as for `values_of`, with codes at `p`.
#[inline(always)]
unsafe fn values_any<E: KvElement, const T: usize>(
    job: &TileJob<'_, E::Raw>,
    p: *const i8,
    weights: &Weights,
    out: &mut [f32],
) {
    let padded = padded_dim(job.head_dim);
    for t in 0..T {
        for d in (0..padded).step_by(GROUP) {
            let mut acc = [0i32; GROUP];
            for slot in 0..job.num_slots {
                let values = job.groups[slot / GROUP].values.cast::<u8>();
                // SAFETY: by this function's contract.
                unsafe {
                    let part = |first: usize| i32::from(*p.add(t * ROW_BYTES + first + slot));
                    let code = 128 * part(0) + part(LOW);
                    for (lane, acc) in acc.iter_mut().enumerate() {
                        let at = value_at::<E>(padded, slot % GROUP, d + lane);
                        *acc += code * i32::from(*values.add(at));
                    }
                }
            }
            for (lane, acc) in acc.iter().enumerate() {
                out[t * padded + d + lane] = (acc - weights.offsets[t]) as f32 * weights.scales[t];
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::{
        FEW_ROWS, GROUP, LOW, PARTITION, Queries, ROW_BYTES, TileJob, Weights, padded_dim,
    };
    use crate::linear::for_tokens;

    // SAFETY: as for `scores_of`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub unsafe fn scores<R, const T: usize>(job: &TileJob<'_, R>, q: &Queries<'_>, out: *mut f32) {
        let words = job.head_dim.div_ceil(4);
        let codes = q.words.as_ptr().cast::<i32>();
        for (g, group) in job.groups.iter().enumerate() {
            let (keys, values) = (group.keys.cast::<u8>(), group.values.cast::<u8>());
            let mut acc = [_mm512_setzero_si512(); T];
            // SAFETY: by this function's contract.
            unsafe {
                for i in 0..words {
                    // Groups are scattered over the pool: the core does not foresee them.
                    if T < FEW_ROWS {
                        _mm_prefetch::<_MM_HINT_T1>(values.wrapping_add(i * 64).cast());
                    }
                    let key = _mm512_loadu_si512(keys.add(i * 64).cast());
                    let q = codes.add(i * T);
                    for_tokens!(T, t => {
                        acc[t] = _mm512_dpbusd_epi32(acc[t], key, _mm512_set1_epi32(*q.add(t)));
                    });
                }
                for_tokens!(T, t => {
                    acc[t] = _mm512_slli_epi32::<7>(acc[t]);
                });
                for i in 0..words {
                    let key = _mm512_loadu_si512(keys.add(i * 64).cast());
                    let q = codes.add((words + i) * T);
                    for_tokens!(T, t => {
                        acc[t] = _mm512_dpbusd_epi32(acc[t], key, _mm512_set1_epi32(*q.add(t)));
                    });
                }
                let scales = _mm512_loadu_ps(group.key_scales);
                for_tokens!(T, t => {
                    let scale = _mm512_mul_ps(_mm512_set1_ps(q.scales[t]), scales);
                    let sum = _mm512_sub_epi32(acc[t], _mm512_set1_epi32(q.offsets[t]));
                    let score = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
                    _mm512_storeu_ps(out.add(t * PARTITION + g * GROUP), score);
                });
            }
        }
    }

    // Weights of slots that hold no token are zero, so whole groups are summed.
    // SAFETY: as for `values_of`, with codes at `p`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub unsafe fn values<R, const T: usize>(
        job: &TileJob<'_, R>,
        p: *const u8,
        weights: &Weights,
        out: &mut [f32],
    ) {
        let padded = padded_dim(job.head_dim);
        for d in (0..padded).step_by(GROUP) {
            let mut acc = [_mm512_setzero_si512(); T];
            for part in [0, LOW] {
                if part == LOW {
                    for_tokens!(T, t => {
                        acc[t] = _mm512_slli_epi32::<7>(acc[t]);
                    });
                }
                for (g, group) in job.groups.iter().enumerate() {
                    let values = group.values.cast::<u8>();
                    if let Some(ahead) = job.ahead.get(g).filter(|_| T < FEW_ROWS && d + part == 0)
                    {
                        let keys = ahead.keys.cast::<u8>();
                        for line in 0..job.head_dim.div_ceil(4) {
                            _mm_prefetch::<_MM_HINT_T1>(keys.wrapping_add(line * 64).cast());
                        }
                    }
                    for i in 0..GROUP / 4 {
                        // SAFETY: by this function's contract.
                        unsafe {
                            let value = _mm512_loadu_si512(values.add((i * padded + d) * 4).cast());
                            let p = p.add(part + g * GROUP + i * 4);
                            for_tokens!(T, t => {
                                let p = *p.add(t * ROW_BYTES).cast::<i32>();
                                let p = _mm512_set1_epi32(p);
                                acc[t] = _mm512_dpbusd_epi32(acc[t], value, p);
                            });
                        }
                    }
                }
            }
            // SAFETY: `out` holds `T` rows of `padded`, checked by the caller.
            unsafe {
                for_tokens!(T, t => {
                    let sum = _mm512_sub_epi32(acc[t], _mm512_set1_epi32(weights.offsets[t]));
                    let scale = _mm512_set1_ps(weights.scales[t]);
                    let value = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
                    _mm512_storeu_ps(out.as_mut_ptr().add(t * padded + d), value);
                });
            }
        }
    }
}
