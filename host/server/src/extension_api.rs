//! Extensions as the server sees them: parsers by name, and the life of what people upload. `cli`
//! implements this over `extensions` and `registry`; the server knows no WebAssembly.

use std::sync::Arc;

use serde::Serialize;
use tenon_chat::parser::{Descriptor, ParserFactory};

use crate::error::ApiError;

/// An installed extension: its active version.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExtensionRecord {
    /// Installed name.
    pub name: String,
    /// `sha256:…` of the active version.
    pub digest: String,
    /// `tool-call-parser`, `reasoning-parser`.
    pub kinds: Vec<String>,
    /// What it says of itself.
    pub descriptor: Descriptor,
    /// Models that it is bound to.
    pub bound: Vec<String>,
    /// Digests of all versions, newest first.
    pub versions: Vec<String>,
    /// Part of the program: cannot be deleted.
    pub builtin: bool,
}

/// A model's own parser.
#[derive(Clone)]
pub struct BoundParser {
    /// The active version.
    pub factory: Arc<dyn ParserFactory>,
    /// One of its styles; none: reasoning is not parsed.
    pub style: Option<String>,
}

/// Why an extension was not found, installed or changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ExtensionError {
    /// 404, or 400 where a request names it.
    #[error("unknown extension `{name}` (installed: {})", listed(installed))]
    Unknown {
        /// As asked.
        name: String,
        /// What there is.
        installed: Vec<String>,
    },
    /// 422: refused at admission, with every reason.
    #[error("the extension was refused: {}", reasons.join("; "))]
    Rejected {
        /// Each with its fix.
        reasons: Vec<String>,
    },
    /// 409: its state does not allow this (nothing to roll back to, built in, bound).
    #[error("{0}")]
    Conflict(String),
    /// 400.
    #[error("{message}")]
    Invalid {
        /// Which field.
        param: &'static str,
        /// Names the value.
        message: String,
    },
    /// 500: disk, compiler or another fault of the host.
    #[error("{0}")]
    Host(String),
}

impl From<ExtensionError> for ApiError {
    fn from(error: ExtensionError) -> ApiError {
        match error {
            ExtensionError::Unknown { name, installed } => {
                ApiError::ExtensionNotFound { name, installed: listed(&installed) }
            }
            ExtensionError::Rejected { reasons } => ApiError::Rejected { reasons },
            ExtensionError::Conflict(message) => ApiError::Conflict(message),
            ExtensionError::Invalid { param, message } => ApiError::invalid(param, message),
            ExtensionError::Host(message) => ApiError::Internal(message),
        }
    }
}

/// Names for a message.
pub(crate) fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// The store of extensions. All methods but `bound` and `descriptors` may block (compile, write):
/// the server calls them on blocking threads.
pub trait Extensions: Send + Sync {
    /// Admits a component, installs it under `name` (or its own) and makes it active.
    fn upload(&self, name: Option<&str>, wasm: &[u8]) -> Result<ExtensionRecord, ExtensionError>;

    /// All installed ones, by name.
    fn list(&self) -> Result<Vec<ExtensionRecord>, ExtensionError>;

    /// One, by name or alias.
    fn describe(&self, name: &str) -> Result<ExtensionRecord, ExtensionError>;

    /// Makes it the parser of a model from the next request on.
    fn bind(&self, name: &str, model: &str) -> Result<ExtensionRecord, ExtensionError>;

    /// Makes the version with this digest the active one.
    fn activate(&self, name: &str, digest: &str) -> Result<ExtensionRecord, ExtensionError>;

    /// Makes the version before the active one active again.
    fn rollback(&self, name: &str) -> Result<ExtensionRecord, ExtensionError>;

    /// Forgets it. Requests in flight keep the version that they began with.
    fn delete(&self, name: &str) -> Result<(), ExtensionError>;

    /// The active version, by name or alias, ready to open sessions.
    fn resolve(&self, name: &str) -> Result<Arc<dyn ParserFactory>, ExtensionError>;

    /// What every installed parser says of itself. Does not block.
    fn descriptors(&self) -> Vec<Arc<Descriptor>>;

    /// The parser of a model. Does not block.
    fn bound(&self, model: &str) -> Option<BoundParser>;
}
