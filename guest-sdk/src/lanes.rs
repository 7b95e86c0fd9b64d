//! The two text channels and their blanks (policy U1-U3, U15). Trailing blanks wait until a
//! non-blank follows; whether they then count depends on the markup around them.

use alloc::string::String;

use crate::call::Output;
use crate::is_blank;

/// The answer.
#[derive(Debug, Default)]
pub(crate) struct ContentLane {
    /// Blanks that no non-blank has followed yet. At most as long as the stream itself.
    pending: String,
    has_text: bool,
    /// Markup was consumed, in the prompt or anywhere in the text.
    has_markup: bool,
    /// Markup stands behind the last non-blank.
    markup_is_last: bool,
    /// A new part begins with the next text.
    part_begins: bool,
}

impl ContentLane {
    pub fn text(&mut self, text: &str, out: &mut Output) {
        let (body, tail) = split_tail(text);
        if body.is_empty() {
            self.pending.push_str(tail);
            return;
        }
        let mut lead = self.pending.as_str();
        let mut body = body;
        if self.part_begins && self.has_text {
            out.content("\n"); // joins this part to the one before
        }
        if (self.part_begins || !self.has_text) && self.has_markup {
            lead = lead.trim_start_matches(['\n', '\r']);
            if lead.is_empty() {
                body = body.trim_start_matches(['\n', '\r']);
            }
        }
        if !lead.is_empty() {
            out.content(lead);
        }
        out.content(body);
        self.pending.clear();
        self.pending.push_str(tail);
        self.has_text = true;
        self.markup_is_last = false;
        self.part_begins = false;
    }

    /// The part ends, with its trailing blanks; a new one may follow, joined by a newline (U15).
    pub fn part(&mut self) {
        if self.has_text || self.has_markup {
            self.pending.clear();
            self.part_begins = true;
        }
    }

    pub fn markup(&mut self) {
        self.has_markup = true;
        self.markup_is_last = true;
    }

    /// Can the host go on alone?
    pub fn is_settled(&self) -> bool {
        self.has_text && !self.part_begins && self.pending.is_empty()
    }

    pub fn finish(&mut self, out: &mut Output) {
        if !self.markup_is_last && out.num_calls == 0 && !self.pending.is_empty() {
            out.content(&self.pending);
        }
        self.pending.clear();
    }
}

/// What the model thinks.
#[derive(Debug, Default)]
pub(crate) struct ReasoningLane {
    pending: String,
    has_text: bool,
    part_has_text: bool,
    /// Markup stands behind the last non-blank.
    markup_is_last: bool,
}

impl ReasoningLane {
    pub fn text(&mut self, text: &str, out: &mut Output) {
        let (body, tail) = split_tail(text);
        if body.is_empty() {
            self.pending.push_str(tail);
            return;
        }
        let mut lead = self.pending.as_str();
        let mut body = body;
        if !self.part_has_text {
            lead = lead.trim_start_matches(['\n', '\r']);
            if lead.is_empty() {
                body = body.trim_start_matches(['\n', '\r']);
            }
            if self.has_text {
                out.reasoning("\n"); // joins this part to the one before
            }
        }
        if !lead.is_empty() {
            out.reasoning(lead);
        }
        out.reasoning(body);
        self.pending.clear();
        self.pending.push_str(tail);
        self.has_text = true;
        self.part_has_text = true;
        self.markup_is_last = false;
    }

    /// A call in the part, which goes on behind it.
    pub fn markup(&mut self) {
        self.markup_is_last = true;
    }

    /// Nothing but blanks so far in this part?
    pub fn is_fresh(&self) -> bool {
        !self.part_has_text
    }

    /// Can the host go on alone?
    pub fn is_settled(&self) -> bool {
        self.part_has_text && self.pending.is_empty()
    }

    /// The part ends; its trailing blanks are gone.
    pub fn close(&mut self) {
        self.pending.clear();
        self.part_has_text = false;
        self.markup_is_last = false;
    }

    /// The stream ended inside the part: only trailing newlines are gone, unless markup says that
    /// the blanks in front of it were framing.
    pub fn finish(&mut self, out: &mut Output) {
        let tail = self.pending.trim_end_matches(['\n', '\r']);
        if self.part_has_text && !self.markup_is_last && !tail.is_empty() {
            out.reasoning(tail);
        }
        self.close();
    }
}

/// Text up to the last non-blank, and the blanks behind it.
pub(crate) fn split_tail(text: &str) -> (&str, &str) {
    let end = text.bytes().rposition(|byte| !is_blank(byte)).map_or(0, |last| last + 1);
    text.split_at(end) // blanks are ASCII: a byte behind a non-blank begins a character or a blank
}
