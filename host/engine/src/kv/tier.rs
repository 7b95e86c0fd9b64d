//! Blocks below the pool: which evicted ones a slower tier holds, and bringing them back.
//!
//! The engine only keeps the index and says what to move ([`Transfer`]); the runner moves it. A
//! sequence whose prefix is in the tier stands aside until its blocks are loaded; they then are
//! ordinary cached blocks, and it is admitted as anybody. What fails to load is computed. One whose
//! blocks are being loaded for another waits for these.

use std::collections::HashSet;

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

/// What the runner has to move before the next step. In this order; but what is stored may be
/// brought back before it is at its place, and loads may overtake all else.
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
    // It first, then those that wait for the same blocks.
    seqs: Vec<SeqId>,
    hashes: Vec<BlockHash>,
    // The cached prefix before them, then they, in order; each with a share.
    blocks: Vec<BlockId>,
    num_left: usize,
}

#[derive(Debug)]
pub(crate) struct Tier {
    index: TierIndex,
    loading: Vec<Loading>,
    transfers: Vec<Transfer>,
    // Nothing goes there any more.
    is_lost: bool,
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
            is_lost: false,
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
        if self.is_lost {
            return;
        }
        if self.index.has(hash) {
            self.index.refresh(hash);
            return;
        }
        let gone = self.index.insert(hash);
        self.transfers.extend(gone.map(|hash| Transfer::Remove { hash }));
        self.transfers.push(Transfer::Store { block, hash });
        self.num_stores += 1;
    }

    /// A block is not there, or is not what it was.
    pub fn lost(&mut self, hash: BlockHash) {
        self.num_failures += u64::from(self.index.remove(hash));
    }

    /// Nothing is there any more, and nothing will be.
    pub fn lost_all(&mut self) {
        self.is_lost = true;
        self.num_failures += self.index.len() as u64;
        self.index.clear();
    }

    pub fn take_transfers(&mut self, out: &mut Vec<Transfer>) {
        out.append(&mut self.transfers);
    }
}

impl KvManager {
    /// Begins to load what the tier holds of the sequence's prefix, behind what the pool has, or
    /// lets it wait for another's loads of that, if it may; false when there is nothing to wait
    /// for or no room. A sequence loads once.
    pub fn begin_loads(&mut self, seq: &mut Sequence, may_follow: bool) -> bool {
        let is_out = seq.has_tried_tier || !self.prefix_caching || seq.is_unscored();
        if self.tier.is_none() || is_out {
            return false;
        }
        let num_matched = self.match_prefix(seq);
        if may_follow && self.follow(seq, num_matched) {
            return true;
        }
        seq.has_tried_tier = true;
        let hashes = self.loadable(seq, num_matched);
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
        let tier = self.tier.as_mut().expect("there is one");
        // The head last, so that it outlives the tail.
        for &hash in hashes.iter().rev() {
            tier.index.touch(hash);
        }
        let num_before = tier.transfers.len();
        for _ in &hashes {
            blocks.push(self.allocate());
        }
        let tier = self.tier.as_mut().expect("there is one");
        // What was evicted for them may have taken their places: these are read first.
        let read: HashSet<BlockHash> = hashes.iter().copied().collect();
        let is_read =
            |t: &mut Transfer| matches!(t, Transfer::Remove { hash } if read.contains(hash));
        let removes: Vec<_> = tier.transfers.extract_if(num_before.., is_read).collect();
        for (&block, &hash) in blocks[num_matched..].iter().zip(&hashes) {
            tier.transfers.push(Transfer::Load { block, hash });
        }
        tier.transfers.extend(removes);
        let (seqs, num_left) = (vec![seq.id], hashes.len());
        tier.loading.push(Loading { seqs, hashes, blocks, num_left });
        true
    }

    /// A load ended. The sequences that waited for it, when it was the last one: who asked first.
    pub fn loaded(&mut self, block: BlockId, hash: BlockHash, is_ok: bool) -> Vec<SeqId> {
        let tier = self.tier.as_mut().expect("loads come from a tier");
        let is_its = |loading: &Loading| loading.blocks.contains(&block);
        let at = tier.loading.iter().position(is_its).expect("the load was begun");
        match is_ok {
            true => {
                self.pool.register(block, hash);
                tier.num_loads += 1;
            }
            false => {
                tier.index.remove(hash);
                tier.num_failures += 1;
            }
        }
        let loading = &mut tier.loading[at];
        loading.num_left -= 1;
        if loading.num_left > 0 {
            return Vec::new();
        }
        let loading = tier.loading.swap_remove(at);
        // The tail first, as when a sequence ends.
        for block in loading.blocks.into_iter().rev() {
            self.pool.release(block);
        }
        loading.seqs
    }

    /// Lets the sequence wait for another's loads where its own would begin.
    fn follow(&mut self, seq: &mut Sequence, num_matched: usize) -> bool {
        if num_matched >= (seq.len() - 1) / self.block_size {
            return false;
        }
        let hash = seq.block_hash(num_matched, self.block_size, &self.hasher);
        let tier = self.tier.as_mut().expect("there is one");
        let leader = tier.loading.iter_mut().find(|loading| loading.hashes.contains(&hash));
        leader.map(|loading| loading.seqs.push(seq.id)).is_some()
    }

    /// The blocks behind the matched ones that the tier holds and the pool has room for.
    fn loadable(&mut self, seq: &mut Sequence, num_matched: usize) -> Vec<BlockHash> {
        let tier = self.tier.as_ref().expect("there is one");
        // Half of what is free: those that run need some, too.
        let room = self.pool.num_available().saturating_sub(num_matched) / 2;
        let mut hashes = Vec::new();
        for at in (num_matched..(seq.len() - 1) / self.block_size).take(room) {
            let hash = seq.block_hash(at, self.block_size, &self.hasher);
            if !tier.index.has(hash) || self.pool.lookup(hash).is_some() {
                break;
            }
            hashes.push(hash);
        }
        hashes
    }
}
