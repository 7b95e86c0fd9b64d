//! Masks the token that would complete a bad word.
//!
//! Only the output counts: what the prompt ends with is no beginning of a word.

/// Masks the last token of each of `words` whose other tokens `output` ends with. No word is empty
/// and every id was checked against the vocabulary.
pub fn apply(words: &[Vec<u32>], output: &[u32], logits: &mut [f32]) {
    for word in words {
        let (&last, before) = word.split_last().expect("no bad word is empty");
        if output.ends_with(before) {
            logits[last as usize] = f32::NEG_INFINITY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        // Exactly those tokens are masked that would make the output end with a word.
        #[test]
        fn what_would_complete_a_word_is_masked(
            words in prop::collection::vec(prop::collection::vec(0_u32..4, 1..4), 0..5),
            output in prop::collection::vec(0_u32..4, 0..6),
        ) {
            let mut logits = [1.0_f32; 5];
            apply(&words, &output, &mut logits);
            for (token, &logit) in (0..).zip(&logits) {
                let mut longer = output.clone();
                longer.push(token);
                let is_bad = words.iter().any(|word| longer.ends_with(word));
                prop_assert_eq!(logit == f32::NEG_INFINITY, is_bad, "token {}", token);
            }
        }
    }
}
