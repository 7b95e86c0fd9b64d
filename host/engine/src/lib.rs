//! Sans-IO engine: sequences, block pool, prefix cache, scheduler, step. No clock, no files, no
//! threads, no locks: `runner::worker` owns it and drives it.

pub mod config;
pub mod engine;
pub mod hash;
mod kv;
pub mod params;
pub mod plan;
pub mod pool;
mod queue;
mod repetition;
pub mod request;
mod rows;
mod scheduler;
pub mod sequence;
pub mod stats;
pub mod tenants;

pub use config::{ConfigError, EngineConfig, PrefillLimit, SchedulingPolicy};
pub use engine::{AddError, Engine, NewRequest};
pub use hash::BlockHash;
pub use kv::{TierConfig, TierPolicy, Transfer};
pub use params::ParamError;
pub use plan::{Admitted, BlockCopy, Row, Sampled, Scheduled, StepPlan, TableUpdate};
pub use pool::{BlockId, BlockPool};
pub use request::{
    Dry, FinishReason, Logprob, RepetitionDetection, RequestId, SamplingParams, StepOutput,
    TokenBias, TokenLogprobs,
};
pub use sequence::SeqId;
pub use stats::EngineStats;
pub use tenants::Tenant;
