//! What is asked of the engine and what it answers: the types that cross its boundary.

use std::sync::Arc;

/// A request, unique for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// One entry of a logit bias.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenBias {
    /// Token id.
    pub token: u32,
    /// Added to its logit.
    pub bias: f32,
}

/// "Don't repeat yourself": a token that would continue a repetition is penalized, the more the
/// longer the repetition already is.
///
/// Let `m` be the length of the longest run of tokens that ends here and also occurred earlier,
/// right before the token. From `allowed_length` on the token's logit loses
/// `multiplier * base^(m - allowed_length)`. (Of p-e-w, in text-generation-webui, 2024.)
#[derive(Debug, Clone, PartialEq)]
pub struct Dry {
    /// Above 0.
    pub multiplier: f32,
    /// At least 1.
    pub base: f32,
    /// Repetitions shorter than this cost nothing.
    pub allowed_length: u32,
    /// Only the last so many tokens of prompt and output count; 0: all.
    pub range: u32,
    /// No repetition reaches across these, and none of them is penalized. Ascending.
    pub breakers: Arc<[u32]>,
}

/// Ends a sequence whose output ends in a pattern that was repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RepetitionDetection {
    /// Tokens of the shortest pattern, at least 1.
    pub min_pattern_size: u32,
    /// Tokens of the longest pattern.
    pub max_pattern_size: u32,
    /// So many occurrences in a row end the sequence, at least 2.
    pub min_count: u32,
}

/// How tokens are chosen and when a sequence ends. Checked by [`SamplingParams::validate`].
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Most output tokens, at least 1; with `prompt_logprobs` also 0: the sequence ends when the
    /// prompt is computed.
    pub max_tokens: u32,
    /// End-of-sequence and stop tokens are masked before this many output tokens.
    pub min_tokens: u32,
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 is off.
    pub top_k: u32,
    /// In (0, 1]; 1 is off.
    pub top_p: f32,
    /// In [0, 1]; 0 is off.
    pub min_p: f32,
    /// Same seed, same prompt, same output. None: the runner draws one.
    pub seed: Option<u64>,
    /// In [-2, 2], once per token that occurs in the output.
    pub presence_penalty: f32,
    /// In [-2, 2], per occurrence in the output.
    pub frequency_penalty: f32,
    /// > 0; 1 is off; over prompt and output.
    pub repetition_penalty: f32,
    /// Off when none.
    pub dry: Option<Dry>,
    /// Added to the logits first of all.
    pub logit_bias: Vec<TokenBias>,
    /// Only these tokens may be chosen; not empty. None: every one. A list without an
    /// end-of-sequence token ends by length or by a stop string.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Token sequences that the output never holds: the last token of each is masked where the
    /// output ends with those before it.
    pub bad_words: Vec<Vec<u32>>,
    /// End the sequence; the token is the last one of the output.
    pub stop_token_ids: Vec<u32>,
    /// The model's end-of-sequence tokens do not end the sequence (and are masked).
    pub ignore_eos: bool,
    /// Off when none.
    pub repetition_detection: Option<RepetitionDetection>,
    /// Log-probabilities: `Some(0)` the chosen token's only, `Some(k)` also the top k.
    pub logprobs: Option<u32>,
    /// The same for the tokens of the prompt, all but the first. The first of `n` sequences has
    /// them. Prompts that want them do not read the prefix cache.
    pub prompt_logprobs: Option<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            max_tokens: 16,
            min_tokens: 0,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            dry: None,
            logit_bias: Vec::new(),
            allowed_token_ids: None,
            bad_words: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            repetition_detection: None,
            logprobs: None,
            prompt_logprobs: None,
        }
    }
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-sequence or stop token (given), which is in the output.
    Stop(u32),
    /// The output is whole: its grammar allows nothing more. The last token is text.
    Complete,
    /// `max_tokens` or the model's context was reached.
    Length,
    /// The output ended in a repeated pattern ([`RepetitionDetection`]).
    Repetition,
    /// The client went away or a stop string was found.
    Abort,
    /// The request's time was over.
    Deadline,
    /// This sequence failed (NaN logits, device failure); `StepOutput::error` says why.
    Error,
}

/// One token with its log-probability (natural log, of the raw logits' softmax).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Logprob {
    /// Token id.
    pub token: u32,
    /// ln p.
    pub logprob: f32,
    /// 1 is the most likely.
    pub rank: u32,
}

/// Log-probabilities at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token that was chosen, or that the prompt has there.
    pub chosen: Logprob,
    /// The most likely ones, best first.
    pub top: Vec<Logprob>,
}

/// What one step did for one sequence. A step hands over all of them at once.
#[derive(Debug, Clone, PartialEq)]
pub struct StepOutput {
    /// Whose.
    pub request: RequestId,
    /// Which of the request's `n` sequences.
    pub index: u32,
    /// The new token; none when the sequence ended without one.
    pub token: Option<u32>,
    /// When asked for.
    pub logprobs: Option<Box<TokenLogprobs>>,
    /// More of the prompt's, in order: over all outputs each position but the first, once.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// Set once, in the sequence's last output.
    pub finish: Option<FinishReason>,
    /// With [`FinishReason::Error`].
    pub error: Option<String>,
    /// Prompt tokens that came from the prefix cache.
    pub num_cached_tokens: u32,
}
