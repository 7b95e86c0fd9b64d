//! The paged KV cache, laid out for the attention kernels: groups of 16 slots.
//!
//! Elements that one instruction multiplies and adds lie side by side, `PACK` of them (1 float, 2
//! bfloat16, 4 codes of 8 bits). Per group and head, keys lie `[dim / PACK][slot][PACK]` and
//! values `[slot / PACK][dim][PACK]`, dims padded to whole vectors. A group of all buffers lies
//! together. Groups run over the pool's flat slots, so a block of a multiple of 16 slots is whole
//! groups; with other block sizes positions are gathered first. 8-bit codes have 128 added, and a
//! scale per slot for keys and one for values; they are of the head's Hadamard transform, which
//! spreads outliers over all dims.

use std::marker::PhantomData;

use half::{bf16, f16};
use tenon_backend::{BackendError, KvDType, KvLayer, PrepareOptions};

use super::kernels::MAX_CODES_DIM;
use crate::linear::half_to_f32;
use crate::math::{hadamard, round_to_int};
use crate::memory::{Buffer, LINE_BYTES, Plain, SharedPtr};

/// Slots of a group.
pub const GROUP: usize = 16;

/// How an element of the cache is stored.
pub trait KvElement: Send + Sync + 'static {
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

/// The keys and values of the layers that share a physical buffer: a part of each group of the
/// memory that all share, so that what a sequence uses lies together in few (huge) pages.
pub struct LayerCache<E: KvElement> {
    /// Heads.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    memory: SharedPtr<u8>,
    num_groups: usize,
    /// Bytes of a group over all buffers.
    group_bytes: usize,
    /// Where this buffer's part of a group lies in it.
    part: Part,
    element: PhantomData<E>,
}

/// A buffer's part of a group: `[head]` keys, then values, `[head][16]` scales of keys, of values.
/// Each starts on a cache line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub keys: usize,
    pub values: usize,
    pub key_scales: usize,
    pub value_scales: usize,
    pub end: usize,
}

impl Part {
    /// Of a buffer of `E` for layers of `shape`, from byte `start` on.
    pub fn new<E: KvElement>(shape: KvLayer, start: usize) -> Self {
        let lanes = GROUP * shape.num_kv_heads;
        let after = |start: usize, bytes: usize| start + bytes.next_multiple_of(LINE_BYTES);
        let elements = |width: usize| lanes * width * size_of::<E::Raw>();
        let scales = if E::SCALED { lanes * size_of::<f32>() } else { 0 };
        let values = after(start, elements(key_dim::<E>(shape.head_dim)));
        let key_scales = after(values, elements(padded_dim(shape.head_dim)));
        let value_scales = after(key_scales, scales);
        Part { keys: start, values, key_scales, value_scales, end: after(value_scales, scales) }
    }
}

/// All buffers' memory and where each has its part.
pub fn allocate<E: KvElement>(
    shapes: &[KvLayer],
    options: &PrepareOptions,
) -> Result<(Buffer<u8>, Vec<LayerCache<E>>), BackendError> {
    let num_groups = options.num_blocks.saturating_mul(options.block_size).div_ceil(GROUP);
    let mut group_bytes = 0;
    let mut parts = Vec::new();
    for shape in shapes {
        let part = Part::new::<E>(*shape, group_bytes);
        group_bytes = part.end;
        parts.push(part);
    }
    let memory = Buffer::zeroed_huge(num_groups.saturating_mul(group_bytes), "the KV cache")?;
    let layer = |(shape, part): (&KvLayer, Part)| LayerCache {
        num_kv_heads: shape.num_kv_heads,
        head_dim: shape.head_dim,
        memory: memory.shared(),
        num_groups,
        group_bytes,
        part,
        element: PhantomData,
    };
    let layers = shapes.iter().zip(parts).map(layer).collect();
    Ok((memory, layers))
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
    /// Where a group's part starts.
    fn at(&self, group: usize) -> *mut u8 {
        assert!(group < self.num_groups, "group `{group}` of {}", self.num_groups);
        // SAFETY: the memory has so many groups.
        unsafe { self.memory.at(group * self.group_bytes) }
    }

    /// A head's group, by the number of the group in the pool.
    pub fn group(&self, group: usize, head: usize) -> GroupPtrs<E::Raw> {
        assert!(head < self.num_kv_heads);
        let (at, part) = (self.at(group), &self.part);
        let scales = |start: usize| {
            let start = if E::SCALED { start + head * GROUP * size_of::<f32>() } else { start };
            at.wrapping_add(start).cast_const().cast()
        };
        let elements = |start: usize, width: usize| {
            let before = head * GROUP * width * size_of::<E::Raw>();
            at.wrapping_add(start + before).cast_const().cast()
        };
        GroupPtrs {
            keys: elements(part.keys, key_dim::<E>(self.head_dim)),
            values: elements(part.values, padded_dim(self.head_dim)),
            key_scales: scales(part.key_scales),
            value_scales: scales(part.value_scales),
        }
    }

    /// All of a group's keys, or the other runs of its part, as bytes.
    pub(super) fn bytes(&mut self, group: usize, run: Run) -> &mut [u8] {
        let part = &self.part;
        let width = |elements: usize| elements * size_of::<E::Raw>();
        let (start, lane) = match run {
            Run::Keys => (part.keys, width(key_dim::<E>(self.head_dim))),
            Run::Values => (part.values, width(padded_dim(self.head_dim))),
            Run::KeyScales => (part.key_scales, size_of::<f32>()),
            Run::ValueScales => (part.value_scales, size_of::<f32>()),
        };
        let len = GROUP * self.num_kv_heads * lane;
        // SAFETY: a run of the group's part, which is borrowed with the cache.
        unsafe { std::slice::from_raw_parts_mut(self.at(group).add(start), len) }
    }

    /// Where the part of group 0 starts, and bytes from one group to the next.
    pub(super) fn groups(&self) -> (*const u8, usize) {
        (self.at(0).wrapping_add(self.part.keys), self.group_bytes)
    }

    /// Bytes of a group's part.
    pub(super) fn part_bytes(&self) -> usize {
        self.part.end - self.part.keys
    }
}

/// Elements of a group's part that lie together.
#[derive(Debug, Clone, Copy)]
pub(super) enum Run {
    Keys,
    Values,
    KeyScales,
    ValueScales,
}

impl Run {
    /// Those that a cache of `E` has, in the order in which blocks are given out.
    pub fn of<E: KvElement>() -> &'static [Run] {
        let all = &[Run::Keys, Run::Values, Run::KeyScales, Run::ValueScales];
        if E::SCALED { all } else { &all[..2] }
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
            let group = self.group(slot / GROUP, head);
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
                let (keys, values) = (group.keys.cast_mut(), group.values.cast_mut());
                for d in 0..dim {
                    let key = E::store(key[d], key_scale.inverse);
                    keys.add(key_at::<E>(d, lane)).write(key);
                    let value = E::store(value[d], value_scale.inverse);
                    values.add(value_at::<E>(padded, lane, d)).write(value);
                }
                if E::SCALED {
                    group.key_scales.cast_mut().add(lane).write(key_scale.scale);
                    group.value_scales.cast_mut().add(lane).write(value_scale.scale);
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
