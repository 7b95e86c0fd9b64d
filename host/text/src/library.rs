//! Models of `tokenizer.json` that our own engines do not cover run in the tokenizers library.

use std::sync::OnceLock;

use crate::TextError;

/// The library's tokenizer, once per way of treating special tokens.
pub(crate) struct Library {
    parse: tokenizers::Tokenizer,
    plain: OnceLock<Box<tokenizers::Tokenizer>>,
}

impl Library {
    pub(crate) fn new(json: &[u8]) -> Result<Library, TextError> {
        let parse =
            tokenizers::Tokenizer::from_bytes(json).map_err(|e| TextError::Unsupported {
                what: "tokenizer.json",
                value: e.to_string(),
                next: "convert it with a current version of the tokenizers library".into(),
            })?;
        Ok(Library { parse, plain: OnceLock::new() })
    }

    /// All entries, added ones included: (text, id).
    pub(crate) fn vocab(&self) -> Vec<(String, u32)> {
        self.parse.get_vocab(true).into_iter().collect()
    }

    /// Appends the ids of a whole text, without the model's own additions.
    pub(crate) fn encode(
        &self,
        text: &str,
        parse_special: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let tokenizer = if parse_special {
            &self.parse
        } else {
            self.plain.get_or_init(|| {
                let mut plain = self.parse.clone();
                plain.set_encode_special_tokens(true);
                Box::new(plain)
            })
        };
        let encoding =
            tokenizer.encode_fast(text, false).map_err(|e| TextError::Split(e.to_string()))?;
        out.extend_from_slice(encoding.get_ids());
        Ok(())
    }
}
