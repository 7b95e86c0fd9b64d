//! What can go wrong between text and token ids.

/// Errors of this crate. Each variant is one thing that a caller can do differently.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// Not JSON, or not the shape that the format asks for.
    #[error("{file} cannot be read: {source}; check that the file is whole")]
    Json {
        /// `tokenizer.json` or `tokenizer_config.json`.
        file: &'static str,
        /// The reader's words, with line and column.
        source: serde_json::Error,
    },
    /// The file asks for something that is not built in.
    #[error("{what} is not supported: `{value}`; {next}")]
    Unsupported {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: String,
        /// What is supported, or what to do.
        next: String,
    },
    /// The vocabulary contradicts itself.
    #[error("the vocabulary is damaged: {0}; fetch the model again")]
    Vocabulary(String),
    /// An id that the vocabulary does not have.
    #[error("token id `{id}` is not in the vocabulary (ids 0 to {last}); check the request's ids")]
    OutOfVocabulary {
        /// The id.
        id: u32,
        /// The largest id.
        last: u32,
    },
    /// A byte with no token, in a vocabulary without an unknown token.
    #[error("byte `{byte:#04x}` of the text has no token in this vocabulary; remove it")]
    Unencodable {
        /// The byte.
        byte: u8,
    },
    /// More text than one call takes.
    #[error("text of `{len}` bytes is longer than the limit of {limit}; split it")]
    TooLong {
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The pre-tokenizer or the tokenizers library gave up on this text.
    #[error("the text cannot be split into words: {0}; shorten it")]
    Split(String),
    /// A stop string that cannot match, or too many of them.
    #[error("stop strings: {0}")]
    Stop(String),
}
