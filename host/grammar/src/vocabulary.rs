//! A tokenizer's byte vocabulary as a token trie. Added tokens (special or user-defined) carry the
//! library's marker byte, so that no text of a grammar ever matches one: only a grammar that names
//! a token allows it.

use std::sync::Arc;

use tenon_text::Tokenizer;
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use crate::GrammarError;

/// In front of an added token's text.
pub(crate) const MARKER: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// The library keeps token ids in 24 bits.
const MAX_TOKENS: usize = (1 << 24) - 1;

/// The vocabulary of one model.
pub struct Vocabulary {
    env: TokEnv,
    // Added tokens: text and id.
    added: Vec<(String, u32)>,
}

impl Vocabulary {
    /// `eos` are the ids that end a sequence, each below the tokenizer's size.
    ///
    /// # Errors
    /// When the vocabulary has no end of sequence or is too large.
    pub fn new(tokenizer: &Tokenizer, eos: &[u32]) -> Result<Vocabulary, GrammarError> {
        let len = tokenizer.vocab_size();
        let eos: Vec<u32> = eos.iter().copied().filter(|&id| (id as usize) < len).collect();
        let Some(&first) = eos.first() else {
            let message = "the model has no end-of-sequence token, which a grammar needs";
            return Err(GrammarError::Invalid(message.into()));
        };
        if len > MAX_TOKENS {
            let (value, limit) = (len as u64, MAX_TOKENS as u64);
            return Err(GrammarError::TooLarge { what: "the number of tokens", value, limit });
        }
        let mut added = Vec::new();
        let words: Vec<Vec<u8>> = (0..len as u32)
            .map(|id| {
                let bytes = tokenizer.token_bytes(id).unwrap_or_default();
                if !tokenizer.is_added(id) {
                    return bytes.to_vec();
                }
                added.push((String::from_utf8_lossy(bytes).into_owned(), id));
                [&[MARKER], bytes].concat()
            })
            .collect();
        let info = TokRxInfo::new(len as u32, first);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&eos);
        Ok(Vocabulary { env: Arc::new(ApproximateTokEnv::new(trie)), added })
    }

    pub(crate) fn env(&self) -> &TokEnv {
        &self.env
    }

    pub(crate) fn len(&self) -> usize {
        self.env.tok_trie().vocab_size()
    }

    /// A token's bytes, [`MARKER`] in front of an added one's.
    pub(crate) fn marked_bytes(&self, token: u32) -> &[u8] {
        if (token as usize) < self.len() { self.env.tok_trie().token(token) } else { &[] }
    }

    /// A token's bytes in text.
    pub(crate) fn bytes(&self, token: u32) -> &[u8] {
        let bytes = self.marked_bytes(token);
        bytes.strip_prefix(&[MARKER]).unwrap_or(bytes)
    }

    pub(crate) fn is_end(&self, token: u32) -> bool {
        self.env.tok_trie().eos_tokens().contains(&token)
    }

    pub(crate) fn ends(&self) -> &[u32] {
        self.env.tok_trie().eos_tokens()
    }

    /// Added tokens, as text and id.
    pub(crate) fn added(&self) -> &[(String, u32)] {
        &self.added
    }

    /// The longest added token that a text begins with.
    pub(crate) fn added_at(&self, text: &str) -> Option<(&str, u32)> {
        longest_at(self.added.iter().map(|(of, id)| (of.as_str(), *id)), text)
    }
}

/// The longest of some tokens, each with something, that a text begins with.
pub(crate) fn longest_at<'a, T>(
    tokens: impl Iterator<Item = (&'a str, T)>,
    text: &str,
) -> Option<(&'a str, T)> {
    let here = tokens.filter(|(of, _)| !of.is_empty() && text.starts_with(of));
    here.max_by_key(|(of, _)| of.len())
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary")
            .field("num_tokens", &self.len())
            .field("num_added", &self.added.len())
            .finish_non_exhaustive()
    }
}
