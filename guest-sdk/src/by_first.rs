//! Picks the reader of a call by its first non-blank character: for families that write calls in
//! more than one way behind the same opener.

use alloc::boxed::Box;

use crate::envelope::MAX_HEADER_BYTES;
use crate::{Call, CallReader, Step, is_blank};

/// A [`CallReader`] that leaves the reading to another one.
pub struct ByFirst {
    pick: fn(u8) -> Option<Box<dyn CallReader>>,
    picked: Option<Box<dyn CallReader>>,
    num_blanks: usize,
}

impl ByFirst {
    /// `pick` is asked once, with the first byte that is no blank; none: this is no call.
    pub fn new(pick: fn(u8) -> Option<Box<dyn CallReader>>) -> Self {
        ByFirst { pick, picked: None, num_blanks: 0 }
    }
}

impl CallReader for ByFirst {
    fn read(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Step {
        if let Some(reader) = &mut self.picked {
            return reader.read(text, end, call);
        }
        let num_blanks = text.bytes().take_while(|byte| is_blank(*byte)).count();
        self.num_blanks += num_blanks;
        if self.num_blanks > MAX_HEADER_BYTES {
            return Step::Fail;
        }
        let rest = &text[num_blanks..];
        let Some(first) = rest.bytes().next() else { return Step::More(num_blanks) };
        let Some(mut reader) = (self.pick)(first) else { return Step::Fail };
        let step = reader.read(rest, end, call);
        self.picked = Some(reader);
        match step {
            Step::More(len) => Step::More(num_blanks + len),
            Step::Done(len) => Step::Done(num_blanks + len),
            Step::Closed(len) => Step::Closed(num_blanks + len),
            Step::Fail => Step::Fail,
        }
    }
}
