//! How the rest of the host talks to the engine thread: bounded messages in, one batch of outputs
//! per step out.

use std::sync::Arc;

use tenon_engine::{RequestId, SamplingParams};

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
    /// Mixed into the block hashes: requests share cached prefixes only under the same salt.
    pub cache_salt: Option<String>,
}

/// Why a request was not taken. Each variant is one HTTP answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// 429.
    #[error("the queue is full ({limit} requests); try again later")]
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
