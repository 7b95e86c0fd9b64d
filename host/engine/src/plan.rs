//! What one step runs: the engine's instructions to the runner, as changes to its rows.

use std::ops::Range;
use std::sync::Arc;

use crate::kv::Transfer;
use crate::pool::BlockId;
use crate::request::{RequestId, SamplingParams, TokenLogprobs};
use crate::sequence::SeqId;

/// A sequence's permanent index in runner state, from admission to its end or preemption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Row(pub u32);

/// A sequence that got a row in this step.
#[derive(Debug, Clone)]
pub struct Admitted {
    /// Its row.
    pub row: Row,
    /// Whose.
    pub request: RequestId,
    /// Which of the request's sequences; it samples with `seed + index`.
    pub index: u32,
    /// The user's prompt.
    pub prompt: Arc<[u32]>,
    /// Tokens generated before a preemption; else empty.
    pub output: Vec<u32>,
    /// How to sample.
    pub params: Arc<SamplingParams>,
    /// Prompt and output together never grow beyond this.
    pub max_len: usize,
}

/// One sequence's share of the step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scheduled {
    /// Who.
    pub seq: SeqId,
    /// Its row.
    pub row: Row,
    /// Computed before this step: position of the first token to run.
    pub start: u32,
    /// Tokens to run, at least 1.
    pub num_tokens: u32,
    /// What changes in the row's block tables first, one per KV group: a range of
    /// [`StepPlan::tables`].
    pub tables: Range<u32>,
    /// Positions among them whose logits are wanted as well: those at `p` tell how likely token
    /// `p + 1` of the prompt was. Empty for most.
    pub prompt_rows: Range<u32>,
    /// The newest token is among them: sample the next one.
    pub wants_logits: bool,
}

/// What changes in one of a row's block tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableUpdate {
    /// Cut the table to this length,
    pub num_kept: u32,
    /// then append these, a range of [`StepPlan::new_blocks`];
    pub new_blocks: Range<u32>,
    /// the group's window has passed this many entries: they are [`BlockId::NONE`] from now on.
    pub num_passed: u32,
}

/// A block's content, to be copied before anything else of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// Shared: others go on reading it.
    pub from: BlockId,
    /// Whoever writes next owns this one.
    pub to: BlockId,
}

/// One step. Apply in order of the fields. Buffers are reused from step to step.
#[derive(Debug, Default)]
pub struct StepPlan {
    /// Rows whose sequence ended or was preempted since the last plan.
    pub released: Vec<Row>,
    /// Rows that have their first share; the block tables are empty.
    pub admitted: Vec<Admitted>,
    /// Distinct rows, at least one.
    pub scheduled: Vec<Scheduled>,
    /// Flat storage of `Scheduled::tables`.
    pub tables: Vec<TableUpdate>,
    /// Flat storage of `TableUpdate::new_blocks`.
    pub new_blocks: Vec<BlockId>,
    /// Between the pool and the tier below it: to be begun in order, before the copies.
    pub transfers: Vec<Transfer>,
    /// To be done in order.
    pub block_copies: Vec<BlockCopy>,
    /// Sum of `Scheduled::num_tokens`.
    pub num_tokens: usize,
}

impl StepPlan {
    pub(crate) fn clear(&mut self) {
        self.released.clear();
        self.admitted.clear();
        self.scheduled.clear();
        self.tables.clear();
        self.new_blocks.clear();
        self.transfers.clear();
        self.block_copies.clear();
        self.num_tokens = 0;
    }
}

/// What came of one scheduled sequence that wanted logits: first of its prompt, if it has
/// `prompt_rows`, then of the next token, if it `wants_logits`.
#[derive(Debug, Clone, PartialEq)]
pub enum Sampled {
    /// The next token.
    Token {
        /// Its id.
        token: u32,
        /// When asked for.
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// For each of `prompt_rows`, of the prompt's next token.
    Prompt(Vec<TokenLogprobs>),
    /// The next token, and nothing can follow it: its grammar is complete.
    Last {
        /// Its id.
        token: u32,
        /// When asked for.
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// This sequence cannot go on, the others can: why.
    Failed(String),
}
