//! How large a schema becomes when its options are spelled out. The library merges what an `allOf`
//! lists, and what stands beside options or a reference, into every single option, in time and
//! memory that nothing limits; here that is counted first.

use serde_json::{Map, Value};

use crate::GrammarError;
use crate::reference::resolve;

/// Most parts; a compile of so many takes about a second.
const MAX_PARTS: u64 = 100_000;
/// References followed one after the other while merging. More count as too many parts.
const MAX_HOPS: u32 = 16;

/// What a comparison of two patterns of one object costs, in parts: the library makes sure that no
/// name matches both.
const PARTS_PER_PAIR: u64 = 100;

/// Adds the parts of a schema, and of those at the pointers `elsewhere`, to a sum.
///
/// # Errors
/// [`GrammarError::TooLarge`] when it becomes too large.
pub(crate) fn check(
    schema: &Value,
    elsewhere: &[String],
    sum: &mut u64,
) -> Result<(), GrammarError> {
    let mut scale = Scale { root: schema, num_visits: 0 };
    let others = elsewhere.iter().filter_map(|pointer| schema.pointer(pointer));
    let parts = [schema].into_iter().chain(others).map(|one| scale.alone(one, 0));
    let parts = parts.fold(0, u64::saturating_add);
    *sum = sum.saturating_add(parts.max(scale.num_visits));
    if *sum <= MAX_PARTS {
        return Ok(());
    }
    let what = "the number of parts of the schemas with `allOf` and `anyOf` spelled out";
    Err(GrammarError::TooLarge { what, value: *sum, limit: MAX_PARTS })
}

struct Scale<'a> {
    root: &'a Value,
    num_visits: u64,
}

/// A schema that is merged with others.
#[derive(Clone, Copy)]
struct Weight {
    options: u64,
    /// Parts of the largest option.
    parts: u64,
}

const ONE: Weight = Weight { options: 1, parts: 1 };
const TOO_MUCH: Weight = Weight { options: 1, parts: MAX_PARTS + 1 };

impl Scale<'_> {
    /// The parts of a schema that is merged with no other.
    fn alone(&mut self, schema: &Value, hops: u32) -> u64 {
        let only = schema.as_object().and_then(only_options);
        if let Some(options) = only {
            self.num_visits += 1;
            return options.iter().fold(1, |sum, one| self.alone(one, hops).saturating_add(sum));
        }
        let is_reference = |map: &Map<String, Value>| map.contains_key("$ref") && map.len() == 1;
        if schema.as_object().is_some_and(is_reference) {
            return 1;
        }
        let Weight { options, parts } = self.merged(schema, hops);
        options.saturating_mul(parts)
    }

    fn merged(&mut self, schema: &Value, hops: u32) -> Weight {
        self.num_visits += 1;
        if self.num_visits > MAX_PARTS || hops > MAX_HOPS {
            return TOO_MUCH;
        }
        let Some(map) = schema.as_object() else { return ONE };
        let mut sum = ONE;
        for (keyword, value) in map {
            match keyword.as_str() {
                "anyOf" | "oneOf" => {
                    let (mut options, mut parts) = (0_u64, 1_u64);
                    for one in value.as_array().into_iter().flatten() {
                        let weight = self.merged(one, hops);
                        options = options.saturating_add(weight.options);
                        parts = parts.max(weight.parts);
                    }
                    sum = sum.and(Weight { options: options.max(1), parts });
                }
                "allOf" => {
                    for one in value.as_array().into_iter().flatten() {
                        sum = sum.and(self.merged(one, hops));
                    }
                }
                "$ref" => {
                    let target = value.as_str().and_then(|text| resolve(self.root, text));
                    sum = sum.and(target.map_or(ONE, |target| self.merged(target, hops + 1)));
                }
                "enum" => sum.parts += value.as_array().map_or(0, Vec::len) as u64,
                "properties" | "patternProperties" | "$defs" | "definitions" => {
                    for one in value.as_object().into_iter().flat_map(Map::values) {
                        sum.parts = sum.parts.saturating_add(self.alone(one, hops));
                    }
                }
                "prefixItems" | "items" | "additionalItems" if value.is_array() => {
                    for one in value.as_array().into_iter().flatten() {
                        sum.parts = sum.parts.saturating_add(self.alone(one, hops));
                    }
                }
                "items" | "additionalItems" | "additionalProperties" => {
                    sum.parts = sum.parts.saturating_add(self.alone(value, hops));
                }
                _ => {}
            }
        }
        // Each name is tried with each pattern.
        let len = |keyword| map.get(keyword).and_then(Value::as_object).map_or(0, Map::len) as u64;
        let num_patterns = len("patternProperties");
        let num_tries = len("properties").saturating_mul(num_patterns);
        let num_pairs = num_patterns.saturating_mul(num_patterns.saturating_sub(1)) / 2;
        sum.parts = sum.parts.saturating_add(num_tries);
        sum.parts = sum.parts.saturating_add(num_pairs.saturating_mul(PARTS_PER_PAIR));
        sum
    }
}

impl Weight {
    fn and(self, other: Weight) -> Weight {
        Weight {
            options: self.options.saturating_mul(other.options),
            parts: self.parts.saturating_add(other.parts),
        }
    }
}

/// The options of a schema that is nothing else.
fn only_options(map: &Map<String, Value>) -> Option<&Vec<Value>> {
    let mut keywords = map.iter().filter(|(name, _)| {
        !matches!(name.as_str(), "title" | "description" | "default" | "examples" | "$comment")
    });
    match (keywords.next(), keywords.next()) {
        (Some((name, Value::Array(options))), None) if name == "anyOf" || name == "oneOf" => {
            Some(options)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn parts(schema: &Value) -> u64 {
        Scale { root: schema, num_visits: 0 }.alone(schema, 0)
    }

    fn fits(schema: &Value) -> bool {
        check(schema, &[], &mut 0).is_ok()
    }

    #[test]
    fn options_multiply_where_they_are_merged() {
        let five = json!({"anyOf": vec![json!({"type": "object"}); 5]});
        assert_eq!(parts(&five), 6);
        let (two, both) = (json!([five, five]), json!({"allOf": [five, five]}));
        assert_eq!(parts(&json!({"anyOf": two})), 13);
        assert_eq!(parts(&both), 25 * 5);
        let twelve = json!({"allOf": vec![five; 12]});
        assert!(fits(&both) && !fits(&twelve));
        // A reference is merged where something stands beside it.
        let doubled: Map<String, Value> = (0..40)
            .map(|i| {
                let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
                (format!("d{i}"), json!({"allOf": [next, next]}))
            })
            .chain([("d40".to_owned(), json!({"type": "object"}))])
            .collect();
        assert!(!fits(&json!({"$ref": "#/$defs/d0", "$defs": doubled})));
        let list = json!({"$defs": {"n": {"type": "object", "properties": {
            "next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"});
        assert!(fits(&list));
        let patterns = |n: usize| -> Map<String, Value> {
            (0..n).map(|i| (format!("^{i}x"), json!({"type": "integer"}))).collect()
        };
        assert!(fits(&json!({"patternProperties": patterns(25)})));
        assert!(!fits(&json!({"patternProperties": patterns(60)})));
        // All schemas of one grammar count.
        let mut sum = 0;
        let one = json!({"patternProperties": patterns(25)});
        assert_eq!((0..9).filter(|_| check(&one, &[], &mut sum).is_ok()).count(), 3);
    }
}
