//! The KV cache as sequences use it: finds cached prefixes, hands out blocks, takes them back.
//!
//! The scheduler decides who gets tokens; what that means for blocks is decided here, over the
//! block pool and the block hashes. A sequence has one block table per KV group; all groups draw
//! from one pool. It knows no queue and no plan beyond the tables that it updates.

mod policy;
mod prefix;
mod table;
mod tier;
mod window;

pub use policy::TierPolicy;
pub(crate) use table::BlockTable;
pub(crate) use tier::Tier;
pub use tier::{TierConfig, Transfer};
pub(crate) use window::most_blocks;
use window::num_passed;

use crate::config::{EngineConfig, WATERMARK_DIVISOR};
use crate::hash::BlockHasher;
use crate::plan::{BlockCopy, StepPlan, TableUpdate};
use crate::pool::{BlockId, BlockPool};
use crate::sequence::Sequence;

/// While one is admitted only to wait for its first tokens, one block in this many stays free.
const WAITING_DIVISOR: usize = 4;

/// How a sequence is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Nobody runs.
    Alone,
    /// Others run.
    Beside,
    /// Others run, and nothing of it does for now: what it takes must not be missed by them.
    ToWait,
}

#[derive(Debug)]
pub(crate) struct KvManager {
    pub pool: BlockPool,
    pub hasher: BlockHasher,
    /// Where evicted blocks go; none: they are gone.
    pub tier: Option<Tier>,
    block_size: usize,
    // [num_groups] windows
    groups: Vec<Option<u32>>,
    max_step_tokens: usize,
    prefix_caching: bool,
    // [num_groups] scratch of `match_prefix`
    runs: Vec<usize>,
}

impl KvManager {
    pub fn new(config: &EngineConfig) -> Self {
        KvManager {
            pool: BlockPool::new(config.num_blocks),
            hasher: BlockHasher::new(config.hash_key),
            tier: config.tier.map(Tier::new),
            block_size: config.block_size,
            groups: config.kv_groups.clone(),
            max_step_tokens: config.max_step_tokens,
            prefix_caching: config.prefix_caching,
            runs: vec![0; config.kv_groups.len()],
        }
    }

    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Makes sure of blocks for all pending tokens of a waiting sequence (in a windowed group: for
    /// as many as it will hold at once), the cached ones of its prefix among them; false when there
    /// are too few.
    pub fn admit(&mut self, seq: &mut Sequence, admission: Admission) -> bool {
        let reserve = match admission {
            Admission::Alone => 0,
            Admission::Beside => self.pool.num_blocks() / WATERMARK_DIVISOR,
            Admission::ToWait => self.pool.num_blocks() / WAITING_DIVISOR,
        };
        let is_alone = admission == Admission::Alone;
        if seq.holds_blocks() {
            let num_missing = self.num_missing(seq, seq.num_pending());
            if self.pool.num_available() >= num_missing + reserve {
                return true;
            }
            if !is_alone {
                return false;
            }
            // What it holds is too much to begin with; computing it again always fits.
            self.release(seq);
        }
        let num_matched = self.match_prefix(seq);
        let mut num_needed = reserve;
        for group in 0..self.groups.len() {
            let first = self.num_passed(group, num_matched * self.block_size);
            num_needed += self.num_unused(seq, group, first..num_matched);
            num_needed += self.admission_len(group, seq.len(), first) - num_matched;
        }
        if self.pool.num_available() < num_needed {
            return false;
        }
        seq.reserve_hashes(seq.max_len / self.block_size);
        // Shares first: what is allocated may not be what was found.
        for group in 0..self.groups.len() {
            self.share_prefix(seq, group, num_matched);
        }
        for group in 0..self.groups.len() {
            let len = self.admission_len(group, seq.len(), seq.tables[group].num_passed);
            for _ in num_matched..len {
                let block = self.allocate();
                seq.tables[group].blocks.push(block);
            }
        }
        seq.num_registered = num_matched;
        seq.num_computed = num_matched * self.block_size;
        seq.num_planned = seq.num_computed;
        true
    }

    /// Blocks that are missing for the next `num_tokens` of a sequence that holds some, a copy of
    /// a shared one included. First gives back what its windows have left.
    pub fn num_missing(&mut self, seq: &mut Sequence, num_tokens: usize) -> usize {
        self.trim(seq);
        let len = (seq.num_planned + num_tokens).div_ceil(self.block_size);
        let mut num_missing = 0;
        for table in &seq.tables {
            num_missing += len.saturating_sub(table.blocks.len());
            num_missing += usize::from(self.shared_write(table, seq.num_planned).is_some());
        }
        num_missing
    }

    /// Makes the tables fit the next `num_tokens` and tells the plan what changed. The pool has
    /// what [`KvManager::num_missing`] asked for.
    pub fn grow(&mut self, seq: &mut Sequence, num_tokens: usize, plan: &mut StepPlan) {
        self.trim(seq);
        let len = (seq.num_planned + num_tokens).div_ceil(self.block_size);
        for table in &mut seq.tables {
            if let Some(at) = self.shared_write(table, seq.num_planned) {
                let (from, to) = (table.blocks[at], self.allocate());
                plan.block_copies.push(BlockCopy { from, to });
                self.pool.release(from);
                table.blocks[at] = to;
                table.num_told = table.num_told.min(at);
            }
            while table.blocks.len() < len {
                table.blocks.push(self.allocate());
            }
            let start = plan.new_blocks.len() as u32;
            plan.new_blocks.extend_from_slice(&table.blocks[table.num_told..]);
            plan.tables.push(TableUpdate {
                num_kept: table.num_told as u32,
                new_blocks: start..plan.new_blocks.len() as u32,
                num_passed: table.num_passed as u32,
            });
            table.num_told = table.blocks.len();
        }
    }

    /// Gives a sibling that holds nothing shares of the blocks of the prompt that `leader` has
    /// computed: all but the prompt's last token. Nothing happens where the leader has lost them.
    pub fn fork(&mut self, leader: &Sequence, sibling: &mut Sequence) {
        assert!(!sibling.holds_blocks() && leader.num_computed >= sibling.prompt.len());
        let num_computed = sibling.prompt.len() - 1;
        let len = num_computed.div_ceil(self.block_size);
        let passed = |group| num_passed(self.groups[group], num_computed, self.block_size);
        let lacks = |(group, table): (usize, &BlockTable)| {
            table.blocks.len() < len || table.num_passed > passed(group)
        };
        if len == 0 || leader.tables.iter().enumerate().any(lacks) {
            return;
        }
        for (group, table) in sibling.tables.iter_mut().enumerate() {
            table.num_passed = passed(group);
            table.blocks.reserve_exact(sibling.max_len.div_ceil(self.block_size));
            table.blocks.resize(table.num_passed, BlockId::NONE);
            for &block in &leader.tables[group].blocks[table.num_passed..len] {
                self.pool.share(block);
                table.blocks.push(block);
            }
        }
        sibling.is_fork = true;
        (sibling.num_computed, sibling.num_planned) = (num_computed, num_computed);
        sibling.num_registered = leader.num_registered.min(num_computed / self.block_size);
    }

    /// Takes all blocks back. The tail goes first, so that it is evicted before the head.
    pub fn release(&mut self, seq: &mut Sequence) {
        let longest = seq.tables.iter().map(|t| t.blocks.len()).max().unwrap_or(0);
        for at in (0..longest).rev() {
            for table in &seq.tables {
                match table.blocks.get(at) {
                    Some(&block) if block != BlockId::NONE => self.pool.release(block),
                    _ => {}
                }
            }
        }
        for table in &mut seq.tables {
            table.blocks.clear();
            (table.num_passed, table.num_told) = (0, 0);
        }
        seq.is_fork = false;
        seq.num_registered = 0;
        (seq.num_computed, seq.num_planned) = (0, 0);
    }

    /// Makes the blocks that became full findable.
    pub fn register_full_blocks(&mut self, seq: &mut Sequence) {
        if !self.prefix_caching {
            return;
        }
        for at in seq.num_registered..seq.num_computed / self.block_size {
            let hash = seq.block_hash(at, self.block_size, &self.hasher);
            for (group, table) in seq.tables.iter().enumerate() {
                if table.blocks[at] != BlockId::NONE {
                    self.pool.register(table.blocks[at], hash.in_group(group));
                }
            }
            seq.num_registered = at + 1;
        }
    }

    /// What the sequence computed is not to be trusted: nobody else is to start from it.
    pub fn forget(&mut self, seq: &mut Sequence) {
        for at in 0..seq.num_registered {
            let hash = seq.block_hash(at, self.block_size, &self.hasher);
            for group in 0..self.groups.len() {
                if let Some(block) = self.pool.lookup(hash.in_group(group)) {
                    self.pool.forget(block);
                }
            }
        }
    }

    /// Slots of the sequence's blocks that hold no token yet.
    pub fn num_unfilled_slots(&self, seq: &Sequence) -> usize {
        let unfilled = |t: &BlockTable| t.blocks.len() * self.block_size - seq.num_computed;
        seq.tables.iter().map(unfilled).sum()
    }

    /// Gives back the blocks that no token from the first pending one on sees.
    fn trim(&mut self, seq: &mut Sequence) {
        // Siblings begin at the last prompt token, wherever their leader is by then.
        let from = match seq.leads_siblings {
            true => seq.num_planned.min(seq.prompt.len() - 1),
            false => seq.num_planned,
        };
        for (group, table) in seq.tables.iter_mut().enumerate() {
            let end = num_passed(self.groups[group], from, self.block_size);
            for block in &mut table.blocks[table.num_passed.min(end)..end] {
                self.pool.release(*block);
                *block = BlockId::NONE;
            }
            table.num_passed = table.num_passed.max(end);
        }
    }

    /// The entry that a token at this position is written to, when somebody else may read it.
    fn shared_write(&self, table: &BlockTable, position: usize) -> Option<usize> {
        let at = position / self.block_size;
        let block = table.blocks.get(at)?;
        (!self.pool.is_exclusive(*block)).then_some(at)
    }

    fn allocate(&mut self) -> BlockId {
        let (block, evicted) = self.pool.allocate_evicting().expect("the pool has that many");
        if let (Some(tier), Some(hash)) = (&mut self.tier, evicted) {
            tier.evicted(block, hash);
        }
        block
    }

    fn num_passed(&self, group: usize, num_computed: usize) -> usize {
        num_passed(self.groups[group], num_computed, self.block_size)
    }

    /// Entries of a group's table at admission, when its window has passed `first` of them.
    fn admission_len(&self, group: usize, len: usize, first: usize) -> usize {
        let most = most_blocks(self.groups[group], len, self.block_size, self.max_step_tokens);
        len.div_ceil(self.block_size).min(first + most)
    }
}
