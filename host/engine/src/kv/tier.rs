//! Blocks below the pool: which evicted ones a slower tier holds, and bringing them back.
//!
//! The engine only keeps the index and says what to move ([`Transfer`]); the runner moves it. A
//! sequence whose prefix is in the tier stands aside until its blocks are loaded; they then are
//! ordinary cached blocks, and it is admitted as anybody. What fails to load is computed.

use crate::hash::BlockHash;
use crate::kv::KvManager;
use crate::kv::policy::{TierIndex, TierPolicy};
use crate::pool::BlockId;
use crate::sequence::{SeqId, Sequence};

/// A tier's size, in blocks, and how it chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierConfig {
    /// Most blocks that it holds.
    pub num_blocks: usize,
    /// What goes when it is full.
    pub policy: TierPolicy,
}

/// What the runner has to move, in this order, before the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// Copy the block, which is about to be overwritten, to the tier under this identity.
    Store {
        /// Where it is.
        block: BlockId,
        /// What it is.
        hash: BlockHash,
    },
    /// Bring it back to this block and say so with [`crate::Engine::loaded`].
    Load {
        /// Where it goes.
        block: BlockId,
        /// What it is.
        hash: BlockHash,
    },
    /// Forget it.
    Remove {
        /// What it was.
        hash: BlockHash,
    },
}

/// The loads of one sequence.
#[derive(Debug)]
struct Loading {
    seq: SeqId,
    // The cached prefix before them, then they, in order; each with a share.
    blocks: Vec<BlockId>,
    num_left: usize,
}

#[derive(Debug)]
pub(crate) struct Tier {
    index: TierIndex,
    loading: Vec<Loading>,
    transfers: Vec<Transfer>,
    pub num_stores: u64,
    pub num_loads: u64,
    pub num_failures: u64,
}

impl Tier {
    pub fn new(config: TierConfig) -> Self {
        Tier {
            index: TierIndex::new(config.policy, config.num_blocks),
            loading: Vec::new(),
            transfers: Vec::new(),
            num_stores: 0,
            num_loads: 0,
            num_failures: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Blocks that loads hold.
    pub fn held(&self) -> impl Iterator<Item = BlockId> {
        self.loading.iter().flat_map(|loading| loading.blocks.iter().copied())
    }

    pub fn is_loading(&self) -> bool {
        !self.loading.is_empty()
    }

    /// The pool gives the block to somebody else.
    pub fn evicted(&mut self, block: BlockId, hash: BlockHash) {
        if self.index.has(hash) {
            return;
        }
        let gone = self.index.insert(hash);
        self.transfers.extend(gone.map(|hash| Transfer::Remove { hash }));
        self.transfers.push(Transfer::Store { block, hash });
        self.num_stores += 1;
    }

    pub fn lost(&mut self, hash: BlockHash) {
        self.index.remove(hash);
        self.num_failures += 1;
    }

    pub fn take_transfers(&mut self, out: &mut Vec<Transfer>) {
        out.append(&mut self.transfers);
    }
}

impl KvManager {
    /// Begins to load what the tier holds of the sequence's prefix, behind what the pool has; false
    /// when there is nothing to load or no room. A sequence tries once.
    pub fn begin_loads(&mut self, seq: &mut Sequence) -> bool {
        if self.tier.is_none() || std::mem::replace(&mut seq.has_tried_tier, true) {
            return false;
        }
        if !self.prefix_caching || seq.is_unscored() {
            return false;
        }
        let num_matched = self.match_prefix(seq);
        let mut hashes = Vec::new();
        for at in num_matched..(seq.len() - 1) / self.block_size {
            let hash = seq.block_hash(at, self.block_size, &self.hasher);
            let is_held = self.tier.as_ref().is_some_and(|tier| tier.index.has(hash));
            if !is_held || self.pool.lookup(hash).is_some() {
                break;
            }
            hashes.push(hash);
        }
        // Half of what is free: those that run need some, too.
        let room = self.pool.num_available().saturating_sub(num_matched) / 2;
        hashes.truncate(room);
        if hashes.is_empty() {
            return false;
        }
        let mut blocks = Vec::with_capacity(num_matched + hashes.len());
        for at in 0..num_matched {
            let hash = seq.block_hash(at, self.block_size, &self.hasher);
            let block = self.pool.lookup(hash).expect("it was matched");
            self.pool.share(block);
            blocks.push(block);
        }
        for &hash in &hashes {
            let block = self.allocate();
            blocks.push(block);
            let tier = self.tier.as_mut().expect("there is one");
            tier.index.touch(hash);
            tier.transfers.push(Transfer::Load { block, hash });
        }
        let tier = self.tier.as_mut().expect("there is one");
        tier.loading.push(Loading { seq: seq.id, blocks, num_left: hashes.len() });
        true
    }

    /// A load ended. The sequence that waited for it, when it was the last one.
    pub fn loaded(&mut self, block: BlockId, hash: BlockHash, is_ok: bool) -> Option<SeqId> {
        let tier = self.tier.as_mut().expect("loads come from a tier");
        let is_its = |loading: &Loading| loading.blocks.contains(&block);
        let at = tier.loading.iter().position(is_its).expect("the load was begun");
        match is_ok {
            true => {
                self.pool.register(block, hash);
                tier.num_loads += 1;
            }
            false => tier.lost(hash),
        }
        let loading = &mut tier.loading[at];
        loading.num_left -= 1;
        if loading.num_left > 0 {
            return None;
        }
        let loading = tier.loading.swap_remove(at);
        // The tail first, as when a sequence ends.
        for block in loading.blocks.into_iter().rev() {
            self.pool.release(block);
        }
        Some(loading.seq)
    }
}
