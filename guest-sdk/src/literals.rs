//! The arguments of a call in a model's own notation, as JSON: Python's keyword arguments and
//! Gemma's bare keys. The readers of these calls read the name and leave the rest to it.
//!
//! Strings, lists and dicts come out as they grow, numbers and words when they are whole, a key
//! with its value (policy U8). A value that is no literal passes as its source text; where even
//! that does not hold, the rest of the arguments passes as it came, up to the call's end (U7).

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::envelope::MAX_HEADER_BYTES;
use crate::json::{MAX_DEPTH, escape_into};
use crate::quoted::{Fed, Quoted, Quotes};
use crate::typing::Typing;
use crate::words::scalar;
use crate::{Call, is_blank};

/// A notation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dialect {
    /// Between a key of the call itself and its value; `:` in what is nested.
    pub assign: u8,
    /// Ends the arguments.
    pub close: u8,
    /// How strings are written; plain double quotes are read in any notation.
    pub strings: Strings,
    /// Words and their JSON.
    pub words: &'static [(&'static str, &'static str)],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strings {
    /// Python's; the flag: one right behind another continues it.
    Python(bool),
    /// Between two of these.
    Delimited(&'static str),
}

/// What a piece of text did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Move {
    /// So many bytes are read.
    Used(usize),
    /// The rest may be the beginning of a marker.
    Hold,
    /// The call is over, behind so many bytes.
    Ended(usize),
    /// It was none: before the commit only.
    Fail,
}

/// The arguments of one call, from behind the bracket that opens them.
#[derive(Debug)]
pub(crate) struct Arguments {
    dialect: Dialect,
    /// Ends the call wherever it stands outside of a string.
    closer: &'static str,
    name: String,
    is_begun: bool,
    at: At,
    /// The brackets that close what is open; the first one closes the call.
    open: Vec<u8>,
    is_first: bool,
    /// A key that is read but not said, as the inside of a JSON string.
    key: Option<String>,
    string: Quoted,
    /// What strings are, where the schema says it.
    typing: Option<Typing>,
    /// The word that is being read.
    word: String,
    /// Brackets and quotes that are open in a word or in what is no literal.
    depth: u32,
    quote: u8,
    is_escaped: bool,
    /// What was read since something was said last. Bounded by [`MAX_HEADER_BYTES`].
    unsaid: String,
    /// Said, but not handed on.
    json: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// In front of a key; the call or dict may end.
    Key,
    KeyWord,
    /// Behind a key.
    Assign,
    /// In front of a value; the flag: the list may end.
    Value(bool),
    Word,
    Text,
    /// A string that the schema says what it is.
    Typed,
    KeyText,
    Behind,
    /// As it comes.
    Raw,
}

impl Arguments {
    pub fn new(dialect: Dialect, closer: &'static str, name: String) -> Self {
        Arguments {
            dialect,
            closer,
            name,
            is_begun: false,
            at: At::Key,
            open: vec![dialect.close],
            is_first: true,
            key: None,
            string: Quoted::Delimited("", false),
            typing: None,
            word: String::new(),
            depth: 0,
            quote: 0,
            is_escaped: false,
            unsaid: String::new(),
            json: String::new(),
        }
    }

    /// Strings between delimiters are what the schema of the call's tool says.
    pub fn typed_by(mut self, tools: &str) -> Self {
        self.typing = Some(Typing::new(tools, &self.name));
        self
    }

    pub fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// The call exists from here on.
    pub fn begin(&mut self, call: &mut Call<'_>) {
        if !self.is_begun {
            self.is_begun = true;
            call.begin(&self.name, None);
            self.json.push('{');
        }
    }

    /// Reads from the beginning of `text`, all of it if nothing stops it.
    pub fn read(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        let mut at = 0;
        let result = loop {
            let rest = &text[at..];
            if rest.is_empty() {
                break Move::Used(at);
            }
            // Cut to what may still be held, so that the limit does not depend on the pieces.
            let is_said = matches!(self.at, At::Raw | At::Text);
            let room = match is_said {
                true => rest.len(),
                false => rest.floor_char_boundary(MAX_HEADER_BYTES - self.unsaid.len()),
            };
            let is_cut = room < rest.len();
            let was = self.json.len();
            let step = match room {
                0 => self.malformed(),
                _ => self.advance(&rest[..room], end && !is_cut, call),
            };
            let step = if is_cut && step == Move::Hold { self.malformed() } else { step };
            match step {
                Move::Used(len) => {
                    at += len;
                    if self.json.len() > was || is_said {
                        self.unsaid.clear();
                    } else {
                        self.keep(&rest[..len]);
                    }
                }
                Move::Hold if at == 0 => break Move::Hold,
                Move::Hold => break Move::Used(at),
                Move::Ended(len) => break Move::Ended(at + len),
                Move::Fail => break Move::Fail,
            }
        };
        self.hand_on(call);
        if let Move::Ended(_) = result {
            call.end();
        }
        result
    }

    /// The stream ended inside the call.
    pub fn finish(&mut self, call: &mut Call<'_>) {
        if self.at == At::Text && self.string.finish(&mut self.json) {
            self.json.push('"');
        }
        self.hand_on(call);
    }

    /// Gives out what is said.
    pub fn hand_on(&mut self, call: &mut Call<'_>) {
        call.args(&self.json);
        self.json.clear();
    }

    /// Blanks between what matters are not kept, unless they may become text again.
    fn keep(&mut self, source: &str) {
        let is_blanks = self.is_begun && source.bytes().all(is_blank);
        if !is_blanks || matches!(self.at, At::Word | At::KeyWord | At::KeyText | At::Typed) {
            self.unsaid.push_str(source);
        }
    }

    fn advance(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        let bytes = text.as_bytes();
        match self.at {
            At::Text | At::KeyText | At::Typed => return self.text(text, end),
            At::Word => return self.word(text, end, call),
            At::Raw => return self.raw(text, end),
            _ => {}
        }
        let num_blanks = bytes.iter().take_while(|byte| is_blank(**byte)).count();
        if num_blanks > 0 && self.at != At::KeyWord {
            return Move::Used(num_blanks);
        }
        match starts(bytes, self.closer, end) {
            Start::Whole if self.is_begun => return Move::Ended(0),
            Start::Whole => return Move::Fail,
            Start::Maybe => return Move::Hold,
            Start::No => {}
        }
        match self.at {
            At::Key => self.key(bytes, end, call),
            At::KeyWord => self.key_word(text),
            At::Assign if bytes[0] == self.assign() => self.go(At::Value(false)),
            At::Value(may_end) => self.value(bytes, may_end, end, call),
            At::Behind => self.behind(bytes[0]),
            _ => self.malformed(),
        }
    }

    fn go(&mut self, at: At) -> Move {
        self.at = at;
        Move::Used(1)
    }

    /// From here on the text passes as it comes; before the commit it is no call.
    fn malformed(&mut self) -> Move {
        if !self.is_begun {
            return Move::Fail;
        }
        self.json.push_str(&self.unsaid);
        self.unsaid.clear();
        self.at = At::Raw;
        self.quote = 0;
        self.is_escaped = false;
        self.depth = self.open[1..].iter().filter(|bracket| **bracket == b')').count() as u32;
        Move::Used(0)
    }

    fn is_call_level(&self) -> bool {
        self.open.len() == 1
    }

    fn assign(&self) -> u8 {
        if self.is_call_level() { self.dialect.assign } else { b':' }
    }

    fn is_python(&self) -> bool {
        matches!(self.dialect.strings, Strings::Python(_))
    }

    /// Does a string begin here?
    fn string(&mut self, bytes: &[u8], end: bool) -> Option<Move> {
        let joins = match self.dialect.strings {
            Strings::Python(joins) => joins,
            Strings::Delimited(delimiter) => {
                match starts(bytes, delimiter, end) {
                    Start::Whole => {
                        self.string = Quoted::Delimited(delimiter, false);
                        return Some(Move::Used(delimiter.len()));
                    }
                    Start::Maybe => return Some(Move::Hold),
                    Start::No => {}
                }
                false
            }
        };
        if bytes[0] == b'"' || (bytes[0] == b'\'' && self.is_python()) {
            self.string = Quoted::Python(Quotes::new(bytes[0], false, joins));
            return Some(Move::Used(1));
        }
        None
    }

    fn key(&mut self, bytes: &[u8], end: bool, call: &mut Call<'_>) -> Move {
        if Some(&bytes[0]) == self.open.last() {
            self.begin(call);
            return self.close();
        }
        if !(self.is_python() && self.is_call_level())
            && let Some(step) = self.string(bytes, end)
        {
            if let Move::Used(_) = step {
                self.key = Some(String::new());
                self.at = At::KeyText;
            }
            return step;
        }
        self.word.clear();
        self.at = At::KeyWord;
        Move::Used(0)
    }

    /// A key without quotes: a name, or in a dict whatever stands in front of the colon.
    fn key_word(&mut self, text: &str) -> Move {
        let assign = self.assign();
        let is_name = self.is_python() && self.is_call_level();
        let goes_on = |byte: &u8| match is_name {
            true => is_name_byte(*byte),
            false => *byte != assign && !matches!(byte, b',' | b'}' | b')' | b']'),
        };
        // Up to what may be the closer; one in front was looked for already.
        let first = self.closer.bytes().next();
        let in_key = |(at, byte): &(usize, u8)| goes_on(byte) && (*at == 0 || Some(*byte) != first);
        let len = text.bytes().enumerate().take_while(in_key).count();
        if len > 0 {
            self.word.push_str(&text[..len]);
            return Move::Used(len);
        }
        let word = self.word.trim_ascii_end();
        let byte = text.as_bytes()[0];
        if word.is_empty() || !(byte == assign || (is_name && is_blank(byte))) {
            return self.malformed();
        }
        let mut key = String::new();
        if is_name || !self.is_python() || !scalar(word, self.dialect.words, &mut key) {
            escape_into(word, &mut key);
        }
        self.key = Some(key);
        self.at = At::Assign;
        Move::Used(0)
    }

    fn value(&mut self, bytes: &[u8], may_end: bool, end: bool, call: &mut Call<'_>) -> Move {
        let byte = bytes[0];
        if may_end && Some(&byte) == self.open.last() {
            return self.close();
        }
        if let Some(step) = self.string(bytes, end) {
            if let Move::Used(_) = step {
                self.begin_string(call);
            }
            return step;
        }
        let opens = match byte {
            b'[' => b']',
            b'{' => b'}',
            b'(' if self.is_python() => b')',
            b')' if self.is_python() => return self.malformed(),
            b',' | b']' | b'}' => return self.malformed(),
            _ => {
                if begins_literal(byte) {
                    self.begin(call);
                } else if !self.is_begun && !matches!(byte | 0x20, b'r' | b'u' | b'b') {
                    return Move::Fail;
                }
                self.word.clear();
                self.depth = 0;
                self.quote = 0;
                self.is_escaped = false;
                self.at = At::Word;
                return Move::Used(0);
            }
        };
        if self.open.len() == MAX_DEPTH {
            return self.malformed();
        }
        self.begin(call);
        if let Some(typing) = &mut self.typing {
            typing.open(self.key.as_deref());
        }
        self.say_key();
        self.json.push(if opens == b'}' { '{' } else { '[' });
        self.open.push(opens);
        self.is_first = true;
        self.go(if opens == b'}' { At::Key } else { At::Value(true) })
    }

    fn begin_string(&mut self, call: &mut Call<'_>) {
        if let (Quoted::Delimited(_, is_plain), Some(typing)) = (&mut self.string, &mut self.typing)
            && typing.begin(self.key.as_deref())
        {
            *is_plain = true;
            self.at = At::Typed;
        } else {
            self.begin_text(call);
        }
    }

    fn begin_text(&mut self, call: &mut Call<'_>) {
        self.begin(call);
        self.say_key();
        self.json.push('"');
        self.at = At::Text;
    }

    fn text(&mut self, text: &str, end: bool) -> Move {
        let out = match (&mut self.key, &mut self.typing, self.at) {
            (Some(key), _, At::KeyText) => key,
            (_, Some(typing), At::Typed) => &mut typing.text,
            _ => &mut self.json,
        };
        match self.string.feed(text, self.closer, end, out) {
            Fed::More(0) => Move::Hold,
            Fed::More(len) => Move::Used(len),
            Fed::Closed(len) if self.at == At::KeyText => {
                self.at = At::Assign;
                Move::Used(len)
            }
            Fed::Closed(len) => {
                if self.at == At::Typed {
                    self.say_typed();
                } else {
                    self.json.push('"');
                }
                self.at = At::Behind;
                Move::Used(len)
            }
        }
    }

    fn say_typed(&mut self) {
        self.say_key();
        let Some(typing) = &self.typing else { return };
        match typing.literal() {
            Some(literal) => self.json.push_str(literal),
            None => push_quoted(&typing.text, &mut self.json),
        }
    }

    /// A value without quotes, up to what ends it.
    fn word(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        let bytes = text.as_bytes();
        for (at, byte) in bytes.iter().enumerate() {
            if self.is_in_quotes(*byte) {
                continue;
            }
            let start = starts(&bytes[at..], self.closer, end);
            match byte {
                b'\'' | b'"' if self.is_python() => {
                    self.word.push_str(&text[..at]);
                    if let Some(is_raw) = string_prefix(&self.word) {
                        let joins = self.dialect.strings == Strings::Python(true);
                        self.string = Quoted::Python(Quotes::new(*byte, is_raw, joins));
                        self.begin_text(call);
                        return Move::Used(at + 1);
                    }
                    self.quote = *byte;
                    self.word.push(char::from(*byte));
                    return if self.is_begun { Move::Used(at + 1) } else { Move::Fail };
                }
                _ if !self.is_begun && at + self.word.len() > 1 => return Move::Fail,
                b'(' | b')' if !self.is_python() => {}
                b'(' | b'[' | b'{' => self.depth += 1,
                b')' | b']' | b'}' if self.depth > 0 => self.depth -= 1,
                b',' | b')' | b']' | b'}' if self.depth == 0 => {
                    return self.end_word(&text[..at]);
                }
                _ if start == Start::Whole => return self.end_word(&text[..at]),
                _ if start == Start::Maybe && at == 0 => return Move::Hold,
                _ if start == Start::Maybe => {
                    self.word.push_str(&text[..at]);
                    return Move::Used(at);
                }
                _ => {}
            }
        }
        self.word.push_str(text);
        Move::Used(text.len())
    }

    fn end_word(&mut self, rest: &str) -> Move {
        if !self.is_begun {
            return Move::Fail;
        }
        self.word.push_str(rest);
        self.say_key();
        let word = self.word.trim_ascii_end();
        if !scalar(word, self.dialect.words, &mut self.json) {
            push_quoted(word, &mut self.json);
        }
        self.at = At::Behind;
        Move::Used(rest.len())
    }

    /// Follows quotes in what is read as source text.
    fn is_in_quotes(&mut self, byte: u8) -> bool {
        if self.quote == 0 {
            return false;
        }
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => self.is_escaped = true,
            _ if byte == self.quote => self.quote = 0,
            _ => {}
        }
        true
    }

    fn behind(&mut self, byte: u8) -> Move {
        let is_dict = self.open.last() == Some(&b'}') || self.is_call_level();
        match byte {
            b',' if is_dict => self.go(At::Key),
            b',' => self.go(At::Value(true)),
            _ if Some(&byte) == self.open.last() => self.close(),
            _ => self.malformed(),
        }
    }

    fn close(&mut self) -> Move {
        let is_dict = self.open.last() == Some(&b'}') || self.is_call_level();
        self.json.push(if is_dict { '}' } else { ']' });
        self.open.pop();
        if let Some(typing) = &mut self.typing {
            typing.close();
        }
        self.is_first = false;
        self.at = At::Behind;
        if self.open.is_empty() { Move::Ended(1) } else { Move::Used(1) }
    }

    /// What stands in front of a value: a comma, the key.
    fn say_key(&mut self) {
        if !self.is_first {
            self.json.push_str(", ");
        }
        self.is_first = false;
        if let Some(key) = self.key.take() {
            self.json.push('"');
            self.json.push_str(&key);
            self.json.push_str("\": ");
        }
    }

    /// Up to the call's end or closer, outside of strings.
    fn raw(&mut self, text: &str, end: bool) -> Move {
        let bytes = text.as_bytes();
        for (at, byte) in bytes.iter().enumerate() {
            if self.is_in_quotes(*byte) {
                continue;
            }
            let mut start = starts(&bytes[at..], self.closer, end);
            if let Strings::Delimited(delimiter) = self.dialect.strings {
                match starts(&bytes[at..], delimiter, end) {
                    Start::Whole => self.is_escaped = !self.is_escaped,
                    Start::Maybe => start = Start::Maybe,
                    Start::No => {}
                }
                if self.is_escaped && start == Start::Whole {
                    continue;
                }
            }
            match byte {
                b')' if self.is_python() && self.depth == 0 => {
                    self.json.push_str(&text[..at]);
                    return Move::Ended(at + 1);
                }
                b')' => self.depth = self.depth.saturating_sub(1),
                b'(' => self.depth += 1,
                b'\'' | b'"' if self.is_python() => self.quote = *byte,
                _ if start == Start::Maybe && at == 0 => return Move::Hold,
                _ if start != Start::No => {
                    self.json.push_str(&text[..at]);
                    return if start == Start::Whole { Move::Ended(at) } else { Move::Used(at) };
                }
                _ => {}
            }
        }
        self.json.push_str(text);
        Move::Used(text.len())
    }
}

fn push_quoted(text: &str, out: &mut String) {
    out.push('"');
    escape_into(text, out);
    out.push('"');
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    Whole,
    /// It may, if more follows.
    Maybe,
    No,
}

/// Does `bytes` start with this marker? An empty one never.
pub(crate) fn starts(bytes: &[u8], marker: &str, end: bool) -> Start {
    let marker = marker.as_bytes();
    match (marker.first(), bytes.first()) {
        (Some(a), Some(b)) if a == b => {}
        _ => return Start::No,
    }
    if bytes.starts_with(marker) {
        Start::Whole
    } else if !end && marker.starts_with(bytes) {
        Start::Maybe
    } else {
        Start::No
    }
}

/// May it stand in a name? Any letter beyond ASCII may.
pub(crate) fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-') || !byte.is_ascii()
}

/// What a number or a word for true, false or null begins with.
fn begins_literal(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.') || b"TFNtfn".contains(&byte)
}

/// Is `word` what may stand in front of a Python string, and is that one raw?
fn string_prefix(word: &str) -> Option<bool> {
    let is_any = |prefixes: &[&str]| prefixes.iter().any(|p| p.eq_ignore_ascii_case(word));
    is_any(&["r", "u", "b", "br", "rb"]).then(|| word.contains(['r', 'R']))
}
