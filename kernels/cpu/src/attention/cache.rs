//! The paged KV cache, laid out for the attention kernels: groups of 16 slots.
//!
//! Per group and head, keys lie `[dim][slot]` (a vector holds one dim of 16 slots) and values
//! `[slot][dim]`, dims padded to whole vectors. Groups run over the pool's flat slots, so a block
//! of a multiple of 16 slots is whole groups; with other block sizes positions are gathered first.

use half::{bf16, f16};
use tenon_backend::{BackendError, KvDType, KvLayer, PrepareOptions};

use crate::linear::half_to_f32;
use crate::memory::{Buffer, Plain, SharedPtr};

/// Slots of a group.
pub const GROUP: usize = 16;

/// How an element of the cache is stored.
pub trait KvElement: 'static {
    /// Its bits.
    type Raw: Plain;
    /// Which one, for the kernels.
    const DTYPE: KvDType;
    /// Rounds to nearest even.
    fn store(x: f32) -> Self::Raw;
    /// Exact.
    fn load(raw: Self::Raw) -> f32;
}

/// 32-bit floats.
pub struct KvF32;
/// bfloat16.
pub struct KvBf16;
/// IEEE half.
pub struct KvF16;

impl KvElement for KvF32 {
    type Raw = f32;
    const DTYPE: KvDType = KvDType::F32;
    #[inline(always)]
    fn store(x: f32) -> f32 {
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
    #[inline(always)]
    fn store(x: f32) -> u16 {
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
    #[inline(always)]
    fn store(x: f32) -> u16 {
        f16::from_f32(x).to_bits()
    }
    #[inline(always)]
    fn load(raw: u16) -> f32 {
        half_to_f32(raw)
    }
}

/// One layer's keys and values.
pub struct LayerCache<E: KvElement> {
    /// Heads, head width and window.
    pub shape: KvLayer,
    keys: Buffer<E::Raw>,
    values: Buffer<E::Raw>,
}

/// A head's keys and values of one group.
#[derive(Debug, Clone, Copy)]
pub struct GroupPtrs<R> {
    /// `[dim][16]`
    pub keys: *const R,
    /// `[16][padded dim]`
    pub values: *const R,
}

/// Width of a head in values and outputs: whole vectors.
pub fn padded_dim(head_dim: usize) -> usize {
    head_dim.next_multiple_of(GROUP)
}

impl<E: KvElement> LayerCache<E> {
    /// Zeroed (and untouched) memory for all slots.
    pub fn new(shape: KvLayer, options: &PrepareOptions) -> Result<Self, BackendError> {
        let groups = (options.num_blocks * options.block_size).div_ceil(GROUP);
        let heads = groups.saturating_mul(shape.num_kv_heads * GROUP);
        let what = "the KV cache";
        let keys = Buffer::zeroed(heads.saturating_mul(shape.head_dim), what)?;
        let values = Buffer::zeroed(heads.saturating_mul(padded_dim(shape.head_dim)), what)?;
        Ok(LayerCache { shape, keys, values })
    }

    /// For writing tokens on several threads.
    pub fn writer(&mut self) -> CacheWriter<E> {
        CacheWriter {
            shape: self.shape,
            keys: SharedPtr::new(&mut self.keys),
            values: SharedPtr::new(&mut self.values),
        }
    }

    /// A head's group, by the number of the group in the pool.
    pub fn group(&self, group: usize, head: usize) -> GroupPtrs<E::Raw> {
        let index = (group * self.shape.num_kv_heads + head) * GROUP;
        let keys = &self.keys[index * self.shape.head_dim..];
        let values = &self.values[index * padded_dim(self.shape.head_dim)..];
        GroupPtrs { keys: keys.as_ptr(), values: values.as_ptr() }
    }

    /// Copies one slot of a head to lane `lane` of a group elsewhere.
    pub fn gather(
        &self,
        slot: usize,
        head: usize,
        lane: usize,
        keys: &mut [E::Raw],
        values: &mut [E::Raw],
    ) {
        let (dim, padded) = (self.shape.head_dim, padded_dim(self.shape.head_dim));
        let index = (slot / GROUP * self.shape.num_kv_heads + head) * GROUP;
        for d in 0..dim {
            keys[d * GROUP + lane] = self.keys[index * dim + d * GROUP + slot % GROUP];
        }
        let from = (index + slot % GROUP) * padded;
        values[lane * padded..][..padded].copy_from_slice(&self.values[from..][..padded]);
    }
}

/// Writes tokens to a layer; tokens of different slots may be written at the same time.
pub struct CacheWriter<E: KvElement> {
    shape: KvLayer,
    keys: SharedPtr<E::Raw>,
    values: SharedPtr<E::Raw>,
}

// SAFETY: the pointers are written through by `write` alone, whose callers keep slots apart.
unsafe impl<E: KvElement> Sync for CacheWriter<E> {}

impl<E: KvElement> CacheWriter<E> {
    /// Stores one token's rows, each `[num_kv_heads * head_dim]`.
    ///
    /// # Safety
    /// `slot` is within the pool, and no other thread writes it or reads it now.
    pub unsafe fn write(&self, slot: usize, key: &[f32], value: &[f32]) {
        let (dim, padded) = (self.shape.head_dim, padded_dim(self.shape.head_dim));
        for head in 0..self.shape.num_kv_heads {
            let index = (slot / GROUP * self.shape.num_kv_heads + head) * GROUP;
            let (key, value) = (&key[head * dim..][..dim], &value[head * dim..][..dim]);
            for d in 0..dim {
                // SAFETY: both are elements of the slot, which is within the pool.
                unsafe {
                    let key_at = index * dim + d * GROUP + slot % GROUP;
                    self.keys.at(key_at).write(E::store(key[d]));
                    let value_at = (index + slot % GROUP) * padded + d;
                    self.values.at(value_at).write(E::store(value[d]));
                }
            }
        }
    }
}
