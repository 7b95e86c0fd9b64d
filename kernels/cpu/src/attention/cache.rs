//! The paged KV cache, laid out for the attention kernels: groups of 16 slots.
//!
//! Elements that one instruction multiplies and adds lie side by side, `PACK` of them (1 float, 2
//! bfloat16, 4 codes of 8 bits). Per group and head, keys lie `[dim / PACK][slot][PACK]` and values
//! `[slot / PACK][dim][PACK]`, dims padded to whole vectors. Groups run over the pool's flat slots,
//! so a block of a multiple of 16 slots is whole groups; with other block sizes positions are
//! gathered first. 8-bit codes have 128 added, and a scale per slot for keys and one for values;
//! they are of the head's Hadamard transform, which spreads outliers over all dims.

use half::{bf16, f16};
use tenon_backend::{BackendError, KvDType, KvLayer, PrepareOptions};

use super::kernels::MAX_CODES_DIM;
use crate::linear::half_to_f32;
use crate::math::{hadamard, round_to_int};
use crate::memory::{Buffer, Plain};

/// Slots of a group.
pub const GROUP: usize = 16;

/// How an element of the cache is stored.
pub trait KvElement: 'static {
    /// Its bits.
    type Raw: Plain;
    /// Which one, for the kernels.
    const DTYPE: KvDType;
    /// Elements that lie side by side.
    const PACK: usize;
    /// Whether each slot of a head has a scale.
    const SCALED: bool = false;
    /// Rounds to nearest even; `inverse` is one over the scale.
    fn store(x: f32, inverse: f32) -> Self::Raw;
    /// Exact; without the scale.
    fn load(raw: Self::Raw) -> f32;
}

/// 32-bit floats.
pub struct KvF32;
/// bfloat16.
pub struct KvBf16;
/// IEEE half.
pub struct KvF16;
/// Codes of 8 bits, 128 added.
pub struct KvInt8;

impl KvElement for KvF32 {
    type Raw = f32;
    const DTYPE: KvDType = KvDType::F32;
    const PACK: usize = 1;
    #[inline(always)]
    fn store(x: f32, _: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn load(raw: f32) -> f32 {
        raw
    }
}

impl KvElement for KvBf16 {
    type Raw = u16;
    const DTYPE: KvDType = KvDType::BF16;
    const PACK: usize = 2;
    #[inline(always)]
    fn store(x: f32, _: f32) -> u16 {
        bf16::from_f32(x).to_bits()
    }
    #[inline(always)]
    fn load(raw: u16) -> f32 {
        f32::from_bits(u32::from(raw) << 16)
    }
}

impl KvElement for KvF16 {
    type Raw = u16;
    const DTYPE: KvDType = KvDType::F16;
    const PACK: usize = 1;
    #[inline(always)]
    fn store(x: f32, _: f32) -> u16 {
        f16::from_f32(x).to_bits()
    }
    #[inline(always)]
    fn load(raw: u16) -> f32 {
        half_to_f32(raw)
    }
}

impl KvElement for KvInt8 {
    type Raw = u8;
    const DTYPE: KvDType = KvDType::Int8;
    const PACK: usize = 4;
    const SCALED: bool = true;
    #[inline(always)]
    fn store(x: f32, inverse: f32) -> u8 {
        round_to_int(x * inverse).wrapping_add(128) as u8
    }
    #[inline(always)]
    fn load(raw: u8) -> f32 {
        f32::from(raw) - 128.0
    }
}

/// The keys and values of the layers that share a physical buffer.
pub struct LayerCache<E: KvElement> {
    /// Heads.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    pub(super) keys: Buffer<E::Raw>,
    pub(super) values: Buffer<E::Raw>,
    /// `[group][head][16]` of the keys; empty where elements need no scale.
    pub(super) key_scales: Buffer<f32>,
    /// The same of the values.
    pub(super) value_scales: Buffer<f32>,
}

/// A head's keys and values of one group.
#[derive(Debug, Clone, Copy)]
pub struct GroupPtrs<R> {
    /// `[key dim / PACK][16][PACK]`
    pub keys: *const R,
    /// `[16 / PACK][padded dim][PACK]`
    pub values: *const R,
    /// `[16]`, or not to be read.
    pub key_scales: *const f32,
    /// `[16]`, or not to be read.
    pub value_scales: *const f32,
}

impl<R> GroupPtrs<R> {
    /// Of nothing yet.
    pub const NULL: Self = GroupPtrs {
        keys: std::ptr::null(),
        values: std::ptr::null(),
        key_scales: std::ptr::null(),
        value_scales: std::ptr::null(),
    };
}

/// Width of a head in values and outputs: whole vectors.
pub fn padded_dim(head_dim: usize) -> usize {
    head_dim.next_multiple_of(GROUP)
}

/// Width of a head in keys: whole packs.
pub fn key_dim<E: KvElement>(head_dim: usize) -> usize {
    head_dim.next_multiple_of(E::PACK)
}

/// Where an element of a group's keys lies.
#[inline(always)]
pub fn key_at<E: KvElement>(d: usize, lane: usize) -> usize {
    (d / E::PACK * GROUP + lane) * E::PACK + d % E::PACK
}

/// Where an element of a group's values lies.
#[inline(always)]
pub fn value_at<E: KvElement>(padded: usize, lane: usize, d: usize) -> usize {
    (lane / E::PACK * padded + d) * E::PACK + lane % E::PACK
}

impl<E: KvElement> LayerCache<E> {
    /// Zeroed (and untouched) memory for all slots.
    pub fn new(shape: KvLayer, options: &PrepareOptions) -> Result<Self, BackendError> {
        let KvLayer { num_kv_heads, head_dim, .. } = shape;
        let groups = (options.num_blocks * options.block_size).div_ceil(GROUP);
        let lanes = groups.saturating_mul(num_kv_heads * GROUP);
        let scales = if E::SCALED { lanes } else { 0 };
        let what = "the KV cache";
        Ok(LayerCache {
            num_kv_heads,
            head_dim,
            keys: Buffer::zeroed(lanes.saturating_mul(key_dim::<E>(head_dim)), what)?,
            values: Buffer::zeroed(lanes.saturating_mul(padded_dim(head_dim)), what)?,
            key_scales: Buffer::zeroed(scales, what)?,
            value_scales: Buffer::zeroed(scales, what)?,
        })
    }

    /// A head's group, by the number of the group in the pool.
    pub fn group(&self, group: usize, head: usize) -> GroupPtrs<E::Raw> {
        let index = (group * self.num_kv_heads + head) * GROUP;
        let scales_at = if E::SCALED { index } else { 0 };
        GroupPtrs {
            keys: self.keys[index * key_dim::<E>(self.head_dim)..].as_ptr(),
            values: self.values[index * padded_dim(self.head_dim)..].as_ptr(),
            key_scales: self.key_scales[scales_at..].as_ptr(),
            value_scales: self.value_scales[scales_at..].as_ptr(),
        }
    }
}

impl<E: KvElement> LayerCache<E> {
    /// Stores one token's rows, each `[num_kv_heads * head_dim]`.
    ///
    /// # Safety
    /// `slot` is within the pool, and no other thread writes it or reads its group now.
    pub unsafe fn write(&self, slot: usize, key: &[f32], value: &[f32]) {
        let (dim, padded, lane) = (self.head_dim, padded_dim(self.head_dim), slot % GROUP);
        for head in 0..self.num_kv_heads {
            let index = (slot / GROUP * self.num_kv_heads + head) * GROUP;
            let (key, value) = (&key[head * dim..][..dim], &value[head * dim..][..dim]);
            let mut spread = [[0.0; MAX_CODES_DIM]; 2];
            let (key, value) = if E::SCALED {
                let [k, v] = spread.each_mut().map(|x| &mut x[..dim]);
                k.copy_from_slice(key);
                v.copy_from_slice(value);
                hadamard(k);
                hadamard(v);
                (&*k, &*v)
            } else {
                (key, value)
            };
            let (key_scale, value_scale) = (Scale::of::<E>(key), Scale::of::<E>(value));
            // SAFETY: all are elements of the slot, which is within the pool.
            unsafe {
                let keys = self.keys.shared().at(index * key_dim::<E>(dim));
                let values = self.values.shared().at(index * padded);
                for d in 0..dim {
                    let key = E::store(key[d], key_scale.inverse);
                    keys.add(key_at::<E>(d, lane)).write(key);
                    let value = E::store(value[d], value_scale.inverse);
                    values.add(value_at::<E>(padded, lane, d)).write(value);
                }
                if E::SCALED {
                    self.key_scales.shared().at(index + lane).write(key_scale.scale);
                    self.value_scales.shared().at(index + lane).write(value_scale.scale);
                }
            }
        }
    }
}

/// The largest code is 127, so that negative ones have the same range.
const INVERSE_127: f32 = 1.0 / 127.0;

struct Scale {
    scale: f32,
    inverse: f32,
}

impl Scale {
    // Not-a-number stays one in the scale; its codes say nothing.
    #[inline(always)]
    fn of<E: KvElement>(x: &[f32]) -> Scale {
        if !E::SCALED {
            return Scale { scale: 1.0, inverse: 1.0 };
        }
        let mut largest = 0.0f32;
        for x in x {
            let x = x.abs();
            largest = if x > largest || x.is_nan() { x } else { largest };
        }
        let inverse = if largest > 0.0 && largest.is_finite() { 127.0 / largest } else { 0.0 };
        Scale { scale: largest * INVERSE_127, inverse }
    }
}
