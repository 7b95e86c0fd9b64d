//! What can go wrong before an extension serves anything.

use std::path::PathBuf;

/// The host itself cannot work here.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The engine refused its configuration or could not reserve its pool.
    #[error(
        "the sandbox engine does not start: {why}; it reserves about 4 GiB of address space per \
         session, so raise `ulimit -v` or lower the number of sessions"
    )]
    Engine {
        /// In the engine's words.
        why: String,
    },
    /// The directory for compiled code cannot be used.
    #[error("cannot use `{}` for compiled extensions: {why}", path.display())]
    Cache {
        /// Which one.
        path: PathBuf,
        /// And the next action.
        why: String,
    },
}

/// Why bytes were not admitted.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// The bytes are at fault. Each reason is a sentence that says what to change.
    #[error("the extension was refused: {}", reasons.join("; "))]
    Refused {
        /// At least one.
        reasons: Vec<String>,
    },
    /// Too many admissions wait for the compiler.
    #[error("`{num_waiting}` extensions wait to be compiled; try again in a few seconds")]
    Busy {
        /// How many.
        num_waiting: usize,
    },
    /// The server is at fault.
    #[error("the server could not compile the extension: {why}")]
    Server {
        /// For the log and the operator.
        why: String,
    },
}

impl AdmissionError {
    /// The reasons to show to whoever uploaded.
    pub fn reasons(&self) -> Vec<String> {
        match self {
            AdmissionError::Refused { reasons } => reasons.clone(),
            other => vec![other.to_string()],
        }
    }

    pub(crate) fn refused(reason: impl Into<String>) -> Self {
        AdmissionError::Refused { reasons: vec![reason.into()] }
    }
}
