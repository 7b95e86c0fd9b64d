//! The KV cache as sequences use it: finds cached prefixes, hands out blocks, takes them back.
//!
//! The scheduler decides who gets tokens; what that means for blocks is decided here, over the
//! block pool and the block hashes. It knows no queue and no plan beyond the blocks it appends.

use crate::config::EngineConfig;
use crate::hash::BlockHasher;
use crate::plan::StepPlan;
use crate::pool::{BlockId, BlockPool};
use crate::sequence::Sequence;

/// While others run, admission leaves one block in this many free, so that a newcomer is not
/// preempted by the next decode step.
const WATERMARK_DIVISOR: usize = 100;

#[derive(Debug)]
pub(crate) struct KvManager {
    pub pool: BlockPool,
    pub hasher: BlockHasher,
    block_size: usize,
    prefix_caching: bool,
    // Scratch of `admit`.
    matched: Vec<BlockId>,
}

impl KvManager {
    pub fn new(config: &EngineConfig) -> Self {
        KvManager {
            pool: BlockPool::new(config.num_blocks),
            hasher: BlockHasher::new(config.hash_key),
            block_size: config.block_size,
            prefix_caching: config.prefix_caching,
            matched: Vec::new(),
        }
    }

    /// Gives a waiting sequence the cached blocks of its prefix and new ones for all its pending
    /// tokens; false, and nothing changed, when there are too few. `is_alone`: nobody runs.
    pub fn admit(&mut self, seq: &mut Sequence, is_alone: bool) -> bool {
        let num_unused = self.match_prefix(seq);
        let reserve = if is_alone { 0 } else { self.pool.num_blocks() / WATERMARK_DIVISOR };
        let num_new = seq.len().div_ceil(self.block_size) - self.matched.len();
        if self.pool.num_available() < num_unused + num_new + reserve {
            return false;
        }
        seq.blocks.reserve_exact(seq.max_len.div_ceil(self.block_size));
        seq.reserve_hashes(seq.max_len / self.block_size);
        for &block in &self.matched {
            self.pool.share(block);
            seq.blocks.push(block);
        }
        for _ in 0..num_new {
            seq.blocks.push(self.pool.allocate().expect("the pool has that many"));
        }
        seq.num_registered = self.matched.len();
        seq.num_computed = self.matched.len() * self.block_size;
        true
    }

    /// Blocks that are missing for the next `num_tokens` of a running sequence.
    pub fn num_missing(&self, seq: &Sequence, num_tokens: usize) -> usize {
        let num_blocks = (seq.num_planned + num_tokens).div_ceil(self.block_size);
        num_blocks.saturating_sub(seq.blocks.len())
    }

    /// Appends `num_missing` blocks to its table and to the plan's new blocks. The pool has them.
    pub fn grow(&mut self, seq: &mut Sequence, num_missing: usize, plan: &mut StepPlan) {
        for _ in 0..num_missing {
            let block = self.pool.allocate().expect("the pool has that many");
            seq.blocks.push(block);
            plan.new_blocks.push(block);
        }
    }

    /// Takes all blocks back. The tail goes first, so that it is evicted before the head.
    pub fn release(&mut self, seq: &mut Sequence) {
        for block in seq.blocks.drain(..).rev() {
            self.pool.release(block);
        }
        seq.num_registered = 0;
        seq.num_computed = 0;
    }

    /// Makes the blocks that became full findable.
    pub fn register_full_blocks(&mut self, seq: &mut Sequence) {
        if !self.prefix_caching {
            return;
        }
        for at in seq.num_registered..seq.num_computed / self.block_size {
            let hash = seq.block_hash(at, self.block_size, &self.hasher);
            self.pool.register(seq.blocks[at], hash);
            seq.num_registered = at + 1;
        }
    }

    /// What the sequence computed is not to be trusted: nobody else is to start from it.
    pub fn forget(&mut self, seq: &Sequence) {
        for &block in &seq.blocks {
            self.pool.forget(block);
        }
    }

    /// Fills `matched` with the cached blocks of its prefix; says how many of them nobody holds.
    fn match_prefix(&mut self, seq: &mut Sequence) -> usize {
        self.matched.clear();
        let mut num_unused = 0;
        // What comes from the cache has no logits.
        if self.prefix_caching && !seq.is_unscored() {
            // The newest token is always computed: its logits are needed.
            for at in 0..(seq.len() - 1) / self.block_size {
                let hash = seq.block_hash(at, self.block_size, &self.hasher);
                let Some(block) = self.pool.lookup(hash) else { break };
                num_unused += usize::from(self.pool.is_unused(block));
                self.matched.push(block);
            }
        }
        num_unused
    }
}
