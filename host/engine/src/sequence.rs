//! One generation of a request: its tokens, its blocks and how far it has come.
//!
//! Owned by exactly one of the scheduler's lists; ids ascend in order of arrival.

use std::ops::Range;
use std::sync::Arc;

use crate::config::PrefillLimit;
use crate::engine::NewRequest;
use crate::hash::{BlockHash, BlockHasher};
use crate::kv::BlockTable;
use crate::plan::Row;
use crate::repetition::RepetitionDetector;
use crate::request::{FinishReason, RequestId, SamplingParams};

/// A sequence; ids ascend with arrival, then with the index in the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

#[derive(Debug)]
pub(crate) struct Sequence {
    pub id: SeqId,
    pub request: RequestId,
    pub index: u32,
    /// Its tenant's lane in the counters of fair sharing.
    pub lane: usize,
    /// Lower comes first; 0 unless the policy goes by priority.
    pub priority: i32,
    pub params: Arc<SamplingParams>,
    pub prompt: Arc<[u32]>,
    pub output: Vec<u32>,
    /// Prompt and output together end here: `max_tokens`, the model's and the pool's limit.
    pub max_len: usize,
    /// Siblings wait until this one has computed the prompt.
    pub leads_siblings: bool,
    /// What it has computed is a sibling's prompt.
    pub is_fork: bool,
    /// Tokens whose KV is present.
    pub num_computed: usize,
    /// Positions of the prompt whose logits were used: those of `prompt_rows` in earlier steps.
    pub num_scored: usize,
    /// Tokens whose KV is present or in a plan that was made.
    pub num_planned: usize,
    /// Output tokens that plans will sample and that are not in `output` yet.
    pub num_planned_samples: u32,
    /// It looked for its prefix in the tier below the pool.
    pub has_tried_tier: bool,
    /// The last plan in which it has a share.
    pub step: u64,
    /// Its admission was handed to the runner, which must hear when its row is released.
    pub is_known_to_runner: bool,
    /// Prompt tokens from the prefix cache, at the first admission.
    pub num_cached: Option<usize>,
    /// While running.
    pub row: Option<Row>,
    /// [num_groups] All empty while it waits, unless it waits with shares of a sibling's prompt.
    pub tables: Vec<BlockTable>,
    /// Blocks at the start of each table whose hash is known to the pool.
    pub num_registered: usize,
    /// Its last output was sent; freed when the step in flight settles.
    pub is_ended: bool,
    // [full blocks hashed so far]; never shrinks: tokens are append-only.
    hashes: Vec<BlockHash>,
    root: BlockHash,
    repetition: Option<RepetitionDetector>,
}

/// What the engine's configuration and the request's keys make of a new sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SequenceLimits {
    /// Of the longest one.
    pub max_len: usize,
    pub num_groups: usize,
    /// Of its block hashes.
    pub root: BlockHash,
}

impl Sequence {
    /// Sequence `index` of a request.
    pub fn new(id: SeqId, request: &NewRequest, index: u32, limits: SequenceLimits) -> Self {
        let (prompt, params) = (request.prompt.clone(), request.params.clone());
        let max_len = limits.max_len.min(prompt.len() + params.max_tokens as usize);
        Sequence {
            id,
            request: request.id,
            index,
            lane: 0,
            priority: 0,
            output: Vec::new(),
            repetition: params.repetition_detection.map(RepetitionDetector::new),
            params,
            prompt,
            max_len,
            leads_siblings: false,
            is_fork: false,
            num_computed: 0,
            num_scored: 0,
            num_planned: 0,
            num_planned_samples: 0,
            has_tried_tier: false,
            step: 0,
            is_known_to_runner: false,
            num_cached: None,
            row: None,
            tables: std::iter::repeat_with(BlockTable::default).take(limits.num_groups).collect(),
            num_registered: 0,
            is_ended: false,
            hashes: Vec::new(),
            root: limits.root,
        }
    }

    /// Prompt and output tokens.
    pub fn len(&self) -> usize {
        self.prompt.len() + self.output.len()
    }

    /// What it is ordered by where nothing else counts.
    pub fn rank(&self) -> (i32, SeqId) {
        (self.priority, self.id)
    }

    /// Tokens whose KV is in no plan yet, those to be sampled by a plan in flight included. At
    /// least 1 while nothing is in flight: the newest token has none.
    pub fn num_pending(&self) -> usize {
        let len = self.len() + self.num_planned_samples as usize;
        match self.num_planned_samples > 0 && len >= self.max_len {
            // The token in flight is its last one.
            true => 0,
            false => len - self.num_planned,
        }
    }

    /// Its prompt takes many steps beside others.
    pub fn is_long(&self, limit: &PrefillLimit) -> bool {
        self.prompt.len() - self.num_cached.unwrap_or(0) > limit.long_prompt
    }

    /// One pending token, which a step always has room for.
    pub fn is_decoding(&self) -> bool {
        self.num_pending() == 1
    }

    /// Whether it has blocks, be it running or not.
    pub fn holds_blocks(&self) -> bool {
        self.tables.iter().any(|t| !t.blocks.is_empty())
    }

    pub fn has_computed_prompt(&self) -> bool {
        self.num_computed >= self.prompt.len()
    }

    /// Its prompt's log-probabilities are not complete: it computes the prompt itself.
    pub fn is_unscored(&self) -> bool {
        self.num_scored < self.score_end()
    }

    /// Positions among the next `num_tokens` whose logits the prompt's log-probabilities need.
    pub fn prompt_rows(&self, num_tokens: usize) -> Range<u32> {
        let start = self.num_planned.max(self.num_scored);
        let end = (self.num_planned + num_tokens).min(self.score_end());
        if start < end { start as u32..end as u32 } else { 0..0 }
    }

    /// How many of the next `num_tokens` may run in a step that has `max_rows` for prompts.
    pub fn within_rows(&self, num_tokens: usize, max_rows: usize) -> usize {
        let end = self.num_planned.max(self.num_scored) + max_rows;
        if end < self.score_end() { num_tokens.min(end - self.num_planned) } else { num_tokens }
    }

    /// Behind the positions whose logits tell of a prompt token. The first of `n` speaks for all.
    fn score_end(&self) -> usize {
        let is_asked = self.params.prompt_logprobs.is_some() && self.index == 0;
        if is_asked { self.prompt.len() - 1 } else { 0 }
    }

    /// Room for the hashes of so many blocks, so that steps do not allocate.
    pub fn reserve_hashes(&mut self, num_blocks: usize) {
        self.hashes.reserve_exact(num_blocks.saturating_sub(self.hashes.len()));
    }

    /// The hash of full block `at`, hashing what was not hashed before.
    pub fn block_hash(&mut self, at: usize, size: usize, hasher: &BlockHasher) -> BlockHash {
        debug_assert!((at + 1) * size <= self.len());
        while self.hashes.len() <= at {
            let parent = self.hashes.last().copied().unwrap_or(self.root);
            let start = self.hashes.len() * size;
            let tokens = (start..start + size).map(|i| self.token(i));
            let hash = hasher.chain(parent, tokens);
            self.hashes.push(hash);
        }
        self.hashes[at]
    }

    /// Appends an output token and says whether the sequence ends with it.
    pub fn push(&mut self, token: u32, eos_token_ids: &[u32]) -> Option<FinishReason> {
        let num_before = self.output.len() as u32;
        self.output.push(token);
        let repeats = self.repetition.as_mut().is_some_and(|r| r.push(&self.output));
        let is_eos = !self.params.ignore_eos && eos_token_ids.contains(&token);
        let is_stop = is_eos || self.params.stop_token_ids.contains(&token);
        if is_stop && num_before >= self.params.min_tokens {
            return Some(FinishReason::Stop(token));
        }
        if self.len() >= self.max_len {
            return Some(FinishReason::Length);
        }
        (repeats && num_before + 1 >= self.params.min_tokens).then_some(FinishReason::Repetition)
    }

    fn token(&self, at: usize) -> u32 {
        match at.checked_sub(self.prompt.len()) {
            None => self.prompt[at],
            Some(at) => self.output[at],
        }
    }
}
