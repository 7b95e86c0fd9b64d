//! Rows, step inputs, sampler; `worker` owns the engine thread.

pub mod batch;
pub mod handle;
mod ledger;
pub mod load;
pub mod rows;
pub mod sampler;
mod shared;
pub mod worker;

pub use handle::{GenerateRequest, RunnerHandle, SubmitError};
pub use worker::{OutputSink, WorkerConfig, WorkerError, WorkerThread, spawn};
