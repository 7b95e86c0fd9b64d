//! Reads JSON that is whole, in place: a request's tools and their schemas, for the schema typer.
//!
//! It does not check: what is no JSON has no members. Slices of the text stand for values, so that
//! nothing is built for the parts that nobody asks for.

use alloc::string::String;

use crate::is_blank;
use crate::json::{Unescape, Unescaped};

/// One value, as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Document<'a>(&'a str);

impl<'a> Document<'a> {
    /// The value at the beginning of `text`, blanks aside; none: there is none.
    pub fn of(text: &'a str) -> Option<Self> {
        let text = skip_blanks(text);
        let len = value_len(text.as_bytes())?;
        Some(Document(text.get(..len)?))
    }

    /// As it stands in the text.
    pub fn text(self) -> &'a str {
        self.0
    }

    /// A member of an object.
    pub fn get(self, key: &str) -> Option<Document<'a>> {
        self.members().find(|(name, _)| name.is_string(key)).map(|(_, value)| value)
    }

    /// The members of an object, in order; of anything else: none.
    pub fn members(self) -> impl Iterator<Item = (Document<'a>, Document<'a>)> {
        let mut rest = self.0.strip_prefix('{').unwrap_or("");
        core::iter::from_fn(move || {
            let key = next_value(&mut rest)?;
            rest = skip_blanks(rest).strip_prefix(':')?;
            let value = next_value(&mut rest)?;
            Some((key, value))
        })
    }

    /// The items of a list, in order; of anything else: none.
    pub fn items(self) -> impl Iterator<Item = Document<'a>> {
        let mut rest = self.0.strip_prefix('[').unwrap_or("");
        core::iter::from_fn(move || next_value(&mut rest))
    }

    /// A string's text; of anything else: none.
    pub fn string(self) -> Option<String> {
        let inside = self.0.strip_prefix('"')?;
        let mut text = String::with_capacity(inside.len());
        match Unescape::lenient().feed(inside, &mut text) {
            Unescaped::Closed(_) => Some(text),
            _ => None,
        }
    }

    /// Is it this string?
    pub fn is_string(self, text: &str) -> bool {
        let inside = self.0.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        match inside {
            Some(inside) if !inside.contains('\\') => inside == text,
            Some(_) => self.string().is_some_and(|found| found == text),
            None => false,
        }
    }
}

fn skip_blanks(text: &str) -> &str {
    let len = text.bytes().take_while(|byte| is_blank(*byte)).count();
    &text[len..]
}

/// The value behind blanks and commas; `rest` goes behind it.
fn next_value<'a>(rest: &mut &'a str) -> Option<Document<'a>> {
    let len = rest.bytes().take_while(|byte| is_blank(*byte) || *byte == b',').count();
    let text = &rest[len..];
    let value = Document::of(text)?;
    *rest = text.get(value.0.len()..)?;
    Some(value)
}

/// Bytes of the value at the beginning; none: no value begins or it does not end here.
fn value_len(bytes: &[u8]) -> Option<usize> {
    match bytes.first()? {
        b'"' => string_len(bytes),
        b'{' | b'[' => {
            let (mut at, mut depth) = (0, 0usize);
            while at < bytes.len() {
                match bytes[at] {
                    b'"' => {
                        at += string_len(&bytes[at..])?;
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' if depth == 1 => return Some(at + 1),
                    b'}' | b']' => depth -= 1,
                    _ => {}
                }
                at += 1;
            }
            None
        }
        b'}' | b']' | b',' | b':' => None,
        _ => {
            let ends = |byte: &u8| is_blank(*byte) || matches!(byte, b',' | b'}' | b']' | b':');
            Some(bytes.iter().position(ends).unwrap_or(bytes.len()))
        }
    }
}

fn string_len(bytes: &[u8]) -> Option<usize> {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}
