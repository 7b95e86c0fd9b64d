//! Keys and values that a thread's rows attend to next, asked for while it multiplies: attention
//! alone would wait for memory, and multiplication leaves most of its bandwidth unused.
//!
//! These are hints: nothing that they touch changes a result.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenon_backend::{SeqSpan, StepInputs};

use super::cache::GROUP;
use super::{AttentionOp, Buffers, KvCache};
use crate::memory::LINE_BYTES;

/// Blocks that one thread asks for in advance, at most.
pub const MAX_BLOCKS: usize = 4096;
/// Lines asked for during the product of a tile and 32 columns, at most: about 64 cycles, in which
/// memory brings no more.
const MAX_RATE: usize = 6;
/// What to ask for.
pub struct Ahead<'a> {
    /// Where the layer's part of group 0 starts.
    memory: *const u8,
    /// Bytes from one group to the next.
    stride: usize,
    /// Cache lines of a group's part.
    group_lines: usize,
    groups_per_block: usize,
    blocks: &'a [u32],
    /// Lines for each tile and 32 columns.
    rate: usize,
    /// Of all groups' lines, as if they lay one after the other.
    next_line: AtomicUsize,
}

// SAFETY: the addresses are never read.
unsafe impl Sync for Ahead<'_> {}

/// Lines that follow each other.
#[derive(Debug, Clone, Copy)]
pub struct Lines {
    /// The first one; need not be readable.
    pub start: *const u8,
    /// How many.
    pub len: usize,
}

impl Lines {
    /// Nothing to ask for.
    pub const NONE: Self = Lines { start: std::ptr::null(), len: 0 };
}

impl<'a> Ahead<'a> {
    /// For the sequences whose last rows are among `rows`, while `work` products of a tile and 32
    /// columns are done; `None` where blocks do not lie together. `blocks` is memory for the list.
    pub fn new(
        cache: &KvCache,
        op: &AttentionOp,
        inputs: &StepInputs<'_>,
        block_size: usize,
        rows: &Range<usize>,
        work: usize,
        blocks: &'a mut Vec<u32>,
    ) -> Option<Self> {
        if !block_size.is_multiple_of(GROUP) || work == 0 {
            return None;
        }
        list_blocks(op, inputs, block_size, rows, blocks);
        let at = op.place.buffer;
        let (groups, part_bytes) = match &cache.buffers {
            Buffers::F32(all) => (all[at].groups(), all[at].part_bytes()),
            Buffers::Bf16(all) => (all[at].groups(), all[at].part_bytes()),
            Buffers::F16(all) => (all[at].groups(), all[at].part_bytes()),
            Buffers::Int8(all) => (all[at].groups(), all[at].part_bytes()),
        };
        let (memory, stride) = groups;
        let groups_per_block = block_size / GROUP;
        let group_lines = part_bytes / LINE_BYTES;
        let rate = (blocks.len() * groups_per_block * group_lines).div_ceil(work).min(MAX_RATE);
        let next_line = AtomicUsize::new(0);
        Some(Ahead { memory, stride, group_lines, groups_per_block, blocks, rate, next_line })
    }

    /// Lines to ask for while a tile is multiplied with `columns` times 32 columns.
    #[inline]
    pub fn next(&self, columns: usize) -> Lines {
        let line = self.next_line.load(Ordering::Relaxed);
        let (group, within) = (line / self.group_lines, line % self.group_lines);
        let block = self.blocks.get(group / self.groups_per_block);
        let Some(&block) = block else { return Lines::NONE };
        let group = block as usize * self.groups_per_block + group % self.groups_per_block;
        // As few pieces of a group as leave none for later than planned.
        let pieces = (self.group_lines / (columns * self.rate)).max(1);
        let len = self.group_lines.div_ceil(pieces).min(self.group_lines - within);
        self.next_line.store(line + len, Ordering::Relaxed);
        let at = group * self.stride + within * LINE_BYTES;
        Lines { start: self.memory.wrapping_add(at), len }
    }
}

// The last block of a sequence first: the step's keys are written there before they are read.
fn list_blocks(
    op: &AttentionOp,
    inputs: &StepInputs<'_>,
    block_size: usize,
    rows: &Range<usize>,
    blocks: &mut Vec<u32>,
) {
    blocks.clear();
    let end = |seq: &SeqSpan| (seq.token_start + seq.num_tokens) as usize;
    for seq in inputs.seqs.iter().filter(|seq| rows.start < end(seq) && end(seq) <= rows.end) {
        let computed = seq.context_len - seq.num_tokens;
        let first = op.window.map_or(0, |window| (computed + 1).saturating_sub(window));
        let visible = first as usize / block_size..(seq.context_len as usize).div_ceil(block_size);
        let table_len = seq.table_len as usize;
        let table = seq.table_start as usize + op.place.group * table_len;
        let table = &inputs.block_tables[table..][..table_len];
        let room = MAX_BLOCKS - blocks.len();
        blocks.extend(table[visible].iter().rev().take(room));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tenon_backend::{KvDType, KvLayer, KvLayout, PrepareOptions, WeightMode};

    use super::*;

    const NUM_HEADS: usize = 2;

    // Three sequences of one token each; blocks of 32 slots; the second of two layers.
    fn lines_asked_for(
        kv_dtype: KvDType,
        window: Option<u32>,
        rows: Range<usize>,
        work: usize,
    ) -> (KvCache, Vec<usize>) {
        let layer = KvLayer { num_kv_heads: NUM_HEADS, head_dim: 32, window };
        let options = PrepareOptions {
            weights: WeightMode::Native,
            kv_dtype,
            hybrid_kv: false,
            num_blocks: 8,
            block_size: 32,
            max_step_tokens: 4,
            max_logits_rows: 4,
            num_threads: 1,
        };
        let layout = KvLayout::uniform(2);
        let cache = KvCache::new(&[layer, layer], &layout, &options).unwrap();
        let place = layout.layers[1];
        let op = AttentionOp { place, window, num_heads: NUM_HEADS, scale: 1.0, softcap: None };
        let seq = |row: u32, context_len: u32, table_start: u32| SeqSpan {
            row,
            token_start: row,
            num_tokens: 1,
            context_len,
            prompt_len: 1,
            table_start,
            table_len: context_len.div_ceil(32),
        };
        let inputs = StepInputs {
            token_ids: &[0; 3],
            positions: &[69, 31, 32],
            slot_mapping: &[],
            seqs: &[seq(0, 70, 0), seq(1, 32, 3), seq(2, 33, 4)],
            block_tables: &[5, 0, 7, 2, 6, 1],
            block_copies: &[],
            logits_rows: &[],
        };
        let mut blocks = Vec::with_capacity(MAX_BLOCKS);
        let ahead = Ahead::new(&cache, &op, &inputs, 32, &rows, work, &mut blocks).unwrap();
        let mut asked = Vec::new();
        for _ in 0..work.div_ceil(3) {
            let lines = ahead.next(3);
            asked.extend((0..lines.len).map(|line| lines.start.addr() + line * LINE_BYTES));
        }
        assert_eq!(ahead.next(3).len, 0, "all were asked for in time");
        (cache, asked)
    }

    fn check(kv_dtype: KvDType, window: Option<u32>, rows: Range<usize>, expected: &[usize]) {
        for work in [999, 4000] {
            let (cache, asked) = lines_asked_for(kv_dtype, window, rows.clone(), work);
            let mut wanted = Vec::new();
            for group in expected.iter().flat_map(|block| [2 * block, 2 * block + 1]) {
                for head in 0..NUM_HEADS {
                    let (start, elements) = match &cache.buffers {
                        Buffers::Bf16(all) => {
                            let group = all[1].group(group, head);
                            ([group.keys.addr(), group.values.addr()], 2 * 32 * GROUP)
                        }
                        Buffers::F32(all) => {
                            let group = all[1].group(group, head);
                            ([group.keys.addr(), group.values.addr()], 4 * 32 * GROUP)
                        }
                        _ => unreachable!(),
                    };
                    let lines = |at: usize| (at..at + elements).step_by(LINE_BYTES);
                    wanted.extend(start.into_iter().flat_map(lines));
                }
            }
            let mut sorted = asked.clone();
            sorted.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(sorted, wanted);
        }
    }

    #[test]
    fn every_line_that_the_rows_attend_to_is_asked_for_once() {
        for dtype in [KvDType::BF16, KvDType::F32] {
            check(dtype, None, 0..3, &[5, 0, 7, 2, 6, 1]);
            check(dtype, None, 0..1, &[5, 0, 7]);
            check(dtype, None, 1..3, &[2, 6, 1]);
            check(dtype, Some(6), 0..3, &[7, 2, 6, 1]);
            check(dtype, Some(1), 0..3, &[7, 2, 1]);
        }
    }
}
