//! Finds the tags that may stand at one place of a tagged call, and reads the inside of one. The
//! tags of a set begin with the same byte, longer ones come first; a tag may carry a suffix in
//! front of its `>` that all tags of a vocabulary share. For the readers of tagged calls.

use alloc::string::String;

use crate::{is_blank, trimmed};

/// Bytes of a name, a key or the inside of a tag.
pub(crate) const MAX_WORD_BYTES: usize = 1 << 14;

/// What stands at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Here {
    /// The tag of that index, so many bytes long.
    Tag(usize, usize),
    /// The text ends inside a tag.
    Begun,
    /// Something else.
    Other,
}

/// What a scan found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// At this offset the tag of that index, so many bytes long.
    Tag(usize, usize, usize),
    /// From this offset on it may be the beginning of one.
    Begun(usize),
    /// None.
    Nothing,
}

/// Which of `tags` begins `text`? Empty ones do not count.
pub(crate) fn here(text: &str, tags: &[&str], suffix: &str) -> Here {
    let mut found = if text.is_empty() { Here::Begun } else { Here::Other };
    for (index, tag) in tags.iter().enumerate().filter(|(_, tag)| !tag.is_empty()) {
        match begins_with(text.as_bytes(), tag, suffix) {
            Here::Tag(_, len) if found == Here::Other => found = Here::Tag(index, len),
            Here::Begun => return Here::Begun, // perhaps a longer one than what was found
            _ => {}
        }
    }
    found
}

/// The first of `tags` in `text`.
pub(crate) fn find(text: &str, tags: &[&str], suffix: &str) -> Found {
    let Some(first) = tags.iter().find_map(|tag| tag.bytes().next()) else {
        return Found::Nothing;
    };
    let mut at = 0;
    while let Some(next) = text.as_bytes()[at..].iter().position(|byte| *byte == first) {
        at += next; // the first byte of a tag is ASCII or begins a character
        match here(&text[at..], tags, suffix) {
            Here::Tag(index, len) => return Found::Tag(at, index, len),
            Here::Begun => return Found::Begun(at),
            Here::Other => at += 1,
        }
    }
    Found::Nothing
}

fn begins_with(text: &[u8], tag: &str, suffix: &str) -> Here {
    let (head, tail) = match tag.strip_suffix('>') {
        Some(head) if !suffix.is_empty() => (head, ">"),
        _ => (tag, ""),
    };
    let parts = [head, if tail.is_empty() { "" } else { suffix }, tail];
    let mut len = 0;
    for part in parts.map(str::as_bytes) {
        let rest = &text[len..];
        if !rest.starts_with(part) {
            return if part.starts_with(rest) { Here::Begun } else { Here::Other };
        }
        len += part.len();
    }
    Here::Tag(0, len)
}

/// A word that is being read, or the inside of a tag.
#[derive(Debug, Default)]
pub(crate) struct Word {
    text: String,
    /// The quote that is open.
    quote: Option<u8>,
}

/// How reading the inside of a tag went on.
pub(crate) enum Inside {
    More,
    /// Whole behind so many bytes.
    Whole(usize),
    /// No tag; so many bytes are read.
    Bad(usize),
}

impl Word {
    pub fn of(text: &str) -> Self {
        Word { text: text.into(), quote: None }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Goes on, however long it is.
    pub fn add_any(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Goes on; how much of `text` is read. Less than all of it: the word is too long.
    pub fn add(&mut self, text: &str) -> usize {
        let room = MAX_WORD_BYTES.saturating_sub(self.text.len());
        let len = text.floor_char_boundary(room);
        self.text.push_str(&text[..len]);
        len
    }

    /// The inside of a tag goes on, up to its `>`.
    pub fn inside(&mut self, text: &str, with_quotes: bool) -> Inside {
        let mut len = text.len();
        let mut is_bad = false;
        for (at, byte) in text.bytes().enumerate() {
            match (self.quote, byte) {
                (_, b'\n') => is_bad = true,
                (Some(quote), byte) if byte == quote => self.quote = None,
                (Some(_), _) => {}
                (None, b'"' | b'\'') if with_quotes => self.quote = Some(byte),
                (None, b'<') => is_bad = true,
                (None, b'>') => {
                    let read = self.add(&text[..at]);
                    return if read == at { Inside::Whole(at + 1) } else { Inside::Bad(read) };
                }
                _ => {}
            }
            if is_bad {
                len = at;
                break;
            }
        }
        let read = self.add(&text[..len]);
        if is_bad || read < len { Inside::Bad(read) } else { Inside::More }
    }
}

/// What stands behind `name=` in a tag: the name, in quotes or up to a blank, and what `string=`
/// says. None: a quote does not end.
pub(crate) fn attributes(text: &str) -> Option<(&str, Option<bool>)> {
    const STRING: &[u8] = b"string=";
    let (name, rest) = attribute(text)?;
    let at = rest.as_bytes().windows(STRING.len()).position(|part| part == STRING);
    let value = at.and_then(|at| attribute(&rest[at + STRING.len()..]));
    let is_string = match value {
        Some(("true", _)) => Some(true),
        Some(("false", _)) => Some(false),
        _ => None,
    };
    Some((name, is_string))
}

/// A value of an attribute and what is behind it.
fn attribute(text: &str) -> Option<(&str, &str)> {
    let text = trimmed(text);
    let bytes = text.as_bytes();
    let quote = *bytes.first()?;
    if matches!(quote, b'"' | b'\'') {
        let len = bytes[1..].iter().position(|byte| *byte == quote)?;
        return Some((&text[1..=len], &text[len + 2..])); // quotes are ASCII
    }
    let len = bytes.iter().position(|byte| is_blank(*byte)).unwrap_or(bytes.len());
    Some(text.split_at(len))
}
