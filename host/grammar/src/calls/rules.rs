//! A Lark grammar as it is written: rules with names of their own, texts in which added tokens
//! stand for themselves, templates with holes.

use crate::lark::literal;
use crate::vocabulary::longest_at;

/// What fills a hole of a template.
#[derive(Debug, Clone, Copy)]
pub(super) enum Hole<'a> {
    /// A text.
    Text(&'a str),
    /// An expression.
    Rule(&'a str),
}

/// The rules of one declaration.
#[derive(Debug)]
pub(super) struct Rules<'a> {
    lark: String,
    num_names: u32,
    /// Rules that refer to themselves or are used in many places.
    named: Vec<&'static str>,
    tokens: &'a [String],
    /// In front of the `>` of each marker.
    suffix: &'a str,
}

impl<'a> Rules<'a> {
    pub fn new(tokens: &'a [String], suffix: &'a str) -> Self {
        Rules { lark: String::new(), num_names: 0, named: Vec::new(), tokens, suffix }
    }

    /// The text with the suffix that all markers of the vocabulary share.
    fn suffixed(&self, text: &str) -> String {
        text.replace('>', &[self.suffix, ">"].concat())
    }

    /// Adds a rule and gives its name.
    pub fn add(&mut self, body: &str) -> String {
        self.define("calls_", "", body)
    }

    /// Adds a regular expression, or a combination of several, and gives its name.
    pub fn terminal(&mut self, body: &str) -> String {
        self.define("CALLS_", "", body)
    }

    /// The name of whatever bytes there are: unlike `(.|\\n)*` it costs nothing to follow.
    pub fn any_bytes(&mut self) -> String {
        if self.is_new(ANY_BYTES) {
            self.named(ANY_BYTES, "~/[a&&b]/");
        }
        ANY_BYTES.into()
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
        self.lark.extend([name, ": ", body, "\n"]);
    }

    /// A text as an expression.
    pub fn text(&self, text: &str) -> String {
        self.fill(text, &[])
    }

    /// The text of `template`, whose holes are `$` and a word.
    pub fn fill(&self, template: &str, holes: &[(&str, Hole<'_>)]) -> String {
        self.filled(&self.suffixed(template), holes)
    }

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
                    out.extend([rule, " "]);
                    rest = &rest[name.len()..];
                }
                (None, Some(token)) => {
                    flush(&mut plain, &mut out);
                    out.extend(["%token ", &literal(token), " "]);
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
    pub fn text_up_to(&mut self, regex: &str, end: &str, closers: &[impl AsRef<str>]) -> String {
        // One expression for all: what it costs to follow several at a time is a product.
        let any = self.any_bytes();
        let (mut anywhere, mut at_line) = (String::new(), String::new());
        for closer in closers {
            let closer = self.suffixed(closer.as_ref());
            if let Some(text) = closer.strip_prefix('\n') {
                at_line.extend([" | ", &literal(text), " ", &any]);
            }
            let between = if anywhere.is_empty() { "" } else { " | " };
            anywhere.extend([between, &literal(&closer)]);
        }
        let refused = self.terminal(&format!("{any} ({anywhere}) {any}{at_line}"));
        let value = self.terminal(&format!("{regex} & ~{refused}"));
        let end = self.suffixed(end);
        let token_at =
            |at: &usize| end.is_char_boundary(*at) && self.token_at(&end[*at..]).is_some();
        let Some(len) = (0..end.len()).find(token_at) else {
            // Texts: the two are one lexeme, or the first would take the beginning of the second.
            return self.define("calls_", "[lazy]", &format!("{value} {}", literal(&end)));
        };
        let (text, rest) = end.split_at(len);
        let rest = self.filled(rest, &[]);
        if text.is_empty() {
            return format!("{value} {rest}");
        }
        // No text has the token, so it ends in front of it and may have `text` elsewhere, too.
        let value = self.terminal(&format!("{value} {}", literal(text)));
        format!("{value} {rest}")
    }

    /// All of them.
    pub fn finish(self) -> String {
        self.lark
    }

    /// The longest added token that the text begins with.
    fn token_at(&self, text: &str) -> Option<&'a str> {
        longest_at(self.tokens.iter().map(|of| (of.as_str(), ())), text).map(|(of, ())| of)
    }

    fn define(&mut self, prefix: &str, attribute: &str, body: &str) -> String {
        let name = format!("{prefix}{}", self.num_names);
        self.num_names += 1;
        self.lark.extend([&*name, attribute, ": ", body, "\n"]);
        name
    }
}

/// Any bytes.
pub(super) const ANY_BYTES: &str = "CALLS_ANY_BYTES";

/// `c` for a regular expression between slashes, also in brackets.
pub(super) fn escape_regex(c: char, out: &mut String) {
    match c {
        '\n' => out.push_str("\\n"),
        // Whoever looks for strings in the grammar shall not find one here.
        '"' => out.push_str("\\x22"),
        _ => {
            if "\\.+*?()|[]{}^$/&~-#".contains(c) {
                out.push('\\');
            }
            out.push(c);
        }
    }
}

fn flush(plain: &mut String, out: &mut String) {
    if !plain.is_empty() {
        out.extend([&*literal(plain), " "]);
        plain.clear();
    }
}
