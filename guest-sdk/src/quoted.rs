//! Strings inside a call as the text of a JSON string: Python's quotes with their escapes, and
//! plain text between two delimiters. State is kept between pieces; what is decided comes out.

use alloc::string::String;

use crate::is_blank;
use crate::json::escape_into;

/// Blanks behind a quote that may wait for what follows them; more decide that it closes.
const MAX_BLANKS: usize = 1 << 16;

/// What a piece of text did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fed {
    /// So many bytes are read, the string goes on.
    More(usize),
    /// The string ended; so many bytes are read.
    Closed(usize),
}

/// A string that is being read.
#[derive(Debug)]
pub(crate) enum Quoted {
    Python(Quotes),
    /// No escapes: everything up to the delimiter; the flag: it comes out as it is, not as JSON.
    Delimited(&'static str, bool),
}

impl Quoted {
    /// Reads `text` and writes JSON onto `out`, without quotes around it. `closer`: what ends the
    /// call, if it stands right behind a quote.
    pub fn feed(&mut self, text: &str, closer: &str, end: bool, out: &mut String) -> Fed {
        match self {
            Quoted::Python(quotes) => quotes.feed(text, closer, end, out),
            Quoted::Delimited(delimiter, is_plain) => {
                delimited(text, delimiter, *is_plain, end, out)
            }
        }
    }

    /// The stream ended inside it, or is it closed? What was held comes out.
    pub fn finish(&mut self, out: &mut String) -> bool {
        match self {
            Quoted::Python(quotes) => quotes.finish(out),
            Quoted::Delimited(..) => false,
        }
    }
}

fn delimited(text: &str, delimiter: &str, is_plain: bool, end: bool, out: &mut String) -> Fed {
    let write: fn(&str, &mut String) = match is_plain {
        true => |text, out| out.push_str(text),
        false => escape_into,
    };
    let (bytes, wanted) = (text.as_bytes(), delimiter.as_bytes());
    for at in (0..bytes.len()).filter(|at| bytes[*at] == wanted[0]) {
        let rest = &bytes[at..];
        if rest.starts_with(wanted) {
            write(&text[..at], out);
            return Fed::Closed(at + wanted.len());
        }
        if !end && wanted.starts_with(rest) {
            write(&text[..at], out);
            return Fed::More(at);
        }
    }
    write(text, out);
    Fed::More(text.len())
}

/// A Python string from behind its first quote. A quote closes it only if what may follow a value
/// follows, blanks aside; any other is part of the text, as models write them that do not escape.
#[derive(Debug)]
pub(crate) struct Quotes {
    quote: u8,
    is_triple: bool,
    is_raw: bool,
    /// A string right behind another one continues it (Python); not where nothing is escaped.
    is_joined: bool,
    at: At,
    /// The first half of a surrogate pair.
    high: Option<u32>,
    /// Behind a quote that may close.
    blanks: String,
}

#[derive(Debug, Clone, Copy)]
enum At {
    /// So many quotes of the opening.
    Open(u8),
    Inside,
    /// So many quotes of a triple's end.
    Quotes(u8),
    Escape,
    Raw,
    /// Value and number of digits.
    Octal(u32, u8),
    /// The letter, digits so far, how many.
    Hex(u8, [u8; 8], usize),
    Closing,
}

impl Quotes {
    pub fn new(quote: u8, is_raw: bool, is_joined: bool) -> Self {
        Quotes {
            quote,
            is_triple: false,
            is_raw,
            is_joined,
            at: At::Open(1),
            high: None,
            blanks: String::new(),
        }
    }

    fn feed(&mut self, text: &str, closer: &str, end: bool, out: &mut String) -> Fed {
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let byte = bytes[at];
            at += match self.at {
                At::Open(_) => self.open(byte),
                At::Inside => self.inside(&text[at..], out),
                At::Quotes(num_seen) => self.triple(byte, num_seen, out),
                At::Escape => self.escape(byte, out),
                At::Raw => {
                    self.at = At::Inside;
                    self.quotes(u8::from(byte == self.quote), out);
                    usize::from(byte == self.quote)
                }
                At::Octal(value, len) => self.octal(byte, value, len, out),
                At::Hex(letter, digits, len) => self.hex(byte, letter, digits, len, out),
                At::Closing => match self.closing(&bytes[at..], closer.as_bytes(), end, out) {
                    Some(Fed::Closed(_)) => return Fed::Closed(at),
                    Some(Fed::More(len)) => len,
                    None => return Fed::More(at),
                },
            };
        }
        Fed::More(at)
    }

    fn finish(&mut self, out: &mut String) -> bool {
        match self.at {
            At::Open(2) | At::Closing => {
                self.flush(out);
                return true;
            }
            At::Quotes(num_seen) => self.quotes(num_seen, out),
            _ => {}
        }
        false
    }

    fn open(&mut self, byte: u8) -> usize {
        match (self.at, byte == self.quote) {
            (At::Open(1), true) => self.at = At::Open(2),
            (_, true) => {
                self.is_triple = true;
                self.at = At::Inside;
            }
            (At::Open(1), false) => self.at = At::Inside,
            (_, false) => self.at = At::Closing,
        }
        usize::from(byte == self.quote)
    }

    fn inside(&mut self, text: &str, out: &mut String) -> usize {
        let is_plain = |byte: &u8| *byte != self.quote && !matches!(byte, b'\\' | b'"' | 0..0x20);
        let len = text.bytes().take_while(is_plain).count();
        if len > 0 {
            self.flush(out);
            out.push_str(&text[..len]);
            return len;
        }
        match text.as_bytes()[0] {
            b'\\' if self.is_raw => {
                out.push_str("\\\\");
                self.at = At::Raw;
            }
            b'\\' => self.at = At::Escape,
            byte if byte != self.quote => {
                self.flush(out);
                escape_into(&text[..1], out);
            }
            _ if self.is_triple => self.at = At::Quotes(1),
            _ => self.at = At::Closing,
        }
        1
    }

    fn triple(&mut self, byte: u8, num_seen: u8, out: &mut String) -> usize {
        match (byte == self.quote, num_seen) {
            (true, 2) => self.at = At::Closing,
            (true, _) => self.at = At::Quotes(num_seen + 1),
            (false, _) => {
                self.quotes(num_seen, out);
                self.at = At::Inside;
            }
        }
        usize::from(byte == self.quote)
    }

    /// What stands behind the closing quote decides whether it is one. None: not yet known.
    fn closing(&mut self, rest: &[u8], closer: &[u8], end: bool, out: &mut String) -> Option<Fed> {
        let byte = rest[0];
        if is_blank(byte) && self.blanks.len() < MAX_BLANKS {
            self.blanks.push(char::from(byte));
            return Some(Fed::More(1));
        }
        let is_closer = !closer.is_empty() && rest.starts_with(closer);
        if is_closer || is_blank(byte) || matches!(byte, b',' | b')' | b']' | b'}' | b':') {
            self.flush(out);
            return Some(Fed::Closed(0));
        }
        if !end && closer.starts_with(rest) {
            return None;
        }
        if self.is_joined && matches!(byte, b'\'' | b'"') {
            self.blanks.clear();
            *self = Quotes { high: self.high, ..Quotes::new(byte, false, true) };
            return Some(Fed::More(1));
        }
        self.quotes(if self.is_triple { 3 } else { 1 }, out);
        escape_into(&self.blanks, out);
        self.blanks.clear();
        self.at = At::Inside;
        Some(Fed::More(0))
    }

    fn escape(&mut self, byte: u8, out: &mut String) -> usize {
        self.at = At::Inside;
        let plain = match byte {
            b'x' | b'u' | b'U' => {
                self.at = At::Hex(byte, [0; 8], 0);
                return 1;
            }
            b'0'..=b'7' => {
                self.at = At::Octal(0, 0);
                return 0;
            }
            b'\n' => return 1, // a line that goes on
            b'\\' | b'\'' | b'"' => byte,
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'a' => 7,
            b'b' => 8,
            b'f' => 12,
            b'v' => 11,
            _ => {
                self.character(u32::from(b'\\'), out);
                return 0;
            }
        };
        self.character(plain.into(), out);
        1
    }

    fn octal(&mut self, byte: u8, value: u32, len: u8, out: &mut String) -> usize {
        if len < 3 && matches!(byte, b'0'..=b'7') {
            self.at = At::Octal(value * 8 + u32::from(byte - b'0'), len + 1);
            return 1;
        }
        self.at = At::Inside;
        self.character(value, out);
        0
    }

    fn hex(
        &mut self,
        byte: u8,
        letter: u8,
        mut digits: [u8; 8],
        len: usize,
        out: &mut String,
    ) -> usize {
        let num_digits = match letter {
            b'x' => 2,
            b'u' => 4,
            _ => 8,
        };
        if !byte.is_ascii_hexdigit() {
            // No escape: it says itself.
            self.at = At::Inside;
            self.character(u32::from(b'\\'), out);
            out.push(char::from(letter));
            out.extend(digits[..len].iter().map(|digit| char::from(*digit)));
            return 0;
        }
        digits[len] = byte;
        self.at = At::Hex(letter, digits, len + 1);
        if len + 1 == num_digits {
            self.at = At::Inside;
            let digit = |byte: &u8| char::from(*byte).to_digit(16).unwrap_or(0);
            let code = digits[..num_digits].iter().fold(0, |code, byte| code << 4 | digit(byte));
            self.character(code, out);
        }
        1
    }

    /// A decoded character. Surrogates pair up; what is none becomes U+FFFD.
    fn character(&mut self, code: u32, out: &mut String) {
        if let (Some(high), 0xDC00..0xE000) = (self.high, code) {
            self.high = None;
            let code = 0x1_0000 + ((high - 0xD800) << 10) + (code - 0xDC00);
            out.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            return;
        }
        self.flush(out);
        if (0xD800..0xDC00).contains(&code) {
            self.high = Some(code);
            return;
        }
        let c = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        escape_into(c.encode_utf8(&mut [0; 4]), out);
    }

    /// Quotes that are text.
    fn quotes(&mut self, count: u8, out: &mut String) {
        for _ in 0..count {
            self.character(self.quote.into(), out);
        }
    }

    fn flush(&mut self, out: &mut String) {
        if self.high.take().is_some() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}
