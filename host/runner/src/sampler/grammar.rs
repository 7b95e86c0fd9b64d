//! Masks what a sequence's grammar does not allow, and follows the sequence through it.

use tenon_grammar::{Constraint, Grammar};

/// A row's place in its grammar.
#[derive(Debug)]
pub(crate) struct RowGrammar {
    constraint: Constraint,
    /// Why it cannot go on, when that is known before the next mask.
    failure: Option<String>,
}

impl RowGrammar {
    /// Behind `output`, which it let through before a preemption.
    pub fn new(grammar: &Grammar, output: &[u32]) -> Self {
        let mut constraint = grammar.start();
        let replayed = output.iter().try_for_each(|&token| constraint.commit(token));
        let failure = replayed.err().map(|error| error.to_string());
        RowGrammar { constraint, failure }
    }

    /// Masks every token that may not come next. An error ends this sequence only.
    pub fn apply(&mut self, logits: &mut [f32]) -> Result<(), String> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.constraint.mask(logits).map_err(|error| error.to_string())
    }

    /// Takes in the token that was chosen; says whether nothing can follow.
    pub fn push(&mut self, token: u32) -> Result<bool, String> {
        self.constraint.commit(token).map_err(|error| error.to_string())?;
        Ok(self.constraint.is_complete())
    }
}
