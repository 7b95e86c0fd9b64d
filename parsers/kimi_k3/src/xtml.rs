//! One `call` element: the name in its tag, then an `argument` element for each argument or a
//! single `json` element with all of them. The call exists once its tag is whole (policy U4). A
//! string streams, any other type comes out whole; what is not JSON of its own is a string.

use alloc::collections::BTreeSet;
use alloc::string::String;

use tenon_guest::json::{escape_into, is_value, quoted};
use tenon_guest::{Body, Call, CallReader, Step, is_blank};

const OPEN: &str = "<|open|>";
const CLOSE: &str = "<|close|>";
const SEP: &str = "<|sep|>";
const ARGUMENT_END: &str = "<|close|>argument<|sep|>";
const JSON_END: &[&str] = &["<|close|>json<|sep|>"];

/// Bytes of a tag with its attributes; longer is none.
const MAX_TAG_BYTES: usize = 1 << 14;

/// A [`CallReader`] behind `<|open|>call`.
#[derive(Default)]
pub struct Xtml {
    at: At,
    /// The inside of a tag so far, or a value that comes out whole.
    held: String,
    /// What to say in front of a value.
    key: String,
    keys: BTreeSet<String>,
    /// Anything of the arguments is said.
    is_begun: bool,
    json: Option<Body>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum At {
    /// In the call's own tag.
    #[default]
    Call,
    /// Between elements.
    Between,
    /// The same, behind text that is none of the call's.
    Stray,
    /// Inside a tag that opens one, or closes one.
    Opening,
    Closing,
    Json,
    /// In a string; said so far or not.
    Text(bool),
    /// In a value of another type.
    Value,
    /// In a value whose key came before.
    Repeated,
}

enum Move {
    Used(usize),
    Hold,
    End(Step),
}

impl Xtml {
    fn advance(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        match self.at {
            At::Call | At::Opening | At::Closing => self.tag(text, end, call),
            At::Between | At::Stray => self.between(text, end, call),
            At::Json => self.json(text, end, call),
            At::Text(_) | At::Value | At::Repeated => self.value(text, end, call),
        }
    }

    /// Inside a tag, up to its end.
    fn tag(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        let (len, is_whole) = up_to(text, SEP, end);
        let room = text.floor_char_boundary(MAX_TAG_BYTES - self.held.len());
        self.held.push_str(&text[..len.min(room)]);
        if len > room {
            return self.no_tag(room, call);
        }
        if !is_whole {
            return if len == 0 { Move::Hold } else { Move::Used(len) };
        }
        let tag = core::mem::take(&mut self.held);
        match self.at {
            At::Call => {
                let name = attribute(&tag, "tool").filter(|name| !name.is_empty());
                let Some(name) = name else { return Move::End(Step::Fail) };
                call.begin(&name, None);
                self.at = At::Between;
            }
            At::Opening => self.opened(&tag, call),
            _ if tag == "call" => {
                self.close(call);
                return Move::End(Step::Closed(len + SEP.len()));
            }
            _ => self.at = At::Between, // the end of an element that is over
        }
        Move::Used(len + SEP.len())
    }

    fn no_tag(&mut self, num_read: usize, call: &mut Call<'_>) -> Move {
        if self.at == At::Call {
            return Move::End(Step::Fail);
        }
        let held = core::mem::take(&mut self.held);
        call.stray(if self.at == At::Opening { OPEN } else { CLOSE });
        call.stray(&held);
        self.at = At::Stray;
        Move::Used(num_read)
    }

    /// An element inside the call.
    fn opened(&mut self, tag: &str, call: &mut Call<'_>) {
        let name = tag.split([' ', '\t', '\n']).next().unwrap_or_default();
        let key = attribute(tag, "key");
        self.at = match (name, key) {
            ("argument", Some(key)) if self.keys.contains(&key) => At::Repeated,
            ("argument", Some(key)) => {
                self.key = if self.is_begun { ", ".into() } else { "{".into() };
                self.key.push_str(&quoted(&key));
                self.key.push_str(": ");
                self.keys.insert(key);
                match attribute(tag, "type").as_deref() {
                    None | Some("string") => At::Text(false),
                    Some(_) => At::Value,
                }
            }
            ("json", _) if !self.is_begun => {
                self.is_begun = true;
                self.json = Some(Body::new("", JSON_END, false));
                At::Json
            }
            _ => {
                call.stray(OPEN);
                call.stray(tag);
                call.stray(SEP);
                At::Stray
            }
        };
    }

    fn between(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        let num_blanks = text.bytes().take_while(|byte| is_blank(*byte)).count();
        if num_blanks > 0 && self.at == At::Between {
            return Move::Used(num_blanks);
        }
        // The call's own end was left out.
        for outer in ["<|close|>tools<|sep|>", "<|open|>call "] {
            if text.starts_with(outer) {
                self.close(call);
                return Move::End(Step::Done(0));
            }
            if !end && outer.starts_with(text) {
                return Move::Hold;
            }
        }
        for (marker, at) in [(OPEN, At::Opening), (CLOSE, At::Closing)] {
            if text.starts_with(marker) {
                self.at = at;
                return Move::Used(marker.len());
            }
        }
        if text.starts_with('<') && [OPEN, CLOSE].iter().any(|marker| marker.starts_with(text)) {
            return if end { Move::Used(text.len()) } else { Move::Hold };
        }
        let len =
            text.char_indices().skip(1).find(|(_, c)| *c == '<').map_or(text.len(), |at| at.0);
        call.stray(&text[..len]);
        self.at = At::Stray;
        Move::Used(len)
    }

    fn json(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        let Some(body) = &mut self.json else { return Move::Used(0) };
        match body.read(text, end, call) {
            Step::More(0) => Move::Hold,
            Step::More(len) => Move::Used(len),
            Step::Done(len) | Step::Closed(len) => {
                self.at = At::Between;
                Move::Used(len)
            }
            Step::Fail => Move::Hold, // never: the call exists
        }
    }

    fn value(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        let (len, is_whole) = up_to(text, ARGUMENT_END, end);
        let piece = &text[..len];
        match self.at {
            At::Text(is_said) => {
                if !is_said && (is_whole || len > 0) {
                    self.say_key(call);
                    call.args("\"");
                    self.at = At::Text(true);
                }
                let mut escaped = String::new();
                escape_into(piece, &mut escaped);
                call.args(&escaped);
            }
            At::Value => self.held.push_str(piece),
            _ => {}
        }
        if !is_whole {
            return if len == 0 { Move::Hold } else { Move::Used(len) };
        }
        match self.at {
            At::Text(_) => call.args("\""),
            At::Value => {
                let value = core::mem::take(&mut self.held);
                let trimmed = value.trim_matches([' ', '\t', '\r', '\n']);
                self.say_key(call);
                if is_value(trimmed) {
                    call.args(trimmed);
                } else {
                    call.args(&quoted(&value));
                }
            }
            _ => {}
        }
        self.at = At::Between;
        Move::Used(len + ARGUMENT_END.len())
    }

    fn say_key(&mut self, call: &mut Call<'_>) {
        call.args(&self.key);
        self.is_begun = true;
    }

    fn close(&mut self, call: &mut Call<'_>) {
        if self.json.is_none() {
            call.args(if self.is_begun { "}" } else { "{}" });
            call.end();
        }
    }
}

impl CallReader for Xtml {
    fn read(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Step {
        let mut at = 0;
        while at < text.len() {
            match self.advance(&text[at..], end, call) {
                Move::Used(len) => at += len,
                Move::Hold => break,
                Move::End(Step::Done(len)) => return Step::Done(at + len),
                Move::End(Step::Closed(len)) => return Step::Closed(at + len),
                Move::End(step) => return step,
            }
        }
        if end && self.at != At::Call && !self.is_begun {
            call.args("{");
        }
        Step::More(at)
    }
}

/// How much of `text` stands in front of `marker`, and is the marker there? Without it what may be
/// its beginning is left out, unless nothing follows.
fn up_to(text: &str, marker: &str, end: bool) -> (usize, bool) {
    let mut from = 0;
    while let Some(next) = text[from..].find('<') {
        let at = from + next;
        let rest = &text[at..];
        if rest.starts_with(marker) {
            return (at, true);
        }
        if !end && marker.starts_with(rest) {
            return (at, false);
        }
        from = at + 1;
    }
    (text.len(), false)
}

/// The attribute `name` of a tag: ` NAME="VALUE"`.
fn attribute(tag: &str, name: &str) -> Option<String> {
    let mut rest = tag;
    while let Some((before, behind)) = rest.split_once("=\"") {
        let (value, after) = behind.split_once('"')?;
        if before.rsplit([' ', '\t', '\n']).next() == Some(name) {
            return Some(value.replace("&quot;", "\"").replace("&amp;", "&"));
        }
        rest = after;
    }
    None
}
