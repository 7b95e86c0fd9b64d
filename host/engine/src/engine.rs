//! The engine: requests in, plans and outputs out.
//!
//! `runner::worker` drives it: `add` and `abort` at any time, then `plan`, the forward pass, the
//! sampler, `settle`, again and again. It knows no clock, no device and no other thread.

use std::sync::Arc;

use crate::config::{ConfigError, EngineConfig, PrefillLimit, SchedulingPolicy};
use crate::hash::{BlockHash, ExtraKey};
use crate::kv::{Tier, Transfer};
use crate::params::ParamError;
use crate::plan::{Sampled, Scheduled, StepPlan};
use crate::pool::BlockId;
use crate::request::{FinishReason, RequestId, SamplingParams, StepOutput};
use crate::scheduler::{Reach, Scheduler};
use crate::sequence::{SeqId, Sequence, SequenceLimits};
use crate::stats::EngineStats;
use crate::tenants::Tenant;

/// A request as the engine takes it. The parameters were validated by the caller.
#[derive(Debug, Clone)]
pub struct NewRequest {
    /// Never reused.
    pub id: RequestId,
    /// Not empty.
    pub prompt: Arc<[u32]>,
    /// Sequences, at least 1.
    pub n: u32,
    /// For each of them.
    pub params: Arc<SamplingParams>,
    /// Requests share cached prefixes only under the same salt and within a tenant.
    pub cache_salt: Option<String>,
    /// Lower comes first under [`SchedulingPolicy::Priority`].
    pub priority: i32,
    /// Whose prompt it is, and whose tokens they are under [`SchedulingPolicy::FairShare`].
    pub tenant: Tenant,
}

/// Why a request was not added. Nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// It can never run.
    #[error(transparent)]
    Invalid(#[from] ParamError),
    /// As many sequences are alive as the configuration allows.
    #[error("the queue is full ({limit} requests); try again later")]
    QueueFull {
        /// `max_num_seqs + max_waiting`.
        limit: usize,
    },
}

/// Sequences, blocks and queues, owned by one thread.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    scheduler: Scheduler,
    plan: StepPlan,
    is_in_flight: bool,
    // Made while the step in flight runs; not handed over yet.
    ahead: StepPlan,
    has_ahead: bool,
    // The last plan found nothing to run though something is alive.
    is_stalled: bool,
    next_seq: u64,
}

impl Engine {
    /// Allocates the block pool.
    pub fn new(config: EngineConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let scheduler = Scheduler::new(&config);
        Ok(Engine {
            config,
            scheduler,
            plan: StepPlan::default(),
            is_in_flight: false,
            ahead: StepPlan::default(),
            has_ahead: false,
            is_stalled: false,
            next_seq: 0,
        })
    }

    /// What it was made with.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Queues the request's sequences. Only the first of `n` queues at once; its siblings follow
    /// when it has computed the prompt, with shares of its blocks.
    pub fn add(&mut self, request: NewRequest) -> Result<(), AddError> {
        self.config.check_request(request.prompt.len(), request.params.max_tokens, request.n)?;
        self.is_stalled = false;
        let limit = self.config.max_live_seqs();
        if self.scheduler.num_live() + request.n as usize > limit {
            return Err(AddError::QueueFull { limit });
        }
        let salt = request.cache_salt.as_deref().map(ExtraKey::Salt);
        let keys = [Some(ExtraKey::Tenant(request.tenant.id)), salt].into_iter().flatten();
        let limits = SequenceLimits {
            max_len: self.config.max_seq_len(),
            num_groups: self.config.kv_groups.len(),
            root: self.scheduler.kv.hasher.root(keys),
        };
        // The last prompt token is every sibling's own: its logits are needed. The
        // log-probabilities of the prompt come before the first token of anyone.
        let shares = request.prompt.len() > 1 || request.params.prompt_logprobs.is_some();
        for index in 0..request.n {
            let id = SeqId(self.next_seq);
            self.next_seq += 1;
            let mut seq = Sequence::new(id, &request, index, limits);
            if self.config.policy == SchedulingPolicy::Priority {
                seq.priority = request.priority;
            }
            seq.lane = self.scheduler.tenants.arrive(request.tenant);
            if shares && index > 0 {
                self.scheduler.aside.push(seq);
                continue;
            }
            seq.leads_siblings = shares && request.n > 1;
            match self.scheduler.kv.begin_loads(&mut seq, true) {
                true => self.scheduler.aside.push(seq),
                false => self.scheduler.waiting.insert(seq),
            }
        }
        Ok(())
    }

    /// Most prefill tokens of a step in which others decode, from now on: the driver measures what
    /// a step may cost. 0 holds prompts up for as long as somebody decodes.
    pub fn limit_prefill(&mut self, limit: PrefillLimit) {
        self.scheduler.prefill_limit = limit;
    }

    /// What to move between the pool and the tier below it when [`Engine::plan`] planned nothing;
    /// appended. A plan has its own in [`StepPlan::transfers`].
    pub fn take_transfers(&mut self, transfers: &mut Vec<Transfer>) {
        if let Some(tier) = &mut self.scheduler.kv.tier {
            tier.take_transfers(transfers);
        }
    }

    /// A [`Transfer::Load`] ended: the block holds what was asked for, or it could not be had.
    pub fn loaded(&mut self, block: BlockId, hash: BlockHash, is_ok: bool) {
        self.is_stalled = false;
        for id in self.scheduler.kv.loaded(block, hash, is_ok) {
            // It may have been aborted meanwhile.
            let at = self.scheduler.aside.iter().position(|seq| seq.id == id);
            let Some(mut seq) = at.map(|at| self.scheduler.aside.remove(at)) else { continue };
            match self.scheduler.kv.begin_loads(&mut seq, false) {
                true => self.scheduler.aside.push(seq),
                false => self.scheduler.waiting.insert(seq),
            }
        }
    }

    /// A [`Transfer::Store`] could not be done.
    pub fn store_failed(&mut self, hash: BlockHash) {
        if let Some(tier) = &mut self.scheduler.kv.tier {
            tier.lost(hash);
        }
    }

    /// The tier is out of order: what it held is lost, and nothing goes there any more. Loads that
    /// were begun are still to be ended.
    pub fn tier_failed(&mut self) {
        if let Some(tier) = &mut self.scheduler.kv.tier {
            tier.lost_all();
        }
    }

    /// Something is alive, and the last plan found nothing to run: sequences wait for loads, or for
    /// blocks that loads hold.
    pub fn waits_for_loads(&self) -> bool {
        self.is_stalled && self.scheduler.kv.tier.as_ref().is_some_and(Tier::is_loading)
    }

    /// Plans the next step; none when nothing is alive or all that is waits for loads. Each plan is
    /// settled before the next.
    ///
    /// Takes over what [`Engine::plan_ahead`] planned, less what ended meanwhile, and gives what
    /// is left of the budget to others.
    pub fn plan(&mut self) -> Option<&StepPlan> {
        assert!(!self.is_in_flight, "the last plan was not settled");
        if std::mem::take(&mut self.has_ahead) {
            std::mem::swap(&mut self.plan, &mut self.ahead);
            self.scheduler.amend(&mut self.plan);
            self.retire();
        } else {
            self.scheduler.begin(&mut self.plan);
        }
        self.scheduler.fill(&mut self.plan, Reach::Full);
        if self.plan.scheduled.is_empty() {
            let num_live = self.scheduler.num_live();
            let is_idle = num_live == 0;
            self.is_stalled = !is_idle;
            assert!(is_idle || self.waits_for_loads(), "{num_live} sequences and no progress");
            if is_idle {
                self.check_idle();
            }
            return None;
        }
        self.is_stalled = false;
        self.scheduler.hand_over(&self.plan);
        if let Some(tier) = &mut self.scheduler.kv.tier {
            tier.take_transfers(&mut self.plan.transfers);
        }
        self.is_in_flight = true;
        self.scheduler.stats.count_step(self.plan.num_tokens as u64);
        Some(&self.plan)
    }

    /// Plans the step after the one in flight, as far as that can be known: sequences whose token
    /// is being sampled go on with it, nobody is preempted. Does nothing when nothing is in flight
    /// or it was done.
    pub fn plan_ahead(&mut self) {
        if !self.is_in_flight || self.has_ahead {
            return;
        }
        self.scheduler.begin(&mut self.ahead);
        self.scheduler.fill(&mut self.ahead, Reach::Ahead);
        self.has_ahead = !self.ahead.scheduled.is_empty();
        self.scheduler.stats.num_steps_ahead += u64::from(self.has_ahead);
    }

    /// Takes what came of the plan, in its order: of each scheduled sequence one result for its
    /// prompt rows, if it has some, and one if it wants logits. Appends to `outputs`.
    pub fn settle(&mut self, results: &mut Vec<Sampled>, outputs: &mut Vec<StepOutput>) {
        assert!(self.is_in_flight, "there is no plan to settle");
        let scheduled = std::mem::take(&mut self.plan.scheduled);
        let mut results = results.drain(..);
        for item in &scheduled {
            let mut next = || results.next().expect("one result per use of logits");
            let scores = (!item.prompt_rows.is_empty()).then(&mut next);
            let result = item.wants_logits.then(next);
            self.settle_one(item, scores, result, outputs);
        }
        assert!(results.next().is_none(), "more results than uses of logits");
        self.plan.scheduled = scheduled;
        self.is_in_flight = false;
        self.retire();
    }

    /// Ends all sequences of the request; appends outputs that say so. Nothing happens when it
    /// ended.
    pub fn abort(&mut self, request: RequestId, why: FinishReason, outputs: &mut Vec<StepOutput>) {
        self.abort_where(|seq| seq.request == request, why, outputs);
    }

    /// Ends one of the request's sequences. Nothing happens when it ended.
    pub fn abort_sequence(
        &mut self,
        request: RequestId,
        index: u32,
        outputs: &mut Vec<StepOutput>,
    ) {
        let is_meant = |seq: &Sequence| seq.request == request && seq.index == index;
        self.abort_where(is_meant, FinishReason::Abort, outputs);
    }

    fn abort_where(
        &mut self,
        is_meant: impl Fn(&Sequence) -> bool,
        why: FinishReason,
        outputs: &mut Vec<StepOutput>,
    ) {
        for at in 0..self.scheduler.running.len() {
            let row = self.scheduler.running.row_at(at);
            let seq = self.scheduler.running.seq_mut(row);
            if is_meant(seq) && !seq.is_ended {
                outputs.push(last_output(seq, why, None));
                seq.is_ended = true;
            }
        }
        let aside = self.scheduler.aside.extract_if(.., |seq| is_meant(seq)).collect::<Vec<_>>();
        let mut waiting = self.scheduler.waiting.extract(&is_meant);
        for seq in &mut waiting {
            self.scheduler.kv.release(seq);
        }
        for seq in aside.iter().chain(&waiting) {
            outputs.push(last_output(seq, why, None));
            self.scheduler.tenants.leave(seq.lane);
        }
        // It lost its first sequence before the prompt was computed.
        for seq in aside.iter().chain(&waiting).filter(|seq| seq.leads_siblings) {
            self.scheduler.promote_sibling(seq.request);
        }
        self.retire();
    }

    /// Nothing is alive.
    pub fn is_idle(&self) -> bool {
        self.scheduler.num_live() == 0
    }

    /// A snapshot.
    pub fn stats(&self) -> EngineStats {
        let Scheduler { running, waiting, aside, kv, stats, .. } = &self.scheduler;
        let pool = &kv.pool;
        EngineStats {
            num_requests_running: running.len() as u64,
            num_requests_waiting: (waiting.len() + aside.len()) as u64,
            num_requests_deferred: aside.len() as u64,
            kv_cache_usage: pool.num_used() as f64 / pool.num_blocks() as f64,
            num_blocks: pool.num_blocks() as u64,
            block_size: self.config.block_size as u64,
            num_used_blocks: pool.num_used() as u64,
            num_cached_blocks: pool.num_cached() as u64,
            kv_cache_waste: self.scheduler.kv_waste(),
            num_tier_blocks: kv.tier.as_ref().map_or(0, |tier| tier.len() as u64),
            num_tier_stores: kv.tier.as_ref().map_or(0, |tier| tier.num_stores),
            num_tier_loads: kv.tier.as_ref().map_or(0, |tier| tier.num_loads),
            num_tier_failures: kv.tier.as_ref().map_or(0, |tier| tier.num_failures),
            ..*stats
        }
    }

    /// Walks all state and panics where it does not add up. Linear time: for tests and diagnosis.
    pub fn check(&self) {
        self.scheduler.kv.pool.check();
        let Scheduler { running, waiting, aside, kv, .. } = &self.scheduler;
        let mut held = std::collections::HashSet::new();
        for seq in running.iter().chain(waiting.iter()) {
            assert!(seq.len() <= seq.max_len && seq.num_computed <= seq.num_planned);
            for table in &seq.tables {
                assert!(seq.num_planned <= table.blocks.len() * self.config.block_size);
                assert!(table.blocks[..table.num_passed].iter().all(|&b| b == BlockId::NONE));
                held.extend(table.held());
            }
        }
        held.extend(kv.tier.iter().flat_map(Tier::held));
        assert_eq!(held.len(), kv.pool.num_used(), "a block leaked");
        for seq in running.iter() {
            assert!(seq.row.is_some());
            assert!(self.is_in_flight || self.has_ahead || !seq.is_ended, "it was not retired");
        }
        for seq in waiting.iter().chain(aside) {
            assert!(seq.row.is_none() && !seq.is_ended);
        }
        assert!(!aside.iter().any(Sequence::holds_blocks));
    }

    fn settle_one(
        &mut self,
        item: &Scheduled,
        scores: Option<Sampled>,
        result: Option<Sampled>,
        outputs: &mut Vec<StepOutput>,
    ) {
        let seq = self.scheduler.running.seq_mut(item.row);
        assert_eq!(seq.id, item.seq, "a row changed hands while its step ran");
        seq.num_planned_samples -= u32::from(item.wants_logits);
        if seq.is_ended {
            return;
        }
        seq.num_computed += item.num_tokens as usize;
        let failure = [&scores, &result].into_iter().flatten().find_map(|r| match r {
            Sampled::Failed(error) => Some(error.clone()),
            _ => None,
        });
        if let Some(error) = failure {
            outputs.push(last_output(seq, FinishReason::Error, Some(error)));
            seq.is_ended = true;
            // What it computed may be what is broken: nobody else is to start from it.
            self.scheduler.kv.forget(seq);
            return;
        }
        self.scheduler.kv.register_full_blocks(seq);
        let mut output =
            StepOutput { finish: None, ..last_output(seq, FinishReason::Length, None) };
        if let Some(scores) = scores {
            let Sampled::Prompt(list) = scores else { panic!("prompt rows give no token") };
            assert_eq!(list.len(), item.prompt_rows.len(), "one per prompt row");
            seq.num_scored = item.prompt_rows.end as usize;
            output.prompt_logprobs = list;
        }
        match result {
            Some(Sampled::Token { token, logprobs }) => {
                (output.token, output.logprobs) = (Some(token), logprobs);
                output.finish = seq.push(token, &self.config.eos_token_ids);
                self.scheduler.stats.generation_tokens += 1;
            }
            Some(Sampled::Last { token, logprobs }) => {
                (output.token, output.logprobs) = (Some(token), logprobs);
                let stop = seq.push(token, &self.config.eos_token_ids);
                let is_stop = matches!(stop, Some(FinishReason::Stop(_)));
                output.finish = if is_stop { stop } else { Some(FinishReason::Complete) };
                self.scheduler.stats.generation_tokens += 1;
            }
            Some(_) => panic!("a row that wants logits gets a token"),
            // Only the prompt was asked for.
            None if seq.has_computed_prompt() && seq.len() >= seq.max_len => {
                output.finish = Some(FinishReason::Length);
            }
            None => {}
        }
        seq.is_ended = output.finish.is_some();
        let says_something = output.token.is_some() || !output.prompt_logprobs.is_empty();
        outputs.extend((says_something || seq.is_ended).then_some(output));
        if seq.leads_siblings && seq.has_computed_prompt() {
            seq.leads_siblings = false;
            self.scheduler.fork_siblings(item.row);
        }
    }

    /// Frees what ended, unless a step or a plan still speaks of it.
    fn retire(&mut self) {
        if self.is_in_flight || self.has_ahead {
            return;
        }
        let mut at = 0;
        while at < self.scheduler.running.len() {
            let row = self.scheduler.running.row_at(at);
            if !self.scheduler.running.seq(row).is_ended {
                at += 1;
                continue;
            }
            let seq = self.scheduler.retire(row);
            if seq.leads_siblings {
                self.scheduler.promote_sibling(seq.request);
            }
        }
    }

    fn check_idle(&self) {
        let pool = &self.scheduler.kv.pool;
        // Loads of sequences that are gone end by themselves.
        if self.scheduler.kv.tier.as_ref().is_some_and(Tier::is_loading) {
            return;
        }
        assert_eq!(pool.num_used(), 0, "idle, and {} blocks are held", pool.num_used());
        assert_eq!(pool.num_available(), pool.num_blocks(), "idle, and blocks are missing");
    }
}

fn last_output(seq: &Sequence, finish: FinishReason, error: Option<String>) -> StepOutput {
    StepOutput {
        request: seq.request,
        index: seq.index,
        token: None,
        logprobs: None,
        prompt_logprobs: Vec::new(),
        finish: Some(finish),
        error,
        num_cached_tokens: seq.num_cached.unwrap_or(0) as u32,
    }
}
