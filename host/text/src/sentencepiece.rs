//! Sentencepiece from GGUF: the vocabulary has scores and no merge rules. Any neighbours whose text
//! is a token may merge, the best score first; what stays outside the vocabulary becomes bytes.

use crate::TextError;
use crate::merge::Scratch;
use crate::vocab::{NONE, Vocab};

/// A score-merge BPE. A space stands for `▁` everywhere.
pub(crate) struct SentencePiece {
    /// Per id, smaller merges first: [`priority`] of its score.
    pub(crate) priorities: Vec<u32>,
    /// `<0xNN>` tokens, or [`NONE`].
    pub(crate) bytes: Box<[u32; 256]>,
    pub(crate) unk: Option<u32>,
    /// A section starts with a space of its own, unless text came before it.
    pub(crate) add_prefix: bool,
}

impl SentencePiece {
    /// Encodes a section of text that holds no added token. `at_start`: no text right before it.
    pub(crate) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        at_start: bool,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        if text.is_empty() {
            return Ok(());
        }
        let prefixed = self.add_prefix && at_start;
        if !prefixed && !text.contains('\u{2581}') {
            return self.encode_plain(vocab, text, scratch, out);
        }
        let mut plain = String::with_capacity(text.len() + 1);
        if prefixed {
            plain.push(' ');
        }
        plain.extend(text.chars().map(|c| if c == '\u{2581}' { ' ' } else { c }));
        self.encode_plain(vocab, &plain, scratch, out)
    }

    fn encode_plain(
        &self,
        vocab: &Vocab,
        text: &str,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let bytes = text.as_bytes();
        let span = |start: u32, len: u32| &bytes[start as usize..(start + len) as usize];
        scratch.clear();
        for (start, c) in text.char_indices() {
            let (start, len) = (start as u32, c.len_utf8() as u32);
            scratch.push(start, len, vocab.lookup(span(start, len)).unwrap_or(NONE));
        }
        scratch.merge_all(|a, b| {
            let id = vocab.lookup(span(a.start, a.len + b.len))?;
            Some((self.priorities[id as usize], id))
        });
        for symbol in scratch.rest() {
            if symbol.id != NONE {
                out.push(symbol.id);
                continue;
            }
            for &byte in span(symbol.start, symbol.len) {
                match self.bytes[byte as usize] {
                    NONE => out.push(self.unk.ok_or(TextError::Unencodable { byte })?),
                    id => out.push(id),
                }
            }
        }
        Ok(())
    }
}

/// Orders scores: a higher score gives a smaller number.
pub(crate) fn priority(score: f32) -> u32 {
    let bits = score.to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_follow_scores() {
        let scores = [f32::MAX, 3.5, 1e-9, 0.0, -1e-9, -2.0, -1000.0, f32::MIN];
        for pair in scores.windows(2) {
            assert!(priority(pair[0]) < priority(pair[1]), "{pair:?}");
        }
    }
}
