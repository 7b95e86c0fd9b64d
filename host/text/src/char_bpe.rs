//! BPE over characters with byte fallback: sentencepiece vocabularies in `tokenizer.json` form
//! (Llama 2, Gemma, Mistral). No words: a section of text merges as a whole.

use std::collections::HashMap;

use crate::TextError;
use crate::merge::{Merges, Scratch};
use crate::vocab::NONE;

/// A character-level BPE model. A space stands for `▁` everywhere.
pub(crate) struct CharBpe {
    pub(crate) merges: Merges,
    /// Token of each character that has one.
    pub(crate) chars: HashMap<char, u32>,
    /// `<0xNN>` tokens, or [`NONE`].
    pub(crate) bytes: Box<[u32; 256]>,
    pub(crate) unk: Option<u32>,
    /// Neighbouring unknown characters are one unknown token.
    pub(crate) fuse_unk: bool,
    /// A section starts with a space of its own.
    pub(crate) add_prefix: bool,
}

impl CharBpe {
    /// Encodes a section of text that holds no added token.
    pub(crate) fn encode(
        &self,
        text: &str,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        if text.is_empty() {
            return Ok(());
        }
        scratch.clear();
        let prefix = self.add_prefix.then_some(' ');
        let mut at = 0;
        for c in prefix.into_iter().chain(text.chars()) {
            let c = if c == '\u{2581}' { ' ' } else { c };
            let len = c.len_utf8() as u32;
            self.push(c, at, len, scratch)?;
            at += len;
        }
        scratch.merge_all(|a, b| self.merges.get(a.id, b.id));
        let mut last = NONE;
        for symbol in scratch.rest() {
            let fused = self.fuse_unk && Some(symbol.id) == self.unk && symbol.id == last;
            if !fused {
                out.push(symbol.id);
            }
            last = symbol.id;
        }
        Ok(())
    }

    fn push(&self, c: char, at: u32, len: u32, scratch: &mut Scratch) -> Result<(), TextError> {
        if let Some(&id) = self.chars.get(&c) {
            scratch.push(at, len, id);
            return Ok(());
        }
        let mut buffer = [0u8; 4];
        let bytes = c.encode_utf8(&mut buffer).as_bytes();
        match bytes.iter().find(|&&b| self.bytes[b as usize] == NONE) {
            None => {
                for (i, &b) in bytes.iter().enumerate() {
                    scratch.push(at + i as u32, 1, self.bytes[b as usize]);
                }
            }
            Some(&byte) => {
                scratch.push(at, len, self.unk.ok_or(TextError::Unencodable { byte })?);
            }
        }
        Ok(())
    }
}
