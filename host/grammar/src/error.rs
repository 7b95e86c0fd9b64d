//! Why there is no grammar, or why one cannot go on. All but [`GrammarError::Busy`] and
//! [`GrammarError::Failed`] are the client's to mend.

/// Why a grammar was refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// A keyword of JSON Schema that cannot be enforced.
    #[error("`{keyword}` at `{pointer}` is not supported: {why}")]
    Keyword {
        /// The keyword.
        keyword: String,
        /// Where, as a JSON pointer into the schema.
        pointer: String,
        /// What to do instead.
        why: String,
    },
    /// A value that no schema, regex or grammar has.
    #[error("{0}")]
    Invalid(String),
    /// Too large to be compiled.
    #[error("{what} is `{value}`; use at most {limit}")]
    TooLarge {
        /// What was measured, with its unit.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        limit: u64,
    },
    /// It takes more work than a grammar may.
    #[error("the grammar is too complex to be enforced ({0}); simplify it")]
    TooComplex(String),
    /// It compiles for longer than a grammar may.
    #[error("the grammar did not compile within {limit_ms} ms; simplify it")]
    TooSlow {
        /// The limit.
        limit_ms: u64,
    },
    /// Other grammars are being compiled.
    #[error("too many grammars are being compiled; try again later")]
    Busy,
    /// The same about one of several parts.
    #[error("{place}: {error}")]
    In {
        /// Which part.
        place: String,
        /// What is wrong with it.
        error: Box<GrammarError>,
    },
    /// A fault of ours.
    #[error("the grammar failed: {0}")]
    Failed(String),
}

impl GrammarError {
    /// It is about that part.
    pub(crate) fn within(self, place: impl Into<String>) -> Self {
        GrammarError::In { place: place.into(), error: Box::new(self) }
    }

    /// A keyword that cannot be enforced.
    pub(crate) fn keyword(keyword: &str, pointer: &str, why: impl Into<String>) -> Self {
        let pointer = if pointer.is_empty() { "/" } else { pointer };
        GrammarError::Keyword { keyword: keyword.into(), pointer: pointer.into(), why: why.into() }
    }
}
