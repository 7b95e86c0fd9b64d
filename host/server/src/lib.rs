//! OpenAI and admin routes over HTTP, SSE, metrics.
//!
//! `cli` puts [`ServerParts`] together and calls [`serve`]. A request is checked and turned into
//! tokens (`wire`, `prompt`), followed in the engine (`generation`) and answered as one body or a
//! stream (`chat`, `completions`, `sse`): both fold the same events. Nothing here knows WebAssembly
//! or kernels: extensions come in through [`Extensions`], the engine through [`Engine`].

mod auth;
mod body;
mod caller;
mod chat;
mod completion_answer;
mod completions;
mod engine;
mod error;
mod extension_api;
mod extensions;
mod generation;
mod lifecycle;
mod loading;
mod metrics;
mod models;
mod ops;
mod parser_choice;
mod path_name;
mod playground;
mod prompt;
mod request_id;
mod router;
mod serve;
mod sse;
mod state;
mod structured;
mod unread;
mod wire;

pub use engine::Engine;
pub use error::ApiError;
pub use extension_api::{BoundParser, ExtensionError, ExtensionRecord, Extensions};
pub use loading::serve_loading;
pub use router::router;
pub use serve::serve;
pub use state::{Limits, ModelCard, ReasoningField, ServerConfig, ServerParts, ServerState};
