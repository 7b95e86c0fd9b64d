//! JSON as Python's `json.dumps` writes it, from template values.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Deepest nesting. Requests cannot nest deeper than 128; a template's own loops could.
pub(super) const MAX_NESTING: usize = 256;
/// Widest indent of one level.
pub(super) const MAX_INDENT: usize = 16;

/// The arguments of `json.dumps`.
#[derive(Default)]
pub(super) struct Dump {
    pub(super) ensure_ascii: bool,
    pub(super) sort_keys: bool,
    pub(super) indent: Option<String>,
    /// Between items, between key and value.
    pub(super) separators: Option<[String; 2]>,
}

/// A value of a request for use in a template.
pub(super) fn to_jinja(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(b) => Value::from(*b),
        serde_json::Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Value::from(n),
            (None, Some(n)) => Value::from(n),
            (None, None) => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(to_jinja).collect(),
        serde_json::Value::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), to_jinja(value))))
        }
    }
}

/// Most values in one text: about 0.1 s of writing. A template can share a list so often that its
/// text would be endless.
pub(super) const MAX_VALUES: usize = 500_000;

/// Writes `value`. `charge` is called with the bytes of each text.
pub(super) fn dumps(
    value: &Value,
    style: &Dump,
    charge: &dyn Fn(usize) -> Result<(), Error>,
) -> Result<String, Error> {
    let mut writer = Writer { out: String::new(), style, depth: 0, num_values: 0 };
    writer.value(value)?;
    charge(writer.out.len())?;
    Ok(writer.out)
}

struct Writer<'w> {
    out: String,
    style: &'w Dump,
    depth: usize,
    num_values: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        self.num_values += 1;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                self.open()?;
                let items = value.try_iter()?.map(|item| (None, item));
                self.items(['[', ']'], items)?;
            }
            ValueKind::Map => {
                self.open()?;
                let mut pairs = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    pairs.push((Some(key_text(&key)?), item));
                }
                if self.style.sort_keys {
                    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.items(['{', '}'], pairs.into_iter())?;
            }
            kind => {
                let what = format!("a value of kind {kind} is not JSON");
                return Err(Error::new(ErrorKind::InvalidOperation, what));
            }
        }
        Ok(())
    }

    fn open(&mut self) -> Result<(), Error> {
        self.depth += 1;
        if self.depth <= MAX_NESTING && self.num_values <= MAX_VALUES {
            return Ok(());
        }
        let what = format!(
            "JSON is deeper than {MAX_NESTING} or has more than {MAX_VALUES} values: \
             recursion limit exceeded"
        );
        Err(Error::new(ErrorKind::InvalidOperation, what))
    }

    fn items(
        &mut self,
        brackets: [char; 2],
        items: impl Iterator<Item = (Option<String>, Value)>,
    ) -> Result<(), Error> {
        let (between, after_key) = match (&self.style.separators, &self.style.indent) {
            (Some([between, after_key]), _) => (between.as_str(), after_key.as_str()),
            (None, Some(_)) => (",", ": "),
            (None, None) => (", ", ": "),
        };
        self.out.push(brackets[0]);
        let mut first = true;
        for (key, item) in items {
            if !first {
                self.out.push_str(between);
            }
            first = false;
            self.line(self.depth);
            if let Some(key) = key {
                self.text(&key);
                self.out.push_str(after_key);
            }
            self.value(&item)?;
        }
        self.depth -= 1;
        if !first {
            self.line(self.depth);
        }
        self.out.push(brackets[1]);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            (0..depth).for_each(|_| self.out.push_str(indent));
        }
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            write!(self.out, "{value}").expect("a String takes everything");
        } else {
            let float = f64::try_from(value.clone())?;
            self.out.push_str(&float_text(float, ["NaN", "Infinity", "-Infinity"]));
        }
        Ok(())
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 || self.style.ensure_ascii && !c.is_ascii() => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(self.out, "\\u{unit:04x}").expect("a String takes everything");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_string(),
        ValueKind::None => "null".into(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.into(),
        ValueKind::Number => key.to_string(),
        kind => {
            let what = format!("a key of kind {kind} is not JSON");
            return Err(Error::new(ErrorKind::InvalidOperation, what));
        }
    })
}

/// Python's `repr` of a float: the shortest digits, an exponent from 1e16 on and below 1e-4.
pub(super) fn float_text(value: f64, odd: [&str; 3]) -> String {
    if value.is_nan() {
        return odd[0].into();
    }
    if value.is_infinite() {
        return odd[if value > 0.0 { 1 } else { 2 }].into();
    }
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').expect("`{:e}` writes an exponent");
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = value.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn dump(json: &str, style: Dump) -> String {
        let value = to_jinja(&serde_json::from_str(json).unwrap());
        dumps(&value, &style, &|_| Ok(())).unwrap()
    }

    #[test]
    fn writes_what_python_writes() {
        let json =
            r#"{"b": [1, 2.5, -0.0, 1e22, 1e-7, true, null], "a": {}, "é<&'\"": "\u0001 🌍"}"#;
        assert_eq!(
            dump(json, Dump::default()),
            "{\"b\": [1, 2.5, -0.0, 1e+22, 1e-07, true, null], \"a\": {}, \
             \"é<&'\\\"\": \"\\u0001 🌍\"}"
        );
        let ascii = Dump { ensure_ascii: true, sort_keys: true, ..Dump::default() };
        assert!(dump(json, ascii).starts_with("{\"a\": {}, \"b\""));
        let ascii = Dump { ensure_ascii: true, ..Dump::default() };
        assert_eq!(dump(r#""é🌍""#, ascii), r#""\u00e9\ud83c\udf0d""#);
        let pretty = Dump { indent: Some("  ".into()), ..Dump::default() };
        assert_eq!(
            dump(r#"{"a":[1,{}],"b":[]}"#, pretty),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"
        );
        let tight = Dump { separators: Some([",".into(), ":".into()]), ..Dump::default() };
        assert_eq!(dump(r#"{"a":[1,2]}"#, tight), r#"{"a":[1,2]}"#);
    }
}
