//! Reads a call that is a JSON object: `{"name": …, "arguments": {…}}` or `{NAME: {…}}` (policy
//! U10). Top-level keys count, in any order; arguments that come before the name are held until it
//! is known. Up to the commit the JSON is checked strictly, behind it the arguments pass through as
//! they come, up to their own end or, if they never balance, up to the closer.

use alloc::string::{String, ToString};

use crate::balance::{Balance, Passed};
use crate::fixed::{Fixed, fixed};
use crate::json::{Checked, Checker, Unescape, Unescaped};
use crate::lanes::split_tail;
use crate::{Call, CallReader, Step, is_blank};

/// Bytes that a call may take before its commit. More is no call: nothing useful is that long, and
/// a stream must not make the parser hold all of it.
pub const MAX_HEADER_BYTES: usize = 1 << 20;

/// What an envelope looks like.
#[derive(Debug, Clone, Copy)]
pub struct EnvelopeRules {
    /// Must stand in front of everything else, blanks aside; empty: nothing.
    pub lead: &'static str,
    /// Keys of the name.
    pub name_keys: &'static [&'static str],
    /// Keys of the arguments; the first one that comes wins.
    pub argument_keys: &'static [&'static str],
    /// Keys of an id that the model must see again. A call is held until its id is known, or until
    /// its object ends without one.
    pub id_keys: &'static [&'static str],
    /// The key *is* the name and its value the arguments. Each key is a call.
    pub key_is_name: bool,
    /// May the objects stand in a list?
    pub list: List,
    /// A closed object without arguments (or with null).
    pub missing: MissingArguments,
    /// Ends arguments that never balance, outside strings.
    pub closer: Option<&'static str>,
    /// An empty list is framing, not text, and so is nothing but blanks up to the closer: the
    /// opener begins a section, not one call (U5).
    pub empty_is_framing: bool,
}

/// The list round the objects. Its comma and its end are the engine's to skip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    /// None: an object.
    No,
    /// A list or an object.
    May,
    /// Only a list.
    Must,
    /// The opener has its bracket.
    Open,
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
            lead: "",
            name_keys: &["name"],
            argument_keys: &["arguments", "parameters"],
            id_keys: &[],
            key_is_name: false,
            list: List::May,
            missing: MissingArguments::Empty,
            closer: Some(closer),
            empty_is_framing: false,
        }
    }

    /// The same between a section's markers: with nothing in it they are framing.
    pub const fn in_section(closer: &'static str) -> Self {
        EnvelopeRules { empty_is_framing: true, ..EnvelopeRules::behind_marker(closer) }
    }

    /// One object without any marker of its own.
    pub const fn bare() -> Self {
        EnvelopeRules {
            list: List::No,
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
    /// The arguments of the running call have begun.
    is_committed: bool,
    /// A call was handed on: there is no way back.
    has_call: bool,
    key: String,
    name: Option<String>,
    id: Option<String>,
    arguments: Arguments,
    /// A committed call that waits for its id.
    waiting: Option<Waiting>,
    /// Trailing blanks of arguments in a string, which wait for more.
    blanks: String,
    unescape: Unescape,
    checker: Checker,
    balance: Balance,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Lead,
    Start,
    FirstKey,
    NextKey,
    Key,
    Colon,
    Value,
    Name,
    Id,
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
    Begun,
}

#[derive(Debug, Default)]
struct Waiting {
    arguments: String,
    is_whole: bool,
}

enum Move {
    Used(usize),
    /// The rest may be the beginning of a marker.
    Hold,
    Done(usize),
    Closed(usize),
    Fail,
}

impl Envelope {
    /// A reader that expects the object next, blanks aside.
    pub fn new(rules: EnvelopeRules) -> Self {
        Envelope {
            rules,
            at: if rules.lead.is_empty() { At::Start } else { At::Lead },
            num_read: 0,
            is_listed: rules.list == List::Open,
            is_committed: false,
            has_call: false,
            key: String::new(),
            name: None,
            id: None,
            arguments: Arguments::None,
            waiting: None,
            blanks: String::new(),
            unescape: Unescape::default(),
            checker: Checker::default(),
            balance: Balance::default(),
        }
    }

    fn advance(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        match self.at {
            At::Key => self.key(text),
            At::Name => self.name(text, call),
            At::Id => self.id(text, call),
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
        let may_open = !self.is_listed && matches!(self.rules.list, List::May | List::Must);
        match (self.at, text.as_bytes()[0]) {
            (At::Start, b'[') if may_open => {
                self.is_listed = true;
                Move::Used(1)
            }
            (At::Start, b']') if self.is_listed && self.rules.empty_is_framing => Move::Done(1),
            (At::Start, b'{') if self.is_listed || self.rules.list != List::Must => {
                self.go(At::FirstKey)
            }
            (At::Start, _) if self.rules.empty_is_framing && !self.is_listed => {
                match self.rules.closer.map(|closer| fixed(text, end, closer)) {
                    Some(Fixed::Is(len)) => Move::Closed(len),
                    Some(Fixed::MayBe) => Move::Hold,
                    Some(Fixed::Not) | None => Move::Fail,
                }
            }
            (At::Lead, _) => match fixed(text, end, self.rules.lead) {
                Fixed::Is(len) => {
                    self.at = At::Start;
                    Move::Used(len)
                }
                Fixed::MayBe => Move::Hold,
                Fixed::Not => Move::Fail,
            },
            (At::FirstKey | At::NextKey, b'"') => {
                self.key.clear();
                self.unescape = Unescape::default();
                self.go(At::Key)
            }
            (At::Colon, b':') => self.go(At::Value),
            (At::AfterValue, b',') => {
                if self.rules.key_is_name && !self.is_committed {
                    self.say_missing(call); // the next key is another call
                }
                self.go(At::NextKey)
            }
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
                if self.rules.key_is_name {
                    self.name =
                        Some(core::mem::take(&mut self.key)).filter(|name| !name.is_empty());
                    self.arguments = Arguments::None;
                    self.is_committed = false;
                }
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
        let is_first = matches!(self.arguments, Arguments::None);
        if self.rules.key_is_name {
            return match self.name {
                Some(_) => self.arguments(byte, text, end, call),
                None => Move::Fail,
            };
        }
        if self.rules.name_keys.contains(&key) && self.name.is_none() {
            self.name = Some(String::new());
            return if byte == b'"' { self.go(At::Name) } else { self.bad(0) };
        }
        if self.rules.id_keys.contains(&key) && self.id.is_none() && byte == b'"' {
            self.id = Some(String::new());
            self.unescape = Unescape::lenient();
            return self.go(At::Id);
        }
        if self.rules.argument_keys.contains(&key) && is_first {
            return self.arguments(byte, text, end, call);
        }
        self.at = At::Ignored;
        self.checked(text, end, call)
    }

    fn arguments(&mut self, byte: u8, text: &str, end: bool, call: &mut Call<'_>) -> Move {
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
                    let held = core::mem::take(held);
                    self.commit(call);
                    self.say(&held, call);
                    self.end_call(call);
                }
                self.at = At::AfterValue;
                Move::Used(len)
            }
            Unescaped::Bad(_) => Move::Fail,
        }
    }

    fn id(&mut self, text: &str, call: &mut Call<'_>) -> Move {
        match self.unescape.feed(text, self.id.get_or_insert_default()) {
            Unescaped::Closed(len) => {
                self.at = At::AfterValue;
                self.release(call);
                Move::Used(len)
            }
            _ => Move::Used(text.len()), // a lenient decoder finds nothing bad
        }
    }

    fn commit(&mut self, call: &mut Call<'_>) {
        self.is_committed = true;
        self.arguments = Arguments::Begun;
        self.balance = Balance::default();
        self.blanks.clear();
        self.at = At::Object;
        self.waiting = Some(Waiting::default());
        if self.rules.id_keys.is_empty() || self.id.is_some() {
            self.release(call);
        }
    }

    /// Hands the call on that waits for its id; whether one came is known now.
    fn release(&mut self, call: &mut Call<'_>) {
        let Some(waiting) = self.waiting.take() else { return };
        // One that is cut off is none.
        let id = self.id.as_deref().filter(|id| !id.is_empty() && self.at != At::Id);
        call.begin(self.name.as_deref().unwrap_or_default(), id);
        call.args(&waiting.arguments);
        if waiting.is_whole {
            call.end();
        }
        self.has_call = true;
    }

    fn say(&mut self, text: &str, call: &mut Call<'_>) {
        match &mut self.waiting {
            Some(waiting) => waiting.arguments.push_str(text),
            None => call.args(text),
        }
    }

    fn end_call(&mut self, call: &mut Call<'_>) {
        match &mut self.waiting {
            Some(waiting) => waiting.is_whole = true,
            None => call.end(),
        }
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
        match self.balance.feed(text, end, self.rules.closer.as_slice()) {
            Passed::More(0) => Move::Hold,
            Passed::More(len) => {
                self.say(&text[..len], call);
                Move::Used(len)
            }
            Passed::Whole(len) => {
                self.say(&text[..len], call);
                self.end_call(call);
                self.at = At::AfterValue;
                Move::Used(len)
            }
            Passed::Cut(len) => {
                self.say(&text[..len], call);
                self.end_call(call);
                Move::Done(len)
            }
        }
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
        let (body, tail) = split_tail(&decoded);
        if !body.is_empty() {
            let blanks = core::mem::take(&mut self.blanks);
            self.say(&blanks, call);
            self.say(body, call);
        }
        self.blanks.push_str(tail);
        match ended {
            Unescaped::Closed(len) => {
                self.end_call(call);
                self.at = At::AfterValue;
                Move::Used(len)
            }
            _ => Move::Used(text.len()), // a lenient decoder finds nothing bad
        }
    }

    fn close(&mut self, call: &mut Call<'_>) -> Move {
        if !self.is_committed {
            let has_none = matches!(self.arguments, Arguments::None | Arguments::Null);
            let is_call = has_none && self.rules.missing == MissingArguments::Empty;
            if !is_call || self.name.is_none() {
                return Move::Fail;
            }
            self.say_missing(call);
        }
        Move::Done(1)
    }

    fn say_missing(&mut self, call: &mut Call<'_>) {
        self.commit(call);
        self.say("{}", call);
        self.end_call(call);
    }

    /// What of `text` may be read before the limit; none: the limit is reached. A call that exists
    /// has none; a call that only waits for its id goes without one.
    fn within_limit<'a>(&mut self, text: &'a str, call: &mut Call<'_>) -> Option<&'a str> {
        if self.has_call {
            return Some(text);
        }
        // Cut to what may still come, so that the limit does not depend on the pieces.
        let rest = &text[..text.floor_char_boundary(MAX_HEADER_BYTES - self.num_read)];
        if rest.is_empty() && self.waiting.is_some() {
            self.release(call);
            return Some(text);
        }
        (!rest.is_empty()).then_some(rest)
    }
}

impl CallReader for Envelope {
    fn read(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Step {
        let mut at = 0;
        while at < text.len() {
            let full_len = text.len() - at;
            let Some(rest) = self.within_limit(&text[at..], call) else { return Step::Fail };
            let is_cut = rest.len() < full_len;
            match self.advance(rest, end && !is_cut, call) {
                Move::Used(len) => {
                    at += len;
                    self.num_read += len;
                }
                Move::Hold if is_cut => self.num_read = MAX_HEADER_BYTES,
                Move::Hold => break,
                Move::Done(len) => {
                    self.release(call);
                    return Step::Done(at + len);
                }
                Move::Closed(len) => return Step::Closed(at + len),
                Move::Fail if self.has_call => return Step::Done(at),
                Move::Fail => return Step::Fail,
            }
        }
        if end {
            self.release(call);
        }
        Step::More(at)
    }
}
