//! How the rest of the host talks to the engine thread: bounded messages in, one batch of outputs
//! per step out.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use tenon_engine::params::in_vocabulary;
use tenon_engine::{EngineConfig, EngineStats, ParamError, RequestId, SamplingParams, Tenant};

use tenon_grammar::Grammar;

use crate::shared::{Lifecycle, Shared};

/// A request for the engine: token ids in, token ids out.
#[derive(Debug, Clone)]
pub struct GenerateRequest {
    /// Chosen by the caller, never reused.
    pub id: RequestId,
    /// Not empty.
    pub prompt: Arc<[u32]>,
    /// Sequences to generate, at least 1.
    pub n: u32,
    /// For each of them; sequence `i` samples with `seed + i`.
    pub params: SamplingParams,
    /// What each of its outputs must follow.
    pub grammar: Option<Grammar>,
    /// Mixed into the block hashes: requests share cached prefixes only under the same salt.
    pub cache_salt: Option<String>,
    /// Lower comes first, where the policy goes by priority.
    pub priority: i32,
    /// Whose tokens they are, where tenants share by weight.
    pub tenant: Tenant,
    /// Ends with [`tenon_engine::FinishReason::Deadline`] at the first step after it.
    pub deadline: Option<Instant>,
}

impl GenerateRequest {
    /// One sequence, no salt, no deadline, for the default tenant.
    pub fn new(id: RequestId, prompt: Arc<[u32]>, params: SamplingParams) -> Self {
        GenerateRequest {
            id,
            prompt,
            n: 1,
            params,
            grammar: None,
            cache_salt: None,
            priority: 0,
            tenant: Tenant::default(),
            deadline: None,
        }
    }
}

/// Why a request was not taken. Each variant is one HTTP answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// 429.
    #[error("the queue is full ({limit} sequences); try again later")]
    QueueFull {
        /// Its bound.
        limit: usize,
    },
    /// 400, `param` is the field.
    #[error("{message}")]
    Invalid {
        /// Which field of the request.
        param: &'static str,
        /// Names the value and the limit.
        message: String,
    },
    /// 503.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// 503.
    #[error("the engine stopped: {reason}")]
    Unhealthy {
        /// Why.
        reason: String,
    },
}

impl From<ParamError> for SubmitError {
    fn from(error: ParamError) -> Self {
        SubmitError::Invalid { param: error.param, message: error.message }
    }
}

pub(crate) enum Message {
    Submit(Box<GenerateRequest>),
    Abort(RequestId),
    AbortSequence(RequestId, u32),
    Drain,
    Stop,
}

/// Talks to one engine thread. Cheap to clone; the thread ends when the last one is dropped and
/// nothing is alive.
#[derive(Clone)]
pub struct RunnerHandle {
    shared: Arc<Shared>,
    sender: Sender<Message>,
}

impl RunnerHandle {
    pub(crate) fn new(shared: Arc<Shared>, sender: Sender<Message>) -> Self {
        RunnerHandle { shared, sender }
    }

    /// Queues a request. After `Ok` each of its `n` sequences gets exactly one output with
    /// `finish`, whatever happens. Never blocks.
    pub fn submit(&self, mut request: GenerateRequest) -> Result<(), SubmitError> {
        self.refuse_unless_open()?;
        self.validate(&request)?;
        request.params.seed.get_or_insert_with(|| self.shared.draw_seed(request.id));
        let n = request.n as usize;
        self.shared.reserve(n)?;
        if self.sender.send(Message::Submit(Box::new(request))).is_err() {
            self.shared.give_back(n);
            return Err(self.shared.closed_error());
        }
        // The thread marks itself as closed before it empties the channel for the last time. Who
        // does not see the mark here had the message in the channel by then.
        self.refuse_if_closed()
    }

    /// Ends the request's sequences soon, with [`tenon_engine::FinishReason::Abort`]. Nothing
    /// happens when it ended already.
    ///
    /// Never waits, even while the engine thread does. Say it once per request: each call is a
    /// message of 32 bytes until that thread comes to it.
    pub fn abort(&self, id: RequestId) {
        // A closed channel: the thread ended and with it every request.
        let _ = self.sender.send(Message::Abort(id));
    }

    /// Like [`RunnerHandle::abort`], for one of the request's sequences: a stop string was found.
    pub fn abort_sequence(&self, id: RequestId, index: u32) {
        let _ = self.sender.send(Message::AbortSequence(id, index));
    }

    /// Refuses new requests from now on; the thread ends when those that it has are finished.
    pub fn drain(&self) {
        self.shared.begin_drain();
        let _ = self.sender.send(Message::Drain);
    }

    /// Like [`RunnerHandle::drain`], but aborts what is alive.
    pub fn stop(&self) {
        self.shared.begin_drain();
        let _ = self.sender.send(Message::Stop);
    }

    /// As of the last step. Each value is exact; together they may stem from adjacent steps.
    pub fn stats(&self) -> EngineStats {
        self.shared.stats()
    }

    /// The warm-up step has run, and new requests are taken.
    pub fn is_ready(&self) -> bool {
        self.shared.lifecycle() == Lifecycle::Ready
    }

    /// No panic, no device failure and no step without end so far.
    pub fn is_healthy(&self) -> bool {
        self.shared.lifecycle() != Lifecycle::Unhealthy
    }

    /// The engine's limits.
    pub fn config(&self) -> &EngineConfig {
        self.shared.config()
    }

    /// Entries of the vocabulary.
    pub fn vocab_size(&self) -> u32 {
        self.shared.vocab_size()
    }

    fn validate(&self, request: &GenerateRequest) -> Result<(), ParamError> {
        let max_tokens = request.params.max_tokens;
        self.config().check_request(request.prompt.len(), max_tokens, request.n)?;
        request.params.validate(self.vocab_size())?;
        request.params.check_masks(&self.config().eos_token_ids)?;
        request.prompt.iter().try_for_each(|&t| in_vocabulary("prompt", t, self.vocab_size()))
    }

    fn refuse_unless_open(&self) -> Result<(), SubmitError> {
        match self.shared.lifecycle() {
            Lifecycle::Starting | Lifecycle::Ready => Ok(()),
            _ => Err(self.shared.closed_error()),
        }
    }

    fn refuse_if_closed(&self) -> Result<(), SubmitError> {
        match self.shared.lifecycle() {
            Lifecycle::Stopped | Lifecycle::Unhealthy => Err(self.shared.closed_error()),
            _ => Ok(()),
        }
    }
}
