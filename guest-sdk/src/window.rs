//! The part of a stream's text that is not decided, with the tokens in it.

use alloc::string::String;
use alloc::vec::Vec;

use crate::Special;

/// Text in front of `position` is decided, but may go back as long as it is here.
#[derive(Debug, Default)]
pub(crate) struct Window {
    text: String,
    /// Where reading goes on, in bytes of this text.
    pub(crate) position: usize,
    /// Bytes of the stream in front of this text.
    base: u64,
    /// Offset in the stream and length of each added token, in their order.
    tokens: Vec<(u64, u32)>,
}

impl Window {
    /// Appends what came. `skipped` bytes came in front of it and are gone; nothing was held then.
    pub(crate) fn push(&mut self, text: &str, specials: &[Special], skipped: u32) {
        self.base += u64::from(skipped);
        let start = self.base + self.text.len() as u64;
        for special in specials {
            self.tokens.push((start + u64::from(special.start), special.len));
        }
        self.text.push_str(text);
    }

    /// All of it.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// What is still to be read.
    pub(crate) fn rest(&self) -> &str {
        &self.text[self.position..]
    }

    /// How much it holds.
    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// Is everything read?
    pub(crate) fn is_read(&self) -> bool {
        self.position == self.text.len()
    }

    /// Did the `len` bytes at `start` come as one added token?
    pub(crate) fn has_token(&self, start: usize, len: usize) -> bool {
        let start = self.base + start as u64;
        let found = self.tokens.binary_search_by_key(&start, |(start, _)| *start);
        found.is_ok_and(|index| self.tokens[index].1 as usize == len)
    }

    /// Drops the first `len` bytes: they cannot go back any more.
    pub(crate) fn forget(&mut self, len: usize) {
        self.text.drain(..len);
        self.position -= len;
        self.base += len as u64;
        let num_gone = self.tokens.partition_point(|(start, _)| *start < self.base);
        self.tokens.drain(..num_gone);
    }
}
