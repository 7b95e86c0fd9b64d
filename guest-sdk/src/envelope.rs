//! Reads a call that is a JSON object: `{"name": …, "arguments": {…}}` (policy U10).
//!
//! Top-level keys count, in any order; arguments that come before the name are held until it is
//! known. Up to the commit the JSON is checked strictly, behind it the arguments pass through as
//! they come, up to their own end or, if they never balance, up to the closer.

use crate::json::{Checked, Checker, Unescape, Unescaped};
use crate::lanes::split_tail;
use crate::{Call, CallReader, Step, is_blank};

/// Bytes that a call may take before its commit. More is no call: nothing useful is that long, and
/// a stream must not make the parser hold all of it.
pub const MAX_HEADER_BYTES: usize = 1 << 20;

/// What an envelope looks like.
#[derive(Debug, Clone, Copy)]
pub struct EnvelopeRules {
    /// Keys of the name.
    pub name_keys: &'static [&'static str],
    /// Keys of the arguments; the first one that comes wins.
    pub argument_keys: &'static [&'static str],
    /// May the objects stand in a list?
    pub in_list: bool,
    /// A closed object without arguments (or with null).
    pub missing: MissingArguments,
    /// Ends arguments that never balance, outside strings.
    pub closer: Option<&'static str>,
}

/// What a closed object with a name but no arguments is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingArguments {
    /// A call with `{}`: behind the family's own marker.
    Empty,
    /// No call: in bare JSON.
    NoCall,
}

impl EnvelopeRules {
    /// An object (or a list of them) behind a marker that only calls use.
    pub const fn behind_marker(closer: &'static str) -> Self {
        EnvelopeRules {
            name_keys: &["name"],
            argument_keys: &["arguments", "parameters"],
            in_list: true,
            missing: MissingArguments::Empty,
            closer: Some(closer),
        }
    }

    /// One object without any marker of its own.
    pub const fn bare() -> Self {
        EnvelopeRules {
            in_list: false,
            missing: MissingArguments::NoCall,
            closer: None,
            ..EnvelopeRules::behind_marker("")
        }
    }
}

/// A [`CallReader`] for one object.
#[derive(Debug)]
pub struct Envelope {
    rules: EnvelopeRules,
    at: At,
    num_read: usize,
    is_listed: bool,
    is_committed: bool,
    key: String,
    name: Option<String>,
    arguments: Arguments,
    unescape: Unescape,
    checker: Checker,
    depth: u32,
    is_quoted: bool,
    is_escaped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Start,
    FirstKey,
    NextKey,
    Key,
    Colon,
    Value,
    Name,
    Ignored,
    Null,
    /// Arguments in front of the name.
    HeldObject,
    HeldString,
    /// Arguments behind the name, as they come.
    Object,
    String,
    AfterValue,
}

/// Arguments that came before the name, or what they turned out to be.
#[derive(Debug)]
enum Arguments {
    None,
    Null,
    Held(String),
    /// Begun behind the name: trailing blanks of a string that wait for more.
    Said(String),
}

enum Move {
    Used(usize),
    /// The rest may be the beginning of the closer.
    Hold,
    Done(usize),
    Fail,
}

impl Envelope {
    /// A reader that expects the object next, blanks aside.
    pub fn new(rules: EnvelopeRules) -> Self {
        Envelope {
            rules,
            at: At::Start,
            num_read: 0,
            is_listed: false,
            is_committed: false,
            key: String::new(),
            name: None,
            arguments: Arguments::None,
            unescape: Unescape::default(),
            checker: Checker::default(),
            depth: 0,
            is_quoted: false,
            is_escaped: false,
        }
    }

    fn advance(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        match self.at {
            At::Key => self.key(text),
            At::Name => self.name(text, call),
            At::Ignored | At::Null | At::HeldObject => self.checked(text, end, call),
            At::HeldString => self.held_string(text),
            At::Object => self.object(text, end, call),
            At::String => self.string(text, call),
            _ => {
                let num_blanks = text.bytes().take_while(|byte| is_blank(*byte)).count();
                if num_blanks > 0 {
                    return Move::Used(num_blanks);
                }
                self.punctuation(text, end, call)
            }
        }
    }

    /// Between strings and values; `text` begins with a non-blank.
    fn punctuation(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        match (self.at, text.as_bytes()[0]) {
            (At::Start, b'[') if self.rules.in_list && !self.is_listed => {
                self.is_listed = true;
                Move::Used(1)
            }
            (At::Start, b'{') => self.go(At::FirstKey),
            (At::FirstKey | At::NextKey, b'"') => {
                self.key.clear();
                self.unescape = Unescape::default();
                self.go(At::Key)
            }
            (At::Colon, b':') => self.go(At::Value),
            (At::AfterValue, b',') => self.go(At::NextKey),
            (At::FirstKey | At::AfterValue, b'}') => self.close(call),
            (At::Value, byte) => self.value(byte, text, end, call),
            _ => self.bad(0),
        }
    }

    fn go(&mut self, at: At) -> Move {
        self.at = at;
        Move::Used(1)
    }

    /// Malformed: before the commit no call, behind it the call's end.
    fn bad(&self, at: usize) -> Move {
        if self.is_committed { Move::Done(at) } else { Move::Fail }
    }

    fn key(&mut self, text: &str) -> Move {
        match self.unescape.feed(text, &mut self.key) {
            Unescaped::More => Move::Used(text.len()),
            Unescaped::Closed(len) => {
                self.at = At::Colon;
                Move::Used(len)
            }
            Unescaped::Bad(at) => self.bad(at),
        }
    }

    /// A value begins; what it is for depends on its key.
    fn value(&mut self, byte: u8, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        let key = self.key.as_str();
        self.unescape = Unescape::default();
        self.checker = Checker::default();
        if self.rules.name_keys.contains(&key) && self.name.is_none() {
            self.name = Some(String::new());
            return if byte == b'"' { self.go(At::Name) } else { self.bad(0) };
        }
        let is_first = matches!(self.arguments, Arguments::None);
        if !(self.rules.argument_keys.contains(&key) && is_first) {
            self.at = At::Ignored;
            return self.checked(text, end, call);
        }
        match (byte, self.name.is_some()) {
            (b'{', true) => {
                self.commit(call);
                self.object(text, end, call)
            }
            (b'"', true) => {
                self.unescape = Unescape::lenient();
                self.go(At::String)
            }
            (b'{', false) => {
                self.arguments = Arguments::Held(String::new());
                self.at = At::HeldObject;
                self.checked(text, end, call)
            }
            (b'"', false) => {
                self.arguments = Arguments::Held(String::new());
                self.unescape = Unescape::lenient();
                self.go(At::HeldString)
            }
            (b'n', _) => {
                self.at = At::Null;
                self.checked(text, end, call)
            }
            _ => self.bad(0),
        }
    }

    fn name(&mut self, text: &str, call: &mut Call<'_>) -> Move {
        let name = self.name.get_or_insert_default();
        match self.unescape.feed(text, name) {
            Unescaped::More => Move::Used(text.len()),
            Unescaped::Closed(_) if name.is_empty() => Move::Fail,
            Unescaped::Closed(len) => {
                if let Arguments::Held(held) = &mut self.arguments {
                    let held = std::mem::take(held);
                    self.commit(call);
                    call.args(&held);
                    call.end();
                }
                self.at = At::AfterValue;
                Move::Used(len)
            }
            Unescaped::Bad(_) => Move::Fail,
        }
    }

    fn commit(&mut self, call: &mut Call<'_>) {
        call.begin(self.name.as_deref().unwrap_or_default(), None);
        self.is_committed = true;
        self.arguments = Arguments::Said(String::new());
        self.at = At::Object;
    }

    /// A value that is not said now: it must be JSON.
    fn checked(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        for (at, byte) in text.bytes().enumerate() {
            let len = match self.checker.byte(byte) {
                Checked::More => continue,
                Checked::Last => at + 1,
                Checked::Before => at,
                Checked::Bad => return self.bad(at),
            };
            if self.at == At::Null {
                self.arguments = Arguments::Null;
            }
            self.hold(&text[..len]);
            self.at = At::AfterValue;
            // A number that ended with the piece before: this one goes on behind it.
            return if len == 0 { self.advance(text, end, call) } else { Move::Used(len) };
        }
        self.hold(text);
        Move::Used(text.len())
    }

    fn hold(&mut self, text: &str) {
        if self.at == At::HeldObject
            && let Arguments::Held(held) = &mut self.arguments
        {
            held.push_str(text);
        }
    }

    fn held_string(&mut self, text: &str) -> Move {
        let Arguments::Held(held) = &mut self.arguments else { return Move::Fail };
        match self.unescape.feed(text, held) {
            Unescaped::More => Move::Used(text.len()),
            Unescaped::Closed(len) => {
                let object = held.trim_matches([' ', '\t', '\r', '\n']);
                if !object.starts_with('{') {
                    return Move::Fail;
                }
                *held = object.to_string();
                self.at = At::AfterValue;
                Move::Used(len)
            }
            Unescaped::Bad(_) => Move::Fail,
        }
    }

    /// Arguments as an object: passed on as it is.
    fn object(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        let closer = self.rules.closer.unwrap_or("").as_bytes();
        let bytes = text.as_bytes();
        for (at, byte) in bytes.iter().enumerate() {
            if self.is_quoted {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.is_quoted = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.is_quoted = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        call.args(&text[..=at]);
                        call.end();
                        self.at = At::AfterValue;
                        return Move::Used(at + 1);
                    }
                }
                _ if closer.first() == Some(byte) => {
                    let rest = &bytes[at..];
                    let is_closer = rest.starts_with(closer);
                    if is_closer || (!end && closer.starts_with(rest)) {
                        call.args(&text[..at]);
                        if is_closer {
                            call.end();
                            return Move::Done(at);
                        }
                        return if at == 0 { Move::Hold } else { Move::Used(at) };
                    }
                }
                _ => {}
            }
        }
        call.args(text);
        Move::Used(text.len())
    }

    /// Arguments as a string that holds an object: unwrapped once.
    fn string(&mut self, text: &str, call: &mut Call<'_>) -> Move {
        let mut decoded = String::new();
        let ended = self.unescape.feed(text, &mut decoded);
        if !self.is_committed {
            let object = decoded.trim_start_matches([' ', '\t', '\r', '\n']);
            if object.starts_with('{') {
                self.commit(call);
                self.at = At::String;
                decoded = object.to_string();
            } else if !object.is_empty() || ended != Unescaped::More {
                return Move::Fail;
            } else {
                return Move::Used(text.len());
            }
        }
        let Arguments::Said(blanks) = &mut self.arguments else { return Move::Fail };
        let (body, tail) = split_tail(&decoded);
        if !body.is_empty() {
            call.args(blanks);
            call.args(body);
            blanks.clear();
        }
        blanks.push_str(tail);
        match ended {
            Unescaped::Closed(len) => {
                call.end();
                self.at = At::AfterValue;
                Move::Used(len)
            }
            _ => Move::Used(text.len()), // a lenient decoder finds nothing bad
        }
    }

    fn close(&mut self, call: &mut Call<'_>) -> Move {
        if self.is_committed {
            return Move::Done(1);
        }
        let has_none = matches!(self.arguments, Arguments::None | Arguments::Null);
        let is_call = has_none && self.rules.missing == MissingArguments::Empty;
        if !is_call || self.name.is_none() {
            return Move::Fail;
        }
        self.commit(call);
        call.args("{}");
        call.end();
        Move::Done(1)
    }
}

impl CallReader for Envelope {
    fn read(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Step {
        let mut at = 0;
        while at < text.len() {
            let mut rest = &text[at..];
            let full_len = rest.len();
            if !self.is_committed {
                // Cut to what may still come, so that the limit does not depend on the pieces.
                rest = &rest[..rest.floor_char_boundary(MAX_HEADER_BYTES - self.num_read)];
                if rest.is_empty() {
                    return Step::Fail;
                }
            }
            let is_cut = rest.len() < full_len;
            match self.advance(rest, end && !is_cut, call) {
                Move::Used(len) => {
                    at += len;
                    self.num_read += len;
                }
                Move::Hold if is_cut => {}
                Move::Hold => break,
                Move::Done(len) => return Step::Done(at + len),
                Move::Fail => return Step::Fail,
            }
        }
        Step::More(at)
    }
}
