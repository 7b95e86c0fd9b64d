//! Structured output: what a client asks for, compiled for one vocabulary, and the state that
//! follows a sequence and says which tokens may come next.
//!
//! `server` compiles (off the step path), `runner` masks and commits. The only crate that knows
//! llguidance. It knows no requests, no HTTP and no engine.

mod cache;
mod calls;
mod compiler;
mod constraint;
mod error;
mod finite;
mod lark;
mod matcher;
mod number;
mod oneof;
mod pattern;
mod reference;
mod schema;
mod spec;
mod tag;
mod trigger;
mod vocabulary;
mod weight;

pub use compiler::{Compiler, Limits};
pub use constraint::{Constraint, Grammar};
pub use error::GrammarError;
pub use lark::literal;
pub use schema::{check_schema, json_options};
pub use spec::{GrammarSpec, Starts, Trigger};
pub use tag::{StructuralTag, Structure};
pub use vocabulary::Vocabulary;
