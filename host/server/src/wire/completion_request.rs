//! The body of `POST /v1/completions`, checked.

use serde_json::Value;

use super::fields::{Fields, decode};
use super::sampling::{Bounds, Sampling, Streaming, token_ids, token_limit};
use super::structured::Structured;
use crate::error::ApiError;

/// OpenAI's default of this endpoint.
pub(crate) const DEFAULT_MAX_TOKENS: u32 = 16;
/// Most alternatives per position.
const MAX_LOGPROBS: i64 = 5;

/// Known fields that this endpoint does not take.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("suffix", "put the whole text into `prompt`"),
    ("tools", "use `/v1/chat/completions`"),
    ("tool_call_parser", "use `/v1/chat/completions`"),
    ("reasoning_parser", "use `/v1/chat/completions`"),
    ("messages", "use `/v1/chat/completions`"),
];

/// One prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Prompt {
    /// To be tokenized.
    Text(String),
    /// As given; each below the vocabulary's size.
    Tokens(Vec<u32>),
}

/// A completion request whose every field is legal for this model.
#[derive(Debug, Clone)]
pub(crate) struct CompletionRequest {
    /// At least one.
    pub prompts: Vec<Prompt>,
    /// The text begins with the prompt.
    pub echo: bool,
    /// What each text must look like.
    pub structured: Option<Structured>,
    /// Shared fields; `max_tokens` may be 0, and `n` is `best_of`.
    pub sampling: Sampling,
    /// Choices per prompt that are answered: the best of `sampling.n`.
    pub num_kept: u32,
    /// How to answer.
    pub streaming: Streaming,
    /// `Some(k)`: log-probabilities, with the top k.
    pub logprobs: Option<u32>,
}

impl CompletionRequest {
    /// Takes the fields.
    pub fn take(fields: &mut Fields, bounds: &Bounds) -> Result<CompletionRequest, ApiError> {
        let prompts = prompts(fields.value("prompt"), bounds)?;
        fields.refuse(UNSUPPORTED)?;
        let structured = Structured::take(fields)?;
        let mut sampling = Sampling::take(fields, bounds)?;
        let num_kept = sampling.n;
        let best_of = best_of(fields, num_kept, bounds)?;
        sampling.n = best_of;
        let max_tokens = token_limit(fields, "max_tokens", 0)?;
        sampling.max_tokens = max_tokens;
        let logprobs = fields.integer("logprobs", 0..=MAX_LOGPROBS)?.map(|k| k as u32);
        // The best are found by their log-probabilities.
        sampling.params.logprobs = logprobs.or((best_of > num_kept).then_some(0));
        let echo = fields.flag("echo", false)?;
        // An echo has log-probabilities, too.
        sampling.params.prompt_logprobs = sampling.prompt_logprobs.max(logprobs.filter(|_| echo));
        let streaming = Streaming::take(fields)?;
        if streaming.stream && best_of > num_kept {
            return Err(ApiError::invalid(
                "best_of",
                "`best_of` above `n` cannot be streamed: the best are known at the end; send one \
                 of the two",
            ));
        }
        Ok(CompletionRequest { prompts, echo, structured, sampling, num_kept, streaming, logprobs })
    }
}

/// How many sequences are generated per prompt: `n` at least.
fn best_of(fields: &mut Fields, n: u32, bounds: &Bounds) -> Result<u32, ApiError> {
    let most = i64::from(bounds.limits.max_n);
    let Some(best_of) = fields.integer("best_of", 1..=most)? else { return Ok(n) };
    if best_of < i64::from(n) {
        let message = format!("`best_of` is `{best_of}`; it must be at least `n`, which is {n}");
        return Err(ApiError::invalid("best_of", message));
    }
    Ok(best_of as u32)
}

fn prompts(value: Option<Value>, bounds: &Bounds) -> Result<Vec<Prompt>, ApiError> {
    let bad = |what: &str| Err(ApiError::invalid("prompt", format!("`prompt` {what}")));
    let list = match value {
        None => return bad("is missing; send a string"),
        Some(Value::String(text)) => return Ok(vec![Prompt::Text(text)]),
        Some(Value::Array(list)) => list,
        Some(_) => return bad("must be a string, a list of strings, of ids or of lists of ids"),
    };
    let ids = |path: &str, value: Value| -> Result<Prompt, ApiError> {
        let ids: Vec<i64> = decode(path, value)?;
        if ids.is_empty() {
            return Err(ApiError::invalid("prompt", format!("`{path}` is empty; send tokens")));
        }
        Ok(Prompt::Tokens(token_ids(path, &ids, bounds.vocab_size)?))
    };
    match list.first() {
        None => return bad("is empty; send at least one"),
        Some(Value::Number(_)) => return Ok(vec![ids("prompt", Value::Array(list))?]),
        Some(_) => {}
    }
    let most = bounds.limits.max_prompts;
    if list.len() > most {
        return bad(&format!("has {} entries; at most {most} are allowed", list.len()));
    }
    list.into_iter()
        .enumerate()
        .map(|(i, entry)| match entry {
            Value::String(text) => Ok(Prompt::Text(text)),
            entry @ Value::Array(_) => ids(&format!("prompt[{i}]"), entry),
            _ => {
                let param = format!("prompt[{i}]");
                let message = format!("`{param}` must be a string or a list of token ids");
                Err(ApiError::invalid(param, message))
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::state::Limits;
    use serde_json::json;

    const BOUNDS: Bounds =
        Bounds { vocab_size: 5000, limits: Limits::DEFAULT, has_priorities: false };

    fn take(body: Value) -> Result<CompletionRequest, ApiError> {
        let mut fields = Fields::parse(body.to_string().as_bytes()).unwrap();
        CompletionRequest::take(&mut fields, &BOUNDS)
    }

    #[test]
    fn the_four_forms_of_a_prompt() {
        let text = |s: &str| Prompt::Text(s.into());
        let prompts = |p: Value| take(json!({ "prompt": p })).unwrap().prompts;
        assert_eq!(prompts(json!("a")), [text("a")]);
        assert_eq!(prompts(json!(["a", "b"])), [text("a"), text("b")]);
        assert_eq!(prompts(json!([1, 2])), [Prompt::Tokens(vec![1, 2])]);
        let lists = [Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2])];
        assert_eq!(prompts(json!([[1], [2]])), lists);
    }

    #[test]
    fn an_echo_asks_for_the_prompts_log_probabilities() {
        let asked = |extra: Value| take(extra).unwrap().sampling.params.prompt_logprobs;
        assert_eq!(asked(json!({"prompt": "a", "echo": true})), None);
        assert_eq!(asked(json!({"prompt": "a", "logprobs": 3})), None);
        assert_eq!(asked(json!({"prompt": "a", "echo": true, "logprobs": 3})), Some(3));
        let both = json!({"prompt": "a", "echo": true, "logprobs": 3, "prompt_logprobs": 7});
        assert_eq!(asked(both), Some(7));
        assert_eq!(asked(json!({"prompt": "a", "prompt_logprobs": 0})), Some(0));
    }

    #[test]
    fn best_of_generates_more_than_it_answers() {
        let sizes = |extra: Value| {
            let request = take(extra).unwrap();
            (request.sampling.n, request.num_kept, request.sampling.params.logprobs)
        };
        assert_eq!(sizes(json!({"prompt": "a", "best_of": 5, "n": 2})), (5, 2, Some(0)));
        assert_eq!(sizes(json!({"prompt": "a", "n": 2})), (2, 2, None));
        let streamed = json!({"prompt": "a", "best_of": 2, "n": 2, "stream": true});
        assert_eq!(sizes(streamed), (2, 2, None));
    }

    #[test]
    fn illegal_values_name_their_field() {
        let rows = [
            (json!({}), "prompt"),
            (json!({"prompt": []}), "prompt"),
            (json!({"prompt": [[]]}), "prompt"),
            (json!({"prompt": 5}), "prompt"),
            (json!({"prompt": [1, "a"]}), "prompt[1]"),
            (json!({"prompt": ["a", 1]}), "prompt[1]"),
            (json!({"prompt": [5000]}), "prompt[0]"),
            (json!({"prompt": [-1]}), "prompt[0]"),
            (json!({"prompt": [2147483648u64]}), "prompt[0]"),
            (json!({"prompt": [[1], [1, 5000]]}), "prompt[1][1]"),
            (json!({"prompt": vec!["a"; 1025]}), "prompt"),
            (json!({"prompt": "a", "best_of": 1000000}), "best_of"),
            (json!({"prompt": "a", "best_of": 0}), "best_of"),
            (json!({"prompt": "a", "best_of": 2, "n": 3}), "best_of"),
            (json!({"prompt": "a", "best_of": 2, "stream": true}), "best_of"),
            (json!({"prompt": "a", "suffix": "b"}), "suffix"),
            (json!({"prompt": "a", "logprobs": 6}), "logprobs"),
            (json!({"prompt": "a", "logprobs": true}), "logprobs"),
            (json!({"prompt": "a", "echo": 1}), "echo"),
            (json!({"prompt": "a", "prompt_logprobs": 21}), "prompt_logprobs"),
            (json!({"prompt": "a", "prompt_logprobs": 0, "stream": true}), "prompt_logprobs"),
            (json!({"prompt": "a", "tool_call_parser": "x"}), "tool_call_parser"),
            (json!({"prompt": "a", "max_tokens": -1}), "max_tokens"),
        ];
        for (body, want) in rows {
            let error = take(body.clone()).unwrap_err();
            assert_eq!(error.body()["error"]["param"], want, "{body}");
        }
    }
}
