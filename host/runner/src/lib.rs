//! Rows, step inputs, sampler; `worker` owns the engine thread.

pub mod batch;
mod grammars;
pub mod handle;
mod ledger;
pub mod load;
mod pace;
pub mod rows;
pub mod sampler;
mod shared;
pub mod tier;
mod watchdog;
pub mod worker;

pub use handle::{GenerateRequest, RunnerHandle, SubmitError};
pub use sampler::NOTHING_LEFT;
pub use watchdog::OnStuck;
pub use worker::{OutputSink, WorkerConfig, WorkerError, WorkerThread, spawn, spawn_with_tier};
