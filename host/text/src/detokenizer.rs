//! Ids to text, one at a time: one per sequence, on its output worker.
//!
//! Gives whole UTF-8 only. For any ids, the pieces together are the lossy decoding of all their
//! bytes, however they were cut.

use std::sync::Arc;

use crate::{TextError, Tokenizer};

/// How to decode.
#[derive(Debug, Clone, Default)]
pub struct DetokenizerOptions {
    /// Drop the text of special tokens.
    pub skip_special_tokens: bool,
    /// Except of these: markers that a parser must see.
    pub keep: Vec<u32>,
    /// The text starts here: nothing but special tokens came before. Sentencepiece then drops the
    /// space that it put in front of a text. See [`Detokenizer::starts_text`].
    pub at_text_start: bool,
}

/// Bytes of a piece that came from one added token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecialSpan {
    /// First byte in [`Detokenized::text`].
    pub start: u32,
    /// Length in bytes.
    pub len: u32,
    /// Token id.
    pub id: u32,
}

/// Text of some tokens. Reuse it: `clear` keeps the memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Detokenized {
    /// Whole UTF-8.
    pub text: String,
    /// Added tokens in it, in order.
    pub specials: Vec<SpecialSpan>,
}

impl Detokenized {
    /// Empties it.
    pub fn clear(&mut self) {
        self.text.clear();
        self.specials.clear();
    }
}

/// The decoder of one sequence.
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    state: State,
}

#[derive(Clone)]
struct State {
    skip_special_tokens: bool,
    keep: Vec<u32>,
    strip_space: bool,
    pending: [u8; 3], // a prefix of one UTF-8 character
    num_pending: usize,
}

impl Detokenizer {
    /// Starts a sequence.
    pub fn new(tokenizer: Arc<Tokenizer>, options: DetokenizerOptions) -> Detokenizer {
        let state = State::new(&tokenizer, &options);
        Detokenizer { tokenizer, state }
    }

    /// Is output behind this prompt the start of a text ([`DetokenizerOptions::at_text_start`])?
    pub fn starts_text(tokenizer: &Tokenizer, prompt: &[u32]) -> bool {
        prompt.iter().all(|&id| tokenizer.is_special(id))
    }

    /// Appends what the next token makes certain to `out`.
    ///
    /// # Errors
    /// [`TextError::OutOfVocabulary`]; the state is unchanged then.
    pub fn push(&mut self, id: u32, out: &mut Detokenized) -> Result<(), TextError> {
        self.state.push(&self.tokenizer, id, out)
    }

    /// Ends the sequence: an incomplete character becomes U+FFFD.
    pub fn flush(&mut self, out: &mut Detokenized) {
        self.state.flush(out);
    }

    /// Bytes of an incomplete character that wait for the next token.
    pub fn num_held(&self) -> usize {
        self.state.num_pending
    }

    pub(crate) fn decode_all(
        tokenizer: &Tokenizer,
        options: &DetokenizerOptions,
        ids: &[u32],
    ) -> Result<String, TextError> {
        let mut state = State::new(tokenizer, options);
        state.strip_space = tokenizer.strips_prefix;
        let mut out = Detokenized::default();
        for &id in ids {
            state.push(tokenizer, id, &mut out)?;
        }
        state.flush(&mut out);
        Ok(out.text)
    }
}

impl State {
    fn new(tokenizer: &Tokenizer, options: &DetokenizerOptions) -> State {
        State {
            skip_special_tokens: options.skip_special_tokens,
            keep: options.keep.clone(),
            strip_space: options.at_text_start && tokenizer.strips_prefix,
            pending: [0; 3],
            num_pending: 0,
        }
    }

    fn push(
        &mut self,
        tokenizer: &Tokenizer,
        id: u32,
        out: &mut Detokenized,
    ) -> Result<(), TextError> {
        tokenizer.check_id(id)?;
        let bytes = tokenizer.token_bytes(id).unwrap_or_default();
        if !tokenizer.is_added(id) {
            let strip = self.strip_space && bytes.first() == Some(&b' ');
            self.strip_space &= bytes.is_empty();
            self.append(&bytes[usize::from(strip)..], out);
            return Ok(());
        }
        if self.skip_special_tokens && tokenizer.is_special(id) && !self.keep.contains(&id) {
            return Ok(());
        }
        self.strip_space &= tokenizer.is_special(id);
        self.append(&[], out);
        if !bytes.is_empty() {
            self.flush(out); // its first byte is no continuation byte
        }
        let start = out.text.len();
        self.append(bytes, out);
        self.flush(out);
        let (start, len) = (start as u32, (out.text.len() - start) as u32);
        if len > 0 {
            out.specials.push(SpecialSpan { start, len, id });
        }
        Ok(())
    }

    fn append(&mut self, bytes: &[u8], out: &mut Detokenized) {
        let mut rest = bytes;
        // Finish the waiting character byte by byte.
        while self.num_pending > 0 && !rest.is_empty() {
            let mut joined = [0u8; 4];
            joined[..self.num_pending].copy_from_slice(&self.pending[..self.num_pending]);
            joined[self.num_pending] = rest[0];
            let joined = &joined[..=self.num_pending];
            match std::str::from_utf8(joined) {
                Ok(text) => {
                    out.text.push_str(text);
                    self.num_pending = 0;
                    rest = &rest[1..];
                }
                Err(error) if error.error_len().is_none() => {
                    self.pending[self.num_pending] = rest[0];
                    self.num_pending += 1;
                    rest = &rest[1..];
                }
                Err(_) => self.flush(out), // this byte starts anew
            }
        }
        while !rest.is_empty() {
            let error = match std::str::from_utf8(rest) {
                Ok(text) => return out.text.push_str(text),
                Err(error) => error,
            };
            let (valid, broken) = rest.split_at(error.valid_up_to());
            out.text.push_str(std::str::from_utf8(valid).expect("checked up to here"));
            match error.error_len() {
                Some(len) => {
                    out.text.push(char::REPLACEMENT_CHARACTER);
                    rest = &broken[len..];
                }
                None => {
                    self.pending[..broken.len()].copy_from_slice(broken);
                    self.num_pending = broken.len();
                    return;
                }
            }
        }
    }

    fn flush(&mut self, out: &mut Detokenized) {
        if self.num_pending > 0 {
            out.text.push(char::REPLACEMENT_CHARACTER);
            self.num_pending = 0;
        }
    }
}
