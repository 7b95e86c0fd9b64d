//! The server over its router: real output workers and engine thread, a scripted backend instead of
//! a model, a parser in Rust instead of a component.

#![allow(clippy::unwrap_used, missing_docs)]

mod auth;
mod chat;
mod completions;
mod errors;
mod extensions;
mod leaving;
mod lifecycle;
mod masks;
mod parser;
mod prompt_logprobs;
mod rig;
mod same;
mod sampling;
mod scheduling;
mod structured;
mod unread;
