//! Grammars of the requests that are alive: a sequence that gets a row, for the first time or
//! again, gets its own place in its request's grammar. Owned by `rows`; nothing here runs per step.

use std::collections::HashMap;

use tenon_engine::{Admitted, RequestId, StepOutput};
use tenon_grammar::Grammar;

use crate::sampler::RowGrammar;

/// By request. Bounded by `max_live_seqs`.
#[derive(Debug, Default)]
pub(crate) struct Grammars {
    open: HashMap<RequestId, Open>,
}

#[derive(Debug)]
struct Open {
    grammar: Grammar,
    num_live: u32,
}

impl Grammars {
    /// `n` sequences follow the grammar.
    pub fn open(&mut self, request: RequestId, grammar: Grammar, n: u32) {
        self.open.insert(request, Open { grammar, num_live: n });
    }

    /// The place of a sequence that gets a row; none without a grammar.
    pub fn admit(&self, admitted: &Admitted) -> Option<RowGrammar> {
        let open = self.open.get(&admitted.request)?;
        Some(RowGrammar::new(&open.grammar, &admitted.output))
    }

    /// Forgets those whose last sequence has ended.
    pub fn settle(&mut self, outputs: &[StepOutput]) {
        if self.open.is_empty() {
            return;
        }
        for output in outputs.iter().filter(|output| output.finish.is_some()) {
            let Some(open) = self.open.get_mut(&output.request) else { continue };
            open.num_live -= 1;
            if open.num_live == 0 {
                self.open.remove(&output.request);
            }
        }
    }
}
