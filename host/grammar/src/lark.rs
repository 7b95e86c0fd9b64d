//! Texts as literals of the library's Lark dialect.

use std::fmt::Write as _;

use crate::GrammarError;
use crate::calls::Calls;
use crate::vocabulary::Vocabulary;

/// A text as a quoted literal. It matches ordinary tokens only.
pub fn literal(text: &str) -> String {
    // The dialect reads its strings as JSON.
    serde_json::Value::from(text).to_string()
}

/// A text in which added tokens of the vocabulary stand for themselves: `<[7]> "rest"`.
pub(crate) fn with_tokens(text: &str, vocabulary: &Vocabulary) -> String {
    let (mut out, mut rest, mut plain) = (String::new(), text, String::new());
    let flush = |plain: &mut String, out: &mut String| {
        if !plain.is_empty() {
            let _ = write!(out, "{} ", literal(plain));
            plain.clear();
        }
    };
    while let Some(next) = rest.chars().next() {
        if let Some((of, id)) = vocabulary.added_at(rest) {
            flush(&mut plain, &mut out);
            let _ = write!(out, "<[{id}]> ");
            rest = &rest[of.len()..];
        } else {
            plain.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    flush(&mut plain, &mut out);
    if out.is_empty() { "\"\"".into() } else { out.trim_end().into() }
}

/// Stands for the calls of a model's own format: `%calls {…}`.
const CALLS: &str = "%calls";

/// A grammar with its `%calls {…}`, of which it has one at most, spelled out.
///
/// # Errors
/// When it is no declaration, or one that cannot be held to.
pub(crate) fn expand_calls(grammar: &str) -> Result<String, GrammarError> {
    let Some(at) = find_outside(grammar, CALLS) else { return Ok(grammar.into()) };
    let rest = &grammar[at + CALLS.len()..];
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Calls>();
    let calls = match values.next() {
        Some(Ok(calls)) => calls,
        Some(Err(error)) => return Err(GrammarError::Invalid(format!("`{CALLS}`: {error}"))),
        None => return Err(GrammarError::Invalid(format!("behind `{CALLS}` goes an object"))),
    };
    let rest = &rest[values.byte_offset()..];
    if find_outside(rest, CALLS).is_some() {
        return Err(GrammarError::Invalid(format!("a grammar has one `{CALLS}` at most")));
    }
    let expansion = calls.expand()?;
    Ok([&grammar[..at], &expansion.expression, rest, "\n", &expansion.rules].concat())
}

/// Names an added token in a grammar: `%token "TEXT"`.
const TOKEN: &str = "%token";

/// A grammar with every `%token "TEXT"` as the library has it, by its id.
///
/// # Errors
/// When the vocabulary has no such added token.
pub(crate) fn resolve_tokens(
    grammar: &str,
    vocabulary: &Vocabulary,
) -> Result<String, GrammarError> {
    let (mut out, mut rest) = (String::with_capacity(grammar.len()), grammar);
    while let Some(at) = find_outside(rest, TOKEN) {
        out.push_str(&rest[..at]);
        rest = &rest[at + TOKEN.len()..];
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        let Some(Ok(text)) = values.next() else {
            let message = format!("behind `{TOKEN}` goes a token's text in quotes");
            return Err(GrammarError::Invalid(message));
        };
        rest = &rest[values.byte_offset()..];
        let Some((_, id)) = vocabulary.added().iter().find(|(of, _)| *of == text) else {
            let message = format!("the model has no added token `{text}`");
            return Err(GrammarError::Invalid(message));
        };
        let _ = write!(out, "<[{id}]>");
    }
    out.push_str(rest);
    Ok(out)
}

/// Where `word` first stands outside of strings and regular expressions.
fn find_outside(grammar: &str, word: &str) -> Option<usize> {
    let (mut quote, mut is_escaped) = (None, false);
    for (at, byte) in grammar.bytes().enumerate() {
        match (quote, byte) {
            _ if is_escaped => is_escaped = false,
            (Some(_), b'\\') => is_escaped = true,
            (Some(q), _) if byte == q || byte == b'\n' => quote = None,
            (None, b'"' | b'/') => quote = Some(byte),
            (None, _) if grammar.as_bytes()[at..].starts_with(word.as_bytes()) => return Some(at),
            _ => {}
        }
    }
    None
}

/// Deeper groups are refused: the library descends into them by recursion.
const MAX_DEPTH: usize = 128;

/// # Errors
/// When brackets outside of literals stand deeper than a grammar needs.
pub(crate) fn check_depth(text: &str) -> Result<(), GrammarError> {
    let (mut depth, mut deepest, mut quote, mut is_escaped) = (0_usize, 0, None, false);
    for byte in text.bytes() {
        match (quote, byte) {
            _ if is_escaped => is_escaped = false,
            (Some(_), b'\\') => is_escaped = true,
            (Some(q), _) if byte == q || byte == b'\n' => quote = None,
            (None, b'"') => quote = Some(byte),
            (_, b'(' | b'[' | b'{') if quote.is_none() => depth += 1,
            (_, b')' | b']' | b'}') if quote.is_none() => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    let (value, limit) = (deepest as u64, MAX_DEPTH as u64);
    if deepest <= MAX_DEPTH {
        return Ok(());
    }
    Err(GrammarError::TooLarge { what: "the depth of brackets in the grammar", value, limit })
}
