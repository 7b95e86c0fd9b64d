//! What goes into the cache and out of it: a step's tokens, whole blocks (copied to other blocks,
//! or to bytes and back), and single slots, for blocks that are not whole groups.

use tenon_backend::layout::LayerPlace;
use tenon_backend::{BlockCopy, StepInputs};

use super::cache::{
    GROUP, GroupPtrs, KvElement, LayerCache, Run, key_at, key_dim, padded_dim, value_at,
};
use super::{Buffers, KvCache};
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
        match &self.buffers {
            Buffers::F32(all) => all[at].write_all(pool, slots, keys, values),
            Buffers::Bf16(all) => all[at].write_all(pool, slots, keys, values),
            Buffers::F16(all) => all[at].write_all(pool, slots, keys, values),
            Buffers::Int8(all) => all[at].write_all(pool, slots, keys, values),
        }
    }

    /// Copies blocks of `block_size` slots in all buffers, in order.
    pub fn copy_blocks(&mut self, block_size: usize, copies: &[BlockCopy]) {
        for copy in copies {
            let (from, to) = (copy.from as usize * block_size, copy.to as usize * block_size);
            match &mut self.buffers {
                Buffers::F32(all) => all.iter_mut().for_each(|c| c.copy(from, to, block_size)),
                Buffers::Bf16(all) => all.iter_mut().for_each(|c| c.copy(from, to, block_size)),
                Buffers::F16(all) => all.iter_mut().for_each(|c| c.copy(from, to, block_size)),
                Buffers::Int8(all) => all.iter_mut().for_each(|c| c.copy(from, to, block_size)),
            }
        }
    }

    /// Bytes of `block_size` slots over all buffers.
    pub fn block_bytes(&self, block_size: usize) -> usize {
        let slot_bytes: usize = match &self.buffers {
            Buffers::F32(all) => all.iter().map(LayerCache::slot_bytes).sum(),
            Buffers::Bf16(all) => all.iter().map(LayerCache::slot_bytes).sum(),
            Buffers::F16(all) => all.iter().map(LayerCache::slot_bytes).sum(),
            Buffers::Int8(all) => all.iter().map(LayerCache::slot_bytes).sum(),
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
        match &mut self.buffers {
            Buffers::F32(all) => all.iter_mut().for_each(|c| c.runs(slots.clone(), &mut f)),
            Buffers::Bf16(all) => all.iter_mut().for_each(|c| c.runs(slots.clone(), &mut f)),
            Buffers::F16(all) => all.iter_mut().for_each(|c| c.runs(slots.clone(), &mut f)),
            Buffers::Int8(all) => all.iter_mut().for_each(|c| c.runs(slots.clone(), &mut f)),
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
        if len.is_multiple_of(GROUP) {
            for group in 0..len / GROUP {
                let (from, to) = (from / GROUP + group, to / GROUP + group);
                for &run in Run::of::<E>() {
                    let source: *const [u8] = self.bytes(from, run);
                    let target = self.bytes(to, run);
                    // SAFETY: two runs of as many bytes of the cache, which is borrowed.
                    unsafe { std::ptr::copy(source.cast(), target.as_mut_ptr(), target.len()) };
                }
            }
            return;
        }
        for offset in 0..len {
            for head in 0..self.num_kv_heads {
                self.copy_lane(head, from + offset, to + offset);
            }
        }
    }

    fn copy_lane(&mut self, head: usize, from: usize, to: usize) {
        let (padded, key_width) = (padded_dim(self.head_dim), key_dim::<E>(self.head_dim));
        let (a, b) = (self.group(from / GROUP, head), self.group(to / GROUP, head));
        let (from, to) = (from % GROUP, to % GROUP);
        // SAFETY: lanes of groups of the cache, which is borrowed.
        unsafe {
            for d in 0..key_width {
                let key = a.keys.add(key_at::<E>(d, from)).read();
                b.keys.cast_mut().add(key_at::<E>(d, to)).write(key);
            }
            for d in 0..padded {
                let value = a.values.add(value_at::<E>(padded, from, d)).read();
                b.values.cast_mut().add(value_at::<E>(padded, to, d)).write(value);
            }
            if E::SCALED {
                b.key_scales.cast_mut().add(to).write(a.key_scales.add(from).read());
                b.value_scales.cast_mut().add(to).write(a.value_scales.add(from).read());
            }
        }
    }

    /// Copies one slot of a head to lane `lane` of a group elsewhere.
    pub fn gather(&self, slot: usize, head: usize, lane: usize, out: &mut GroupMut<'_, E::Raw>) {
        let (padded, key_width) = (padded_dim(self.head_dim), key_dim::<E>(self.head_dim));
        let group = self.group(slot / GROUP, head);
        let slot = slot % GROUP;
        // SAFETY: a lane of a group of the cache, which nobody writes while it is attended to.
        unsafe {
            for d in 0..key_width {
                out.keys[key_at::<E>(d, lane)] = group.keys.add(key_at::<E>(d, slot)).read();
            }
            for d in 0..padded {
                out.values[value_at::<E>(padded, lane, d)] =
                    group.values.add(value_at::<E>(padded, slot, d)).read();
            }
            if E::SCALED {
                out.key_scales[lane] = group.key_scales.add(slot).read();
                out.value_scales[lane] = group.value_scales.add(slot).read();
            }
        }
    }

    // Calls `f` with the bytes of all elements of some slots, in the same order for the same number
    // of slots: runs of whole groups, else one by one.
    fn runs(&mut self, slots: std::ops::Range<usize>, f: &mut impl FnMut(&mut [u8])) {
        let (heads, dim) = (self.num_kv_heads, self.head_dim);
        let (padded, key_width) = (padded_dim(dim), key_dim::<E>(dim));
        if slots.len().is_multiple_of(GROUP) {
            for &run in Run::of::<E>() {
                for group in slots.start / GROUP..slots.end / GROUP {
                    f(self.bytes(group, run));
                }
            }
            return;
        }
        for (slot, head) in slots.flat_map(|slot| (0..heads).map(move |head| (slot, head))) {
            let group = self.group(slot / GROUP, head);
            let lane = slot % GROUP;
            // SAFETY: elements of the slot, in a cache that is borrowed.
            let mut element = |p: *const u8, len| unsafe {
                f(std::slice::from_raw_parts_mut(p.cast_mut(), len));
            };
            let len = size_of::<E::Raw>();
            for d in 0..key_width {
                element(group.keys.wrapping_add(key_at::<E>(d, lane)).cast(), len);
            }
            for d in 0..padded {
                element(group.values.wrapping_add(value_at::<E>(padded, lane, d)).cast(), len);
            }
            if E::SCALED {
                element(group.key_scales.wrapping_add(lane).cast(), size_of::<f32>());
                element(group.value_scales.wrapping_add(lane).cast(), size_of::<f32>());
            }
        }
    }
}

fn bytes_of<R: Plain>(elements: &mut [R]) -> &mut [u8] {
    let len = size_of_val(elements);
    // SAFETY: R is plain data without padding, and every bit pattern is a value of it.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast::<u8>(), len) }
}
