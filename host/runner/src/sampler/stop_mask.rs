//! Masks end-of-sequence tokens for `ignore_eos`, and these and stop tokens for `min_tokens`.

use tenon_engine::SamplingParams;

/// Tokens that are masked, some of them only for a while.
#[derive(Debug)]
pub struct StopMask {
    always: Vec<u32>,
    early: Vec<u32>,
    min_tokens: u32,
}

impl StopMask {
    /// None when nothing is ever masked.
    pub fn new(params: &SamplingParams, eos_token_ids: &[u32]) -> Option<Self> {
        let eos = || eos_token_ids.to_vec();
        let always = if params.ignore_eos { eos() } else { Vec::new() };
        let mut early = Vec::new();
        if params.min_tokens > 0 {
            early = if params.ignore_eos { Vec::new() } else { eos() };
            early.extend_from_slice(&params.stop_token_ids);
        }
        let is_empty = always.is_empty() && early.is_empty();
        (!is_empty).then_some(StopMask { always, early, min_tokens: params.min_tokens })
    }

    /// Whether the token after `num_output` tokens is restricted.
    pub fn is_active(&self, num_output: u32) -> bool {
        !self.always.is_empty() || num_output < self.min_tokens
    }

    /// Masks for the token after `num_output` tokens.
    pub fn apply(&self, num_output: u32, logits: &mut [f32]) {
        let early: &[u32] = if num_output < self.min_tokens { &self.early } else { &[] };
        for &token in self.always.iter().chain(early) {
            // A model's end of sequence may lie outside of its own vocabulary.
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}
