//! Why a model could not be loaded. Every message names the file and what in it is wrong.

use std::path::PathBuf;

/// Errors of loaders and of lowering.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file is not there or cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The bytes break their format: a damaged or hostile file. Fetch it again.
    #[error("`{file}` is not a valid {format} file: {problem}; fetch it again")]
    Malformed {
        /// Which file.
        file: String,
        /// The format that it claims to be.
        format: &'static str,
        /// What is wrong, with the offset or the name.
        problem: String,
    },
    /// A valid file that asks for something that is not there yet.
    #[error("`{file}`: {problem}")]
    Unsupported {
        /// Which file.
        file: String,
        /// What is asked for and what there is instead.
        problem: String,
    },
    /// A metadata key or a field of `config.json` is missing or has a value out of range.
    #[error("`{file}`: `{key}` {problem}")]
    Key {
        /// Which file.
        file: String,
        /// The key as it is spelled in the file.
        key: String,
        /// Continues the sentence: "is missing", "is `7`, expected …".
        problem: String,
    },
    /// A tensor is missing, has another shape, or is left over.
    #[error("`{file}`: tensor `{tensor}` {problem}")]
    Tensor {
        /// Which file.
        file: String,
        /// The tensor as it is named in the file.
        tensor: String,
        /// Continues the sentence.
        problem: String,
    },
    /// An architecture description is wrong.
    #[error("architecture `{spec}`: {problem}")]
    Spec {
        /// Its name or path.
        spec: String,
        /// What is wrong.
        problem: String,
    },
}

impl ModelError {
    pub(crate) fn key(file: &str, key: &str, problem: impl Into<String>) -> Self {
        ModelError::Key { file: file.into(), key: key.into(), problem: problem.into() }
    }

    pub(crate) fn tensor(file: &str, tensor: &str, problem: impl Into<String>) -> Self {
        ModelError::Tensor { file: file.into(), tensor: tensor.into(), problem: problem.into() }
    }

    pub(crate) fn unsupported(file: &str, problem: impl Into<String>) -> Self {
        ModelError::Unsupported { file: file.into(), problem: problem.into() }
    }
}
