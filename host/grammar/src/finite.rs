//! Does every schema have a value that ends? One that requires itself, through references and
//! required properties or items, is followed for ever.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::reference;

/// The first of the references, each with where it stands, that leads to a schema without an end.
pub(crate) fn endless<'a>(
    root: &Value,
    references: impl Iterator<Item = (&'a str, &'a str)> + Clone,
) -> Option<&'a str> {
    let mut search = Search { ends: HashSet::new(), waiting: HashMap::new() };
    let mut queue: Vec<String> = references.clone().map(|(to, _)| to.to_owned()).collect();
    let mut known: HashSet<String> = HashSet::new();
    queue.retain(|target| known.insert(target.clone()));
    // The least fixpoint: nothing ends until it is shown to.
    while let Some(target) = queue.pop() {
        let schema = reference::resolve(root, &target);
        if search.ends.contains(&target) || schema.is_some_and(|of| !search.ends(of, &target)) {
            continue;
        }
        queue.extend(search.waiting.remove(&target).unwrap_or_default());
        search.ends.insert(target);
    }
    references.clone().find(|(to, _)| !search.ends.contains(*to)).map(|(_, at)| at)
}

struct Search {
    /// References of which it is known.
    ends: HashSet<String>,
    /// By reference, those that are looked at again when it is known to end.
    waiting: HashMap<String, Vec<String>>,
}

impl Search {
    /// As far as is known now, for the reference `of`.
    fn ends(&mut self, schema: &Value, of: &str) -> bool {
        let Some(map) = schema.as_object() else { return true };
        if let Some(to) = map.get("$ref").and_then(Value::as_str)
            && !self.ends.contains(to)
        {
            self.waiting.entry(to.into()).or_default().push(of.into());
            return false;
        }
        let list = |keyword: &str| map.get(keyword).and_then(Value::as_array);
        if let Some(all) = list("allOf")
            && !all.iter().all(|one| self.ends(one, of))
        {
            return false;
        }
        for options in ["anyOf", "oneOf"].into_iter().filter_map(list) {
            // All of them are looked at: any may end later.
            if options.iter().filter(|one| self.ends(one, of)).count() == 0 {
                return false;
            }
        }
        if map.contains_key("const") || map.contains_key("enum") {
            return true;
        }
        match types(map).as_slice() {
            ["object"] => self.object_ends(map, of),
            ["array"] => self.array_ends(map, of),
            ["array", "object"] | ["object", "array"] => {
                self.object_ends(map, of) || self.array_ends(map, of)
            }
            _ => true,
        }
    }

    fn object_ends(&mut self, map: &Map<String, Value>, of: &str) -> bool {
        let required: Vec<&str> = map
            .get("required")
            .and_then(Value::as_array)
            .map_or(Vec::new(), |list| list.iter().filter_map(Value::as_str).collect());
        let properties = map.get("properties").and_then(Value::as_object);
        let others = map.get("additionalProperties");
        let named = |name: &str| properties.and_then(|properties| properties.get(name));
        let is_patterned = map.contains_key("patternProperties");
        for name in &required {
            let schema = named(name).or(others.filter(|_| !is_patterned));
            if schema.is_some_and(|schema| !self.ends(schema, of)) {
                return false;
            }
        }
        let min = map.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
        if min <= required.len() as u64 || others.is_none() {
            return true;
        }
        let patterned = map.get("patternProperties").and_then(Value::as_object);
        let optional =
            properties.into_iter().flatten().filter(|(name, _)| !required.contains(&name.as_str()));
        let further = optional.chain(patterned.into_iter().flatten()).map(|(_, schema)| schema);
        further.chain(others).filter(|schema| self.ends(schema, of)).count() > 0
    }

    fn array_ends(&mut self, map: &Map<String, Value>, of: &str) -> bool {
        let min = map.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
        let first = map.get("prefixItems").or(map.get("items")).and_then(Value::as_array);
        let first = first.map_or(&[][..], Vec::as_slice);
        if !first.iter().take(min).all(|item| self.ends(item, of)) {
            return false;
        }
        let is_list = map.get("items").is_some_and(Value::is_array);
        let others = map.get(if is_list { "additionalItems" } else { "items" });
        min <= first.len() || others.is_none_or(|others| self.ends(others, of))
    }
}

/// Its types; none: any.
fn types(map: &Map<String, Value>) -> Vec<&str> {
    match map.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_requires_itself_has_no_end() {
        let item = |schema: Value| json!({"$defs": {"a": schema}, "$ref": "#/$defs/a"});
        let again = json!({"$ref": "#/$defs/a"});
        let object = |next: &Value| {
            item(json!({"type": "object", "properties": {"next": next}, "required": ["next"]}))
        };
        for (schema, is_endless) in [
            (object(&again), true),
            (object(&json!({"anyOf": [again, {"type": "null"}]})), false),
            (object(&json!({"anyOf": [again, again]})), true),
            (object(&json!({"allOf": [again]})), true),
            (object(&json!({"type": "array", "items": again})), false),
            (object(&json!({"type": "array", "items": again, "minItems": 1})), true),
            (object(&json!({"type": ["array", "null"], "items": again, "minItems": 1})), false),
            (object(&json!({"type": "array", "prefixItems": [again], "minItems": 1})), true),
            (item(json!({"type": "object", "properties": {"next": again}})), false),
            (
                item(json!({"type": "object", "minProperties": 1, "additionalProperties": again})),
                true,
            ),
            (
                item(json!({"type": "object", "required": ["a"], "additionalProperties": again})),
                true,
            ),
            (item(again.clone()), true),
        ] {
            let found = endless(&schema, [("#/$defs/a", "/$ref")].into_iter());
            assert_eq!(found.is_some(), is_endless, "{schema}");
        }
    }

    #[test]
    fn a_long_chain_takes_no_long_time() {
        const LEN: usize = 5_000;
        let next = |i: usize| json!({"$ref": format!("#/$defs/d{}", i + 1)});
        let defs: Map<String, Value> = (0..LEN)
            .map(|i| {
                let (next, properties) = (next(i), json!({"next": next(i)}));
                let schema = json!({"type": "object", "required": ["next"],
                    "properties": properties, "title": next});
                (format!("d{i}"), schema)
            })
            .chain([(format!("d{LEN}"), json!({"type": "null"}))])
            .collect();
        let names: Vec<String> = (0..=LEN).map(|i| format!("#/$defs/d{i}")).collect();
        let root = json!({ "$defs": defs });
        let references = names.iter().map(|name| (name.as_str(), ""));
        assert_eq!(endless(&root, references.clone()), None);
        assert_eq!(endless(&root, references.rev()), None);
    }
}
