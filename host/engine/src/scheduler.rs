//! Which sequences run in a step, with how many tokens and which blocks.
//!
//! One token budget serves prefill and decode. Running sequences come first, oldest first; then
//! waiting ones, in order of arrival. When blocks run out the youngest running sequence is
//! preempted: it gives everything up and waits to be computed again. A sequence is in exactly one
//! of `running`, `waiting` and `deferred`; the first two are sorted by id, which is arrival.

use std::collections::VecDeque;

use crate::config::EngineConfig;
use crate::hash::BlockHasher;
use crate::plan::{Admitted, Row, Scheduled, StepPlan};
use crate::pool::{BlockId, BlockPool};
use crate::request::RequestId;
use crate::sequence::{SeqId, Sequence};
use crate::stats::EngineStats;

/// While others run, admission leaves one block in this many free, so that a newcomer is not
/// preempted by the next decode step.
const WATERMARK_DIVISOR: usize = 100;

#[derive(Debug)]
pub(crate) struct Scheduler {
    pub running: Vec<Sequence>,
    pub waiting: VecDeque<Sequence>,
    /// Siblings of a sequence that is about to compute their common prompt.
    pub deferred: Vec<Sequence>,
    pub pool: BlockPool,
    pub hasher: BlockHasher,
    pub stats: EngineStats,
    free_rows: Vec<Row>,
    // Rows given back since the last plan; the runner is told with the next one.
    released: Vec<Row>,
    block_size: usize,
    max_step_tokens: usize,
    max_prefill_chunk: usize,
    max_num_seqs: usize,
    prefix_caching: bool,
    // Scratch of `admit_head`.
    matched: Vec<BlockId>,
}

impl Scheduler {
    pub fn new(config: &EngineConfig) -> Self {
        Scheduler {
            running: Vec::with_capacity(config.max_num_seqs),
            waiting: VecDeque::new(),
            deferred: Vec::new(),
            pool: BlockPool::new(config.num_blocks),
            hasher: BlockHasher::new(config.hash_key),
            stats: EngineStats::default(),
            free_rows: (0..config.max_num_seqs as u32).rev().map(Row).collect(),
            released: Vec::new(),
            block_size: config.block_size,
            max_step_tokens: config.max_step_tokens,
            max_prefill_chunk: config.max_prefill_chunk,
            max_num_seqs: config.max_num_seqs,
            prefix_caching: config.prefix_caching,
            matched: Vec::new(),
        }
    }

    pub fn num_live(&self) -> usize {
        self.running.len() + self.waiting.len() + self.deferred.len()
    }

    /// Fills `plan`; leaves `scheduled` empty when there is nothing to do.
    pub fn plan(&mut self, plan: &mut StepPlan) {
        plan.clear();
        let mut budget = self.max_step_tokens;
        let num_preemptions = self.stats.num_preemptions;
        self.plan_running(plan, &mut budget);
        if self.stats.num_preemptions == num_preemptions {
            while budget > 0 && self.running.len() < self.max_num_seqs {
                if !self.admit_head(plan, &mut budget) {
                    break;
                }
            }
        }
        plan.num_tokens = self.max_step_tokens - budget;
        if !plan.scheduled.is_empty() {
            plan.released.append(&mut self.released);
        }
        assert!(
            !plan.scheduled.is_empty() || self.num_live() == 0,
            "{} sequences and no progress",
            self.num_live()
        );
    }

    fn plan_running(&mut self, plan: &mut StepPlan, budget: &mut usize) {
        // Each of these is owed one token of the budget, whatever stands before it.
        let mut num_decodes = self.running.iter().filter(|s| s.is_decoding()).count();
        let mut at = 0;
        while at < self.running.len() {
            let seq = &self.running[at];
            let num_tokens = if seq.is_decoding() {
                num_decodes -= 1;
                1
            } else {
                seq.num_pending().min(*budget - num_decodes).min(self.chunk_cap())
            };
            let num_blocks = (seq.num_computed + num_tokens).div_ceil(self.block_size);
            let num_missing = num_blocks.saturating_sub(seq.blocks.len());
            while self.pool.num_available() < num_missing {
                let is_self = self.running.len() - 1 == at;
                // The victim is younger than `at`: it has no share of this step yet.
                let victim_decodes = self.preempt_youngest();
                if is_self {
                    return;
                }
                num_decodes -= usize::from(victim_decodes);
            }
            if num_tokens > 0 {
                let start = plan.new_blocks.len() as u32;
                for _ in 0..num_missing {
                    let block = self.pool.allocate().expect("the pool has that many");
                    self.running[at].blocks.push(block);
                    plan.new_blocks.push(block);
                }
                schedule(&self.running[at], num_tokens, start, plan);
                *budget -= num_tokens;
            }
            at += 1;
        }
    }

    /// Gives the head of the queue a row and all blocks of its pending tokens; false when it has
    /// to wait, and with it all behind it.
    fn admit_head(&mut self, plan: &mut StepPlan, budget: &mut usize) -> bool {
        let chunk_cap = self.chunk_cap();
        let Some(seq) = self.waiting.front_mut() else { return false };
        let num_total = seq.len().div_ceil(self.block_size);
        self.matched.clear();
        let mut num_unused = 0;
        if self.prefix_caching {
            // The newest token is always computed: its logits are needed.
            for at in 0..(seq.len() - 1) / self.block_size {
                let hash = seq.block_hash(at, self.block_size, &self.hasher);
                let Some(block) = self.pool.lookup(hash) else { break };
                num_unused += usize::from(self.pool.is_unused(block));
                self.matched.push(block);
            }
        }
        let reserve = match self.running.is_empty() {
            true => 0,
            false => self.pool.num_blocks() / WATERMARK_DIVISOR,
        };
        let num_new = num_total - self.matched.len();
        if self.pool.num_available() < num_unused + num_new + reserve {
            return false;
        }
        let mut seq = self.waiting.pop_front().expect("it has a head");
        seq.row = self.free_rows.pop();
        assert!(seq.row.is_some(), "rows and running sequences disagree");
        seq.blocks.reserve_exact(seq.max_len.div_ceil(self.block_size));
        for &block in &self.matched {
            self.pool.share(block);
            seq.blocks.push(block);
        }
        for _ in 0..num_new {
            seq.blocks.push(self.pool.allocate().expect("the pool has that many"));
        }
        seq.num_registered = self.matched.len();
        seq.num_computed = self.matched.len() * self.block_size;
        if seq.num_cached.is_none() {
            self.count_admission(&mut seq);
        }
        plan.admitted.push(admitted(&seq));
        let start = plan.new_blocks.len() as u32;
        plan.new_blocks.extend_from_slice(&seq.blocks);
        let num_tokens = seq.num_pending().min(*budget).min(chunk_cap);
        schedule(&seq, num_tokens, start, plan);
        *budget -= num_tokens;
        let at = self.running.partition_point(|s| s.id < seq.id);
        self.running.insert(at, seq);
        true
    }

    fn count_admission(&mut self, seq: &mut Sequence) {
        seq.num_cached = Some(seq.num_computed);
        seq.output.reserve_exact(seq.max_len - seq.len());
        self.stats.prompt_tokens += seq.prompt.len() as u64;
        if self.prefix_caching {
            self.stats.prefix_cache_queries += seq.prompt.len() as u64;
            self.stats.prefix_cache_hits += seq.num_computed as u64;
        }
    }

    /// Finish and re-add: the sequence keeps its tokens and loses all else. True when it decoded.
    fn preempt_youngest(&mut self) -> bool {
        let mut seq = self.running.pop().expect("somebody holds the blocks");
        let was_decoding = seq.is_decoding();
        self.release(&mut seq);
        self.stats.num_preemptions += 1;
        self.enqueue(seq);
        was_decoding
    }

    /// Puts a sequence where its arrival belongs.
    pub fn enqueue(&mut self, seq: Sequence) {
        let at = self.waiting.partition_point(|s| s.id < seq.id);
        self.waiting.insert(at, seq);
    }

    /// The deferred siblings of a request join the queue.
    pub fn release_siblings(&mut self, request: RequestId) {
        for seq in self.deferred.extract_if(.., |s| s.request == request).collect::<Vec<_>>() {
            self.enqueue(seq);
        }
    }

    /// Gives back row and blocks. The tail goes first, so that it is evicted before the head.
    pub fn release(&mut self, seq: &mut Sequence) {
        for block in seq.blocks.drain(..).rev() {
            self.pool.release(block);
        }
        seq.num_registered = 0;
        seq.num_computed = 0;
        let row = seq.row.take().expect("a running sequence has a row");
        self.free_rows.push(row);
        self.released.push(row);
    }

    /// Makes the blocks that became full findable.
    pub fn register_full_blocks(&mut self, at: usize) {
        if !self.prefix_caching {
            return;
        }
        let seq = &mut self.running[at];
        for at in seq.num_registered..seq.num_computed / self.block_size {
            let hash = seq.block_hash(at, self.block_size, &self.hasher);
            self.pool.register(seq.blocks[at], hash);
            seq.num_registered = at + 1;
        }
    }

    pub fn position_of(&self, seq: SeqId) -> usize {
        self.running
            .binary_search_by_key(&seq, |s| s.id)
            .expect("a scheduled sequence runs until its step is settled")
    }

    // Alone, a prompt may take whole steps.
    fn chunk_cap(&self) -> usize {
        match self.num_live() {
            0 | 1 => usize::MAX,
            _ => self.max_prefill_chunk,
        }
    }
}

fn schedule(seq: &Sequence, num_tokens: usize, blocks_start: u32, plan: &mut StepPlan) {
    plan.scheduled.push(Scheduled {
        seq: seq.id,
        row: seq.row.expect("a running sequence has a row"),
        start: seq.num_computed as u32,
        num_tokens: num_tokens as u32,
        new_blocks: blocks_start..plan.new_blocks.len() as u32,
        wants_logits: num_tokens == seq.num_pending(),
    });
}

fn admitted(seq: &Sequence) -> Admitted {
    Admitted {
        row: seq.row.expect("a running sequence has a row"),
        request: seq.request,
        index: seq.index,
        prompt: seq.prompt.clone(),
        output: seq.output.clone(),
        params: seq.params.clone(),
        max_len: seq.max_len,
    }
}
