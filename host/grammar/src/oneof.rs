//! Do the options of a `oneOf` exclude each other? Then it is an `anyOf`, which can be enforced.

use serde_json::{Map, Value};

use crate::reference::resolve;

/// References followed one after the other; longer chains count as unknown.
const MAX_HOPS: usize = 8;

/// Says yes only where it is proven: by type, by different constants, or by a property that both
/// require and whose values exclude each other.
///
/// # Errors
/// The indices of two options for which it is not.
pub(crate) fn disjoint(root: &Value, options: &[Value]) -> Result<(), (usize, usize)> {
    for (i, a) in options.iter().enumerate() {
        for (j, b) in options.iter().enumerate().skip(i + 1) {
            if !excludes(root, a, b, 0) {
                return Err((i, j));
            }
        }
    }
    Ok(())
}

fn excludes(root: &Value, a: &Value, b: &Value, depth: usize) -> bool {
    if a == &Value::Bool(false) || b == &Value::Bool(false) {
        return true;
    }
    let (Some(a), Some(b)) = (follow(root, a), follow(root, b)) else { return false };
    if let (Some(a), Some(b)) = (types(a), types(b))
        && !a.iter().any(|a| b.contains(a))
    {
        return true;
    }
    if let (Some(a), Some(b)) = (values(a), values(b))
        && !a.iter().any(|a| b.iter().any(|b| may_equal(a, b)))
    {
        return true;
    }
    // Both are objects, and a property tells them apart.
    let is_object = |schema| types(schema).is_some_and(|types| types == ["object"]);
    is_object(a)
        && is_object(b)
        && depth < MAX_HOPS
        && required(a).filter(|name| required(b).any(|other| other == *name)).any(|name| {
            match (property(a, name), property(b, name)) {
                (Some(a), Some(b)) => excludes(root, a, b, depth + 1),
                _ => false,
            }
        })
}

/// Behind references that stand alone.
fn follow<'a>(root: &'a Value, schema: &'a Value) -> Option<&'a Map<String, Value>> {
    let mut schema = schema.as_object()?;
    for _ in 0..MAX_HOPS {
        let Some(reference) = schema.get("$ref").and_then(Value::as_str) else {
            return Some(schema);
        };
        schema = resolve(root, reference)?.as_object()?;
    }
    None
}

/// Types by the names that differ for a validator: an integer is a number.
fn types(schema: &Map<String, Value>) -> Option<Vec<&str>> {
    let name = |value: &'_ Value| match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let general = |name| if name == "integer" { "number" } else { name };
    match schema.get("type") {
        Some(Value::String(one)) => Some(vec![general(one.as_str())]),
        Some(Value::Array(several)) => {
            Some(several.iter().filter_map(Value::as_str).map(general).collect())
        }
        _ => values(schema).map(|values| values.into_iter().map(name).collect()),
    }
}

fn values(schema: &Map<String, Value>) -> Option<Vec<&Value>> {
    if let Some(value) = schema.get("const") {
        return Some(vec![value]);
    }
    Some(schema.get("enum")?.as_array()?.iter().collect())
}

/// 1 is 1.0.
fn may_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::String(_) | Value::Bool(_) | Value::Null, _) => a == b,
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => true,
        _ => false,
    }
}

fn required(schema: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let list = schema.get("required").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

fn property<'a>(schema: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    schema.get("properties")?.get(name)
}
