//! Answers of `/v1/completions`: body and chunks have the same shape.

use serde::Serialize;
use serde_json::{Map, Value};
use tenon_chat::stream::TokenInfo;

use super::chat_response::{FaultBody, StopReasonBody, finite, named};
use super::prompt_logprobs::PromptLogprobs;
use super::usage::Usage;

/// The whole body, or one `data:` line.
#[derive(Serialize)]
pub(crate) struct CompletionBody<'a> {
    /// `cmpl-…`
    pub id: &'a str,
    /// `text_completion`
    pub object: &'static str,
    /// Unix time.
    pub created: u64,
    /// Served name.
    pub model: &'a str,
    /// By index: `n` per prompt, prompts in order. One in a chunk, none in the usage chunk.
    pub choices: &'a [CompletionChoice<'a>],
    /// In chunks: left out, or `null` until the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
}

/// One answer, or what a chunk adds to it.
#[derive(Serialize)]
pub(crate) struct CompletionChoice<'a> {
    /// `prompt * n + i`
    pub index: u32,
    /// Text.
    pub text: &'a str,
    /// When asked for, else `null`.
    pub logprobs: Option<CompletionLogprobs>,
    /// `null` before the end.
    pub finish_reason: Option<&'static str>,
    /// What matched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReasonBody>,
    /// Never set on this endpoint today; the same key as in chat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extension_fault: Option<FaultBody>,
    /// When asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs<'a>>,
    /// With `return_token_ids`; in a chunk, those since the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// With `return_token_ids`; in the first chunk of the choice only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<&'a [u32]>,
}

/// Where the next token starts in a text, in characters. A character may be written by several
/// tokens; all of them but the first start where it does.
#[derive(Debug, Default)]
pub(crate) struct TextOffset {
    num_chars: usize,
    /// The first bytes of a character.
    begun: Vec<u8>,
}

impl TextOffset {
    /// Behind these bytes. What is no text counts as the text has it: `U+FFFD` for each run.
    pub fn push(&mut self, bytes: &[u8]) {
        self.begun.extend_from_slice(bytes);
        let mut rest = &self.begun[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.num_chars += text.chars().count();
                    rest = &[];
                }
                Err(error) => {
                    let (text, behind) = rest.split_at(error.valid_up_to());
                    self.num_chars += String::from_utf8_lossy(text).chars().count();
                    rest = behind;
                    if let Some(len) = error.error_len() {
                        self.num_chars += 1;
                        rest = &rest[len..];
                        continue;
                    }
                }
            }
            break;
        }
        self.begun = rest.to_vec();
    }
}

/// The old form of log-probabilities: parallel lists.
#[derive(Debug, Default, Serialize)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<String>,
    /// None for the first token of an echoed prompt, here and below.
    token_logprobs: Vec<Option<f32>>,
    /// Token to log-probability; the chosen one is always in it.
    top_logprobs: Vec<Option<Map<String, Value>>>,
    /// In characters from the start of the text, an echo included.
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Adds a token; `offset` is where it starts and moves behind it. `as_ids`: tokens are named
    /// by their ids.
    pub fn push(&mut self, token: TokenInfo, offset: &mut TextOffset, as_ids: bool) {
        let mut top = Map::new();
        for candidate in token.top.into_iter().chain([token.chosen.clone()]) {
            // Two ids can have the same text; the likelier one came first.
            let name = named(candidate.text, candidate.id, as_ids);
            top.entry(name).or_insert_with(|| finite(candidate.logprob).into());
        }
        self.text_offset.push(offset.num_chars);
        offset.push(&token.chosen.bytes);
        self.token_logprobs.push(Some(finite(token.chosen.logprob)));
        self.tokens.push(named(token.chosen.text, token.chosen.id, as_ids));
        self.top_logprobs.push(Some(top));
    }

    /// Adds the first token of a prompt, which nothing predicted.
    pub fn push_first(&mut self, name: String) {
        self.text_offset.push(0);
        self.token_logprobs.push(None);
        self.tokens.push(name);
        self.top_logprobs.push(None);
    }

    /// No token yet?
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;
    use tenon_chat::stream::TokenText;

    #[test]
    fn a_character_of_several_tokens_counts_once() {
        let text = "aü日😀!";
        for size in 1..=text.len() {
            let (mut offset, mut at) = (TextOffset::default(), 0);
            for piece in text.as_bytes().chunks(size) {
                // Where the character begins that the piece begins in.
                let begins = (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap();
                assert_eq!(offset.num_chars, text[..begins].chars().count(), "{size} {at}");
                offset.push(piece);
                at += piece.len();
            }
            assert_eq!(offset.num_chars, 5);
        }
        let mut offset = TextOffset::default();
        offset.push(b"\xff\xe6\x97");
        assert_eq!(offset.num_chars, 1);
        offset.push(b"a");
        assert_eq!(offset.num_chars, 3);
    }

    #[test]
    fn offsets_count_characters_and_the_chosen_token_is_in_the_map() {
        let text = |text: &str, logprob| TokenText {
            id: 7,
            text: text.into(),
            bytes: text.as_bytes().to_vec(),
            logprob,
            rank: 1,
        };
        let mut logprobs = CompletionLogprobs::default();
        let mut offset = TextOffset::default();
        let first = TokenInfo { chosen: text("é!", -1.0), top: vec![text("a", -0.5)] };
        logprobs.push(first, &mut offset, false);
        let second = TokenInfo { chosen: text("b", -0.25), top: vec![] };
        logprobs.push(second.clone(), &mut offset, false);
        let body = serde_json::to_value(&logprobs).unwrap();
        assert_eq!(
            body,
            json!({"tokens": ["é!", "b"], "token_logprobs": [-1.0, -0.25],
                "top_logprobs": [{"a": -0.5, "é!": -1.0}, {"b": -0.25}], "text_offset": [0, 2]})
        );
        let mut by_id = CompletionLogprobs::default();
        by_id.push(second, &mut TextOffset::default(), true);
        let body = serde_json::to_value(&by_id).unwrap();
        assert_eq!(
            (&body["tokens"], &body["top_logprobs"]),
            (&json!(["token_id:7"]), &json!([{"token_id:7": -0.25}]))
        );
    }
}
