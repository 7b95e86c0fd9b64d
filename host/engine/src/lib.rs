//! Sans-IO engine: sequences, block pool, prefix cache, scheduler, step. No clock, no files, no
//! threads, no locks: `runner::worker` owns it and drives it.

pub mod request;

pub use request::{
    FinishReason, Logprob, RequestId, SamplingParams, StepOutput, TokenBias, TokenLogprobs,
};
