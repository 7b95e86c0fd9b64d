//! A Lark grammar as it is written: rules with names of their own, texts in which added tokens
//! stand for themselves, templates with holes.

use alloc::string::String;
use alloc::vec::Vec;

use crate::json::quoted;

/// What fills a hole of a template.
#[derive(Debug, Clone, Copy)]
pub enum Hole<'a> {
    /// A text.
    Text(&'a str),
    /// An expression.
    Rule(&'a str),
}

/// The rules of one grammar.
#[derive(Debug)]
pub struct Rules<'a> {
    lark: String,
    num_names: u32,
    /// Rules with names of the author's.
    named: Vec<&'static str>,
    tokens: &'a [String],
    /// In front of the `>` of each marker.
    suffix: &'a str,
}

impl<'a> Rules<'a> {
    pub(super) fn new(tokens: &'a [String], suffix: &'a str) -> Self {
        Rules { lark: String::new(), num_names: 0, named: Vec::new(), tokens, suffix }
    }

    /// The text with the suffix that all markers of the vocabulary share.
    pub(super) fn suffixed(&self, text: &str) -> String {
        text.replace('>', &joined(&[self.suffix, ">"]))
    }

    /// Adds a rule and gives its name.
    #[inline(never)]
    pub fn add(&mut self, body: &str) -> String {
        self.define("r", "", body)
    }

    /// Adds a regular expression, or a combination of several, and gives its name.
    #[inline(never)]
    pub fn terminal(&mut self, body: &str) -> String {
        self.define("T", "", body)
    }

    /// The name of whatever bytes there are: unlike `(.|\\n)*` it costs nothing to follow.
    #[inline(never)]
    pub(super) fn any_bytes(&mut self) -> String {
        const NAME: &str = "ANY_BYTES";
        if self.is_new(NAME) {
            self.named(NAME, "~/[a&&b]/");
        }
        NAME.into()
    }

    /// Is there no rule of that name yet? There is from now on: go on with [`Rules::named`].
    pub fn is_new(&mut self, name: &'static str) -> bool {
        let is_new = !self.named.contains(&name);
        if is_new {
            self.named.push(name);
        }
        is_new
    }

    /// Adds a rule under a name of its own, so that it can refer to itself.
    pub fn named(&mut self, name: &'static str, body: &str) {
        put(&mut self.lark, &[name, ": ", body, "\n"]);
    }

    /// A text as an expression.
    #[inline(never)]
    pub fn text(&self, text: &str) -> String {
        self.fill(text, &[])
    }

    /// The text of `template`, whose holes are `$` and a word.
    #[inline(never)]
    pub fn fill(&self, template: &str, holes: &[(&str, Hole<'_>)]) -> String {
        self.filled(&self.suffixed(template), holes)
    }

    #[inline(never)]
    fn filled(&self, template: &str, holes: &[(&str, Hole<'_>)]) -> String {
        let (mut out, mut plain, mut rest) = (String::new(), String::new(), template);
        while let Some(next) = rest.chars().next() {
            let hole = holes.iter().find(|(name, _)| rest.starts_with(*name));
            match (hole, self.token_at(rest)) {
                (Some((name, Hole::Text(text))), _) => {
                    plain.push_str(text);
                    rest = &rest[name.len()..];
                }
                (Some((name, Hole::Rule(rule))), _) => {
                    flush(&mut plain, &mut out);
                    put(&mut out, &[rule, " "]);
                    rest = &rest[name.len()..];
                }
                (None, Some(token)) => {
                    flush(&mut plain, &mut out);
                    put(&mut out, &["%token ", &quoted(token), " "]);
                    rest = &rest[token.len()..];
                }
                (None, None) => {
                    plain.push(next);
                    rest = &rest[next.len_utf8()..];
                }
            }
        }
        flush(&mut plain, &mut out);
        if out.is_empty() {
            out.push_str("\"\"");
        }
        out
    }

    /// What `regex` matches, up to `end` and with it. None of `closers` is in it: one of these is a
    /// part of `end`. A newline in front of a closer: it is in no line's beginning.
    #[inline(never)]
    pub fn text_up_to(&mut self, regex: &str, end: &str, closers: &[&str]) -> String {
        // One expression for all: what it costs to follow several at a time is a product.
        let any = self.any_bytes();
        let (mut anywhere, mut at_line) = (String::new(), String::new());
        for closer in closers {
            let closer = self.suffixed(closer);
            if let Some(text) = closer.strip_prefix('\n') {
                put(&mut at_line, &[" | ", &quoted(text), " ", &any]);
            }
            let between = if anywhere.is_empty() { "" } else { " | " };
            put(&mut anywhere, &[between, &quoted(&closer)]);
        }
        let refused = self.terminal(&joined(&[&any, " (", &anywhere, ") ", &any, &at_line]));
        let value = self.terminal(&joined(&[regex, " & ~", &refused]));
        let end = self.suffixed(end);
        let token_at =
            |at: &usize| end.is_char_boundary(*at) && self.token_at(&end[*at..]).is_some();
        let Some(len) = (0..end.len()).find(token_at) else {
            // Texts: the two are one lexeme, or the first would take the beginning of the second.
            return self.define("r", "[lazy]", &joined(&[&value, " ", &quoted(&end)]));
        };
        let (text, rest) = end.split_at(len);
        let rest = self.filled(rest, &[]);
        if text.is_empty() {
            return joined(&[&value, " ", &rest]);
        }
        // No text has the token, so it ends in front of it and may have `text` elsewhere, too.
        let value = self.terminal(&joined(&[&value, " ", &quoted(text)]));
        joined(&[&value, " ", &rest])
    }

    /// The grammar whose outputs are `start`.
    pub(super) fn finish(self, start: &str) -> String {
        joined(&["start: ", start, "\n", &self.lark])
    }

    /// The longest added token that the text begins with.
    #[inline(never)]
    fn token_at(&self, text: &str) -> Option<&'a str> {
        let mut longest = "";
        for token in self.tokens {
            if token.len() > longest.len() && text.starts_with(token.as_str()) {
                longest = token;
            }
        }
        (!longest.is_empty()).then_some(longest)
    }

    #[inline(never)]
    fn define(&mut self, kind: &str, attribute: &str, body: &str) -> String {
        let mut name = String::from(kind);
        name.push('_');
        push_number(&mut name, self.num_names);
        self.num_names += 1;
        put(&mut self.lark, &[&name, attribute, ": ", body, "\n"]);
        name
    }
}

/// `c` for a regular expression between slashes, also in brackets.
#[inline(never)]
pub(super) fn escape_regex(c: char, out: &mut String) {
    match c {
        '\n' => out.push_str("\\n"),
        // The host looks for strings.
        '"' => out.push_str("\\x22"),
        _ => {
            if "\\.+*?()|[]{}^$/&~-#".contains(c) {
                out.push('\\');
            }
            out.push(c);
        }
    }
}

/// Where `text` has `part`; its length: nowhere.
#[inline(never)]
pub(super) fn place_of(part: &str, text: &str) -> usize {
    let (part, text) = (part.as_bytes(), text.as_bytes());
    (0..text.len()).find(|&at| text[at..].starts_with(part)).unwrap_or(text.len())
}

/// Appends the parts: not inlined, for a component is small.
#[inline(never)]
pub(super) fn put(out: &mut String, parts: &[&str]) {
    for part in parts {
        out.push_str(part);
    }
}

/// The parts, one behind another.
#[inline(never)]
pub(super) fn joined(parts: &[&str]) -> String {
    let mut out = String::new();
    put(&mut out, parts);
    out
}

#[inline(never)]
fn flush(plain: &mut String, out: &mut String) {
    if !plain.is_empty() {
        put(out, &[&quoted(plain), " "]);
        plain.clear();
    }
}

fn push_number(out: &mut String, number: u32) {
    if number > 9 {
        push_number(out, number / 10);
    }
    out.push(char::from(b'0' + (number % 10) as u8));
}
