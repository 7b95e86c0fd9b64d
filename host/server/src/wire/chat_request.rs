//! The body of `POST /v1/chat/completions`, checked.

use serde_json::{Map, Value};

use super::fields::Fields;
use super::messages;
use super::sampling::{Bounds, Sampling, Streaming, token_limit};
use super::structured::Structured;
use super::tools::Tools;
use crate::error::ApiError;

/// Most alternatives per position.
const MAX_TOP_LOGPROBS: i64 = 20;

/// Known fields of other servers that only chat has.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("audio", "this model writes text"),
    ("prediction", "leave it out"),
    ("web_search_options", "leave it out"),
    ("documents", "put them into a message"),
    ("chat_template", "set the template with `--chat-template` when the server starts"),
    ("media_io_kwargs", "this model reads text"),
    ("mm_processor_kwargs", "this model reads text"),
    ("verbosity", "say it in a message"),
    ("best_of", "use `n`"),
];

/// Template variables that the request sets elsewhere.
const RESERVED_KWARGS: &[(&str, &str)] = &[
    ("messages", "`messages`"),
    ("tools", "`tools`"),
    ("add_generation_prompt", "`add_generation_prompt`"),
    ("continue_final_message", "`continue_final_message`"),
];

/// A chat request whose every field is legal for this model.
#[derive(Debug, Clone)]
pub(crate) struct ChatRequest {
    /// Checked; not yet in the shape that the template wants.
    pub messages: Vec<Value>,
    /// What may be called.
    pub tools: Tools,
    /// What the answer must look like.
    pub structured: Option<Structured>,
    /// Shared fields.
    pub sampling: Sampling,
    /// How to answer.
    pub streaming: Streaming,
    /// `Some(k)`: log-probabilities, with the top k.
    pub logprobs: Option<u32>,
    /// Overrides the bound parser.
    pub tool_call_parser: Option<String>,
    /// Overrides the bound reasoning style.
    pub reasoning_parser: Option<String>,
    /// Reasoning is parsed but not sent when false.
    pub include_reasoning: bool,
    /// Variables for the template.
    pub template_kwargs: Map<String, Value>,
    /// Open the assistant's turn?
    pub add_generation_prompt: bool,
    /// Leave the last message open and go on with it?
    pub continue_final_message: bool,
    /// The answer begins with the text of the last message, if that is the assistant's.
    pub echo: bool,
    /// Tools may go to a template that does not show them.
    pub allow_ignored_tools: Option<bool>,
}

impl ChatRequest {
    /// Takes the fields.
    pub fn take(fields: &mut Fields, bounds: &Bounds) -> Result<ChatRequest, ApiError> {
        let messages = messages::normalize(fields.value("messages"))?;
        fields.refuse(UNSUPPORTED)?;
        let structured = Structured::take(fields)?;
        modalities(fields)?;
        let tools = Tools::take(fields)?;
        let mut sampling = Sampling::take(fields, bounds)?;
        let newer = token_limit(fields, "max_completion_tokens", 1)?;
        let older = token_limit(fields, "max_tokens", 1)?;
        sampling.max_tokens = newer.or(older);
        let logprobs = logprobs(fields)?;
        sampling.params.logprobs = logprobs;
        sampling.params.prompt_logprobs = sampling.prompt_logprobs;
        let continue_final_message = fields.flag("continue_final_message", false)?;
        let asked = fields.take::<bool>("add_generation_prompt")?;
        if continue_final_message && asked == Some(true) {
            return Err(ApiError::invalid(
                "add_generation_prompt",
                "`add_generation_prompt` and `continue_final_message` exclude each other; send one",
            ));
        }
        Ok(ChatRequest {
            messages,
            tools,
            structured,
            sampling,
            streaming: Streaming::take(fields)?,
            logprobs,
            tool_call_parser: fields.take("tool_call_parser")?,
            reasoning_parser: fields.take("reasoning_parser")?,
            include_reasoning: fields.flag("include_reasoning", true)?,
            template_kwargs: template_kwargs(fields)?,
            add_generation_prompt: asked.unwrap_or(!continue_final_message),
            continue_final_message,
            echo: fields.flag("echo", false)?,
            allow_ignored_tools: fields.take("allow_ignored_tools")?,
        })
    }
}

impl ChatRequest {
    /// What `echo` puts in front of each answer.
    pub fn echoed(&self) -> &str {
        let last = self.messages.last().filter(|m| self.echo && m["role"] == "assistant");
        last.and_then(|message| message["content"].as_str()).unwrap_or_default()
    }
}

fn logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let on = fields.flag("logprobs", false)?;
    let top = fields.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    if top.is_some_and(|k| k > 0) && !on {
        return Err(ApiError::invalid(
            "top_logprobs",
            "`top_logprobs` needs `\"logprobs\": true`; send both",
        ));
    }
    Ok(on.then(|| top.unwrap_or(0) as u32))
}

fn modalities(fields: &mut Fields) -> Result<(), ApiError> {
    let asked = fields.take::<Vec<String>>("modalities")?.unwrap_or_default();
    if asked.iter().any(|m| m != "text") {
        return Err(ApiError::unsupported("modalities", "send [\"text\"] or leave it out"));
    }
    Ok(())
}

fn template_kwargs(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs: Map<String, Value> = fields.take("chat_template_kwargs")?.unwrap_or_default();
    for &(name, instead) in RESERVED_KWARGS {
        if kwargs.contains_key(name) {
            return Err(ApiError::invalid(
                format!("chat_template_kwargs.{name}"),
                format!("`chat_template_kwargs.{name}` is set by the server; use {instead}"),
            ));
        }
    }
    if let Some(effort) = fields.take::<String>("reasoning_effort")? {
        kwargs.entry("reasoning_effort").or_insert(effort.into());
    }
    Ok(kwargs)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::state::Limits;
    use serde_json::json;
    use tenon_engine::params::MAX_STOP_TOKENS;

    const BOUNDS: Bounds =
        Bounds { vocab_size: 5000, limits: Limits::DEFAULT, has_priorities: false };

    fn take(extra: Value) -> Result<ChatRequest, ApiError> {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3});
        for (key, value) in extra.as_object().unwrap() {
            body[key] = value.clone();
        }
        let mut fields = Fields::parse(body.to_string().as_bytes()).unwrap();
        ChatRequest::take(&mut fields, &BOUNDS)
    }

    #[test]
    fn every_optional_field_may_be_null() {
        for name in [
            "stop",
            "tools",
            "tool_choice",
            "response_format",
            "logit_bias",
            "logprobs",
            "top_logprobs",
            "n",
            "seed",
            "stream",
            "stream_options",
            "temperature",
            "top_p",
            "user",
            "presence_penalty",
            "frequency_penalty",
            "parallel_tool_calls",
            "metadata",
            "store",
            "service_tier",
            "reasoning_effort",
            "max_completion_tokens",
            "prediction",
            "modalities",
            "audio",
            "functions",
            "function_call",
            "top_k",
            "min_p",
            "repetition_penalty",
            "min_tokens",
            "allowed_token_ids",
            "bad_words",
            "stop_token_ids",
            "ignore_eos",
            "cache_salt",
            "chat_template_kwargs",
            "add_generation_prompt",
            "continue_final_message",
            "dry_multiplier",
            "dry_base",
            "dry_allowed_length",
            "dry_range",
            "dry_penalty_last_n",
            "dry_sequence_breakers",
            "repetition_detection",
            "length_penalty",
            "use_beam_search",
            "prompt_logprobs",
            "truncate_prompt_tokens",
            "truncation_side",
            "return_token_ids",
            "return_tokens_as_token_ids",
            "spaces_between_special_tokens",
            "add_special_tokens",
            "echo",
            "thinking_token_budget",
        ] {
            take(json!({ name: null })).unwrap();
        }
        take(json!({"some_new_field": {"a": 1}})).unwrap();
    }

    #[test]
    fn illegal_values_name_their_field() {
        let rows = [
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"temperature": -1}), "temperature"),
            (json!({"temperature": "NaN"}), "temperature"),
            (json!({"max_tokens": "ten"}), "max_tokens"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"max_tokens": 1u64 << 40}), "max_tokens"),
            (json!({"stop": 5}), "stop"),
            (json!({"stop": ["a", 1]}), "stop[1]"),
            (json!({"stop": [""]}), "stop[0]"),
            (json!({"stop": vec!["a"; 17]}), "stop"),
            (json!({"messages": {}}), "messages"),
            (json!({"stream": "yes"}), "stream"),
            (json!({"n": 1.5}), "n"),
            (json!({"n": 0}), "n"),
            (json!({"n": -1}), "n"),
            (json!({"n": 1000000000}), "n"),
            (json!({"logit_bias": {"999999999": 5}}), "logit_bias"),
            (json!({"logit_bias": {"-1": 5}}), "logit_bias"),
            (json!({"logit_bias": {"+5": 5}}), "logit_bias"),
            (json!({"logit_bias": {"05": 5}}), "logit_bias"),
            (json!({"logit_bias": {"cat": -100}}), "logit_bias"),
            (json!({"logit_bias": {"5": 1e39}}), "logit_bias.5"),
            (json!({"logit_bias": {"5": null}}), "logit_bias.5"),
            (json!({"stop_token_ids": [5000]}), "stop_token_ids[0]"),
            (json!({"stop_token_ids": [-2]}), "stop_token_ids[0]"),
            (json!({"allowed_token_ids": []}), "allowed_token_ids"),
            (json!({"allowed_token_ids": 5}), "allowed_token_ids"),
            (json!({"allowed_token_ids": [1, 5000]}), "allowed_token_ids[1]"),
            (json!({"allowed_token_ids": [-1]}), "allowed_token_ids[0]"),
            (json!({"bad_words": [""]}), "bad_words[0]"),
            (json!({"bad_words": ["a", " "]}), "bad_words[1]"),
            (json!({"bad_words": ["a", 1]}), "bad_words[1]"),
            (json!({"bad_words": "a"}), "bad_words"),
            (json!({"bad_words": ["a".repeat(257)]}), "bad_words[0]"),
            (json!({"bad_words": vec!["a"; 257]}), "bad_words"),
            (json!({"top_k": -5}), "top_k"),
            (json!({"top_p": 1.1}), "top_p"),
            (json!({"repetition_penalty": 0}), "repetition_penalty"),
            (json!({"logprobs": -1}), "logprobs"),
            (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
            (json!({"top_logprobs": 2}), "top_logprobs"),
            (json!({"stream_options": {"include_usage": true}}), "stream_options"),
            (
                json!({"stream": true, "stream_options": {"include_usage": 1}}),
                "stream_options.include_usage",
            ),
            (
                json!({"stream": true, "stream_options": {"continuous_usage_stats": true}}),
                "stream_options.continuous_usage_stats",
            ),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
            (json!({"response_format": {"type": "xml"}}), "response_format.type"),
            (json!({"guided_json": {"type": "null"}}), "guided_json"),
            (json!({"chat_template": "{{ x }}"}), "chat_template"),
            (json!({"chat_template_kwargs": {"tools": []}}), "chat_template_kwargs.tools"),
            (json!({"modalities": ["audio"]}), "modalities"),
            (
                json!({"continue_final_message": true, "add_generation_prompt": true}),
                "add_generation_prompt",
            ),
            (json!({"cache_salt": ""}), "cache_salt"),
            (json!({"length_penalty": 2}), "length_penalty"),
            (json!({"length_penalty": "a"}), "length_penalty"),
            (json!({"prompt_logprobs": -1}), "prompt_logprobs"),
            (json!({"prompt_logprobs": 1000}), "prompt_logprobs"),
            (json!({"prompt_logprobs": true}), "prompt_logprobs"),
            (json!({"prompt_logprobs": 1, "stream": true}), "prompt_logprobs"),
            (json!({"logprobs": true, "top_logprobs": -1}), "top_logprobs"),
            (json!({"use_beam_search": true}), "use_beam_search"),
            (json!({"thinking_token_budget": 5}), "thinking_token_budget"),
            (json!({"return_token_offsets": true}), "return_token_offsets"),
            (json!({"typical_p": 0.9}), "typical_p"),
            (json!({"xtc_probability": 0.5}), "xtc_probability"),
            (json!({"best_of": 2}), "best_of"),
            (json!({"spaces_between_special_tokens": "no"}), "spaces_between_special_tokens"),
            (json!({"skip_special_tokens": 1}), "skip_special_tokens"),
            (json!({"include_stop_str_in_output": "x"}), "include_stop_str_in_output"),
            (json!({"return_token_ids": "x"}), "return_token_ids"),
            (json!({"return_tokens_as_token_ids": 1}), "return_tokens_as_token_ids"),
            (json!({"add_special_tokens": 1}), "add_special_tokens"),
            (json!({"echo": "x"}), "echo"),
            (json!({"include_reasoning": "x"}), "include_reasoning"),
            (json!({"truncate_prompt_tokens": 0}), "truncate_prompt_tokens"),
            (json!({"truncate_prompt_tokens": -2}), "truncate_prompt_tokens"),
            (json!({"truncation_side": "middle"}), "truncation_side"),
            (json!({"dry_multiplier": -1}), "dry_multiplier"),
            (json!({"dry_base": 0.5}), "dry_base"),
            (json!({"dry_allowed_length": 51}), "dry_allowed_length"),
            (json!({"dry_range": -1}), "dry_range"),
            (json!({"dry_range": 1, "dry_penalty_last_n": 1}), "dry_range"),
            (json!({"dry_penalty_last_n": -2}), "dry_penalty_last_n"),
            (json!({"dry_sequence_breakers": "x"}), "dry_sequence_breakers"),
            (json!({"dry_sequence_breakers": ["a", ""]}), "dry_sequence_breakers[1]"),
            (json!({"dry_sequence_breakers": vec!["a"; 33]}), "dry_sequence_breakers"),
            (json!({"repetition_detection": 3}), "repetition_detection"),
            (
                json!({"repetition_detection": {"max_pattern_size": "a"}}),
                "repetition_detection.max_pattern_size",
            ),
            (
                json!({"repetition_detection": {"max_pattern_size": 1025}}),
                "repetition_detection.max_pattern_size",
            ),
            (
                json!({"repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 3}}),
                "repetition_detection.min_pattern_size",
            ),
            (
                json!({"repetition_detection": {"max_pattern_size": 2, "min_count": 1}}),
                "repetition_detection.min_count",
            ),
        ];
        for (extra, want) in rows {
            let error = take(extra.clone()).unwrap_err();
            assert_eq!(error.status().as_u16(), 400, "{extra}");
            assert_eq!(error.body()["error"]["param"], want, "{extra}");
        }
        let seed =
            r#"{"messages": [{"role": "user", "content": "x"}], "seed": -9223372036854775809}"#;
        let mut fields = Fields::parse(seed.as_bytes()).unwrap();
        let error = ChatRequest::take(&mut fields, &BOUNDS).unwrap_err();
        assert_eq!(error.body()["error"]["param"], "seed");
    }

    #[test]
    fn neutral_values_of_what_is_not_supported_pass() {
        take(json!({"length_penalty": 1, "use_beam_search": false, "typical_p": 1.0, "tfs": 1,
            "mirostat": 0, "thinking_token_budget": null, "best_of": null,
            "spaces_between_special_tokens": false, "user": "u", "store": true,
            "metadata": {"a": "b"}, "service_tier": "auto"}))
        .unwrap();
    }

    #[test]
    fn prompts_are_cut_at_either_side() {
        let cut = |extra: Value, context| {
            let sampling = take(extra).unwrap().sampling;
            let mut tokens = vec![1, 2, 3, 4, 5];
            sampling.truncation.unwrap().apply(&mut tokens, Some(2), context).map(|_| tokens)
        };
        assert_eq!(cut(json!({"truncate_prompt_tokens": 3}), 9).unwrap(), [3, 4, 5]);
        let right = json!({"truncate_prompt_tokens": 3, "truncation_side": "right"});
        assert_eq!(cut(right, 9).unwrap(), [1, 2, 3]);
        assert_eq!(cut(json!({"truncate_prompt_tokens": 5}), 9).unwrap(), [1, 2, 3, 4, 5]);
        assert_eq!(cut(json!({"truncate_prompt_tokens": -1}), 5).unwrap(), [3, 4, 5]);
        assert!(cut(json!({"truncate_prompt_tokens": 6}), 5).is_err());
    }

    #[test]
    fn what_other_servers_mean_by_off() {
        let request = take(json!({"top_k": -1, "top_p": 0, "seed": -1, "stop": "x"})).unwrap();
        let params = &request.sampling.params;
        assert_eq!((params.top_k, params.temperature, params.top_p), (0, 0.0, 1.0));
        assert_eq!(params.seed, Some(u64::MAX));
        assert_eq!(request.sampling.stop, ["x"]);
        let many: Vec<u32> = (0..MAX_STOP_TOKENS as u32).collect();
        take(json!({ "stop_token_ids": many })).unwrap();
    }

    #[test]
    fn context_boundaries() {
        let cases = [
            (127, None, Ok(1)),
            (127, Some(1), Ok(1)),
            (127, Some(2), Err(129)),
            (128, Some(1), Err(129)),
            (200, Some(1), Err(201)),
            (128, None, Err(129)),
        ];
        for (prompt, max_tokens, want) in cases {
            let mut sampling = take(json!({})).unwrap().sampling;
            sampling.max_tokens = max_tokens;
            match (sampling.bind_context(prompt, 128, None, "messages"), want) {
                (Ok(params), Ok(max)) => assert_eq!(params.max_tokens, max),
                (Err(error), Err(needed)) => {
                    let body = error.body();
                    assert_eq!(body["error"]["code"], "context_length_exceeded");
                    let message = body["error"]["message"].as_str().unwrap();
                    assert!(message.contains("128") && message.contains(&needed.to_string()));
                }
                (got, want) => panic!("prompt {prompt}: {got:?}, expected {want:?}"),
            }
        }
    }
}
