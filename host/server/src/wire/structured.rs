//! `response_format` and `structured_outputs`: what the output must look like, under the name that
//! the client used. Only shapes are checked here; whether a schema can be enforced, the compiler
//! says.

use serde_json::Value;
use tenon_grammar::{GrammarSpec, StructuralTag, Structure};

use super::fields::{Fields, decode};
use crate::error::ApiError;

/// A constraint that the client asked for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Structured {
    /// What it asked for.
    pub spec: GrammarSpec,
    /// Where it said so.
    pub param: &'static str,
}

/// The kinds that `structured_outputs` may name, one of them at a time.
const KINDS: &[(&str, &str)] = &[
    ("json", "structured_outputs.json"),
    ("regex", "structured_outputs.regex"),
    ("choice", "structured_outputs.choice"),
    ("grammar", "structured_outputs.grammar"),
    ("json_object", "structured_outputs.json_object"),
    ("structural_tag", "structured_outputs.structural_tag"),
];

/// Known options of other servers.
const OPTIONS: &[(&str, &str)] = &[
    ("disable_any_whitespace", "white space is bounded; leave it out"),
    ("disable_additional_properties", "say `additionalProperties: false` in the schema"),
    ("whitespace_pattern", "white space is bounded; leave it out"),
    ("backend", "leave it out"),
];

impl Structured {
    /// Takes both fields; at most one of them constrains the output.
    pub fn take(fields: &mut Fields) -> Result<Option<Structured>, ApiError> {
        let format = response_format(fields)?;
        let outputs = structured_outputs(fields)?;
        if format.is_some() && outputs.is_some() {
            return Err(ApiError::invalid(
                "structured_outputs",
                "`response_format` and `structured_outputs` both constrain the output; send one",
            ));
        }
        Ok(format.or(outputs))
    }
}

fn response_format(fields: &mut Fields) -> Result<Option<Structured>, ApiError> {
    let Some(format) = fields.value("response_format") else { return Ok(None) };
    let spec = match format.get("type").and_then(Value::as_str) {
        Some("text") => return Ok(None),
        Some("json_object") => json_object(&format)?,
        Some("json_schema") => json_schema(&format)?,
        Some("structural_tag") => {
            GrammarSpec::StructuralTag(structural_tag(&format, "response_format")?)
        }
        _ => {
            return Err(ApiError::invalid(
                "response_format.type",
                "`response_format.type` must be `text`, `json_object`, `json_schema` or \
                 `structural_tag`",
            ));
        }
    };
    Ok(Some(Structured { spec, param: "response_format" }))
}

/// With a `schema`, as some servers have it, that holds.
fn json_object(format: &Value) -> Result<GrammarSpec, ApiError> {
    match format.get("schema") {
        None | Some(Value::Null) => Ok(GrammarSpec::JsonObject),
        Some(schema) if schema.is_object() || schema.is_boolean() => {
            Ok(GrammarSpec::JsonSchema(schema.clone()))
        }
        Some(_) => {
            let param = "response_format.schema";
            Err(ApiError::invalid(param, format!("`{param}` must be a JSON schema")))
        }
    }
}

/// `strict` or not, the whole schema holds.
fn json_schema(format: &Value) -> Result<GrammarSpec, ApiError> {
    const PATH: &str = "response_format.json_schema";
    let bad = |param: String, what: &str| {
        let message = format!("`{param}` {what}");
        ApiError::invalid(param, message)
    };
    let Some(body) = format.get("json_schema").and_then(Value::as_object) else {
        return Err(bad(PATH.into(), "must be an object with `name` and `schema`"));
    };
    match body.get("strict") {
        None | Some(Value::Null | Value::Bool(_)) => {}
        Some(_) => return Err(bad(format!("{PATH}.strict"), "must be a boolean")),
    }
    if body.get("name").is_some_and(|name| !name.is_string() && !name.is_null()) {
        return Err(bad(format!("{PATH}.name"), "must be a string"));
    }
    match body.get("schema") {
        Some(schema) if schema.is_object() || schema.is_boolean() => {
            Ok(GrammarSpec::JsonSchema(schema.clone()))
        }
        _ => Err(bad(format!("{PATH}.schema"), "must be a JSON schema")),
    }
}

fn structured_outputs(fields: &mut Fields) -> Result<Option<Structured>, ApiError> {
    const PATH: &str = "structured_outputs";
    let Some(value) = fields.value(PATH) else { return Ok(None) };
    let Value::Object(mut map) = value else {
        return Err(ApiError::invalid(PATH, "`structured_outputs` must be an object"));
    };
    map.retain(|_, value| !value.is_null());
    // `false` asks for nothing where the other value is `true`.
    let is_flag = |name: &str| name == "json_object" || OPTIONS.iter().any(|(of, _)| *of == name);
    map.retain(|name, value| value != &Value::Bool(false) || !is_flag(name));
    // There is no other way here to fall back to.
    map.shift_remove("disable_fallback");
    for (name, hint) in OPTIONS {
        if map.contains_key(*name) {
            return Err(ApiError::unsupported(format!("{PATH}.{name}"), hint));
        }
    }
    let mut asked = KINDS.iter().filter(|(name, _)| map.contains_key(*name));
    let (Some(&(name, param)), None) = (asked.next(), asked.next()) else {
        let names: Vec<_> = KINDS.iter().map(|(name, _)| *name).collect();
        let message = format!("`{PATH}` must have exactly one of {}", names.join(", "));
        return Err(ApiError::invalid(PATH, message));
    };
    let value = map.shift_remove(name).expect("it was found");
    if let Some(unknown) = map.keys().next() {
        let names: Vec<_> = KINDS.iter().map(|(name, _)| *name).collect();
        let (param, names) = (format!("{PATH}.{unknown}"), names.join(", "));
        let message = format!("`{param}` is not known; `{PATH}` has one of {names}");
        return Err(ApiError::invalid(param, message));
    }
    if name == "json" && value == Value::Bool(false) {
        let message = format!("`{param}` is `false`, which no output satisfies; send a schema");
        return Err(ApiError::invalid(param, message));
    }
    let spec = match name {
        "json" => GrammarSpec::JsonSchema(schema(value, param)?),
        "regex" => GrammarSpec::Regex(decode(param, value)?),
        "choice" => GrammarSpec::Choice(decode(param, value)?),
        "grammar" => GrammarSpec::Lark(decode(param, value)?),
        "json_object" if value == Value::Bool(true) => GrammarSpec::JsonObject,
        "json_object" => {
            return Err(ApiError::invalid(param, format!("`{param}` must be true or left out")));
        }
        _ => {
            let value = from_text(value, param)?;
            GrammarSpec::StructuralTag(structural_tag(&value, param)?)
        }
    };
    Ok(Some(Structured { spec, param }))
}

/// A schema, as an object or as its text.
fn schema(value: Value, param: &str) -> Result<Value, ApiError> {
    let value = from_text(value, param)?;
    if value.is_object() || value.is_boolean() {
        return Ok(value);
    }
    Err(ApiError::invalid(param, format!("`{param}` must be a JSON schema")))
}

fn from_text(value: Value, param: &str) -> Result<Value, ApiError> {
    let Value::String(text) = &value else { return Ok(value) };
    serde_json::from_str(text)
        .map_err(|error| ApiError::invalid(param, format!("`{param}` is no JSON: {error}")))
}

/// `structures` (`begin`, `schema`, `end`) and `triggers`.
fn structural_tag(value: &Value, param: &str) -> Result<StructuralTag, ApiError> {
    let bad = |what: String| ApiError::invalid(param, format!("`{param}` {what}"));
    if value.get("format").is_some() {
        let hint = "send `structures` and `triggers`";
        return Err(ApiError::unsupported(format!("{param}.format"), hint));
    }
    let (Some(structures), Some(triggers)) =
        (value.get("structures").and_then(Value::as_array), value.get("triggers"))
    else {
        return Err(bad("must have the lists `structures` and `triggers`".into()));
    };
    let triggers = decode(&format!("{param}.triggers"), triggers.clone())?;
    let structures = structures.iter().enumerate().map(|(i, structure)| {
        let text = |name: &str| structure.get(name).and_then(Value::as_str).map(str::to_owned);
        let (Some(begin), Some(end)) = (text("begin"), text("end")) else {
            return Err(bad(format!("has no texts `begin` and `end` in `structures[{i}]`")));
        };
        let schema = structure.get("schema").cloned().unwrap_or(Value::Bool(true));
        Ok(Structure { begin, schema, end })
    });
    Ok(StructuralTag { structures: structures.collect::<Result<_, _>>()?, triggers })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn take(body: Value) -> Result<Option<Structured>, ApiError> {
        Structured::take(&mut Fields::parse(body.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn accepted() {
        for (body, want) in [
            (json!({"response_format": {"type": "text"}}), None),
            (json!({"response_format": null, "structured_outputs": null}), None),
            (json!({"response_format": {"type": "json_object"}}), Some(GrammarSpec::JsonObject)),
            (
                json!({"response_format": {"type": "json_object", "schema": {"type": "null"}}}),
                Some(GrammarSpec::JsonSchema(json!({"type": "null"}))),
            ),
            (
                json!({"structured_outputs": {"regex": "a", "disable_fallback": true,
                    "disable_any_whitespace": false}}),
                Some(GrammarSpec::Regex("a".into())),
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema":
                    {"name": "x", "strict": true, "schema": {"type": "null"}}}}),
                Some(GrammarSpec::JsonSchema(json!({"type": "null"}))),
            ),
            (
                json!({"structured_outputs": {"json": "{\"type\": \"null\"}", "regex": null}}),
                Some(GrammarSpec::JsonSchema(json!({"type": "null"}))),
            ),
            (
                json!({"structured_outputs": {"choice": ["a", "b"], "json_object": false}}),
                Some(GrammarSpec::Choice(vec!["a".into(), "b".into()])),
            ),
            (json!({"structured_outputs": {"regex": "a+"}}), Some(GrammarSpec::Regex("a+".into()))),
            (
                json!({"structured_outputs": {"grammar": "start: \"a\""}}),
                Some(GrammarSpec::Lark("start: \"a\"".into())),
            ),
        ] {
            assert_eq!(take(body).unwrap().map(|s| s.spec), want);
        }
        let tag = json!({"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}],
            "triggers": ["<f"]});
        let mut format = tag.clone();
        format["type"] = "structural_tag".into();
        let a = take(json!({ "response_format": format })).unwrap().unwrap();
        let b = take(json!({"structured_outputs": {"structural_tag": tag.to_string()}}));
        assert_eq!(a.spec, b.unwrap().unwrap().spec);
    }

    #[test]
    fn refused() {
        let format = |f: Value| json!({ "response_format": f });
        let outputs = |o: Value| json!({ "structured_outputs": o });
        let rows = [
            (format(json!({"type": "xml"})), "response_format.type"),
            (format(json!("json")), "response_format.type"),
            (format(json!({"type": "json_schema"})), "response_format.json_schema"),
            (
                format(json!({"type": "json_schema", "json_schema": {"name": "x"}})),
                "response_format.json_schema.schema",
            ),
            (
                format(json!({"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}})),
                "response_format.json_schema.strict",
            ),
            (format(json!({"type": "structural_tag"})), "response_format"),
            (format(json!({"type": "structural_tag", "format": {}})), "response_format.format"),
            (outputs(json!([])), "structured_outputs"),
            (outputs(json!({})), "structured_outputs"),
            (outputs(json!({"json": {}, "regex": "a"})), "structured_outputs"),
            (outputs(json!({"json": "{"})), "structured_outputs.json"),
            (outputs(json!({"json": 5})), "structured_outputs.json"),
            (outputs(json!({"choice": "a"})), "structured_outputs.choice"),
            (outputs(json!({"choice": ["a", 1]})), "structured_outputs.choice[1]"),
            (outputs(json!({"json_object": 1})), "structured_outputs.json_object"),
            (outputs(json!({"json": false})), "structured_outputs.json"),
            (outputs(json!({"regex": false})), "structured_outputs.regex"),
            (outputs(json!({"regex": "a", "foo": 1})), "structured_outputs.foo"),
            (format(json!({"type": "json_object", "schema": 5})), "response_format.schema"),
            (
                outputs(json!({"json": {}, "whitespace_pattern": " "})),
                "structured_outputs.whitespace_pattern",
            ),
            (
                json!({"response_format": {"type": "json_object"},
                    "structured_outputs": {"regex": "a"}}),
                "structured_outputs",
            ),
        ];
        for (body, want) in rows {
            let error = take(body.clone()).unwrap_err();
            assert_eq!(error.body()["error"]["param"], want, "{body}");
        }
    }
}
