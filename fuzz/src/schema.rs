//! The schema typer and the JSON that is read in place: total for any text, and what they call
//! JSON is JSON.

use serde_json::Value;
use tenon_guest::json::{Unescape, Unescaped, is_value};
use tenon_guest::schema::{Schema, Types, literal};

/// Parts of schemas; a byte beyond ASCII stands for one.
const PIECES: &[&str] = &[
    "[{\"function\": {\"name\": \"f\", \"parameters\": ",
    "{\"name\": \"f\", \"parameters\": {",
    "\"type\": ",
    "\"object\"",
    "\"array\"",
    "\"string\"",
    "\"integer\"",
    "\"number\"",
    "\"boolean\"",
    "\"null\"",
    "[\"string\", \"null\"]",
    "\"properties\": {\"a\": ",
    "\"items\": ",
    "\"anyOf\": [",
    "\"oneOf\": [",
    "\"allOf\": [",
    "\"enum\": [",
    "\"const\": ",
    "\"$ref\": \"#\"",
    "\"$ref\": \"#/properties/a\"",
    "\"nullable\": true",
    "\"additionalProperties\": ",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "true",
    "null",
    "1.0",
    "-0",
    "1e999",
    "\\ud83d",
    "\\ude00",
    "é",
    "\u{0}",
];

/// A schema, then a zero byte, then a value.
pub(crate) fn check(data: &[u8]) {
    let mut texts = data.splitn(2, |byte| *byte == 0).map(text_of);
    let (tools, value) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
    let schema = Schema::of_tool(&tools, "f");
    let a = schema.property("a");
    for types in [schema, a, a.items(), a.property("b"), schema.items()].map(Schema::types) {
        literal_is_json(&value, types);
    }
    literal_is_json(&value, Types::JSON);
    json_is_json(&value);
    unescapes_like_others(&value);
}

fn text_of(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        match byte {
            0..128 => text.push(char::from(*byte)),
            _ => text.push_str(PIECES[usize::from(byte - 128) % PIECES.len()]),
        }
    }
    text
}

fn literal_is_json(text: &str, types: Types) {
    if let Some(found) = literal(text, types, &["null"]) {
        assert!(is_value(found), "`{text}` is `{found}` as {types:?}");
    }
}

/// The strict checker agrees with a parser of the same grammar.
fn json_is_json(text: &str) {
    // The other parser nests less deeply.
    let depth = text.bytes().filter(|byte| matches!(byte, b'[' | b'{')).count();
    if depth < 100 {
        let is_json = serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok();
        assert_eq!(is_value(text), is_json, "{text:?}");
    }
}

/// A string literal is decoded as others decode it, for any cut.
fn unescapes_like_others(text: &str) {
    let decode = |pieces: &mut dyn Iterator<Item = &str>| {
        let (mut unescape, mut out) = (Unescape::default(), String::new());
        for piece in pieces {
            match unescape.feed(piece, &mut out) {
                Unescaped::More => {}
                Unescaped::Closed(_) => return Some(out),
                Unescaped::Bad(_) => return None,
            }
        }
        None
    };
    let whole = decode(&mut std::iter::once(text));
    let cut = decode(&mut text.split_inclusive(|_: char| true));
    assert_eq!(whole, cut, "{text:?}");
    if let Ok(Value::String(other)) = serde_json::from_str(&format!("\"{text}\"")) {
        let ours = decode(&mut std::iter::once(format!("{text}\"").as_str()));
        assert_eq!(ours, Some(other), "{text:?}");
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let schema = r#"[{"function": {"name": "f", "parameters": {"type": "object", "properties":
        {"a": {"type": ["integer", "null"], "items": {"type": "boolean"}}}}}}]"#;
    let values = ["null", "3.0", "True", "{\"k\": [1]}", "a\\u00e9\\n\" x", "-0.5e3", "[1, 2"];
    values.iter().map(|value| [schema.as_bytes(), value.as_bytes()].join(&0)).collect()
}
