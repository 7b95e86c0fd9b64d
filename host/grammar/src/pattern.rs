//! Regular expressions before they reach the library: what it cannot enforce is said here, with
//! the reason, and nesting is bounded.

use regex_syntax::ast::parse::ParserBuilder;
use regex_syntax::ast::{self, Ast, RepetitionKind, RepetitionRange, Visitor};

/// Deepest nesting of groups.
const NEST_LIMIT: u32 = 64;

/// Largest product of nested counted repetitions: `(a{100}){100}` is 10,000.
const MAX_REPETITIONS: u64 = 10_000;

/// Checks syntax, nesting and size; the error is words about the expression.
pub(crate) fn check_regex(regex: &str) -> Result<(), String> {
    let parsed = ParserBuilder::new().nest_limit(NEST_LIMIT).build().parse(regex);
    let ast = parsed.map_err(|error| match error.kind() {
        ast::ErrorKind::UnsupportedLookAround => {
            format!("the regex `{}` uses look-around; write it without", clip(regex))
        }
        ast::ErrorKind::UnsupportedBackreference => {
            format!("the regex `{}` uses a back-reference; write it without", clip(regex))
        }
        kind => format!("the regex `{}` cannot be read: {kind}; mend it", clip(regex)),
    })?;
    ast::visit(&ast, Repetitions { product: vec![1] }).map_err(|value| {
        format!(
            "the regex `{}` repeats something `{value}` times; use at most {MAX_REPETITIONS}",
            clip(regex)
        )
    })
}

/// A pattern of ECMAScript, which JSON Schema's are, with what differs in Rust's syntax spelled
/// out: `.` stops at every line end there, and `\s` is not all of Unicode's white space. (`\d`
/// and `\w` are the library's care.)
pub(crate) fn ecma(pattern: &str) -> String {
    const BLANKS: &str = r" \t\n\r\x0b\x0c";
    let (mut out, mut is_in_class) = (String::with_capacity(pattern.len()), false);
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('s') if is_in_class => out.push_str(BLANKS),
                Some('s') => out.extend(["[", BLANKS, "]"]),
                Some(escaped) => out.extend(['\\', escaped]),
                None => out.push('\\'),
            },
            '.' if !is_in_class => out.push_str(r"[^\n\r\x{2028}\x{2029}]"),
            '[' | ']' => {
                is_in_class = c == '[';
                out.push(c);
            }
            _ => out.push(c),
        }
    }
    out
}

/// The product of the counts around where the visitor is.
struct Repetitions {
    product: Vec<u64>,
}

impl Visitor for Repetitions {
    type Output = ();
    type Err = u64;

    fn finish(self) -> Result<(), u64> {
        Ok(())
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), u64> {
        let Ast::Repetition(repetition) = ast else { return Ok(()) };
        let count = match repetition.op.kind {
            RepetitionKind::Range(RepetitionRange::Exactly(n) | RepetitionRange::AtLeast(n)) => n,
            RepetitionKind::Range(RepetitionRange::Bounded(_, n)) => n,
            _ => 1,
        };
        let outer = self.product.last().copied().unwrap_or(1);
        let product = outer.saturating_mul(u64::from(count.max(1)));
        self.product.push(product);
        if product > MAX_REPETITIONS { Err(product) } else { Ok(()) }
    }

    fn visit_post(&mut self, ast: &Ast) -> Result<(), u64> {
        if matches!(ast, Ast::Repetition(_)) {
            self.product.pop();
        }
        Ok(())
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
    use super::check_regex;

    #[test]
    fn what_cannot_be_enforced_is_said() {
        for (regex, words) in [
            ("(?=a)b", "look-around"),
            (r"(a)\1", "back-reference"),
            ("(", "cannot be read"),
            ("[", "cannot be read"),
            ("((a{1000}){1000})", "`1000000` times"),
            ("a{100000}", "`100000` times"),
        ] {
            let error = check_regex(regex).expect_err(regex);
            assert!(error.contains(words), "{regex}: {error}");
        }
        assert!(check_regex(&"(".repeat(10_000)).is_err());
        for regex in ["", "^[a-z]{1,9}$", r"\d{4}-\d{2}", "(a{100}){100}", "a|b|"] {
            check_regex(regex).expect(regex);
        }
    }
}
