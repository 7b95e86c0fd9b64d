//! A request body as a bag of fields, taken one by one.
//!
//! `null` is the same as absent, unknown fields stay in the bag and are ignored, and every error
//! names the path of the field (`messages[0].content`).

use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::ApiError;

/// The fields of a JSON object.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// Reads a body. A body that is no JSON object is a 400 with `param` null.
    pub fn parse(body: &[u8]) -> Result<Fields, ApiError> {
        let whole = |message: String| ApiError::Invalid { message, param: None };
        if body.is_empty() {
            return Err(whole("the body is empty; send a JSON object".into()));
        }
        std::str::from_utf8(body)
            .map_err(|e| whole(format!("the body is not UTF-8 (byte {})", e.valid_up_to())))?;
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Fields(map)),
            Ok(_) => Err(whole("the body is not a JSON object; send one".into())),
            Err(e) => Err(whole(format!("the body is not valid JSON: {e}"))),
        }
    }

    /// Takes a field out; `null` is none.
    pub fn value(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name).filter(|v| !v.is_null())
    }

    /// Takes a field of a type.
    pub fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        self.value(name).map(|value| decode(name, value)).transpose()
    }

    /// Takes a flag.
    pub fn flag(&mut self, name: &str, default: bool) -> Result<bool, ApiError> {
        Ok(self.take::<bool>(name)?.unwrap_or(default))
    }

    /// Is a field that was not taken yet `true`?
    pub fn is_true(&self, name: &str) -> bool {
        self.0.get(name) == Some(&Value::Bool(true))
    }

    /// Takes a number in a range (inclusive), as the engine's `f32`.
    pub fn number(
        &mut self,
        name: &str,
        range: RangeInclusive<f64>,
        default: f32,
    ) -> Result<f32, ApiError> {
        let Some(value) = self.take::<f64>(name)? else { return Ok(default) };
        if !range.contains(&value) {
            let (low, high) = (range.start(), range.end());
            return Err(ApiError::invalid(
                name,
                format!("`{name}` is `{value}`; it must be in [{low}, {high}]"),
            ));
        }
        Ok(value as f32)
    }

    /// Takes an integer in a range (inclusive).
    pub fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take::<i64>(name)? else { return Ok(None) };
        if !range.contains(&value) {
            let (low, high) = (range.start(), range.end());
            return Err(ApiError::invalid(
                name,
                format!("`{name}` is `{value}`; it must be in [{low}, {high}]"),
            ));
        }
        Ok(Some(value))
    }

    /// Refuses fields that are known elsewhere and not supported here, each with a hint. A value
    /// that asks for nothing (`null`, `false`, `0`, `""`, `[]`, `{}`) passes.
    pub fn refuse(&mut self, known: &[(&str, &str)]) -> Result<(), ApiError> {
        for &(name, hint) in known {
            if self.value(name).is_some_and(|value| asks_for_something(&value)) {
                return Err(ApiError::unsupported(name, hint));
            }
        }
        Ok(())
    }
}

/// Is a value more than a written-out "no"?
fn asks_for_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(b) => *b,
        Value::Number(n) => n.as_f64() != Some(0.0),
        Value::String(s) => !s.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// Decodes a value found at `path`; errors name the exact place. Numbers and lists of numbers may
/// write whole ones as `2.0`.
pub(crate) fn decode<T: DeserializeOwned>(path: &str, mut value: Value) -> Result<T, ApiError> {
    match &mut value {
        Value::Number(_) => make_whole(&mut value),
        Value::Array(list) => list.iter_mut().for_each(make_whole),
        _ => {}
    }
    serde_path_to_error::deserialize(value).map_err(|e| {
        let inner = e.path().to_string();
        let param = match inner.as_str() {
            "." | "?" => path.to_owned(),
            s if s.starts_with('[') => format!("{path}{s}"),
            s => format!("{path}.{s}"),
        };
        let message = format!("`{param}`: {}", in_words(&e.inner().to_string()));
        ApiError::invalid(param, message)
    })
}

/// A whole number that is written as a fraction, up to where these are exact.
fn make_whole(value: &mut Value) {
    const LIMIT: f64 = 9_007_199_254_740_992.0;
    if value.is_f64()
        && let Some(number) = value.as_f64()
        && number.fract() == 0.0
        && number.abs() <= LIMIT
    {
        *value = (number as i64).into();
    }
}

/// What a decoder says, without the names of our types.
fn in_words(message: &str) -> String {
    if message.contains("untagged enum") {
        return "it has none of the forms that this field takes".into();
    }
    let Some((what, expected)) = message.split_once("expected ") else { return message.into() };
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a sequence" => "a list",
        "a map" => "an object",
        _ if expected.starts_with("struct ") => "an object",
        other => other,
    };
    let mut what = what.to_owned();
    // Only what the decoder says, not what it quotes.
    for (of, word) in [("floating point", "number"), ("sequence", "list"), ("map", "object")] {
        if let Some(rest) = what.strip_prefix(&format!("invalid type: {of}")) {
            what = format!("invalid type: {word}{rest}");
        }
    }
    format!("{what}expected {expected}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn fields(text: &str) -> Fields {
        Fields::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn null_is_absent_and_unknown_is_ignored() {
        let mut f = fields(r#"{"n": null, "other": {"a": 1}}"#);
        assert_eq!(f.take::<u32>("n").unwrap(), None);
        assert_eq!(f.take::<u32>("m").unwrap(), None);
    }

    #[test]
    fn errors_name_the_path() {
        let mut f = fields(r#"{"stop": [["x"]], "n": 1.5, "t": 1e39}"#);
        let check = |e: ApiError, param: &str| assert_eq!(e.body()["error"]["param"], param);
        check(f.take::<Vec<String>>("stop").unwrap_err(), "stop[0]");
        check(f.take::<u32>("n").unwrap_err(), "n");
        check(f.number("t", 0.0..=2.0, 1.0).unwrap_err(), "t");
    }

    #[test]
    fn whole_numbers_may_be_written_as_fractions() {
        let mut f = fields(r#"{"a": 2.0, "b": [1.0, 2], "c": -3.0, "d": 0.5, "e": 1e300}"#);
        assert_eq!(f.take::<u32>("a").unwrap(), Some(2));
        assert_eq!(f.take::<Vec<u32>>("b").unwrap(), Some(vec![1, 2]));
        assert_eq!(f.integer("c", -5..=5).unwrap(), Some(-3));
        assert_eq!(f.take::<f64>("d").unwrap(), Some(0.5));
        assert!(f.take::<u32>("e").is_err());
        for (body, message) in [
            (
                r#"{"n": 1.5}"#,
                "`n`: invalid type: number `1.5`, expected a whole number of 0 or more",
            ),
            (
                r#"{"n": "1"}"#,
                r#"`n`: invalid type: string "1", expected a whole number of 0 or more"#,
            ),
            (
                r#"{"n": "my map"}"#,
                r#"`n`: invalid type: string "my map", expected a whole number of 0 or more"#,
            ),
            (r#"{"n": [1]}"#, "`n`: invalid type: list, expected a whole number of 0 or more"),
            (r#"{"n": {}}"#, "`n`: invalid type: object, expected a whole number of 0 or more"),
        ] {
            let error = fields(body).take::<u32>("n").unwrap_err();
            assert_eq!(error.body()["error"]["message"], message);
        }
    }

    #[test]
    fn bodies_that_are_no_object() {
        for body in [&b""[..], b"not json", b"[1]", b"\xff{}", b"{\"a\": 1e999}"] {
            let error = Fields::parse(body).unwrap_err();
            assert_eq!(error.status().as_u16(), 400);
            assert!(error.body()["error"]["param"].is_null());
        }
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(Fields::parse(deep.as_bytes()).is_err());
    }

    #[test]
    fn neutral_values_pass() {
        let neutral = r#"{"a": null, "b": false, "c": 0, "d": "", "e": [], "f": {}}"#;
        let names = [("a", ""), ("b", ""), ("c", ""), ("d", ""), ("e", ""), ("f", "")];
        fields(neutral).refuse(&names).unwrap();
        assert!(fields(r#"{"a": [""]}"#).refuse(&names).is_err());
    }
}
