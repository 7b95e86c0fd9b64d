//! Regular expressions before they reach the library: what it cannot enforce is said here, with
//! the reason, and nesting is bounded.

use std::iter::Peekable;
use std::str::Chars;

use regex_syntax::ast::parse::ParserBuilder;
use regex_syntax::ast::{self, AssertionKind, Ast, Flag, RepetitionKind, RepetitionRange, Visitor};

/// Deepest nesting of groups.
const NEST_LIMIT: u32 = 64;

/// Largest product of nested counted repetitions: `(a{100}){100}` is 10,000.
const MAX_REPETITIONS: u64 = 10_000;

/// Checks syntax, nesting, size and what the library cannot follow; the error is words about the
/// expression.
pub(crate) fn check_regex(regex: &str) -> Result<(), String> {
    check(regex, regex)
}

/// Checks a pattern of JSON Schema and writes it in Rust's syntax.
pub(crate) fn check_pattern(pattern: &str) -> Result<String, String> {
    let regex = ecma(pattern);
    check(&regex, pattern).map(|()| regex)
}

/// `shown`: the expression as the client wrote it.
fn check(regex: &str, shown: &str) -> Result<(), String> {
    let shown = clip(shown);
    let parsed = ParserBuilder::new().nest_limit(NEST_LIMIT).build().parse(regex);
    let ast = parsed.map_err(|error| match error.kind() {
        ast::ErrorKind::UnsupportedLookAround => {
            format!("the regex `{shown}` uses look-around; write it without")
        }
        ast::ErrorKind::UnsupportedBackreference => {
            format!("the regex `{shown}` uses a back-reference; write it without")
        }
        kind => format!("the regex `{shown}` cannot be read: {kind}; mend it"),
    })?;
    ast::visit(&ast, Checker { product: vec![1] }).map_err(|fault| match fault {
        Fault::Repeats(value) => format!(
            "the regex `{shown}` repeats something `{value}` times; use at most {MAX_REPETITIONS}"
        ),
        Fault::Uses(what) => format!("the regex `{shown}` uses `{what}`; write it without"),
    })
}

/// A pattern of ECMAScript, which JSON Schema's are, with what differs in Rust's syntax spelled
/// out: `.` stops at every line end there, `\s` is not all of Unicode's white space, and classes
/// neither nest nor have operators. (`\d` and `\w` are the library's care.)
fn ecma(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('s') => out.extend(["[", BLANKS, "]"]),
                // A word's border in Rust.
                Some(c @ ('<' | '>')) => out.push(c),
                Some(escaped) => out.extend(['\\', escaped]),
                None => out.push('\\'),
            },
            '.' => out.push_str(r"[^\n\r\x{2028}\x{2029}]"),
            '[' => class(&mut chars, &mut out),
            _ => out.push(c),
        }
    }
    out
}

const BLANKS: &str = r" \t\n\r\x0b\x0c";

/// A class, behind its `[`.
fn class(chars: &mut Peekable<Chars<'_>>, out: &mut String) {
    let is_negated = chars.next_if_eq(&'^').is_some();
    if chars.next_if_eq(&']').is_some() {
        // Empty: nothing, or whatever there is.
        out.push_str(if is_negated { r"[\x{0}-\x{10FFFF}]" } else { r"[^\x{0}-\x{10FFFF}]" });
        return;
    }
    out.push_str(if is_negated { "[^" } else { "[" });
    while let Some(c) = chars.next() {
        if c == ']' {
            return out.push(']');
        }
        let is_one = member(c, chars, out);
        // A `-` between two characters, not at an end nor beside a class, makes a range.
        let mut ahead = chars.clone();
        if is_one && ahead.next() == Some('-') && ahead.next().is_some_and(|c| c != ']') {
            chars.next();
            out.push('-');
            if let Some(c) = chars.next() {
                member(c, chars, out);
            }
        }
    }
}

/// One member of a class that begins with `c`. Is it one character?
fn member(c: char, chars: &mut Peekable<Chars<'_>>, out: &mut String) -> bool {
    match c {
        // Operators and nested classes in Rust; at the ends of a class `-` stands for itself.
        '[' | '&' | '~' | '-' => out.extend(['\\', c]),
        '\\' => match chars.next() {
            Some('s') => {
                out.push_str(BLANKS);
                return false;
            }
            Some(c @ ('<' | '>')) => out.push(c),
            Some(escaped) => {
                out.extend(['\\', escaped]);
                // The whole of `\x{…}`, `\u{…}` and `\p{…}`.
                if matches!(escaped, 'x' | 'u' | 'p' | 'P') && chars.peek() == Some(&'{') {
                    for c in chars.by_ref() {
                        out.push(c);
                        if c == '}' {
                            break;
                        }
                    }
                }
                return !matches!(escaped, 'd' | 'D' | 'w' | 'W' | 'S' | 'p' | 'P');
            }
            None => out.push('\\'),
        },
        _ => out.push(c),
    }
    true
}

/// Why it cannot be followed.
enum Fault {
    /// So many times.
    Repeats(u64),
    /// What only looks at what stands beside it.
    Uses(&'static str),
}

struct Checker {
    /// The product of the counts around where the visitor is.
    product: Vec<u64>,
}

impl Visitor for Checker {
    type Output = ();
    type Err = Fault;

    fn finish(self) -> Result<(), Fault> {
        Ok(())
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Fault> {
        if let Ast::Assertion(assertion) = ast
            && let Some(what) = border(&assertion.kind)
        {
            return Err(Fault::Uses(what));
        }
        if flags(ast).is_some_and(|flags| flags.flag_state(Flag::MultiLine) == Some(true)) {
            return Err(Fault::Uses("(?m)"));
        }
        let Ast::Repetition(repetition) = ast else { return Ok(()) };
        let count = match repetition.op.kind {
            RepetitionKind::Range(RepetitionRange::Exactly(n) | RepetitionRange::AtLeast(n)) => n,
            RepetitionKind::Range(RepetitionRange::Bounded(_, n)) => n,
            _ => 1,
        };
        let outer = self.product.last().copied().unwrap_or(1);
        let product = outer.saturating_mul(u64::from(count.max(1)));
        self.product.push(product);
        if product > MAX_REPETITIONS { Err(Fault::Repeats(product)) } else { Ok(()) }
    }

    fn visit_post(&mut self, ast: &Ast) -> Result<(), Fault> {
        if matches!(ast, Ast::Repetition(_)) {
            self.product.pop();
        }
        Ok(())
    }
}

/// How a border of words is written.
fn border(kind: &AssertionKind) -> Option<&'static str> {
    match kind {
        AssertionKind::StartLine
        | AssertionKind::EndLine
        | AssertionKind::StartText
        | AssertionKind::EndText => None,
        AssertionKind::NotWordBoundary => Some(r"\B"),
        _ => Some(r"\b"),
    }
}

fn flags(ast: &Ast) -> Option<&ast::Flags> {
    match ast {
        Ast::Flags(set) => Some(&set.flags),
        Ast::Group(group) => group.flags(),
        _ => None,
    }
}

fn clip(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{check_pattern, check_regex, ecma};

    #[test]
    fn what_cannot_be_enforced_is_said() {
        for (regex, words) in [
            ("(?=a)b", "look-around"),
            (r"(a)\1", "back-reference"),
            ("(", "cannot be read"),
            ("[", "cannot be read"),
            ("((a{1000}){1000})", "`1000000` times"),
            ("a{100000}", "`100000` times"),
            (r"\bfoo\b", r"`\b`"),
            (r"foo\B", r"`\B`"),
            (r"(a|\<b)", r"`\b`"),
            ("(?m)^a$", "`(?m)`"),
            ("(?im:^a$)", "`(?m)`"),
        ] {
            let error = check_regex(regex).expect_err(regex);
            assert!(error.contains(words), "{regex}: {error}");
        }
        assert!(check_regex(&"(".repeat(10_000)).is_err());
        for regex in ["", "^[a-z]{1,9}$", r"\d{4}-\d{2}", "(a{100}){100}", "a|b|"] {
            check_regex(regex).expect(regex);
        }
    }

    #[test]
    fn classes_of_ecmascript_have_no_operators() {
        for (pattern, want) in [
            ("[^a&&b]", r"[^a\&\&b]"),
            ("[a-z--b]", r"[a-z\--b]"),
            ("[a-z--]", r"[a-z\-\-]"),
            ("[+--]", r"[+-\-]"),
            ("[--a]", r"[\--a]"),
            ("[a-]", r"[a\-]"),
            ("[-a]", r"[\-a]"),
            ("[a~~b]", r"[a\~\~b]"),
            ("[a[b]", r"[a\[b]"),
            ("[[:alpha:]]", r"[\[:alpha:]]"),
            (r"[\]\-a-z]", r"[\]\-a-z]"),
            (r"[\s\d-]", r"[ \t\n\r\x0b\x0c\d\-]"),
            (r"[\x{41}-\u{42}]", r"[\x{41}-\u{42}]"),
            ("[]", r"[^\x{0}-\x{10FFFF}]"),
            ("[^]", r"[\x{0}-\x{10FFFF}]"),
            (r"\<a\>", "<a>"),
            (r"^[.]\s$", r"^[.][ \t\n\r\x0b\x0c]$"),
        ] {
            let written = ecma(pattern);
            assert_eq!(written, want, "{pattern}");
            check_pattern(pattern).expect(pattern);
            assert_eq!(ecma(&written), written, "what is written once stays");
        }
    }
}
