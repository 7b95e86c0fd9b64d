//! Masks every token that `allowed_token_ids` does not list.

use tenon_engine::SamplingParams;

/// The tokens that stay.
#[derive(Debug)]
pub struct AllowedTokens {
    // Ascending, each once, so that what lies between them is masked run by run.
    sorted: Vec<u32>,
}

impl AllowedTokens {
    /// None when every token is allowed.
    pub fn new(params: &SamplingParams) -> Option<Self> {
        let mut sorted = params.allowed_token_ids.clone()?;
        sorted.sort_unstable();
        sorted.dedup();
        Some(AllowedTokens { sorted })
    }

    /// Masks all the others. The ids were checked against the vocabulary.
    pub fn apply(&self, logits: &mut [f32]) {
        let mut start = 0;
        for &token in &self.sorted {
            logits[start..token as usize].fill(f32::NEG_INFINITY);
            start = token as usize + 1;
        }
        logits[start..].fill(f32::NEG_INFINITY);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn exactly_the_others_are_masked(
            ids in prop::collection::vec(0_u32..50, 1..60),
            logits in prop::collection::vec(-5.0_f32..5.0, 50..=50),
        ) {
            let allowed_token_ids = Some(ids.clone());
            let params = SamplingParams { allowed_token_ids, ..Default::default() };
            let mut masked = logits.clone();
            AllowedTokens::new(&params).unwrap().apply(&mut masked);
            for (token, (&before, &after)) in (0..).zip(logits.iter().zip(&masked)) {
                let want = if ids.contains(&token) { before } else { f32::NEG_INFINITY };
                prop_assert_eq!(after, want, "token {}", token);
            }
        }
    }

    #[test]
    fn without_a_list_there_is_nothing() {
        assert!(AllowedTokens::new(&SamplingParams::default()).is_none());
    }
}
