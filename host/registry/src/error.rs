//! What can go wrong, by what the caller can do about it.

use std::path::PathBuf;

/// A registry's error.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The system refused.
    #[error("cannot {action} `{}`: {error}", path.display())]
    Io {
        /// `read`, `write`, …
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The index is not what this version writes.
    #[error("`{}` is damaged: {why}; restore it, or move the directory away to start empty",
        path.display())]
    Index {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A blob is not what its name says.
    #[error("`{}` does not have the digest that its name says; put the extension again",
        path.display())]
    Corrupt {
        /// Which file.
        path: PathBuf,
    },
    /// Another process has it open.
    #[error("`{}` is used by another server; give each server a directory of its own",
        dir.display())]
    InUse {
        /// Which directory.
        dir: PathBuf,
    },
    /// The name cannot be one.
    #[error("`{name}` is no extension name; use 1 to 64 lower-case letters, digits, `_` and `-`")]
    BadName {
        /// As given, cut.
        name: String,
    },
    /// No such extension.
    #[error("unknown extension `{name}` (installed: {})", list(known))]
    Unknown {
        /// As given, cut.
        name: String,
        /// Those there are.
        known: Vec<String>,
    },
    /// The extension has no such version.
    #[error("`{name}` has no version `{digest}` (kept: {})", list(known))]
    UnknownVersion {
        /// The extension.
        name: String,
        /// As given, cut.
        digest: String,
        /// Those there are.
        known: Vec<String>,
    },
    /// Nothing to go back to.
    #[error("`{name}` has no previous version; put another one first")]
    NoPrevious {
        /// The extension.
        name: String,
    },
    /// In use.
    #[error("`{name}` is bound to {}; bind something else there first", list(models))]
    Bound {
        /// The extension.
        name: String,
        /// Who uses it.
        models: Vec<String>,
    },
    /// A bound was reached.
    #[error("there are {limit} {what} already; delete some first")]
    Full {
        /// Of what.
        what: &'static str,
        /// How many.
        limit: usize,
    },
}

/// For a message.
fn list(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}
