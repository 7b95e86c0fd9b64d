//! Logit bias: sparse additions, before anything else.

use tenon_engine::TokenBias;

/// Adds each bias to its token's logit.
pub fn apply(bias: &[TokenBias], logits: &mut [f32]) {
    for entry in bias {
        logits[entry.token as usize] += entry.bias;
    }
}
