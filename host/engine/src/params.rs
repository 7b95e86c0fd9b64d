//! Ranges of sampling parameters: what is checked before a request is taken.
//!
//! Called by `runner`'s handle on the caller's thread, so that a bad request never reaches the
//! engine. The error names the field as OpenAI's and vLLM's APIs spell it.

use crate::request::SamplingParams;

/// Most sequences of one request.
pub const MAX_N: u32 = 128;
/// Most log-probabilities per position.
pub const MAX_LOGPROBS: u32 = 128;
/// Most entries of a logit bias.
pub const MAX_LOGIT_BIAS: usize = 1024;
/// Most allowed tokens of one request; four bytes each, per request. No vocabulary is larger.
pub const MAX_ALLOWED_TOKENS: usize = 1 << 20;
/// Most token sequences that are bad words; each is looked at once per token.
pub const MAX_BAD_WORDS: usize = 512;
/// Most tokens of one bad word.
pub const MAX_BAD_WORD_TOKENS: usize = 512;
/// Most stop tokens of one request.
pub const MAX_STOP_TOKENS: usize = 128;
/// Most repetition breakers of one request; four bytes each. No vocabulary is larger.
pub const MAX_DRY_BREAKERS: usize = 1 << 20;
/// Repetitions are measured up to this length: what is longer is penalized like it.
pub const MAX_DRY_MATCH: u32 = 50;
/// Longest pattern of a repetition; four bytes each, per sequence, and one comparison per token.
pub const MAX_PATTERN_SIZE: u32 = 1024;
/// Beyond this every distribution is flat in f32.
pub const MAX_TEMPERATURE: f32 = 100.0;
/// Below this temperature sampling is greedy: the quotient would overflow f32.
pub const GREEDY_TEMPERATURE: f32 = 1e-5;

/// A field of a request that is out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParamError {
    /// Which field.
    pub param: &'static str,
    /// Names the value and the limit.
    pub message: String,
}

impl ParamError {
    /// `message` about `param`.
    pub fn new(param: &'static str, message: String) -> Self {
        ParamError { param, message }
    }
}

impl SamplingParams {
    /// Checks every field against its documented range and every token id against `vocab_size`.
    pub fn validate(&self, vocab_size: u32) -> Result<(), ParamError> {
        if self.max_tokens == 0 && self.prompt_logprobs.is_none() {
            let message = "max_tokens is `0`; use 1 or more, or ask for `prompt_logprobs`";
            return Err(ParamError::new("max_tokens", message.into()));
        }
        if self.min_tokens > self.max_tokens {
            let (min, max) = (self.min_tokens, self.max_tokens);
            return Err(ParamError::new(
                "min_tokens",
                format!("min_tokens `{min}` is above max_tokens `{max}`; use at most that"),
            ));
        }
        in_range("temperature", self.temperature, 0.0, MAX_TEMPERATURE)?;
        above_zero("top_p", self.top_p, 1.0)?;
        in_range("min_p", self.min_p, 0.0, 1.0)?;
        in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        above_zero("repetition_penalty", self.repetition_penalty, 100.0)?;
        at_most("logit_bias", self.logit_bias.len(), MAX_LOGIT_BIAS, "entries")?;
        for entry in &self.logit_bias {
            in_vocabulary("logit_bias", entry.token, vocab_size)?;
            in_range("logit_bias", entry.bias, -100.0, 100.0)?;
        }
        self.check_dry(vocab_size)?;
        self.check_repetition()?;
        self.check_allowed(vocab_size)?;
        self.check_bad_words(vocab_size)?;
        at_most("stop_token_ids", self.stop_token_ids.len(), MAX_STOP_TOKENS, "entries")?;
        for &token in &self.stop_token_ids {
            in_vocabulary("stop_token_ids", token, vocab_size)?;
        }
        for (param, k) in [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)] {
            at_most(param, k.unwrap_or(0) as usize, MAX_LOGPROBS as usize, "tokens")?;
        }
        Ok(())
    }

    /// Checks that some token may be chosen first: of those that are allowed one is left when the
    /// model's ends of sequence, stop tokens before `min_tokens` and bad words of one token are
    /// masked.
    pub fn check_masks(&self, eos_token_ids: &[u32]) -> Result<(), ParamError> {
        let Some(allowed) = &self.allowed_token_ids else { return Ok(()) };
        let is_early = self.min_tokens > 0;
        let is_masked = |token: &u32| {
            (self.ignore_eos || is_early) && eos_token_ids.contains(token)
                || is_early && self.stop_token_ids.contains(token)
                || self.bad_words.iter().any(|word| word == &[*token])
        };
        if !allowed.iter().all(is_masked) {
            return Ok(());
        }
        let message = "allowed_token_ids leaves no token to choose: all of them are masked by \
                       other fields of the request; allow one that `ignore_eos`, `min_tokens` \
                       and `bad_words` do not mask";
        Err(ParamError::new("allowed_token_ids", message.into()))
    }

    fn check_dry(&self, vocab_size: u32) -> Result<(), ParamError> {
        let Some(dry) = &self.dry else { return Ok(()) };
        above_zero("dry_multiplier", dry.multiplier, 100.0)?;
        in_range("dry_base", dry.base, 1.0, 100.0)?;
        if dry.allowed_length > MAX_DRY_MATCH {
            let length = dry.allowed_length;
            let message = format!("dry_allowed_length is `{length}`; use at most {MAX_DRY_MATCH}");
            return Err(ParamError::new("dry_allowed_length", message));
        }
        const BREAKERS: &str = "dry_sequence_breakers";
        at_most(BREAKERS, dry.breakers.len(), MAX_DRY_BREAKERS, "tokens")?;
        assert!(dry.breakers.is_sorted(), "repetition breakers are ascending");
        dry.breakers.last().map_or(Ok(()), |&last| in_vocabulary(BREAKERS, last, vocab_size))
    }

    fn check_repetition(&self) -> Result<(), ParamError> {
        let Some(wanted) = &self.repetition_detection else { return Ok(()) };
        let (min, max) = (wanted.min_pattern_size, wanted.max_pattern_size);
        let message = if max > MAX_PATTERN_SIZE {
            format!("max_pattern_size is `{max}`; use at most {MAX_PATTERN_SIZE}")
        } else if min == 0 || min > max {
            format!("min_pattern_size is `{min}`; use 1 to max_pattern_size, `{max}`")
        } else if wanted.min_count < 2 {
            format!("min_count is `{}`; use 2 or more", wanted.min_count)
        } else {
            return Ok(());
        };
        let message = format!("repetition_detection: {message}");
        Err(ParamError::new("repetition_detection", message))
    }

    fn check_allowed(&self, vocab_size: u32) -> Result<(), ParamError> {
        const PARAM: &str = "allowed_token_ids";
        let Some(allowed) = &self.allowed_token_ids else { return Ok(()) };
        if allowed.is_empty() {
            let message = format!("{PARAM} is `[]`; list at least one token id or leave it out");
            return Err(ParamError::new(PARAM, message));
        }
        at_most(PARAM, allowed.len(), MAX_ALLOWED_TOKENS, "entries")?;
        allowed.iter().try_for_each(|&token| in_vocabulary(PARAM, token, vocab_size))
    }

    fn check_bad_words(&self, vocab_size: u32) -> Result<(), ParamError> {
        const PARAM: &str = "bad_words";
        at_most(PARAM, self.bad_words.len(), MAX_BAD_WORDS, "token sequences")?;
        for word in &self.bad_words {
            if word.is_empty() {
                let message = format!("{PARAM} holds a word without tokens; leave it out");
                return Err(ParamError::new(PARAM, message));
            }
            at_most(PARAM, word.len(), MAX_BAD_WORD_TOKENS, "tokens in one word")?;
            word.iter().try_for_each(|&token| in_vocabulary(PARAM, token, vocab_size))?;
        }
        Ok(())
    }

    /// Whether the most likely token is taken, without noise.
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_TEMPERATURE
    }
}

/// Checks that `token` is an entry of the vocabulary.
pub fn in_vocabulary(param: &'static str, token: u32, vocab_size: u32) -> Result<(), ParamError> {
    if token < vocab_size {
        return Ok(());
    }
    let message = format!(
        "{param} holds token id `{token}`, outside of the vocabulary; use ids below {vocab_size}"
    );
    Err(ParamError::new(param, message))
}

// A NaN is in no range.
fn in_range(param: &'static str, value: f32, low: f32, high: f32) -> Result<(), ParamError> {
    if value >= low && value <= high {
        return Ok(());
    }
    let message = format!("{param} is `{value}`; use a value from {low} to {high}");
    Err(ParamError::new(param, message))
}

fn above_zero(param: &'static str, value: f32, high: f32) -> Result<(), ParamError> {
    if value > 0.0 && value <= high {
        return Ok(());
    }
    let message = format!("{param} is `{value}`; use a value above 0 and up to {high}");
    Err(ParamError::new(param, message))
}

fn at_most(
    param: &'static str,
    value: usize,
    limit: usize,
    what: &'static str,
) -> Result<(), ParamError> {
    if value <= limit {
        return Ok(());
    }
    let message = format!("{param} asks for `{value}` {what}; use at most {limit}");
    Err(ParamError::new(param, message))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::request::{Dry, RepetitionDetection, TokenBias};

    fn check(change: impl FnOnce(&mut SamplingParams), param: Option<&str>) {
        let mut params = SamplingParams::default();
        change(&mut params);
        let got = params.validate(100).err().map(|e| e.param);
        assert_eq!(got, param, "{params:?}");
    }

    #[test]
    fn each_field_has_its_range() {
        check(|_| {}, None);
        check(|p| p.max_tokens = 0, Some("max_tokens"));
        check(|p| p.min_tokens = 17, Some("min_tokens"));
        check(|p| p.temperature = -0.1, Some("temperature"));
        check(|p| p.temperature = f32::NAN, Some("temperature"));
        check(|p| p.temperature = f32::INFINITY, Some("temperature"));
        check(|p| p.top_p = 0.0, Some("top_p"));
        check(|p| p.top_p = 1.1, Some("top_p"));
        check(|p| p.min_p = -0.1, Some("min_p"));
        check(|p| p.presence_penalty = 2.1, Some("presence_penalty"));
        check(|p| p.frequency_penalty = -2.1, Some("frequency_penalty"));
        check(|p| p.repetition_penalty = 0.0, Some("repetition_penalty"));
        check(|p| p.logprobs = Some(MAX_LOGPROBS), None);
        check(|p| p.logprobs = Some(MAX_LOGPROBS + 1), Some("logprobs"));
        check(|p| p.prompt_logprobs = Some(MAX_LOGPROBS), None);
        check(|p| p.prompt_logprobs = Some(MAX_LOGPROBS + 1), Some("prompt_logprobs"));
        check(|p| (p.max_tokens, p.prompt_logprobs) = (0, Some(0)), None);
        check(|p| p.stop_token_ids = vec![99], None);
        check(|p| p.stop_token_ids = vec![100], Some("stop_token_ids"));
        check(|p| p.stop_token_ids = vec![1; MAX_STOP_TOKENS + 1], Some("stop_token_ids"));
        check(|p| p.allowed_token_ids = Some(vec![0, 99, 0]), None);
        check(|p| p.allowed_token_ids = Some(vec![]), Some("allowed_token_ids"));
        check(|p| p.allowed_token_ids = Some(vec![1, 100]), Some("allowed_token_ids"));
        let too_many = vec![1; MAX_ALLOWED_TOKENS + 1];
        check(|p| p.allowed_token_ids = Some(too_many), Some("allowed_token_ids"));
        check(|p| p.bad_words = vec![vec![1, 99], vec![0]], None);
        check(|p| p.bad_words = vec![vec![]], Some("bad_words"));
        check(|p| p.bad_words = vec![vec![1, 100]], Some("bad_words"));
        check(|p| p.bad_words = vec![vec![1]; MAX_BAD_WORDS + 1], Some("bad_words"));
        check(|p| p.bad_words = vec![vec![1; MAX_BAD_WORD_TOKENS + 1]], Some("bad_words"));
        let dry = |multiplier, base, allowed_length, breakers: &[u32]| {
            Some(Dry { multiplier, base, allowed_length, range: 0, breakers: breakers.into() })
        };
        check(|p| p.dry = dry(0.8, 1.75, 2, &[0, 99]), None);
        check(|p| p.dry = dry(0.0, 1.75, 2, &[]), Some("dry_multiplier"));
        check(|p| p.dry = dry(f32::NAN, 1.75, 2, &[]), Some("dry_multiplier"));
        check(|p| p.dry = dry(0.8, 0.9, 2, &[]), Some("dry_base"));
        check(|p| p.dry = dry(0.8, 1.75, 51, &[]), Some("dry_allowed_length"));
        check(|p| p.dry = dry(0.8, 1.75, 2, &[1, 100]), Some("dry_sequence_breakers"));
        let repetition = |min_pattern_size, max_pattern_size, min_count| {
            Some(RepetitionDetection { min_pattern_size, max_pattern_size, min_count })
        };
        check(|p| p.repetition_detection = repetition(1, 1024, 2), None);
        for (min, max, count) in [(0, 3, 2), (4, 3, 2), (1, 1025, 2), (1, 3, 1)] {
            let wanted = repetition(min, max, count);
            check(|p| p.repetition_detection = wanted, Some("repetition_detection"));
        }
        let bias = |token, bias| vec![TokenBias { token, bias }];
        check(|p| p.logit_bias = bias(99, -100.0), None);
        check(|p| p.logit_bias = bias(100, 0.0), Some("logit_bias"));
        check(|p| p.logit_bias = bias(1, f32::NAN), Some("logit_bias"));
        check(|p| p.logit_bias = vec![TokenBias { token: 1, bias: 0.0 }; 1025], Some("logit_bias"));
    }

    #[test]
    fn masks_leave_a_token() {
        let check = |allowed: &[u32], ignore_eos, min_tokens, is_ok| {
            let params = SamplingParams {
                allowed_token_ids: Some(allowed.to_vec()),
                stop_token_ids: vec![7],
                bad_words: vec![vec![8], vec![9, 9]],
                ignore_eos,
                min_tokens,
                ..Default::default()
            };
            assert_eq!(params.check_masks(&[0, 1]).is_ok(), is_ok, "{params:?}");
        };
        check(&[0, 1], false, 0, true);
        check(&[0, 1], true, 0, false);
        check(&[0, 1], false, 1, false);
        check(&[0, 2], true, 1, true);
        check(&[7], true, 0, true);
        check(&[7, 1], false, 1, false);
        check(&[8], false, 0, false);
        check(&[8, 9], false, 0, true);
    }

    #[test]
    fn messages_name_value_and_limit() {
        let params = SamplingParams { top_p: 1.5, ..Default::default() };
        let error = params.validate(10).unwrap_err();
        assert_eq!(error.to_string(), "top_p is `1.5`; use a value above 0 and up to 1");
    }
}
