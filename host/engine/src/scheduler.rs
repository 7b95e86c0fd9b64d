//! Which sequences run in a step, with how many tokens and which blocks.
//!
//! One token budget serves prefill and decode. Running sequences come first, oldest first; then
//! waiting ones, in order of arrival. When blocks run out the youngest running sequence is
//! preempted: it gives everything up and waits to be computed again. A sequence is in exactly one
//! of `running`, `waiting` and `deferred`; the first two are sorted by id, which is arrival.

use std::collections::VecDeque;

use crate::config::EngineConfig;
use crate::kv::KvManager;
use crate::plan::{Admitted, Row, Scheduled, StepPlan};
use crate::request::RequestId;
use crate::sequence::{SeqId, Sequence};
use crate::stats::EngineStats;

#[derive(Debug)]
pub(crate) struct Scheduler {
    pub running: Vec<Sequence>,
    pub waiting: VecDeque<Sequence>,
    /// Siblings of a sequence that is about to compute their common prompt.
    pub deferred: Vec<Sequence>,
    pub kv: KvManager,
    pub stats: EngineStats,
    free_rows: Vec<Row>,
    // Rows given back since the last plan; the runner is told with the next one.
    released: Vec<Row>,
    max_step_tokens: usize,
    max_prefill_chunk: usize,
    max_num_seqs: usize,
    max_prompt_logits_rows: usize,
    // What this step has left of them.
    num_prompt_rows_left: usize,
    prefix_caching: bool,
}

impl Scheduler {
    pub fn new(config: &EngineConfig) -> Self {
        Scheduler {
            running: Vec::with_capacity(config.max_num_seqs),
            waiting: VecDeque::new(),
            deferred: Vec::new(),
            kv: KvManager::new(config),
            stats: EngineStats::default(),
            free_rows: (0..config.max_num_seqs as u32).rev().map(Row).collect(),
            released: Vec::new(),
            max_step_tokens: config.max_step_tokens,
            max_prefill_chunk: config.max_prefill_chunk,
            max_num_seqs: config.max_num_seqs,
            max_prompt_logits_rows: config.max_prompt_logits_rows,
            num_prompt_rows_left: 0,
            prefix_caching: config.prefix_caching,
        }
    }

    pub fn num_live(&self) -> usize {
        self.running.len() + self.waiting.len() + self.deferred.len()
    }

    /// Fills `plan`; leaves `scheduled` empty when there is nothing to do.
    pub fn plan(&mut self, plan: &mut StepPlan) {
        plan.clear();
        let mut budget = self.max_step_tokens;
        self.num_prompt_rows_left = self.max_prompt_logits_rows;
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
                let num_tokens = seq.num_pending().min(*budget - num_decodes).min(self.chunk_cap());
                seq.within_rows(num_tokens, self.prompt_row_cap())
            };
            let num_missing = self.kv.num_missing(seq, num_tokens);
            while self.kv.pool.num_available() < num_missing {
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
                self.kv.grow(&mut self.running[at], num_missing, plan);
                self.num_prompt_rows_left -= schedule(&self.running[at], num_tokens, start, plan);
                *budget -= num_tokens;
            }
            at += 1;
        }
    }

    /// Gives the head of the queue a row and all blocks of its pending tokens; false when it has
    /// to wait, and with it all behind it.
    fn admit_head(&mut self, plan: &mut StepPlan, budget: &mut usize) -> bool {
        let (chunk_cap, row_cap) = (self.chunk_cap(), self.prompt_row_cap());
        let Some(seq) = self.waiting.front_mut() else { return false };
        // Nothing of it comes from the cache: without a row it could not run a token.
        if seq.within_rows(1, row_cap) == 0 || !self.kv.admit(seq, self.running.is_empty()) {
            return false;
        }
        let mut seq = self.waiting.pop_front().expect("it has a head");
        seq.row = self.free_rows.pop();
        assert!(seq.row.is_some(), "rows and running sequences disagree");
        if seq.num_cached.is_none() {
            self.count_admission(&mut seq);
        }
        plan.admitted.push(admitted(&seq));
        let start = plan.new_blocks.len() as u32;
        plan.new_blocks.extend_from_slice(&seq.blocks);
        let num_tokens = seq.num_pending().min(*budget).min(chunk_cap);
        let num_tokens = seq.within_rows(num_tokens, row_cap);
        self.num_prompt_rows_left -= schedule(&seq, num_tokens, start, plan);
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

    /// Gives back row and blocks.
    pub fn release(&mut self, seq: &mut Sequence) {
        self.kv.release(seq);
        let row = seq.row.take().expect("a running sequence has a row");
        self.free_rows.push(row);
        self.released.push(row);
    }

    pub fn position_of(&self, seq: SeqId) -> usize {
        self.running
            .binary_search_by_key(&seq, |s| s.id)
            .expect("a scheduled sequence runs until its step is settled")
    }

    /// Prompt rows that one sequence may take: half of what is left, so that others that want some
    /// are not kept waiting behind a long prompt. Alone, all.
    fn prompt_row_cap(&self) -> usize {
        let left = self.num_prompt_rows_left;
        if self.num_live() > 1 { left.div_ceil(2) } else { left }
    }

    // Alone, a prompt may take whole steps.
    fn chunk_cap(&self) -> usize {
        match self.num_live() {
            0 | 1 => usize::MAX,
            _ => self.max_prefill_chunk,
        }
    }
}

/// Returns how many prompt rows it takes.
fn schedule(seq: &Sequence, num_tokens: usize, blocks_start: u32, plan: &mut StepPlan) -> usize {
    let prompt_rows = seq.prompt_rows(num_tokens);
    let num_rows = prompt_rows.len();
    plan.scheduled.push(Scheduled {
        seq: seq.id,
        row: seq.row.expect("a running sequence has a row"),
        start: seq.num_computed as u32,
        num_tokens: num_tokens as u32,
        new_blocks: blocks_start..plan.new_blocks.len() as u32,
        prompt_rows,
        wants_logits: num_tokens == seq.num_pending() && seq.len() < seq.max_len,
    });
    num_rows
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
