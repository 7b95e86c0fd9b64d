//! The longest cached prefix on which all KV groups agree.

use std::ops::Range;

use super::KvManager;
use crate::pool::BlockId;
use crate::sequence::Sequence;

impl KvManager {
    /// Full blocks of the sequence that need not be computed: the most for which every full group
    /// has the whole chain and every windowed one the run that its window still sees.
    pub(super) fn match_prefix(&mut self, seq: &mut Sequence) -> usize {
        // What comes from the cache has no logits.
        if !self.prefix_caching || seq.is_unscored() {
            return 0;
        }
        self.runs.fill(0);
        let mut longest = 0;
        // The newest token is always computed: its logits are needed.
        for at in 0..(seq.len() - 1) / self.block_size {
            let hash = seq.block_hash(at, self.block_size, &self.hasher);
            let mut agree = true;
            for group in 0..self.groups.len() {
                if self.pool.lookup(hash.in_group(group)).is_some() {
                    self.runs[group] += 1;
                } else if self.groups[group].is_none() {
                    return longest;
                } else {
                    self.runs[group] = 0;
                }
                let first = self.num_passed(group, (at + 1) * self.block_size);
                agree &= self.runs[group] >= at + 1 - first;
            }
            if agree {
                longest = at + 1;
            }
        }
        longest
    }

    /// How many of these cached blocks nobody holds, so that sharing them makes less available.
    pub(super) fn num_unused(
        &mut self,
        seq: &mut Sequence,
        group: usize,
        range: Range<usize>,
    ) -> usize {
        let mut num_unused = 0;
        for at in range {
            let block = self.cached_block(seq, group, at);
            num_unused += usize::from(self.pool.is_unused(block));
        }
        num_unused
    }

    /// Begins a group's table with what [`KvManager::match_prefix`] found.
    pub(super) fn share_prefix(&mut self, seq: &mut Sequence, group: usize, num_matched: usize) {
        let first = self.num_passed(group, num_matched * self.block_size);
        let capacity = seq.max_len.div_ceil(self.block_size);
        let table = &mut seq.tables[group];
        table.blocks.reserve_exact(capacity);
        table.blocks.resize(first, BlockId::NONE);
        table.num_passed = first;
        for at in first..num_matched {
            let block = self.cached_block(seq, group, at);
            self.pool.share(block);
            seq.tables[group].blocks.push(block);
        }
    }

    fn cached_block(&self, seq: &mut Sequence, group: usize, at: usize) -> BlockId {
        let hash = seq.block_hash(at, self.block_size, &self.hasher);
        self.pool.lookup(hash.in_group(group)).expect("it was matched")
    }
}
