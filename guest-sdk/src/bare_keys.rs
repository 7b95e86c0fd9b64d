//! Reads calls as Gemma writes them: `call:NAME{KEY:VALUE, …}` with bare keys and strings between
//! two equal delimiters, without escapes. The call exists once its `{` has come (policy U4).

use alloc::boxed::Box;
use alloc::string::String;

use crate::envelope::MAX_HEADER_BYTES;
use crate::literals::{Arguments, Dialect, Move, Strings, is_name_byte};
use crate::python::MAX_NAME_BYTES;
use crate::{Call, CallReader, Opened, Step, is_blank};

/// In front of the name.
const PREFIX: &[u8] = b"call:";

const WORDS: &[(&str, &str)] = &[
    ("true", "true"),
    ("false", "false"),
    ("null", "null"),
    ("none", "null"),
    ("nil", "null"),
    ("True", "true"),
    ("False", "false"),
    ("None", "null"),
];

/// What the calls look like.
#[derive(Debug, Clone, Copy)]
pub struct BareKeysRules {
    /// In front of a string and behind it.
    pub delimiter: &'static str,
    /// Ends a call that does not end itself, outside strings.
    pub closer: &'static str,
    /// Values of any type may stand between delimiters: the schema says which.
    pub is_typed: bool,
}

/// A [`CallReader`] for one call.
#[derive(Debug)]
pub struct BareKeys {
    rules: BareKeysRules,
    /// OpenAI's list, where it decides what a value is.
    tools: String,
    num_blanks: usize,
    /// Bytes of the prefix that are read.
    num_fixed: usize,
    name: String,
    arguments: Option<Box<Arguments>>,
}

impl BareKeys {
    /// A reader that expects the prefix next, blanks aside.
    pub fn new(rules: BareKeysRules, opened: &Opened<'_>) -> Self {
        let tools = if rules.is_typed { opened.request.tools.clone() } else { String::new() };
        BareKeys { rules, tools, num_blanks: 0, num_fixed: 0, name: String::new(), arguments: None }
    }

    /// Reads up to the `{`; `None`: this is no call.
    fn header(&mut self, text: &str, call: &mut Call<'_>) -> Option<usize> {
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if self.num_fixed < PREFIX.len() => {
                    if byte == PREFIX[self.num_fixed] {
                        self.num_fixed += 1;
                    } else if is_blank(byte) && self.num_fixed == 0 {
                        self.num_blanks += 1;
                    } else {
                        return None;
                    }
                }
                b'{' if !self.name.is_empty() => {
                    let dialect = Dialect {
                        assign: b':',
                        close: b'}',
                        strings: Strings::Delimited(self.rules.delimiter),
                        words: WORDS,
                    };
                    let name = core::mem::take(&mut self.name);
                    let mut arguments = Arguments::new(dialect, self.rules.closer, name);
                    if self.rules.is_typed {
                        arguments = arguments.typed_by(&self.tools);
                    }
                    arguments.begin(call);
                    self.arguments = Some(Box::new(arguments));
                    return Some(at + 1);
                }
                _ if is_name_byte(byte) => {
                    let num_bytes = text[at..].bytes().take_while(|b| is_name_byte(*b)).count();
                    if self.name.len() + num_bytes > MAX_NAME_BYTES {
                        return None;
                    }
                    self.name.push_str(&text[at..at + num_bytes]);
                    return Some(at + num_bytes);
                }
                _ => return None,
            }
            if self.num_blanks > MAX_HEADER_BYTES {
                return None;
            }
        }
        Some(text.len())
    }
}

impl CallReader for BareKeys {
    fn read(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Step {
        let mut at = 0;
        while at < text.len() {
            let Some(arguments) = &mut self.arguments else {
                match self.header(&text[at..], call) {
                    Some(len) => at += len,
                    None => return Step::Fail,
                }
                continue;
            };
            match arguments.read(&text[at..], end, call) {
                Move::Used(len) => at += len,
                Move::Hold => break,
                Move::Ended(len) => return Step::Done(at + len),
                Move::Fail => return Step::Fail,
            }
        }
        if let Some(arguments) = &mut self.arguments {
            if end {
                arguments.finish(call);
            } else {
                arguments.hand_on(call);
            }
        }
        Step::More(at)
    }
}
