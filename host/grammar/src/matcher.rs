//! The library's matcher behind our words: one output's state in one grammar.

use llguidance::Matcher as Inner;
use llguidance::api::StopReason;
use toktrie::SimpleVob;

use crate::GrammarError;

/// Follows one output. Clones are independent and share what the lexer has learned.
#[derive(Clone)]
pub(crate) struct Matcher(Inner);

impl Matcher {
    pub fn new(parser: llguidance::TokenParser) -> Matcher {
        Matcher(Inner::new(Ok(parser)))
    }

    /// Tokens that may come next; ends of sequence where the output may end.
    pub fn mask(&mut self) -> Result<SimpleVob, GrammarError> {
        self.0.compute_mask_or_eos().map_err(|error| self.failure(&error.to_string()))
    }

    /// Takes a token that the last mask allowed.
    pub fn commit(&mut self, token: u32) -> Result<(), GrammarError> {
        self.0.consume_token(token).map_err(|error| self.failure(&error.to_string()))
    }

    /// Takes the token if it is allowed, and says so.
    pub fn try_commit(&mut self, token: u32) -> Result<bool, GrammarError> {
        let taken = self.0.try_consume_tokens(&[token]);
        taken.map(|len| len == 1).map_err(|error| self.failure(&error.to_string()))
    }

    /// Takes back the last tokens.
    pub fn rollback(&mut self, num_tokens: usize) -> Result<(), GrammarError> {
        self.0.rollback(num_tokens).map_err(|error| self.failure(&error.to_string()))
    }

    /// Nothing can follow.
    pub fn is_complete(&self) -> bool {
        matches!(
            self.0.stop_reason(),
            StopReason::NoExtension | StopReason::NoExtensionBias | StopReason::EndOfSentence
        )
    }

    fn failure(&self, message: &str) -> GrammarError {
        let line = message.lines().next().unwrap_or_default().to_owned();
        match self.0.stop_reason() {
            StopReason::LexerTooComplex | StopReason::ParserTooComplex => {
                GrammarError::TooComplex(line)
            }
            _ => GrammarError::Failed(line),
        }
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Matcher").field(&self.0.stop_reason()).finish()
    }
}
