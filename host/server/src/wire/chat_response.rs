//! Answers of `/v1/chat/completions`: the body and the chunks of a stream.
//!
//! Absent is left out, except where clients expect a `null`: `content` beside calls or reasoning,
//! `logprobs`, `finish_reason` before the end, `usage` before the last chunk.

use serde::Serialize;
use tenon_chat::fold::ChatMessage;
use tenon_chat::stream::{Finish, Finished, StopReason, TokenInfo, TokenText};

use super::prompt_logprobs::PromptLogprobs;
use super::usage::Usage;
use crate::state::ReasoningField;

/// JSON has no -inf; what a token with zero probability gets.
const LOWEST_LOGPROB: f32 = -9999.0;

/// The whole body.
#[derive(Serialize)]
pub(crate) struct ChatResponse<'a> {
    /// `chatcmpl-…`
    pub id: &'a str,
    /// `chat.completion`
    pub object: &'static str,
    /// Unix time.
    pub created: u64,
    /// Served name.
    pub model: &'a str,
    /// By index.
    pub choices: Vec<ChatChoice>,
    /// Of all choices.
    pub usage: Usage,
    /// When asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs<'a>>,
    /// With `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<&'a [u32]>,
}

/// One answer.
#[derive(Serialize)]
pub(crate) struct ChatChoice {
    /// Which of the `n`.
    pub index: u32,
    /// What the model said.
    pub message: Message,
    /// When asked for, else `null`.
    pub logprobs: Option<ChatLogprobs>,
    /// OpenAI's.
    pub finish_reason: &'static str,
    /// What matched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReasonBody>,
    /// With `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// An assistant message.
#[derive(Serialize)]
pub(crate) struct Message {
    /// `assistant`
    pub role: &'static str,
    /// `null` if there is only reasoning or calls.
    pub content: Option<String>,
    /// The newer name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The name that most clients read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Left out when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallBody>,
}

/// A call.
#[derive(Serialize)]
pub(crate) struct ToolCallBody {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: FunctionBody,
}

#[derive(Serialize)]
struct FunctionBody {
    name: String,
    arguments: String,
}

impl Message {
    /// From the fold of a stream's events.
    pub fn new(folded: ChatMessage, field: ReasoningField, include_reasoning: bool) -> Message {
        let only_content = folded.reasoning.is_none() && folded.tool_calls.is_empty();
        let content = folded.content.or_else(|| only_content.then(String::new));
        let reasoning = folded.reasoning.filter(|_| include_reasoning);
        let (short, long) = field.split(reasoning);
        let calls = folded.tool_calls.into_iter().map(|call| ToolCallBody {
            id: call.id,
            kind: "function",
            function: FunctionBody { name: call.name, arguments: call.arguments },
        });
        Message {
            role: "assistant",
            content,
            reasoning: short,
            reasoning_content: long,
            tool_calls: calls.collect(),
        }
    }
}

/// `logprobs` of a choice or of a chunk.
#[derive(Debug, Serialize)]
pub(crate) struct ChatLogprobs {
    /// One entry per generated token.
    pub content: Vec<TokenLogprob>,
}

/// A token and its alternatives.
#[derive(Debug, Serialize)]
pub(crate) struct TokenLogprob {
    #[serde(flatten)]
    chosen: TokenBody,
    top_logprobs: Vec<TokenBody>,
}

#[derive(Debug, Serialize)]
struct TokenBody {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl TokenBody {
    fn new(token: TokenText, as_id: bool) -> TokenBody {
        let logprob = finite(token.logprob);
        TokenBody { token: named(token.text, token.id, as_id), logprob, bytes: token.bytes }
    }
}

impl TokenLogprob {
    /// `as_ids`: tokens are named by their ids.
    pub fn new(token: TokenInfo, as_ids: bool) -> TokenLogprob {
        let top = token.top.into_iter().map(|token| TokenBody::new(token, as_ids));
        TokenLogprob { top_logprobs: top.collect(), chosen: TokenBody::new(token.chosen, as_ids) }
    }
}

/// A token's text, or `token_id:ID`.
pub(crate) fn named(text: String, id: u32, as_id: bool) -> String {
    if as_id { format!("token_id:{id}") } else { text }
}

/// A log-probability that JSON can hold.
pub(crate) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob.max(LOWEST_LOGPROB) } else { LOWEST_LOGPROB }
}

/// vLLM's `stop_reason`: the string, or the token's id.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum StopReasonBody {
    Text(String),
    Token(u32),
}

/// OpenAI's word and what matched. Failures never get here: they are error bodies.
pub(crate) fn finish(finished: &Finished) -> (&'static str, Option<StopReasonBody>) {
    let word = match finished.finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::Repetition => "repetition",
        Finish::ToolCalls => "tool_calls",
        Finish::Abort => "abort",
        Finish::Deadline => "deadline",
        Finish::Error => "error",
    };
    let reason = finished.stop_reason.as_ref().map(|reason| match reason {
        StopReason::Text(text) => StopReasonBody::Text(text.clone()),
        StopReason::Token(id) => StopReasonBody::Token(*id),
    });
    (word, reason)
}

/// One `data:` line.
#[derive(Serialize)]
pub(crate) struct ChatChunk<'a> {
    /// The same in all chunks.
    pub id: &'a str,
    /// `chat.completion.chunk`
    pub object: &'static str,
    /// The same in all chunks.
    pub created: u64,
    /// Served name.
    pub model: &'a str,
    /// One; none in the usage chunk.
    pub choices: &'a [ChunkChoice<'a>],
    /// Left out, or `null` until the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
    /// With `return_token_ids`, in the first chunk of each choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<&'a [u32]>,
}

/// What a chunk adds to one answer.
#[derive(Serialize)]
pub(crate) struct ChunkChoice<'a> {
    /// Which of the `n`.
    pub index: u32,
    /// What is new.
    pub delta: Delta<'a>,
    /// Of the tokens since the last chunk.
    pub logprobs: Option<ChatLogprobs>,
    /// `null` before the last chunk of a choice.
    pub finish_reason: Option<&'static str>,
    /// What matched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReasonBody>,
    /// The parser failed in this answer; the text from there on is as the model wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extension_fault: Option<FaultBody>,
    /// With `return_token_ids`: those since the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// A parser's failure, for a stream's last chunk.
#[derive(Debug, Serialize)]
pub(crate) struct FaultBody {
    /// Its name.
    pub extension: String,
    /// The label in metrics.
    pub kind: &'static str,
}

/// A part of a message.
#[derive(Default, Serialize)]
pub(crate) struct Delta<'a> {
    /// First delta only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// `Some(None)` is `null`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Option<&'a str>>,
    /// The newer name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<&'a str>,
    /// The name that most clients read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    /// One call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[CallDelta<'a>; 1]>,
}

/// A part of a call.
#[derive(Serialize)]
pub(crate) struct CallDelta<'a> {
    /// Which call of the message.
    pub index: u32,
    /// With the name, once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a str>,
    /// With the name, once.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// Name once, arguments grow.
    pub function: FunctionDelta<'a>,
}

/// A part of a call's function.
#[derive(Serialize)]
pub(crate) struct FunctionDelta<'a> {
    /// Once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// To append.
    pub arguments: &'a str,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::{Value, json};
    use tenon_chat::fold::ToolCall;

    fn body(folded: ChatMessage, field: ReasoningField) -> Value {
        serde_json::to_value(Message::new(folded, field, true)).unwrap()
    }

    #[test]
    fn null_rules_of_content() {
        let field = ReasoningField::Both;
        let empty = body(ChatMessage::default(), field);
        assert_eq!(empty, json!({"role": "assistant", "content": ""}));
        let thought = ChatMessage { reasoning: Some("aa".into()), ..Default::default() };
        assert_eq!(
            body(thought, field),
            json!({"role": "assistant", "content": null, "reasoning": "aa",
                "reasoning_content": "aa"})
        );
        let call = ToolCall { id: "c".into(), name: "f".into(), arguments: "{}".into() };
        let called = ChatMessage { tool_calls: vec![call], ..Default::default() };
        assert_eq!(
            body(called, field),
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]})
        );
    }

    #[test]
    fn the_three_names_of_reasoning() {
        let folded = ChatMessage {
            reasoning: Some("aa".into()),
            content: Some("bb".into()),
            tool_calls: vec![],
        };
        let keys = |field| {
            let body = body(folded.clone(), field);
            (body.get("reasoning").is_some(), body.get("reasoning_content").is_some())
        };
        assert_eq!(keys(ReasoningField::Both), (true, true));
        assert_eq!(keys(ReasoningField::Reasoning), (true, false));
        assert_eq!(keys(ReasoningField::ReasoningContent), (false, true));
    }

    #[test]
    fn logprobs_are_always_json_numbers() {
        assert_eq!(finite(f32::NEG_INFINITY), LOWEST_LOGPROB);
        assert_eq!(finite(f32::NAN), LOWEST_LOGPROB);
        assert_eq!(finite(-0.5), -0.5);
    }
}
