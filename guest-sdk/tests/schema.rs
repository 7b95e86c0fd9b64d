//! What a schema admits, and what a text is under it (policy U12).

use serde_json::{Value, json};
use tenon_guest::document::Document;
use tenon_guest::schema::{Schema, Types, literal};

fn tools(parameters: Value) -> String {
    json!([
        {"type": "function", "function": {"name": "other", "parameters": {"properties": {}}}},
        {"type": "function", "function": {"name": "f", "parameters": parameters}},
    ])
    .to_string()
}

/// The types of the property `x`.
fn types(property: Value) -> Types {
    let tools = tools(json!({
        "type": "object",
        "properties": {"w": {"type": "null"}, "x": property},
        "$defs": {"whole": {"type": "integer"}, "a/b": {"type": ["boolean", "null"]}},
    }));
    Schema::of_tool(&tools, "f").property("x").types()
}

/// `text` as a value of the property `x`; a string in quotes.
#[track_caller]
fn check(property: Value, text: &str, expected: &str) {
    let found = match literal(text, types(property.clone()), &["null"]) {
        Some(literal) => literal.to_string(),
        None => json!(text).to_string(),
    };
    assert_eq!(found, expected, "{property} {text:?}");
}

#[test]
fn values_are_typed_in_the_policys_order() {
    check(json!({"type": "string"}), "7", "\"7\"");
    check(json!({"type": "string"}), "null", "\"null\"");
    check(json!({"type": "integer"}), " 7\n", "7");
    check(json!({"type": "integer"}), "7.0", "7");
    check(json!({"type": "integer"}), "-7.00", "-7");
    check(json!({"type": "integer"}), "7.5", "\"7.5\"");
    check(json!({"type": "integer"}), "1.25e2", "1.25e2");
    check(json!({"type": "integer"}), "1.25e1", "\"1.25e1\"");
    check(json!({"type": "integer"}), "1e-1", "\"1e-1\"");
    check(json!({"type": "integer"}), "007", "\"007\"");
    check(json!({"type": "integer"}), "seven", "\"seven\"");
    check(json!({"type": "number"}), "7.50", "7.50");
    check(json!({"type": "number"}), "NaN", "\"NaN\"");
    check(json!({"type": "boolean"}), "TRUE", "true");
    check(json!({"type": "boolean"}), "False", "false");
    check(json!({"type": "boolean"}), "1", "true");
    check(json!({"type": "boolean"}), "0", "false");
    check(json!({"type": "boolean"}), "yes", "\"yes\"");
    check(json!({"type": "object"}), " {\"a\": [1]} ", "{\"a\": [1]}");
    check(json!({"type": "object"}), "[1]", "\"[1]\"");
    check(json!({"type": "object"}), "{'a': 1}", "\"{'a': 1}\"");
    check(json!({"type": "array"}), "[]", "[]");
    check(json!({"type": ["string", "null"]}), "null", "null");
    check(json!({"type": ["string", "null"]}), "Null", "\"Null\"");
    check(json!({"type": ["string", "null"]}), " x", "\" x\"");
    check(json!({"type": ["boolean", "integer"]}), "1", "1");
    check(json!({"type": ["string", "integer"]}), "1", "1");
    check(json!({"type": ["string", "integer"]}), "one", "\"one\"");
    check(json!({}), "1", "\"1\"");
    check(json!(true), "1", "\"1\"");
}

#[test]
fn schemas_say_types_in_many_ways() {
    let integer = Types::INTEGER;
    assert_eq!(types(json!({"enum": [1, 2]})), integer);
    assert_eq!(types(json!({"const": 3})), integer);
    assert_eq!(types(json!({"type": "int32"})), integer);
    assert_eq!(types(json!({"type": "Long"})), integer);
    assert_eq!(types(json!({"type": "str"})), Types::STRING);
    assert_eq!(types(json!({"type": "float64"})), Types::NUMBER);
    assert_eq!(types(json!({"type": "bool"})), Types::BOOLEAN);
    assert_eq!(types(json!({"type": "dict[str, int]"})), Types::OBJECT);
    assert_eq!(types(json!({"type": "List[int]"})), Types::ARRAY);
    assert_eq!(types(json!({"type": "any"})), Types::UNKNOWN);
    assert_eq!(types(json!({"$ref": "#/$defs/whole"})), integer);
    assert!(types(json!({"$ref": "#/$defs/a~1b"})).has(Types::NULL));
    assert_eq!(types(json!({"$ref": "#/$defs/none"})), Types::UNKNOWN);
    assert_eq!(types(json!({"properties": {"y": {}}})), Types::OBJECT);
    assert_eq!(types(json!({"items": {}})), Types::ARRAY);
    let either = types(json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}));
    assert!(either.has(Types::NULL) && either.has(integer) && !either.has(Types::STRING));
    let same = types(json!({"oneOf": [{"$ref": "#/$defs/whole"}, {"enum": [null]}]}));
    assert_eq!(same, either);
    assert_eq!(types(json!({"type": "integer", "nullable": true})), either);
    assert_eq!(
        types(json!({"allOf": [{"type": "number"}, {"type": ["integer", "null"]}]})),
        integer
    );
    assert_eq!(types(json!({"type": "number", "enum": [1, 2, 3]})), integer);
}

#[test]
fn recursion_ends() {
    let tools = tools(json!({
        "properties": {"x": {"$ref": "#/$defs/loop"}},
        "$defs": {"loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}]}},
    }));
    let x = Schema::of_tool(&tools, "f").property("x");
    assert_eq!(x.types(), Types::UNKNOWN);
    assert_eq!(x.property("y").items().types(), Types::UNKNOWN);
}

#[test]
fn members_are_found_wherever_they_are_declared() {
    let tools = tools(json!({
        "$ref": "#/$defs/arguments",
        "$defs": {
            "arguments": {
                "allOf": [{"properties": {"a\"b": {"type": "integer"}}}],
                "properties": {
                    "list": {"type": "array", "items": {"type": "number"}},
                    "map": {"additionalProperties": {"type": "boolean"}},
                },
            },
        },
    }));
    let root = Schema::of_tool(&tools, "f");
    assert_eq!(root.property("a\"b").types(), Types::INTEGER);
    assert_eq!(root.property("list").items().types(), Types::NUMBER);
    assert_eq!(root.property("map").property("any").types(), Types::BOOLEAN);
    assert_eq!(root.property("none").types(), Types::UNKNOWN);
    assert_eq!(Schema::of_tool(&tools, "g").property("list").types(), Types::UNKNOWN);
}

/// Whatever the text, looking at it ends and does not panic.
#[test]
fn documents_of_any_text_are_total() {
    let texts = [
        "",
        "[",
        "]",
        "{",
        "{\"",
        "{\"a",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":}",
        "{:1}",
        "[,]",
        "[1,,2]",
        "\"\\",
        "\"\\u12",
        "[{\"function\": 1}]",
        "[{\"name\": [}]",
        "nul",
        "-",
        "é",
        "[é]",
        "{\"é\":é}",
    ];
    for text in texts {
        let Some(document) = Document::of(text) else { continue };
        let items = document.items().count() + document.members().count();
        assert!(items <= text.len(), "{text}");
        assert_eq!(document.get("x").map(Document::text), None, "{text}");
        Schema::of_tool(text, "x").property("y").types();
    }
}
