//! Local references: `#` and a JSON pointer (RFC 6901), as a part of a URI in percent-encoding, or
//! `#` and an anchor.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::Value;

/// Longest pointer, in bytes: one is kept for each schema.
pub(crate) const MAX_POINTER: usize = 8192;

/// The schema that a reference to a pointer leads to.
pub(crate) fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(&pointer(root, reference)?)
}

/// The pointer that it means. Names are written in percent-encoding; a name that only exists as it
/// stands is taken, too.
pub(crate) fn pointer(root: &Value, reference: &str) -> Option<String> {
    let fragment = reference.strip_prefix('#')?;
    let decoded = decoded(fragment);
    [decoded, Some(fragment.to_owned())]
        .into_iter()
        .flatten()
        .find(|pointer| root.pointer(pointer).is_some())
}

/// A reference to a pointer, every byte encoded that might mean something else in a URI.
pub(crate) fn encoded(pointer: &str) -> String {
    let mut out = String::from("#");
    for byte in pointer.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~$".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Where each `$anchor` is. Of two with one name, the first.
pub(crate) fn anchors(root: &Value) -> HashMap<&str, String> {
    let mut found = HashMap::new();
    find_anchors(root, &mut String::new(), &mut found);
    found
}

fn find_anchors<'a>(value: &'a Value, at: &mut String, found: &mut HashMap<&'a str, String>) {
    let length = at.len();
    if length > MAX_POINTER {
        return;
    }
    match value {
        Value::Object(map) => {
            if let Some(name) = map.get("$anchor").and_then(Value::as_str) {
                found.entry(name).or_insert_with(|| at.clone());
            }
            for (name, value) in map {
                push(at, name);
                find_anchors(value, at, found);
                at.truncate(length);
            }
        }
        Value::Array(list) => {
            for (i, value) in list.iter().enumerate() {
                push(at, &i.to_string());
                find_anchors(value, at, found);
                at.truncate(length);
            }
        }
        _ => {}
    }
}

/// One part more.
pub(crate) fn push(at: &mut String, part: &str) {
    at.push('/');
    at.push_str(&part.replace('~', "~0").replace('/', "~1"));
}

/// None where it is no UTF-8. A `%` without two digits stands for itself.
fn decoded(text: &str) -> Option<String> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [byte, behind @ ..] = rest {
        rest = behind;
        let digits = behind.first().and_then(digit).zip(behind.get(1).and_then(digit));
        match digits {
            Some((high, low)) if *byte == b'%' => {
                bytes.push(high << 4 | low);
                rest = &behind[2..];
            }
            _ => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_of_any_letters_are_found() {
        let root = json!({"$defs": {"a b": 1, "50%": 2, "Größe": 3, "List<Foo>": 4, "a/b~c": 5,
            "x%20y": 6}});
        for (reference, want) in [
            ("#/$defs/a b", 1),
            ("#/$defs/a%20b", 1),
            ("#/%24defs/a%20b", 1),
            ("#/$defs/50%", 2),
            ("#/$defs/50%25", 2),
            ("#/$defs/Größe", 3),
            ("#/$defs/Gr%C3%B6%c3%9fe", 3),
            ("#/$defs/List<Foo>", 4),
            ("#/$defs/List%3CFoo%3E", 4),
            ("#/$defs/a~1b~0c", 5),
            ("#/$defs/x%20y", 6),
        ] {
            let found = resolve(&root, reference);
            assert_eq!(found, Some(&json!(want)), "{reference}");
            let pointer = pointer(&root, reference).unwrap_or_default();
            let encoded = encoded(&pointer);
            assert!(encoded.is_ascii() && !encoded.contains(' '), "{encoded}");
            assert_eq!(resolve(&root, &encoded), found, "{encoded}");
        }
        assert_eq!(resolve(&root, "#/$defs/%FF"), None);
    }
}
