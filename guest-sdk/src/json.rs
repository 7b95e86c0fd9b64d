//! Incremental JSON, as much of it as call readers need: a strict check of one value, a decoder of
//! string literals, and a writer of them. Each keeps its state between pieces of text.

use alloc::string::String;
use alloc::vec::Vec;

/// How deep a checked value may nest; deeper is malformed. One bit of memory per level.
pub const MAX_DEPTH: usize = 512;

/// What a byte did to the value that is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    /// The value goes on.
    More,
    /// This byte was its last.
    Last,
    /// It ended in front of this byte (numbers only).
    Before,
    /// It is no JSON.
    Bad,
}

/// Checks one JSON value (RFC 8259), byte by byte.
#[derive(Debug, Default)]
pub struct Checker {
    /// Is the open container an object?
    open: Vec<bool>,
    expects: Expects,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Expects {
    #[default]
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    /// Inside a string; the flag: it is a key.
    Text(bool),
    Escape(bool),
    Hex(bool, u8),
    Word(&'static [u8]),
    Number(Digits),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Digits {
    Sign,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    Power,
}

impl Checker {
    /// The next byte.
    pub fn byte(&mut self, byte: u8) -> Checked {
        use Expects::*;
        match self.expects {
            Text(is_key) => match byte {
                b'"' if is_key => self.go(Colon),
                b'"' => self.value_ended(),
                b'\\' => self.go(Escape(is_key)),
                0..0x20 => Checked::Bad,
                _ => Checked::More,
            },
            Escape(is_key) => match byte {
                b'u' => self.go(Hex(is_key, 4)),
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.go(Text(is_key)),
                _ => Checked::Bad,
            },
            Hex(is_key, left) if byte.is_ascii_hexdigit() => {
                self.go(if left > 1 { Hex(is_key, left - 1) } else { Text(is_key) })
            }
            Word([next, rest @ ..]) if byte == *next => {
                if rest.is_empty() {
                    self.value_ended()
                } else {
                    self.go(Word(rest))
                }
            }
            Number(digits) => self.number(digits, byte),
            _ if crate::is_blank(byte) && !matches!(self.expects, Hex(..) | Word(_)) => {
                Checked::More
            }
            Colon if byte == b':' => self.go(Value),
            Key | KeyOrEnd if byte == b'"' => self.go(Text(true)),
            KeyOrEnd if byte == b'}' => self.close(),
            ValueOrEnd if byte == b']' => self.close(),
            Value | ValueOrEnd => self.begin(byte),
            CommaOrEnd => match (byte, self.open.last()) {
                (b',', Some(true)) => self.go(Key),
                (b',', Some(false)) => self.go(Value),
                (b'}', Some(true)) | (b']', Some(false)) => self.close(),
                _ => Checked::Bad,
            },
            _ => Checked::Bad,
        }
    }

    fn go(&mut self, expects: Expects) -> Checked {
        self.expects = expects;
        Checked::More
    }

    fn begin(&mut self, byte: u8) -> Checked {
        let next = match byte {
            b'{' | b'[' if self.open.len() == MAX_DEPTH => return Checked::Bad,
            b'{' => Expects::KeyOrEnd,
            b'[' => Expects::ValueOrEnd,
            b'"' => Expects::Text(false),
            b't' => Expects::Word(b"rue"),
            b'f' => Expects::Word(b"alse"),
            b'n' => Expects::Word(b"ull"),
            b'-' => Expects::Number(Digits::Sign),
            b'0' => Expects::Number(Digits::Zero),
            b'1'..=b'9' => Expects::Number(Digits::Whole),
            _ => return Checked::Bad,
        };
        if matches!(byte, b'{' | b'[') {
            self.open.push(byte == b'{');
        }
        self.go(next)
    }

    fn close(&mut self) -> Checked {
        self.open.pop();
        self.value_ended()
    }

    fn value_ended(&mut self) -> Checked {
        self.expects = Expects::CommaOrEnd;
        if self.open.is_empty() { Checked::Last } else { Checked::More }
    }

    fn number(&mut self, digits: Digits, byte: u8) -> Checked {
        use Digits::*;
        let next = match (digits, byte) {
            (Sign, b'0') => Zero,
            (Sign, b'1'..=b'9') | (Whole, b'0'..=b'9') => Whole,
            (Zero | Whole, b'.') => Point,
            (Point | Fraction, b'0'..=b'9') => Fraction,
            (Zero | Whole | Fraction, b'e' | b'E') => Exponent,
            (Exponent, b'+' | b'-') => ExponentSign,
            (Exponent | ExponentSign | Power, b'0'..=b'9') => Power,
            (Zero | Whole | Fraction | Power, _) => {
                self.expects = Expects::CommaOrEnd;
                return if self.open.is_empty() { Checked::Before } else { self.byte(byte) };
            }
            _ => return Checked::Bad,
        };
        self.go(Expects::Number(next))
    }
}

/// How a piece of a string literal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unescaped {
    /// All of it is inside the string.
    More,
    /// Behind so many bytes, the closing quote is the last of them.
    Closed(usize),
    /// No JSON at this byte.
    Bad(usize),
}

/// Decodes a string literal from behind its opening quote. Lone surrogates become U+FFFD.
#[derive(Debug, Default)]
pub struct Unescape {
    escape: Escape,
    /// The first half of a surrogate pair.
    high: Option<u16>,
    /// What is no JSON is passed on as it is.
    is_lenient: bool,
}

#[derive(Debug, Clone, Copy, Default)]
enum Escape {
    #[default]
    None,
    Begun,
    Hex([u8; 4], usize),
}

impl Unescape {
    /// Passes bad escapes and control characters on instead of stopping at them.
    pub fn lenient() -> Self {
        Unescape { is_lenient: true, ..Unescape::default() }
    }

    /// Decodes `text` onto the end of `out`.
    pub fn feed(&mut self, text: &str, out: &mut String) -> Unescaped {
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let byte = bytes[at];
            match self.escape {
                Escape::None => {
                    let is_plain = |b: &&u8| !matches!(**b, b'"' | b'\\' | 0..0x20);
                    let run = bytes[at..].iter().take_while(is_plain).count();
                    if run > 0 {
                        self.flush(out);
                        out.push_str(&text[at..at + run]);
                        at += run;
                        continue;
                    }
                    match byte {
                        b'"' => {
                            self.flush(out);
                            return Unescaped::Closed(at + 1);
                        }
                        b'\\' => self.escape = Escape::Begun,
                        _ if self.is_lenient => {
                            self.flush(out);
                            out.push(char::from(byte));
                        }
                        _ => return Unescaped::Bad(at),
                    }
                }
                Escape::Begun if byte == b'u' => self.escape = Escape::Hex([0; 4], 0),
                Escape::Begun => match plain_escape(byte) {
                    Some(plain) => {
                        self.flush(out);
                        out.push(plain);
                        self.escape = Escape::None;
                    }
                    None if self.is_lenient => {
                        self.give_up(out);
                        continue;
                    }
                    None => return Unescaped::Bad(at),
                },
                Escape::Hex(mut digits, len) if byte.is_ascii_hexdigit() => {
                    digits[len] = byte;
                    self.escape = Escape::Hex(digits, len + 1);
                    if len == 3 {
                        self.unit(digits, out);
                    }
                }
                Escape::Hex(..) if self.is_lenient => {
                    self.give_up(out);
                    continue;
                }
                Escape::Hex(..) => return Unescaped::Bad(at),
            }
            at += 1;
        }
        Unescaped::More
    }

    /// A UTF-16 unit is whole.
    fn unit(&mut self, digits: [u8; 4], out: &mut String) {
        self.escape = Escape::None;
        let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u16;
        let unit = digits.iter().fold(0, |unit, byte| unit << 4 | digit(*byte));
        match (self.high.take(), unit) {
            (Some(high), 0xDC00..0xE000) => {
                let pair = char::decode_utf16([high, unit]).next();
                out.push(pair.and_then(Result::ok).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            (before, _) => {
                self.high = before;
                self.flush(out);
                match unit {
                    0xD800..0xDC00 => self.high = Some(unit),
                    _ => out.push(char::from_u32(unit.into()).unwrap_or('\u{FFFD}')),
                }
            }
        }
    }

    fn flush(&mut self, out: &mut String) {
        if self.high.take().is_some() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }

    /// The escape is none: its text so far is what it says.
    fn give_up(&mut self, out: &mut String) {
        self.flush(out);
        out.push('\\');
        if let Escape::Hex(digits, len) = self.escape {
            out.push('u');
            out.extend(digits[..len].iter().map(|byte| char::from(*byte)));
        }
        self.escape = Escape::None;
    }
}

fn plain_escape(byte: u8) -> Option<char> {
    Some(match byte {
        b'"' | b'\\' | b'/' => char::from(byte),
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        _ => return None,
    })
}

/// Writes `text` as the inside of a string literal, without the quotes.
pub fn escape_into(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..='\u{1f}' => {
                const DIGITS: &[u8; 16] = b"0123456789abcdef";
                out.push_str("\\u00");
                out.push(char::from(DIGITS[c as usize >> 4]));
                out.push(char::from(DIGITS[c as usize & 15]));
            }
            _ => out.push(c),
        }
    }
}

/// `text` as a string literal.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    escape_into(text, &mut out);
    out.push('"');
    out
}

/// Is all of `text`, blanks around it aside, one JSON value?
pub fn is_value(text: &str) -> bool {
    let mut checker = Checker::default();
    let text = crate::trimmed(text);
    for (at, byte) in text.bytes().enumerate() {
        match checker.byte(byte) {
            Checked::More => {}
            Checked::Last => return at + 1 == text.len(),
            Checked::Before | Checked::Bad => return false,
        }
    }
    checker.byte(b' ') == Checked::Before // a number ends only with what follows
}
