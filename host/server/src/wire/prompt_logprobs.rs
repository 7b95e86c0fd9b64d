//! vLLM's `prompt_logprobs`: per token of the prompt, `null` for the first, a map of token ids to
//! log-probability, rank and text. Written as it is serialized: prompts are long.

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use tenon_chat::stream::{TokenInfo, TokenText};

use super::chat_response::{finite, named};

/// The tokens of a prompt behind the first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PromptLogprobs<'a> {
    /// In order.
    pub tokens: &'a [TokenInfo],
    /// So many of the likeliest are shown; they may have more.
    pub k: u32,
    /// Texts are named by ids.
    pub as_ids: bool,
}

impl Serialize for PromptLogprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.tokens.len() + 1))?;
        list.serialize_element(&())?;
        for token in self.tokens {
            list.serialize_element(&Position { token, of: self })?;
        }
        list.end()
    }
}

struct Position<'a> {
    token: &'a TokenInfo,
    of: &'a PromptLogprobs<'a>,
}

impl Serialize for Position<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let TokenInfo { chosen, top } = self.token;
        let mut map = serializer.serialize_map(None)?;
        let others = top.iter().take(self.of.k as usize).filter(|t| t.id != chosen.id);
        for token in std::iter::once(chosen).chain(others) {
            map.serialize_entry(&token.id, &Entry { token, as_id: self.of.as_ids })?;
        }
        map.end()
    }
}

struct Entry<'a> {
    token: &'a TokenText,
    as_id: bool,
}

impl Serialize for Entry<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("logprob", &finite(self.token.logprob))?;
        map.serialize_entry("rank", &self.token.rank)?;
        let text = &self.token.text;
        map.serialize_entry("decoded_token", &named(text.clone(), self.token.id, self.as_id))?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn the_token_itself_is_always_there() {
        let token = |id, logprob, rank| TokenText {
            id,
            text: format!("t{id}"),
            bytes: Vec::new(),
            logprob,
            rank,
        };
        let best = token(5, -0.5, 1);
        let tokens = [
            TokenInfo { chosen: best.clone(), top: vec![best.clone(), token(6, -1.0, 2)] },
            TokenInfo { chosen: token(9, -4.0, 8), top: vec![best, token(6, -1.0, 2)] },
        ];
        let body = |k, as_ids| {
            serde_json::to_value(PromptLogprobs { tokens: &tokens, k, as_ids }).unwrap()
        };
        let entry = |id: u32, logprob: f32, rank: u32, text: &str| {
            json!({ id.to_string():
            {"logprob": logprob, "rank": rank, "decoded_token": text} })
        };
        assert_eq!(body(0, false), json!([null, entry(5, -0.5, 1, "t5"), entry(9, -4.0, 8, "t9")]));
        let one = body(1, true);
        assert_eq!(one[1], entry(5, -0.5, 1, "token_id:5"));
        assert_eq!(one[2].as_object().unwrap().len(), 2);
        assert_eq!(one[2]["5"]["rank"], 1);
    }
}
