//! Lists and maps as Python's `repr` writes them: what `{{ value }}` shows of one.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::json::{MAX_NESTING, MAX_VALUES, float_text};

/// The text of a list or map of plain data; `None` for everything else.
pub(super) fn container(value: &Value) -> Result<Option<String>, Error> {
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map) {
        return Ok(None);
    }
    let mut out = String::new();
    repr(value, 0, &mut 0, &mut out)?;
    Ok(Some(out))
}

fn repr(value: &Value, depth: usize, num: &mut usize, out: &mut String) -> Result<(), Error> {
    *num += 1;
    if depth > MAX_NESTING || *num > MAX_VALUES {
        let what = "a printed value is too large or too deep: recursion limit exceeded";
        return Err(Error::new(ErrorKind::InvalidOperation, what));
    }
    match value.kind() {
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => {
            out.push_str(&float_text(f64::try_from(value.clone())?, ["nan", "inf", "-inf"]));
        }
        ValueKind::Seq => {
            let brackets = if value.is_tuple() { ['(', ')'] } else { ['[', ']'] };
            out.push(brackets[0]);
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&item, depth + 1, num, out)?;
            }
            if value.is_tuple() && value.len() == Some(1) {
                out.push(',');
            }
            out.push(brackets[1]);
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&key, depth + 1, num, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, depth + 1, num, out)?;
            }
            out.push('}');
        }
        _ => write!(out, "{value}").expect("a String takes everything"),
    }
    Ok(())
}

fn quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || (0x7f..0xa1).contains(&(c as u32)) => {
                write!(out, "\\x{:02x}", c as u32).expect("a String takes everything");
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}
