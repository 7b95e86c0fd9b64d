//! A parameter's value: where it ends, which newlines are framing, and how it is written.

use alloc::string::String;

use super::{At, Closing, Move, Tagged, num_blanks};
use crate::schema::{Types, literal};
use crate::tags::{Found, Here, Word, find, here};
use crate::{Call, json};

/// The value that is being read.
#[derive(Debug, Default)]
pub(super) struct Value {
    key: String,
    types: Types,
    sink: Sink,
    /// What was read for [`Sink::Whole`].
    text: String,
    /// Newlines at the edges are framing.
    newlines: bool,
    /// Nothing was read yet.
    is_fresh: bool,
    /// A newline that is framing if the value ends here.
    has_newline: bool,
    /// The last byte was a newline, framing or not.
    after_newline: bool,
    /// A CDATA section may begin.
    takes_cdata: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Sink {
    /// A repeated key: nowhere.
    #[default]
    Dropped,
    /// A string of which nothing was said.
    Text,
    /// A string that has begun.
    Begun,
    /// Typed when it is whole.
    Whole,
}

impl Value {
    pub fn new(key: String, types: Types, is_repeated: bool, newlines: bool) -> Self {
        Value {
            key,
            types,
            sink: match is_repeated {
                true => Sink::Dropped,
                false if types.is_text() => Sink::Text,
                false => Sink::Whole,
            },
            newlines,
            is_fresh: true,
            takes_cdata: true,
            ..Value::default()
        }
    }
}

impl Tagged {
    pub(super) fn value(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        let (at, index, len) = match find(text, &self.value_tags, &self.suffix) {
            Found::Tag(at, index, len) => (at, index, len),
            Found::Begun(at) if !end => {
                self.say(&text[..at], call);
                return Move::Wait(at);
            }
            _ => {
                self.say(text, call);
                if end {
                    self.say_newline(call); // a value that is cut: no framing ends it
                }
                return Move::Wait(text.len());
            }
        };
        self.say(&text[..at], call);
        let is_exact = matches!(self.rules.closing, Closing::Exact(_));
        match index {
            0 if is_exact => {
                self.close_value(call);
                Move::Used(at + len)
            }
            0 => {
                self.word = Word::of(&text[at..at + len]);
                self.at = At::Follow;
                Move::Used(at + len)
            }
            1 if self.value.takes_cdata => {
                self.at = At::Cdata;
                Move::Used(at + len)
            }
            2.. if is_exact || self.value.after_newline => {
                self.close_value(call);
                Move::Used(at)
            }
            _ => {
                self.say(&text[at..at + 1], call); // the first byte of a tag is ASCII
                Move::Used(at + 1)
            }
        }
    }

    pub(super) fn cdata(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        match find(text, &["]]>"], "") {
            Found::Tag(at, _, len) => {
                self.say(&text[..at], call);
                self.value.takes_cdata = true;
                self.at = At::Value;
                Move::Used(at + len)
            }
            Found::Begun(at) if !end => {
                self.say(&text[..at], call);
                Move::Wait(at)
            }
            _ => {
                self.say(text, call);
                Move::Wait(text.len())
            }
        }
    }

    /// Behind a closer that is text: it counts if a tag or the end follows.
    pub(super) fn follow(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        let blanks = num_blanks(text);
        self.word.add_any(&text[..blanks]);
        let text = &text[blanks..];
        match here(text, &self.tags[..self.num_follow_tags], &self.suffix) {
            Here::Tag(..) => {
                self.close_value(call);
                Move::Used(blanks)
            }
            Here::Begun if end => {
                self.close_value(call);
                Move::Wait(blanks + text.len())
            }
            Here::Begun => Move::Wait(blanks),
            Here::Other => {
                let closer = core::mem::take(&mut self.word);
                self.say(closer.text(), call);
                self.at = At::Value;
                Move::Used(blanks)
            }
        }
    }

    /// More of the value.
    fn say(&mut self, text: &str, call: &mut Call<'_>) {
        if text.is_empty() {
            return;
        }
        self.value.after_newline = text.ends_with('\n');
        self.value.takes_cdata = false;
        let mut text = text;
        if core::mem::take(&mut self.value.is_fresh) && self.value.newlines {
            text = text.strip_prefix('\n').unwrap_or(text);
        }
        if text.is_empty() {
            return;
        }
        self.say_newline(call);
        if self.value.newlines && text.ends_with('\n') {
            text = &text[..text.len() - 1];
            self.value.has_newline = true;
        }
        self.put(text, call);
    }

    /// The newline that was held is none of the framing.
    fn say_newline(&mut self, call: &mut Call<'_>) {
        if core::mem::take(&mut self.value.has_newline) {
            self.put("\n", call);
        }
    }

    fn put(&mut self, text: &str, call: &mut Call<'_>) {
        if text.is_empty() {
            return;
        }
        match self.value.sink {
            Sink::Dropped => {}
            Sink::Whole => self.value.text.push_str(text),
            Sink::Text | Sink::Begun => {
                self.begin_text(call);
                self.writer.text(text, call);
            }
        }
    }

    fn begin_text(&mut self, call: &mut Call<'_>) {
        if self.value.sink == Sink::Text {
            self.value.sink = Sink::Begun;
            self.writer.key(&self.value.key, call);
            call.args("\"");
        }
    }

    fn close_value(&mut self, call: &mut Call<'_>) {
        self.at = At::Gap;
        let value = &self.value;
        match value.sink {
            Sink::Dropped => {}
            Sink::Text | Sink::Begun => {
                self.begin_text(call);
                call.args("\"");
            }
            Sink::Whole => {
                self.writer.key(&value.key, call);
                match literal(&value.text, value.types, self.rules.nulls) {
                    Some(literal) => call.args(literal),
                    None => call.args(&json::quoted(&value.text)),
                }
                self.value.text = String::new();
            }
        }
    }
}
