//! Rows, step inputs, sampler; `worker` owns the engine thread.

pub mod handle;
