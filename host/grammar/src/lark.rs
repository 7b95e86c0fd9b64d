//! Texts as literals of the library's Lark dialect.

use std::fmt::Write as _;

use serde_json::Value;

use crate::GrammarError;
use crate::calls::Calls;
use crate::schema::{Budget, with_options};
use crate::vocabulary::Vocabulary;

/// A text as a quoted literal. It matches ordinary tokens only.
pub fn literal(text: &str) -> String {
    // The dialect reads its strings as JSON.
    Value::from(text).to_string()
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

/// In front of a JSON schema: `%json {…}`.
const JSON: &str = "%json";

/// A grammar in which every schema behind `%json` is checked as one that stands alone, and has its
/// options. Nowhere else is `%json` left in it, however the library may read it.
///
/// # Errors
/// What is refused, with the line.
pub(crate) fn check_schemas(grammar: &str, budget: &mut Budget) -> Result<String, GrammarError> {
    let (mut out, mut at) = (String::with_capacity(grammar.len()), 0);
    while let Some(next) = grammar[at..].chars().next() {
        let rest = &grammar[at..];
        if let Some((piece, len)) = opaque(rest) {
            match piece {
                Piece::Text => out.push_str(&rest[..len].replace(JSON, r"\u0025json")),
                Piece::Regex => out.push_str(&rest[..len].replace(JSON, r"\x25json")),
                Piece::Comment => {}
                Piece::Token if rest[..len].contains(JSON) => {
                    let message = format!("the model has no added token `{}`", &rest[1..len - 1]);
                    return Err(GrammarError::Invalid(message));
                }
                Piece::Token => out.push_str(&rest[..len]),
            }
            at += len;
        } else if let Some(rest) = rest.strip_prefix(JSON) {
            let line = grammar[..at].matches('\n').count() + 1;
            let place = || format!("the schema behind `{JSON}` in line {line}");
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
            let schema = match values.next() {
                Some(Ok(schema)) => schema,
                Some(Err(error)) => {
                    return Err(GrammarError::Invalid(error.to_string()).within(place()));
                }
                None => {
                    return Err(GrammarError::Invalid("is missing".into()).within(place()));
                }
            };
            let checked = budget.check_embedded(&schema).map_err(|error| error.within(place()))?;
            let _ = write!(out, "{JSON} {} ", with_options(checked));
            at = grammar.len() - rest.len() + values.byte_offset();
        } else {
            out.push(next);
            at += next.len_utf8();
        }
    }
    Ok(out)
}

/// Where `word` first stands outside of strings, regular expressions, comments and tokens.
fn find_outside(grammar: &str, word: &str) -> Option<usize> {
    let mut at = 0;
    while let Some(next) = grammar[at..].chars().next() {
        let rest = &grammar[at..];
        if let Some((_, len)) = opaque(rest) {
            at += len;
        } else if rest.starts_with(word) {
            return Some(at);
        } else {
            at += next.len_utf8();
        }
    }
    None
}

/// What in a grammar is not its structure.
enum Piece {
    Text,
    Regex,
    Comment,
    Token,
}

/// The one that a text begins with, and its length. One that is not closed ends with the line, or
/// with the text.
fn opaque(text: &str) -> Option<(Piece, usize)> {
    let line = text.find('\n').unwrap_or(text.len());
    match text.as_bytes() {
        [b'#', ..] | [b'/', b'/', ..] => Some((Piece::Comment, line)),
        [b'"', ..] => Some((Piece::Text, closed(&text[..line], b'"'))),
        // Over lines, as the library reads it.
        [b'/', ..] => Some((Piece::Regex, closed(text, b'/'))),
        [b'<', ..] => {
            let is_border = |c: char| c == '<' || c == '>' || c.is_whitespace();
            let end = 1 + text[1..].find(is_border)?;
            (end > 1 && text[end..].starts_with('>')).then_some((Piece::Token, end + 1))
        }
        _ => None,
    }
}

/// The length up to the next `quote` that is not escaped, or all.
fn closed(text: &str, quote: u8) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            _ if byte == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_found_where_the_library_finds_them() {
        for (grammar, is_refused) in [
            (r#"start: %json {"not": {}}"#, true),
            ("start: \"x\" # \"\n %json {\"not\": {}}", true),
            ("start: \"x\" // \"\n %json {\"not\": {}}", true),
            ("start: <\"> %json {\"not\": {}}", true),
            ("start: </> %json {\"not\": {}}", true),
            ("start: <a> \"<\" %json{\"not\":{}} \">\"", true),
            ("start: A %lark { start: %json {\"not\": {}} }\nA: /\\//", true),
            ("start: /a\nb/ %json {\"not\": {}}", true),
            (r#"start: "%json {\"not\": {}}""#, false),
            (r#"start: /%json {"not": {}}/"#, false),
            ("start: \"x\" // %json {\"not\": {}}\n", false),
            (r#"start: %json {"type": "null"}"#, false),
        ] {
            let checked = check_schemas(grammar, &mut Budget::default());
            assert_eq!(checked.is_err(), is_refused, "{grammar}: {checked:?}");
            // What is let through has it as a directive only.
            for (at, _) in checked.iter().flat_map(|text| text.match_indices(JSON)) {
                let rest = &checked.as_ref().map_or("", |text| &text[at..]);
                assert!(rest.starts_with("%json {\""), "{checked:?}");
            }
        }
        let two = "start: \"a\"\n  %json {\"properties\": {\"p\": {\"uniqueItems\": true}}}";
        let error = check_schemas(two, &mut Budget::default()).expect_err("a refusal");
        let words = error.to_string();
        assert!(words.contains("line 2") && words.contains("`/properties/p`"), "{words}");
    }
}
