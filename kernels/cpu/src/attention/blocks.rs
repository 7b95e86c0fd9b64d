//! What goes into the cache and out of it: a step's tokens, whole blocks (copied to other blocks,
//! or to bytes and back), and single slots, for blocks that are not whole groups.

use tenon_backend::layout::LayerPlace;
use tenon_backend::{BlockCopy, StepInputs};

use super::KvCache;
use super::cache::{
    GROUP, GroupPtrs, KvElement, LayerCache, key_at, key_dim, padded_dim, value_at,
};
use crate::elementwise::for_rows;
use crate::memory::Plain;
use crate::pool::Pool;

impl KvCache {
    /// Stores keys and values (`[rows, num_kv_heads * head_dim]` each) of the step's tokens from
    /// `first` on at their slots.
    pub fn write(
        &self,
        pool: &mut Pool,
        place: LayerPlace,
        inputs: &StepInputs<'_>,
        first: usize,
        (keys, values): (&[f32], &[f32]),
    ) {
        let slots = &inputs.slot_mapping[place.group * inputs.token_ids.len() + first..];
        let at = place.buffer;
        match self {
            KvCache::F32(all) => all[at].write_all(pool, slots, keys, values),
            KvCache::Bf16(all) => all[at].write_all(pool, slots, keys, values),
            KvCache::F16(all) => all[at].write_all(pool, slots, keys, values),
            KvCache::Int8(all) => all[at].write_all(pool, slots, keys, values),
        }
    }

    /// Copies blocks of `block_size` slots in all buffers, in order.
    pub fn copy_blocks(&mut self, block_size: usize, copies: &[BlockCopy]) {
        for copy in copies {
            let (from, to) = (copy.from as usize * block_size, copy.to as usize * block_size);
            match self {
                KvCache::F32(all) => all.iter_mut().for_each(|c| c.copy(from, to, block_size)),
                KvCache::Bf16(all) => all.iter_mut().for_each(|c| c.copy(from, to, block_size)),
                KvCache::F16(all) => all.iter_mut().for_each(|c| c.copy(from, to, block_size)),
                KvCache::Int8(all) => all.iter_mut().for_each(|c| c.copy(from, to, block_size)),
            }
        }
    }

    /// Bytes of `block_size` slots over all buffers.
    pub fn block_bytes(&self, block_size: usize) -> usize {
        let slot_bytes: usize = match self {
            KvCache::F32(all) => all.iter().map(LayerCache::slot_bytes).sum(),
            KvCache::Bf16(all) => all.iter().map(LayerCache::slot_bytes).sum(),
            KvCache::F16(all) => all.iter().map(LayerCache::slot_bytes).sum(),
            KvCache::Int8(all) => all.iter().map(LayerCache::slot_bytes).sum(),
        };
        slot_bytes * block_size
    }

    /// The slots of a block, one after the other, to `bytes`.
    pub fn read_block(&mut self, block_size: usize, block: usize, bytes: &mut [u8]) {
        let mut rest = bytes;
        self.move_block(block_size, block, |element| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(element.len());
            part.copy_from_slice(element);
            rest = after;
        });
    }

    /// What `read_block` gave, back to the slots of a block.
    pub fn write_block(&mut self, block_size: usize, block: usize, bytes: &[u8]) {
        let mut rest = bytes;
        self.move_block(block_size, block, |element| {
            let (part, after) = rest.split_at(element.len());
            element.copy_from_slice(part);
            rest = after;
        });
    }

    fn move_block(&mut self, block_size: usize, block: usize, mut f: impl FnMut(&mut [u8])) {
        let slots = block * block_size..(block + 1) * block_size;
        match self {
            KvCache::F32(all) => all.iter_mut().for_each(|c| c.runs(slots.clone(), &mut f)),
            KvCache::Bf16(all) => all.iter_mut().for_each(|c| c.runs(slots.clone(), &mut f)),
            KvCache::F16(all) => all.iter_mut().for_each(|c| c.runs(slots.clone(), &mut f)),
            KvCache::Int8(all) => all.iter_mut().for_each(|c| c.runs(slots.clone(), &mut f)),
        }
    }
}

/// A group's memory, to gather slots into.
pub struct GroupMut<'a, R> {
    /// `[key dim / PACK][16][PACK]`
    pub keys: &'a mut [R],
    /// `[16 / PACK][padded dim][PACK]`
    pub values: &'a mut [R],
    /// `[16]`, where elements are scaled.
    pub key_scales: &'a mut [f32],
    /// `[16]`, where elements are scaled.
    pub value_scales: &'a mut [f32],
}

impl<R: Plain> GroupMut<'_, R> {
    /// Zeroes it: what is not gathered is read, and weighted with zero.
    pub fn clear(&mut self) {
        bytes_of(self.keys).fill(0);
        bytes_of(self.values).fill(0);
        self.key_scales.fill(0.0);
        self.value_scales.fill(0.0);
    }

    /// For the kernels.
    pub fn ptrs(&self) -> GroupPtrs<R> {
        GroupPtrs {
            keys: self.keys.as_ptr(),
            values: self.values.as_ptr(),
            key_scales: self.key_scales.as_ptr(),
            value_scales: self.value_scales.as_ptr(),
        }
    }
}

impl<E: KvElement> LayerCache<E> {
    fn write_all(&self, pool: &mut Pool, slots: &[u32], keys: &[f32], values: &[f32]) {
        let width = self.num_kv_heads * self.head_dim;
        for_rows(pool, keys.len() / width, width, |start, rows| {
            for (row, &slot) in slots.iter().enumerate().skip(start).take(rows) {
                let row = row * width..(row + 1) * width;
                // SAFETY: the step's slots were checked to lie in the pool, and to be those of the
                // block tables; tokens of one step have different slots.
                unsafe { self.write(slot as usize, &keys[row.clone()], &values[row]) };
            }
        });
    }

    fn slot_bytes(&self) -> usize {
        let elements = key_dim::<E>(self.head_dim) + padded_dim(self.head_dim);
        let scales = if E::SCALED { 2 * size_of::<f32>() } else { 0 };
        self.num_kv_heads * (elements * size_of::<E::Raw>() + scales)
    }

    // `len` slots from `from` on to the ones from `to` on.
    fn copy(&mut self, from: usize, to: usize, len: usize) {
        let (heads, dim) = (self.num_kv_heads, self.head_dim);
        if len.is_multiple_of(GROUP) {
            let at = |slot: usize, width: usize| slot * heads * width;
            let move_in = |width: usize| (at(from, width)..at(from + len, width), at(to, width));
            let (source, target) = move_in(key_dim::<E>(dim));
            self.keys.copy_within(source, target);
            let (source, target) = move_in(padded_dim(dim));
            self.values.copy_within(source, target);
            if E::SCALED {
                let (source, target) = move_in(1);
                self.key_scales.copy_within(source.clone(), target);
                self.value_scales.copy_within(source, target);
            }
            return;
        }
        for offset in 0..len {
            for head in 0..heads {
                let lane = |slot: usize| Lane { group: slot / GROUP, head, lane: slot % GROUP };
                self.copy_lane(lane(from + offset), lane(to + offset));
            }
        }
    }

    fn copy_lane(&mut self, from: Lane, to: Lane) {
        let (padded, key_width) = (padded_dim(self.head_dim), key_dim::<E>(self.head_dim));
        let index = |l: Lane| (l.group * self.num_kv_heads + l.head) * GROUP;
        let (a, b) = (index(from), index(to));
        for d in 0..key_width {
            self.keys[b * key_width + key_at::<E>(d, to.lane)] =
                self.keys[a * key_width + key_at::<E>(d, from.lane)];
        }
        for d in 0..padded {
            self.values[b * padded + value_at::<E>(padded, to.lane, d)] =
                self.values[a * padded + value_at::<E>(padded, from.lane, d)];
        }
        if E::SCALED {
            self.key_scales[b + to.lane] = self.key_scales[a + from.lane];
            self.value_scales[b + to.lane] = self.value_scales[a + from.lane];
        }
    }

    /// Copies one slot of a head to lane `lane` of a group elsewhere.
    pub fn gather(&self, slot: usize, head: usize, lane: usize, out: &mut GroupMut<'_, E::Raw>) {
        let (padded, key_width) = (padded_dim(self.head_dim), key_dim::<E>(self.head_dim));
        let index = (slot / GROUP * self.num_kv_heads + head) * GROUP;
        let (keys, values) = (&self.keys[index * key_width..], &self.values[index * padded..]);
        for d in 0..key_width {
            out.keys[key_at::<E>(d, lane)] = keys[key_at::<E>(d, slot % GROUP)];
        }
        for d in 0..padded {
            out.values[value_at::<E>(padded, lane, d)] =
                values[value_at::<E>(padded, slot % GROUP, d)];
        }
        if E::SCALED {
            out.key_scales[lane] = self.key_scales[index + slot % GROUP];
            out.value_scales[lane] = self.value_scales[index + slot % GROUP];
        }
    }

    // Calls `f` with the bytes of all elements of some slots, in the same order for the same number
    // of slots: whole groups at once, else one by one.
    fn runs(&mut self, slots: std::ops::Range<usize>, f: &mut impl FnMut(&mut [u8])) {
        let (heads, dim) = (self.num_kv_heads, self.head_dim);
        let (padded, key_width) = (padded_dim(dim), key_dim::<E>(dim));
        if slots.len().is_multiple_of(GROUP) {
            let run = |width: usize| slots.start * heads * width..slots.end * heads * width;
            f(bytes_of(&mut self.keys[run(key_width)]));
            f(bytes_of(&mut self.values[run(padded)]));
            if E::SCALED {
                f(bytes_of(&mut self.key_scales[run(1)]));
                f(bytes_of(&mut self.value_scales[run(1)]));
            }
            return;
        }
        for (slot, head) in slots.flat_map(|slot| (0..heads).map(move |head| (slot, head))) {
            let index = (slot / GROUP * heads + head) * GROUP;
            let lane = slot % GROUP;
            for d in 0..key_width {
                let at = index * key_width + key_at::<E>(d, lane);
                f(bytes_of(std::slice::from_mut(&mut self.keys[at])));
            }
            for d in 0..padded {
                let at = index * padded + value_at::<E>(padded, lane, d);
                f(bytes_of(std::slice::from_mut(&mut self.values[at])));
            }
            if E::SCALED {
                f(bytes_of(std::slice::from_mut(&mut self.key_scales[index + lane])));
                f(bytes_of(std::slice::from_mut(&mut self.value_scales[index + lane])));
            }
        }
    }
}

// One head's share of a slot.
#[derive(Clone, Copy)]
struct Lane {
    group: usize,
    head: usize,
    lane: usize,
}

fn bytes_of<R: Plain>(elements: &mut [R]) -> &mut [u8] {
    let len = size_of_val(elements);
    // SAFETY: R is plain data without padding, and every bit pattern is a value of it.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast::<u8>(), len) }
}
