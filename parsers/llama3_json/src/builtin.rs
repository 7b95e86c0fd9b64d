//! `NAME.call(KEY=VALUE, …)`: how Meta's encoder writes the model's built-in tools. The values are
//! Python literals; strings stream, a number or word comes out whole, anything else as its source.

use alloc::string::String;

use tenon_guest::json::{escape_into, is_value, quoted};
use tenon_guest::{Call, CallReader, Step};

/// Longest name or key; longer is prose.
const MAX_WORD_BYTES: usize = 256;

/// The fixed part between name and arguments.
const CALL: &str = ".call(";

/// A reader that expects the name next.
#[derive(Debug, Default)]
pub struct Builtin {
    at: At,
    name: String,
    key: String,
    value: String,
    num_pairs: usize,
    is_begun: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum At {
    #[default]
    Name,
    /// So many bytes of `CALL` are read.
    Fixed(usize),
    Key,
    /// Behind `=`.
    Value,
    /// Inside a string that this quote ends.
    Text(char),
    Escape(char),
    Word,
    /// Behind a string.
    Behind,
}

impl Builtin {
    /// The next character; `Some` ends the call or the attempt.
    fn character(&mut self, c: char, call: &mut Call<'_>) -> Option<Step> {
        match self.at {
            At::Name if c.is_ascii_alphanumeric() || c == '_' => return push(&mut self.name, c),
            At::Name if c == '.' => self.at = At::Fixed(1),
            At::Fixed(len) if CALL[len..].starts_with(c) => {
                self.at = if len + 1 == CALL.len() { At::Key } else { At::Fixed(len + 1) };
            }
            At::Key if c.is_ascii_alphanumeric() || c == '_' => return push(&mut self.key, c),
            At::Key if c == ')' && self.key.is_empty() => return self.close(call),
            At::Key if c == '=' && !self.key.is_empty() => self.at = At::Value,
            At::Key if c == ' ' && self.key.is_empty() => {}
            At::Value if c == ' ' => {}
            At::Value if c == '"' || c == '\'' => {
                self.pair(call);
                call.args("\"");
                self.at = At::Text(c);
            }
            At::Value if c.is_ascii_alphanumeric() || "-+.[{(".contains(c) => {
                self.begin(call);
                self.value.clear();
                self.value.push(c);
                self.at = At::Word;
            }
            At::Text(quote) if c == quote => {
                call.args("\"");
                self.at = At::Behind;
            }
            At::Text(quote) if c == '\\' => self.at = At::Escape(quote),
            At::Text(_) => say(c, call),
            At::Escape(quote) => {
                self.at = At::Text(quote);
                escaped(c, call);
            }
            At::Word if c == ',' || c == ')' => {
                self.word(call);
                return self.behind(c, call);
            }
            At::Word => self.value.push(c),
            At::Behind if c == ' ' => {}
            At::Behind if c == ',' || c == ')' => return self.behind(c, call),
            _ if self.is_begun => return Some(Step::Done(0)),
            _ => return Some(Step::Fail),
        }
        None
    }

    fn begin(&mut self, call: &mut Call<'_>) {
        if !self.is_begun {
            call.begin(&self.name, None);
            call.args("{");
            self.is_begun = true;
        }
    }

    /// Writes a key, up to its value.
    fn pair(&mut self, call: &mut Call<'_>) {
        self.begin(call);
        if self.num_pairs > 0 {
            call.args(", ");
        }
        call.args(&quoted(&self.key));
        call.args(": ");
        self.num_pairs += 1;
        self.key.clear();
    }

    fn word(&mut self, call: &mut Call<'_>) {
        self.pair(call);
        let word = self.value.trim_end();
        match word {
            "True" => call.args("true"),
            "False" => call.args("false"),
            "None" => call.args("null"),
            _ if is_value(word) => call.args(word),
            _ => call.args(&quoted(word)),
        }
    }

    fn behind(&mut self, c: char, call: &mut Call<'_>) -> Option<Step> {
        if c == ')' {
            return self.close(call);
        }
        self.at = At::Key;
        None
    }

    fn close(&mut self, call: &mut Call<'_>) -> Option<Step> {
        self.begin(call);
        call.args("}");
        call.end();
        Some(Step::Done(1))
    }
}

impl CallReader for Builtin {
    fn read(&mut self, text: &str, _: bool, call: &mut Call<'_>) -> Step {
        for (at, c) in text.char_indices() {
            match self.character(c, call) {
                None => {}
                Some(Step::Done(len)) => return Step::Done(at + len),
                Some(step) => return step,
            }
        }
        Step::More(text.len())
    }
}

fn push(word: &mut String, c: char) -> Option<Step> {
    word.push(c);
    (word.len() > MAX_WORD_BYTES).then_some(Step::Fail)
}

fn say(c: char, call: &mut Call<'_>) {
    let mut out = String::new();
    escape_into(c.encode_utf8(&mut [0; 4]), &mut out);
    call.args(&out);
}

/// The usual escapes of Python; an unknown one says itself, as there.
fn escaped(c: char, call: &mut Call<'_>) {
    match c {
        'n' => say('\n', call),
        't' => say('\t', call),
        'r' => say('\r', call),
        '\\' | '"' | '\'' => say(c, call),
        '\n' => {}
        _ => {
            say('\\', call);
            say(c, call);
        }
    }
}
