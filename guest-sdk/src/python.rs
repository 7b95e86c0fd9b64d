//! Reads calls as Python writes them: `NAME(KEY=LITERAL, …)`, several of them in a list or one per
//! line. Names may be dotted. A call exists once `NAME(` is followed by `)` or by `KEY=` and the
//! beginning of a literal (policy U4); positional arguments are no call.

use alloc::boxed::Box;
use alloc::string::String;

use crate::envelope::MAX_HEADER_BYTES;
use crate::literals::{Arguments, Dialect, Move, Start, Strings, is_name_byte, starts};
use crate::{Call, CallReader, Step, is_blank};

/// Longest name; longer is prose.
pub(crate) const MAX_NAME_BYTES: usize = 256;

const WORDS: &[(&str, &str)] = &[
    ("True", "true"),
    ("False", "false"),
    ("None", "null"),
    ("true", "true"),
    ("false", "false"),
    ("null", "null"),
];

/// What the calls look like.
#[derive(Debug, Clone, Copy)]
pub struct PythonRules {
    /// Must they stand in a list?
    pub needs_list: bool,
    /// Ends a call that does not end itself, outside strings; right behind the opener nothing was
    /// called. Empty: there is none, and an empty list is text.
    pub closer: &'static str,
    /// Strings come without escapes: one right behind another does not continue it.
    pub is_unescaped: bool,
}

/// A [`CallReader`] for one call and those that follow it.
#[derive(Debug)]
pub struct Python {
    rules: PythonRules,
    at: At,
    has_list: bool,
    /// Is there a call behind which the next one stands?
    has_call: bool,
    name: String,
    /// Bytes in front of the first name.
    num_blanks: usize,
    /// Read, but not reported: a further call that is not certain.
    num_ahead: usize,
    arguments: Option<Box<Arguments>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Start,
    Name,
    Arguments,
    /// Between two calls.
    Between,
}

impl Python {
    /// A reader that expects the list or the name next, blanks aside.
    pub fn new(rules: PythonRules) -> Self {
        Python {
            rules,
            at: At::Start,
            has_list: false,
            has_call: false,
            name: String::new(),
            num_blanks: 0,
            num_ahead: 0,
            arguments: None,
        }
    }

    /// In front of the first name. `None`: go on.
    fn start(&mut self, bytes: &[u8], at: usize, end: bool) -> Option<Step> {
        let is_marked = !self.rules.closer.is_empty();
        match bytes[0] {
            byte if is_blank(byte) => {
                self.num_blanks += 1;
                return (self.num_blanks > MAX_HEADER_BYTES).then_some(Step::Fail);
            }
            b'[' if !self.has_list => self.has_list = true,
            b']' if self.has_list && is_marked => return Some(Step::Done(at + 1)),
            byte if begins_name(byte) && (self.has_list || !self.rules.needs_list) => {
                self.begin_name(byte);
            }
            _ if self.has_list => return Some(Step::Fail),
            _ => {
                return Some(match starts(bytes, self.rules.closer, end) {
                    Start::Whole => Step::Done(at),
                    Start::Maybe => Step::More(at),
                    Start::No => Step::Fail,
                });
            }
        }
        None
    }

    fn begin_name(&mut self, byte: u8) {
        self.name.clear();
        if byte.is_ascii() {
            self.name.push(char::from(byte));
        }
        self.at = At::Name;
    }

    /// The rest of a name, and how many bytes of it.
    fn name(&mut self, text: &str) -> Option<usize> {
        let len = text.bytes().take_while(|byte| is_name_byte(*byte)).count();
        if self.name.len() + len > MAX_NAME_BYTES {
            return None;
        }
        self.name.push_str(&text[..len]);
        match text.as_bytes().get(len) {
            None => Some(len),
            Some(b'(') if !self.name.ends_with('.') => {
                let dialect = Dialect {
                    assign: b'=',
                    close: b')',
                    strings: Strings::Python(!self.rules.is_unescaped),
                    words: WORDS,
                };
                let name = core::mem::take(&mut self.name);
                self.arguments = Some(Box::new(Arguments::new(dialect, self.rules.closer, name)));
                self.at = At::Arguments;
                Some(len + 1)
            }
            Some(_) => None,
        }
    }

    /// This is no call: behind one it is what comes next, else all of it is text.
    fn none(&self, from: usize) -> Step {
        if self.has_call { Step::Done(from) } else { Step::Fail }
    }
}

impl CallReader for Python {
    fn read(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Step {
        let mut at = self.num_ahead;
        // Where what is not reported begins.
        let mut from = if self.num_ahead > 0 { 0 } else { at };
        while at < text.len() {
            let bytes = &text.as_bytes()[at..];
            match self.at {
                At::Start => {
                    if let Some(step) = self.start(bytes, at, end) {
                        return step;
                    }
                    at += usize::from(bytes[0].is_ascii());
                }
                At::Between if is_blank(bytes[0]) || matches!(bytes[0], b',' | b';') => at += 1,
                At::Between if begins_name(bytes[0]) => {
                    from = at;
                    self.begin_name(bytes[0]);
                    at += usize::from(bytes[0].is_ascii());
                }
                At::Between => return Step::Done(at),
                At::Name => match self.name(&text[at..]) {
                    Some(len) => at += len,
                    None => return self.none(from),
                },
                At::Arguments => {
                    let Some(arguments) = &mut self.arguments else { return self.none(from) };
                    let step = arguments.read(&text[at..], end, call);
                    self.has_call |= arguments.is_begun();
                    match step {
                        Move::Used(len) => at += len,
                        Move::Hold => break,
                        Move::Ended(len) => {
                            at += len;
                            self.arguments = None;
                            self.at = At::Between;
                        }
                        Move::Fail => return self.none(from),
                    }
                }
            }
        }
        if end && let Some(arguments) = &mut self.arguments {
            arguments.finish(call);
        }
        let is_certain = match (self.at, &self.arguments) {
            (At::Arguments, Some(arguments)) => arguments.is_begun(),
            (At::Name, _) => false,
            _ => true,
        };
        if is_certain || !self.has_call {
            self.num_ahead = 0;
            return Step::More(at);
        }
        if end {
            return Step::Done(from);
        }
        self.num_ahead = at - from;
        Step::More(from)
    }
}

fn begins_name(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || !byte.is_ascii()
}
