//! Finds the next marker in a text, and the beginning of one at its end that must be held back.
//! A set is scanned by first bytes; a candidate costs one comparison per marker.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// What a marker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Opens a call; the reader starts behind it.
    CallOpener,
    /// Begins a call; the reader starts with it.
    CallStart,
    /// Closes a call that is done.
    CallCloser,
    /// Opens a wrapper around calls.
    SectionOpener,
    /// Closes it.
    SectionCloser,
    /// Opens a wrapper around the answer, at a boundary.
    FrameOpener,
    /// Closes it, where nothing but blanks or a call follows.
    FrameCloser,
    /// Opens or closes a wrapper around the answer, anywhere.
    Control,
    /// Begins reasoning.
    ReasoningOpener,
    /// Ends reasoning.
    ReasoningCloser,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marker {
    pub text: &'static str,
    pub kind: Kind,
}

/// The markers that may count in one state.
#[derive(Debug)]
pub(crate) struct MarkerSet {
    markers: Vec<Marker>,
    is_first: [bool; 256],
}

/// What a scan found. Offsets are of the scanned text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing: all of it is text.
    Nothing,
    /// A marker at this offset, and how long it is here.
    Marker(usize, Marker, usize),
    /// From here on it may be the beginning of one.
    Hold(usize),
}

impl MarkerSet {
    pub fn new(parts: &[(Kind, &[&'static str])]) -> Self {
        let mut markers = Vec::new();
        let mut is_first = [false; 256];
        for (kind, texts) in parts {
            for text in texts.iter().filter(|text| !text.is_empty()) {
                is_first[usize::from(text.as_bytes()[0])] = true;
                markers.push(Marker { text, kind: *kind });
            }
        }
        MarkerSet { markers, is_first }
    }

    /// The first marker in `text` that `counts` at its offset, with its length; of several there,
    /// the longest. `end`: nothing follows, so nothing is held.
    pub fn find(
        &self,
        text: &str,
        end: bool,
        suffix: &Suffix,
        counts: impl Fn(usize, Marker, usize) -> bool,
    ) -> Found {
        let bytes = text.as_bytes();
        let mut at = 0;
        while let Some(next) = bytes[at..].iter().position(|b| self.is_first[usize::from(*b)]) {
            at += next;
            match self.at(bytes, at, end, suffix, &counts) {
                Found::Nothing => at += 1,
                found => return found,
            }
        }
        Found::Nothing
    }

    /// Only right at the beginning of `text`.
    pub fn find_here(
        &self,
        text: &str,
        end: bool,
        suffix: &Suffix,
        counts: impl Fn(usize, Marker, usize) -> bool,
    ) -> Found {
        match text.as_bytes().first() {
            Some(first) if self.is_first[usize::from(*first)] => {
                self.at(text.as_bytes(), 0, end, suffix, &counts)
            }
            _ => Found::Nothing,
        }
    }

    fn at(
        &self,
        bytes: &[u8],
        at: usize,
        end: bool,
        suffix: &Suffix,
        counts: &dyn Fn(usize, Marker, usize) -> bool,
    ) -> Found {
        let rest = &bytes[at..];
        let mut best: Option<(Marker, usize)> = None;
        let mut is_open = false;
        for marker in &self.markers {
            match suffix.compare(marker.text.as_bytes(), rest) {
                Compared::Differs => {}
                Compared::Whole(len) => {
                    let is_longer = best.is_none_or(|(_, best)| best < len);
                    if is_longer && counts(at, *marker, len) {
                        best = Some((*marker, len));
                    }
                }
                // It would be longer than any that is whole here.
                Compared::Begins => is_open |= !end && counts(at, *marker, marker.text.len()),
            }
        }
        match best {
            _ if is_open => Found::Hold(at),
            Some((marker, len)) => Found::Marker(at, marker, len),
            None => Found::Nothing,
        }
    }
}

/// What all markers that end in `>` carry in front of it (U21).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Suffix {
    /// The family has none.
    Never,
    /// No marker has been seen yet.
    Unknown,
    /// This one, with its colon; may be empty.
    Known(String),
}

/// How a marker compares with what stands in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compared {
    Differs,
    /// The text ends inside of it.
    Begins,
    /// It stands there, with so many bytes.
    Whole(usize),
}

/// Longest suffix, with its colon.
const MAX_SUFFIX_BYTES: usize = 32;

impl Suffix {
    /// The suffix, if it is known.
    pub fn text(&self) -> &str {
        match self {
            Suffix::Known(text) => text,
            _ => "",
        }
    }

    /// Learns from a marker that was found with `len` bytes at the beginning of `text`.
    pub fn learn(&mut self, marker: &str, text: &str, len: usize) {
        if *self == Suffix::Unknown && marker.ends_with('>') {
            *self = Suffix::Known(text[marker.len() - 1..len - 1].to_string());
        }
    }

    /// Does `marker` stand at the beginning of `rest`?
    pub fn compare(&self, marker: &[u8], rest: &[u8]) -> Compared {
        let stem = match marker {
            [stem @ .., b'>'] if *self != Suffix::Never => stem,
            whole => whole,
        };
        let Some(tail) = rest.strip_prefix(stem) else {
            return if stem.starts_with(rest) { Compared::Begins } else { Compared::Differs };
        };
        if stem.len() == marker.len() {
            return Compared::Whole(marker.len());
        }
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let len = match tail {
            [b':', name @ ..] => 1 + name.iter().take_while(|byte| is_word(byte)).count(),
            _ => 0,
        };
        if len == 1 && tail.len() > 1 || len > MAX_SUFFIX_BYTES {
            return Compared::Differs;
        }
        match (self, tail.get(len)) {
            (Suffix::Known(known), None) if !known.as_bytes().starts_with(&tail[..len]) => {
                Compared::Differs
            }
            (_, None) => Compared::Begins,
            (Suffix::Known(known), Some(b'>')) if known.as_bytes() != &tail[..len] => {
                Compared::Differs
            }
            (_, Some(b'>')) => Compared::Whole(stem.len() + len + 1),
            _ => Compared::Differs,
        }
    }
}
