//! The sandbox host: admission, compilation, stores and limits of WebAssembly components.
//!
//! The only crate that knows wasmtime. Bytes come in through [`ExtensionHost::admit`]; what comes
//! out is a [`Parser`], which `chat` drives through its own traits. A guest can read or crash
//! nothing but its own stream, and holds up its thread no longer than its deadline.

mod aot;
mod breaker;
mod budget;
mod check;
mod compile;
mod descriptor;
mod engine;
mod error;
mod host;
mod limits;
mod parser;
mod scan;
mod session;
mod stats;
mod store;
mod v0_1;

pub use compile::{CompilerCommand, compile_child_main};
pub use error::{AdmissionError, HostError};
pub use host::{ExtensionHost, HostConfig};
pub use limits::{CompileLimits, Limits, RunLimits, ScanLimits};
pub use parser::Parser;
pub use stats::Stats;
