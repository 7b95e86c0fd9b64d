//! Which sequences run in a step, with how many tokens and which blocks.
//!
//! One token budget serves prefill and decode. Running sequences come first, in the order of the
//! policy; then waiting ones. When blocks run out the last running sequence is preempted: it gives
//! everything up and waits to be computed again; the first one never is, so that something always
//! comes to its end. Before that, siblings that wait with shares of their leader's blocks lose
//! these. A sequence is in exactly one of `running` (it owns a row), `waiting` and
//! `aside` (it waits for a cause and stands in nobody's way).

use crate::config::{EngineConfig, PrefillLimit, SchedulingPolicy};
use crate::kv::{Admission, KvManager};
use crate::plan::{Admitted, Row, Scheduled, StepPlan};
use crate::queue::WaitQueue;
use crate::request::RequestId;
use crate::rows::SequenceRows;
use crate::sequence::Sequence;
use crate::stats::EngineStats;
use crate::tenants::Tenants;

/// What a plan may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Everything: no step is in flight.
    Full,
    /// A step is in flight: its sequences cannot give up their blocks.
    Ahead,
}

#[derive(Debug)]
pub(crate) struct Scheduler {
    pub running: SequenceRows,
    pub waiting: WaitQueue,
    /// Siblings of a sequence that is about to compute their common prompt.
    pub aside: Vec<Sequence>,
    pub tenants: Tenants,
    pub kv: KvManager,
    pub stats: EngineStats,
    /// Prefill tokens of a step in which others decode.
    pub prefill_limit: PrefillLimit,
    // Rows given back since the last plan; the runner is told with the next one.
    released: Vec<Row>,
    // Counts plans; a sequence's share of the plan that is being made carries it.
    step: u64,
    policy: SchedulingPolicy,
    max_step_tokens: usize,
    max_prefill_chunk: usize,
    max_prompt_logits_rows: usize,
    prefix_caching: bool,
}

/// What is left of a step while it is being planned.
struct Budget {
    limit: PrefillLimit,
    tokens: usize,
    prefill: usize,
    // Of `prefill`, for long prompts.
    long_prefill: usize,
    // Running sequences with one pending token that have no share yet: each is owed one.
    num_decodes: usize,
    // Sequences without a share that have a longer way to go, those that wait included.
    num_prefills: usize,
    // Logits rows for prompts.
    prompt_rows: usize,
    num_live: usize,
}

impl Budget {
    /// Prefill tokens for one sequence: to a long prompt half of what is left while others are to
    /// come, so that a short one need not wait for its end.
    fn take_prefill(&mut self, seq: &Sequence, chunk_cap: usize) -> usize {
        self.num_prefills = self.num_prefills.saturating_sub(1);
        let is_long = seq.is_long(&self.limit);
        let fair = match (is_long, self.num_prefills) {
            (false, _) => self.prefill,
            (true, 0) => self.long_prefill.min(self.prefill),
            (true, _) => self.long_prefill.min(self.prefill.div_ceil(2)),
        };
        let free = self.tokens - self.num_decodes.min(self.tokens);
        let num_tokens = seq.num_pending().min(free).min(fair).min(chunk_cap);
        let num_tokens = seq.within_rows(num_tokens, self.prompt_row_cap());
        self.prompt_rows -= seq.prompt_rows(num_tokens).len();
        self.prefill -= num_tokens;
        if is_long {
            self.long_prefill -= num_tokens;
        }
        self.tokens -= num_tokens;
        num_tokens
    }

    /// Prompt rows that one sequence may take: half of what is left, so that others that want some
    /// are not kept waiting behind a long prompt. Alone, all.
    fn prompt_row_cap(&self) -> usize {
        if self.num_live > 1 { self.prompt_rows.div_ceil(2) } else { self.prompt_rows }
    }
}

impl Scheduler {
    pub fn new(config: &EngineConfig) -> Self {
        Scheduler {
            running: SequenceRows::new(config.max_num_seqs),
            waiting: WaitQueue::default(),
            aside: Vec::new(),
            tenants: Tenants::new(config.policy == SchedulingPolicy::FairShare),
            kv: KvManager::new(config),
            stats: EngineStats::default(),
            prefill_limit: PrefillLimit::NONE,
            released: Vec::new(),
            step: 0,
            policy: config.policy,
            max_step_tokens: config.max_step_tokens,
            max_prefill_chunk: config.max_prefill_chunk,
            max_prompt_logits_rows: config.max_prompt_logits_rows,
            prefix_caching: config.prefix_caching,
        }
    }

    pub fn num_live(&self) -> usize {
        self.running.len() + self.waiting.len() + self.aside.len()
    }

    /// Begins a new plan.
    pub fn begin(&mut self, plan: &mut StepPlan) {
        plan.clear();
        self.step += 1;
    }

    /// Gives shares to sequences that have none in `plan`; may be called again for the same plan.
    pub fn fill(&mut self, plan: &mut StepPlan, reach: Reach) {
        self.order();
        let mut budget = self.budget(plan);
        let num_preemptions = self.stats.num_preemptions;
        let is_complete = self.plan_running(plan, &mut budget, reach);
        if is_complete && self.stats.num_preemptions == num_preemptions {
            while budget.tokens > 0 && budget.prefill > 0 && self.running.has_room() {
                if !self.admit_head(plan, &mut budget) {
                    break;
                }
            }
        }
        if plan.scheduled.is_empty() && self.stats.num_preemptions > num_preemptions {
            // All that decoded were preempted: nobody holds the prompts up any more.
            budget = self.budget(plan);
            self.plan_running(plan, &mut budget, reach);
        }
        plan.num_tokens = self.max_step_tokens - budget.tokens;
        if !plan.scheduled.is_empty() {
            plan.released.append(&mut self.released);
        }
    }

    /// Takes the shares of sequences that ended out of a plan that was not launched, with their
    /// admissions: the device never hears of these.
    pub fn amend(&mut self, plan: &mut StepPlan) {
        let running = &mut self.running;
        plan.scheduled.retain(|item| {
            let seq = running.seq(item.row);
            let is_kept = !seq.is_ended;
            if !is_kept {
                plan.num_tokens -= item.num_tokens as usize;
            }
            is_kept
        });
        plan.admitted.retain(|new| !running.seq(new.row).is_ended);
    }

    /// The plan goes to the runner, which knows its rows from now on.
    pub fn hand_over(&mut self, plan: &StepPlan) {
        for new in &plan.admitted {
            self.running.seq_mut(new.row).is_known_to_runner = true;
        }
    }

    fn budget(&self, plan: &StepPlan) -> Budget {
        let (mut num_decodes, mut num_prefills, mut anyone_decodes) = (0, 0, false);
        for seq in self.running.iter().filter(|s| !s.is_ended) {
            let has_share = seq.step == self.step;
            num_decodes += usize::from(!has_share && seq.is_decoding());
            num_prefills += usize::from(!has_share && seq.num_pending() > 1);
            anyone_decodes |= seq.num_pending() <= 1 && seq.num_planned >= seq.prompt.len();
        }
        let limit = if anyone_decodes { self.prefill_limit } else { PrefillLimit::NONE };
        let (mut planned, mut long_planned) = (0, 0);
        for item in plan.scheduled.iter().filter(|i| i.num_tokens > 1 || !i.wants_logits) {
            let is_long = self.running.seq(item.row).is_long(&limit);
            planned += item.num_tokens as usize;
            long_planned += if is_long { item.num_tokens as usize } else { 0 };
        }
        Budget {
            limit,
            tokens: self.max_step_tokens - plan.num_tokens,
            prefill: limit.num_tokens.saturating_sub(planned),
            long_prefill: limit.num_long_tokens.saturating_sub(long_planned),
            num_decodes,
            num_prefills: num_prefills + self.waiting.len(),
            prompt_rows: self.max_prompt_logits_rows
                - plan.scheduled.iter().map(|item| item.prompt_rows.len()).sum::<usize>(),
            num_live: self.num_live(),
        }
    }

    /// False when a sequence had to go without because blocks are held by a step in flight.
    fn plan_running(&mut self, plan: &mut StepPlan, budget: &mut Budget, reach: Reach) -> bool {
        let chunk_cap = self.chunk_cap();
        let mut at = 0;
        while at < self.running.len() {
            let row = self.running.row_at(at);
            let seq = self.running.seq(row);
            let num_pending = seq.num_pending();
            if seq.step == self.step || seq.is_ended || num_pending == 0 {
                at += 1;
                continue;
            }
            let is_decoding = seq.is_decoding();
            let num_tokens = if is_decoding {
                budget.num_decodes -= 1;
                // What was planned ahead may have left none to one that had nothing to do then.
                let num_tokens = budget.tokens.min(1);
                budget.tokens -= num_tokens;
                num_tokens
            } else {
                budget.take_prefill(seq, chunk_cap)
            };
            while num_tokens > 0 && self.lacks_blocks(row, num_tokens) {
                if self.reclaim(false) {
                    continue;
                }
                if reach == Reach::Ahead {
                    budget.tokens += num_tokens;
                    return false;
                }
                let Some(victim) = self.victim(at) else {
                    // The others got their shares ahead; it goes first in the next step.
                    budget.tokens += num_tokens;
                    return false;
                };
                if victim == row {
                    self.preempt(row);
                    budget.tokens += num_tokens;
                    return true;
                }
                budget.num_decodes -= usize::from(self.preempt(victim));
            }
            if num_tokens > 0 {
                let seq = self.running.seq_mut(row);
                schedule(seq, num_tokens, self.step, &mut self.kv, plan);
                self.tenants.charge(seq.lane, num_tokens);
            }
            at += 1;
        }
        true
    }

    /// The last running sequence without a share of this plan, from `at` on; never the first.
    fn victim(&self, at: usize) -> Option<Row> {
        let candidates = (at.max(1)..self.running.len()).rev().map(|i| self.running.row_at(i));
        candidates.into_iter().find(|&row| self.running.seq(row).step != self.step)
    }

    /// Gives the head of the queue a row and all blocks of its pending tokens; false when it has
    /// to wait, and with it all behind it. A long prompt may have to wait for its first tokens,
    /// but not in the way of short ones.
    fn admit_head(&mut self, plan: &mut StepPlan, budget: &mut Budget) -> bool {
        let chunk_cap = self.chunk_cap();
        loop {
            let Some(seq) = self.waiting.head_mut(&self.tenants) else { return false };
            // Nothing of one that wants prompt rows comes from the cache: without a row it could
            // not run a token.
            if seq.within_rows(1, budget.prompt_row_cap()) == 0 {
                return false;
            }
            let has_share = budget.long_prefill > 0 || !seq.is_long(&budget.limit);
            let admission = match (self.running.is_empty(), has_share) {
                (true, _) => Admission::Alone,
                (false, true) => Admission::Beside,
                (false, false) => Admission::ToWait,
            };
            if self.kv.admit(seq, admission) {
                break;
            }
            if !(self.running.is_empty() && self.reclaim(true)) {
                return false;
            }
        }
        let mut seq = self.waiting.pop(&self.tenants).expect("it has a head");
        if seq.num_cached.is_none() {
            self.count_admission(&mut seq);
        }
        let row = self.running.insert(seq, self.policy);
        let seq = self.running.seq_mut(row);
        let num_tokens = budget.take_prefill(seq, chunk_cap);
        if num_tokens > 0 {
            schedule(seq, num_tokens, self.step, &mut self.kv, plan);
            self.tenants.charge(seq.lane, num_tokens);
        }
        true
    }

    /// Whether the pool has too little for the next tokens of a running sequence.
    fn lacks_blocks(&mut self, row: Row, num_tokens: usize) -> bool {
        let num_missing = self.kv.num_missing(self.running.seq_mut(row), num_tokens);
        self.kv.pool.num_available() < num_missing
    }

    /// Takes the blocks of the youngest waiting sequence that has some; false when nobody has any.
    fn reclaim(&mut self, spares_head: bool) -> bool {
        let holder = self.waiting.last_mut(&self.tenants, spares_head, Sequence::holds_blocks);
        let Some(seq) = holder else { return false };
        self.kv.release(seq);
        true
    }

    fn count_admission(&mut self, seq: &mut Sequence) {
        // A sibling's share of the prompt is not from the prefix cache.
        seq.num_cached = Some(if seq.is_fork { 0 } else { seq.num_computed });
        seq.output.reserve_exact(seq.max_len - seq.len());
        self.stats.prompt_tokens += seq.prompt.len() as u64;
        if self.prefix_caching && !seq.is_fork {
            self.stats.prefix_cache_queries += seq.prompt.len() as u64;
            self.stats.prefix_cache_hits += seq.num_computed as u64;
        }
    }

    /// Finish and re-add: the sequence keeps its tokens and loses all else. True when it decoded.
    fn preempt(&mut self, row: Row) -> bool {
        let mut seq = self.running.remove(row);
        let was_decoding = seq.is_decoding();
        self.kv.release(&mut seq);
        if std::mem::take(&mut seq.is_known_to_runner) {
            self.released.push(row);
        }
        self.stats.num_preemptions += 1;
        self.waiting.insert(seq);
        was_decoding
    }

    /// The siblings of a sequence that has computed the prompt join the queue with shares of its
    /// blocks.
    pub fn fork_siblings(&mut self, leader: Row) {
        let leader = self.running.seq(leader);
        for mut seq in self.aside.extract_if(.., |s| s.request == leader.request) {
            self.kv.fork(leader, &mut seq);
            self.waiting.insert(seq);
        }
    }

    /// The sequence that was to compute its siblings' prompt is gone: the next one does it.
    pub fn promote_sibling(&mut self, request: RequestId) {
        let is_sibling = |s: &Sequence| s.request == request;
        let Some(at) = self.aside.iter().position(is_sibling) else { return };
        let mut seq = self.aside.remove(at);
        seq.leads_siblings = self.aside.iter().any(is_sibling);
        self.waiting.insert(seq);
    }

    /// Slots of held blocks without a token over all their slots; 0 when no block is held.
    pub fn kv_waste(&self) -> f64 {
        let num_held = self.kv.pool.num_used() * self.kv.block_size();
        let unfilled = self.running.iter().map(|s| self.kv.num_unfilled_slots(s));
        unfilled.sum::<usize>() as f64 / num_held.max(1) as f64
    }

    /// A running sequence ended: gives back its row and blocks.
    pub fn retire(&mut self, row: Row) -> Sequence {
        let mut seq = self.running.remove(row);
        self.kv.release(&mut seq);
        if seq.is_known_to_runner {
            self.released.push(row);
        }
        self.tenants.leave(seq.lane);
        seq
    }

    /// Fair sharing ranks by what was served, which changes; the oldest one stays first, so that
    /// it comes to its end.
    fn order(&mut self) {
        if self.policy == SchedulingPolicy::FairShare {
            self.running.sort_by_service(&self.tenants);
        }
    }

    // Alone, a prompt may take whole steps.
    fn chunk_cap(&self) -> usize {
        match self.num_live() {
            0 | 1 => usize::MAX,
            _ => self.max_prefill_chunk,
        }
    }
}

fn schedule(
    seq: &mut Sequence,
    num_tokens: usize,
    step: u64,
    kv: &mut KvManager,
    plan: &mut StepPlan,
) {
    assert!(num_tokens > 0, "a share of a step is at least a token");
    if !seq.is_known_to_runner {
        plan.admitted.push(admitted(seq));
    }
    let tables_start = plan.tables.len() as u32;
    kv.grow(seq, num_tokens, plan);
    let wants_logits = num_tokens == seq.num_pending() && seq.len() < seq.max_len;
    plan.scheduled.push(Scheduled {
        seq: seq.id,
        row: seq.row.expect("a running sequence has a row"),
        start: seq.num_planned as u32,
        num_tokens: num_tokens as u32,
        tables: tables_start..plan.tables.len() as u32,
        prompt_rows: seq.prompt_rows(num_tokens),
        wants_logits,
    });
    seq.num_planned += num_tokens;
    seq.num_planned_samples += u32::from(wants_logits);
    seq.step = step;
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
