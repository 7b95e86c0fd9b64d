//! Log-probabilities of a prompt: for each of its tokens, how likely the model found it behind
//! those before. They are of the model's own logits; nothing of the request's parameters adjusts
//! them.

use tenon_engine::Sampled;

use super::filter::Candidates;
use super::logprobs::RawLogprobs;
use super::math;

/// Scores each of `tokens` by its row of `logits`, `[tokens, vocab_size]`, with the `k` likeliest.
pub fn score(tokens: &[u32], k: usize, logits: &[f32], candidates: &mut Candidates) -> Sampled {
    let vocab_size = logits.len() / tokens.len();
    let mut scores = Vec::with_capacity(tokens.len());
    for (&token, logits) in tokens.iter().zip(logits.chunks_exact(vocab_size)) {
        let Some(max) = math::max(logits).filter(|&max| max > f32::NEG_INFINITY) else {
            return Sampled::Failed("the model's logits of the prompt are not numbers".into());
        };
        scores.push(RawLogprobs::new(logits, max, k, candidates).finish(logits, token));
    }
    Sampled::Prompt(scores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_has_the_probability_of_its_row() {
        // [2 tokens, 3] rows of ln p
        let logits = [0.1_f32, 0.2, 0.7, 0.6, 0.3, 0.1].map(f32::ln);
        let mut candidates = Candidates::new(4);
        let Sampled::Prompt(scores) = score(&[0, 1], 1, &logits, &mut candidates) else {
            panic!("the logits are fine")
        };
        let chosen: Vec<_> = scores.iter().map(|s| (s.chosen.token, s.chosen.rank)).collect();
        assert_eq!(chosen, [(0, 3), (1, 2)]);
        assert!((scores[0].chosen.logprob - 0.1_f32.ln()).abs() < 1e-6);
        assert!((scores[1].chosen.logprob - 0.3_f32.ln()).abs() < 1e-6);
        let top: Vec<_> = scores.iter().map(|s| (s.top[0].token, s.top.len())).collect();
        assert_eq!(top, [(2, 1), (0, 1)]);
    }

    #[test]
    fn bad_logits_fail() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let result = score(&[0, 0], 0, &[1.0, 0.0, bad, bad], &mut Candidates::new(4));
            assert!(matches!(result, Sampled::Failed(_)), "{bad}");
        }
    }
}
