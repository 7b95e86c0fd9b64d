//! JSON Schema before it reaches the library: every keyword is either enforced or refused by name
//! and place, and what the library would be lax about is written more strictly.
//!
//! Rewritten, always to something that allows no more: formats of dates and times (no 29 February,
//! no leap second), numbers without bounds (integers: the range that JSON keeps exactly), `oneOf`
//! whose options exclude each other (`anyOf`).

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use crate::GrammarError;
use crate::number::{self, MAX_NUMBER};
use crate::pattern::check_pattern;
use crate::reference::{self, MAX_POINTER, push, resolve};
use crate::{finite, oneof, weight};

/// What may stand between the parts of a JSON text, at most once in each place: a blank, or a line
/// break with an indent.
const WHITESPACE: &str = r"\x20|\n\x20{0,24}";

/// Deepest nesting of a schema; the library descends by recursion.
const MAX_DEPTH: usize = 100;
/// Most schemas in one.
const MAX_SCHEMAS: usize = 10_000;
/// Most values of one `enum`.
const MAX_ENUM: usize = 4096;
/// Most options of a `oneOf`: each two are compared.
const MAX_ONE_OF: usize = 256;
/// Largest `minItems`, `minProperties` and their like: each is so many symbols of the grammar.
const MAX_COUNT: u64 = 4096;
/// Largest length of a string.
const MAX_LENGTH: u64 = 100_000;
/// Beyond it JSON numbers are not exact in most clients (2^53 - 1).
const MAX_INTEGER: i64 = 9_007_199_254_740_991;
/// Most patterns within one `allOf`: each may double the states of their intersection.
const MAX_MERGED_PATTERNS: usize = 6;

/// Keywords that constrain and cannot be enforced, with what to do instead.
const REFUSED: &[(&str, &str)] = &[
    ("not", "say what is allowed instead"),
    ("if", "use `anyOf` with one branch per case"),
    ("then", "use `anyOf` with one branch per case"),
    ("else", "use `anyOf` with one branch per case"),
    ("dependentRequired", "use `anyOf` with one branch per case"),
    ("dependentSchemas", "use `anyOf` with one branch per case"),
    ("dependencies", "use `anyOf` with one branch per case"),
    ("uniqueItems", "leave it out and check the items"),
    ("contains", "use `prefixItems` or leave it out"),
    ("minContains", "leave it out"),
    ("maxContains", "leave it out"),
    ("propertyNames", "use `patternProperties` with `additionalProperties: false`"),
    ("unevaluatedProperties", "use `additionalProperties`"),
    ("unevaluatedItems", "use `items`"),
    ("contentSchema", "leave it out"),
    ("$dynamicRef", "use `$ref`"),
    ("$dynamicAnchor", "use `$defs` and `$ref`"),
    ("$recursiveRef", "use `$ref`"),
    ("$recursiveAnchor", "use `$defs` and `$ref`"),
    ("x-guidance", "the server sets it"),
];

/// Formats of the specification that the library enforces.
const FORMATS: &[&str] = &["duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Formats of the specification that nothing here enforces. Any other name is an annotation.
const REFUSED_FORMATS: &[&str] = &[
    "idn-email",
    "idn-hostname",
    "iri",
    "iri-reference",
    "json-pointer",
    "regex",
    "relative-json-pointer",
    "uri-reference",
    "uri-template",
];

const DATE: &str = "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])\
                    |(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
const TIME: &str =
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";

/// Checks a schema and writes it as the library takes it.
///
/// # Errors
/// [`GrammarError::Keyword`] for what cannot be enforced; [`GrammarError::Invalid`] for what is no
/// schema; [`GrammarError::TooLarge`].
pub fn check_schema(schema: &Value) -> Result<Value, GrammarError> {
    Budget::default().check(schema)
}

/// What the schemas of one grammar have taken of the limits that hold for all of them together.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    num_schemas: usize,
    num_parts: u64,
}

/// What a schema within another grammar costs beside its own parts.
const PARTS_PER_EMBEDDED: u64 = 100;

impl Budget {
    /// [`check_schema`] for the next one within another grammar.
    pub fn check_embedded(&mut self, schema: &Value) -> Result<Value, GrammarError> {
        self.num_parts += PARTS_PER_EMBEDDED;
        self.check(schema)
    }

    /// [`check_schema`] for the next one.
    pub fn check(&mut self, schema: &Value) -> Result<Value, GrammarError> {
        let mut checker = Checker {
            root: schema,
            num_schemas: self.num_schemas,
            anchors: reference::anchors(schema),
            places: HashSet::new(),
            references: Vec::new(),
        };
        let mut checked = checker.schema(schema, &mut String::new(), 0)?;
        let elsewhere = checker.elsewhere(&mut checked)?;
        self.num_schemas = checker.num_schemas;
        weight::check(&checked, &elsewhere, &mut self.num_parts)?;
        let references = checker.references.iter().map(|r| (r.to.as_str(), r.at.as_str()));
        if let Some(at) = finite::endless(&checked, references) {
            let why = "what it refers to requires itself again and again, so that no value of it \
                       has an end; make that part optional, or allow `null`";
            return Err(refused("$ref", at, why));
        }
        Ok(checked)
    }
}

/// What the library's `x-guidance` says for every JSON text here: white space is bounded, so that
/// an output cannot go on with blanks for ever; no `\u` escapes, which would hide one key behind
/// another spelling of it. For the roots of schemas in a Lark grammar.
pub fn json_options() -> Value {
    json!({"whitespace_pattern": WHITESPACE, "json_allowed_escapes": "nrbtf\\\""})
}

/// A checked schema with [`json_options`].
pub(crate) fn with_options(mut schema: Value) -> Value {
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("x-guidance".into(), json_options());
    }
    schema
}

struct Checker<'a> {
    root: &'a Value,
    num_schemas: usize,
    anchors: HashMap<&'a str, String>,
    /// Pointers to all schemas that were checked.
    places: HashSet<String>,
    references: Vec<Reference>,
}

struct Reference {
    /// As it goes on.
    to: String,
    /// What that points to.
    pointer: String,
    /// Where the keyword is.
    at: String,
}

impl Checker<'_> {
    /// Checks what references lead to beside the places of schemas, and returns where that is.
    fn elsewhere(&mut self, checked: &mut Value) -> Result<Vec<String>, GrammarError> {
        let (mut elsewhere, mut next) = (Vec::new(), 0);
        while let Some(Reference { pointer, at, .. }) = self.references.get(next) {
            next += 1;
            if self.places.contains(pointer) {
                continue;
            }
            let (pointer, root) = (pointer.clone(), self.root);
            let schema = root.pointer(&pointer).filter(|of| of.is_object() || of.is_boolean());
            let Some(schema) = schema.filter(|_| checked.pointer(&pointer).is_some()) else {
                let why = format!("it points to `{pointer}`, which is no schema; use `$defs`");
                return Err(refused("$ref", at, why));
            };
            let schema = self.schema(schema, &mut pointer.clone(), 1)?;
            if let Some(place) = checked.pointer_mut(&pointer) {
                *place = schema;
            }
            elsewhere.push(pointer);
        }
        Ok(elsewhere)
    }

    fn schema(
        &mut self,
        schema: &Value,
        at: &mut String,
        depth: usize,
    ) -> Result<Value, GrammarError> {
        self.num_schemas += 1;
        bounded("the number of schemas in one", self.num_schemas as u64, MAX_SCHEMAS as u64)?;
        bounded("the length of a path in the schema", at.len() as u64, MAX_POINTER as u64)?;
        self.places.insert(at.clone());
        bounded("the depth of the schema", depth as u64, MAX_DEPTH as u64)?;
        let map = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(map) => map,
            _ => return Err(invalid(at, "must be a schema: an object or a boolean")),
        };
        let mut out = Map::new();
        for (keyword, value) in map {
            let length = at.len();
            push(at, keyword);
            let value = self.keyword(keyword, value, map, at, depth)?;
            at.truncate(length);
            if let Some(value) = value {
                out.insert(keyword.clone(), value);
            }
        }
        self.finish(map, out, at)
    }

    /// The keyword's value as it goes on; none when it asks for nothing.
    fn keyword(
        &mut self,
        keyword: &str,
        value: &Value,
        schema: &Map<String, Value>,
        at: &mut String,
        depth: usize,
    ) -> Result<Option<Value>, GrammarError> {
        if let Some((_, instead)) = REFUSED.iter().find(|(refused, _)| *refused == keyword) {
            let asks_nothing = match keyword {
                "uniqueItems" => value == &Value::Bool(false),
                "x-guidance" => value == &json_options(),
                _ => false,
            };
            return if asks_nothing { Ok(None) } else { Err(refused(keyword, at, *instead)) };
        }
        match keyword {
            "properties" | "patternProperties" | "$defs" | "definitions" => {
                self.map(keyword, value, at, depth).map(Some)
            }
            "allOf" if num_patterns(self.root, value, 1) > MAX_MERGED_PATTERNS => {
                let why =
                    format!("more than {MAX_MERGED_PATTERNS} patterns meet in it; merge them");
                Err(refused(keyword, at, why))
            }
            "anyOf" | "allOf" | "oneOf" | "prefixItems" => self.list(value, at, depth).map(Some),
            "items" | "additionalItems" if value.is_array() => {
                self.list(value, at, depth).map(Some)
            }
            "items" | "additionalItems" | "additionalProperties" => {
                self.schema(value, at, depth + 1).map(Some)
            }
            "$ref" => self.reference(value, at).map(Some),
            "enum" => {
                let Some(values) = value.as_array().filter(|values| !values.is_empty()) else {
                    return Err(invalid(at, "must be a list of values, not empty"));
                };
                bounded("the number of values of an `enum`", values.len() as u64, MAX_ENUM as u64)?;
                number::check_constants(keyword, value, at)?;
                Ok(Some(value.clone()))
            }
            "const" => number::check_constants(keyword, value, at).map(|()| Some(value.clone())),
            "type" => types(value, at).map(|()| Some(value.clone())),
            "pattern" => {
                let Some(pattern) = value.as_str() else {
                    return Err(invalid(at, "must be a string"));
                };
                let pattern = check_pattern(pattern).map_err(|why| refused(keyword, at, why))?;
                Ok(Some(pattern.into()))
            }
            "format" => format(value, schema, at),
            "minItems" | "minProperties" | "maxProperties" | "maxItems" => {
                count(keyword, value, at, MAX_COUNT).map(Some)
            }
            "minLength" | "maxLength" => count(keyword, value, at, MAX_LENGTH).map(Some),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                number::bound(keyword, value, at).map(Some)
            }
            "multipleOf" => number::multiple_of(value, at).map(Some),
            "required" => {
                let names = value.as_array().filter(|names| names.iter().all(Value::is_string));
                match names {
                    Some(_) => Ok(Some(value.clone())),
                    None => Err(invalid(at, "must be a list of names")),
                }
            }
            // References are within the schema, and by pointers.
            "$schema" | "$id" | "id" | "$anchor" => Ok(None),
            _ => Ok(Some(value.clone())),
        }
    }

    fn map(
        &mut self,
        keyword: &str,
        value: &Value,
        at: &mut String,
        depth: usize,
    ) -> Result<Value, GrammarError> {
        let Some(map) = value.as_object() else {
            return Err(invalid(at, "must be an object of schemas"));
        };
        let mut out = Map::new();
        for (name, schema) in map {
            let length = at.len();
            push(at, name);
            let name = match keyword {
                "patternProperties" => {
                    check_pattern(name).map_err(|why| refused(keyword, at, why))?
                }
                _ => name.clone(),
            };
            out.insert(name, self.schema(schema, at, depth + 1)?);
            at.truncate(length);
        }
        Ok(out.into())
    }

    fn list(
        &mut self,
        value: &Value,
        at: &mut String,
        depth: usize,
    ) -> Result<Value, GrammarError> {
        let Some(list) = value.as_array().filter(|list| !list.is_empty()) else {
            return Err(invalid(at, "must be a list of schemas, not empty"));
        };
        let mut out = Vec::with_capacity(list.len());
        for (i, schema) in list.iter().enumerate() {
            let length = at.len();
            push(at, &i.to_string());
            out.push(self.schema(schema, at, depth + 1)?);
            at.truncate(length);
        }
        Ok(out.into())
    }

    fn reference(&mut self, value: &Value, at: &str) -> Result<Value, GrammarError> {
        let Some(reference) = value.as_str() else {
            return Err(invalid(at, "must be a string"));
        };
        let Some(fragment) = reference.strip_prefix('#') else {
            let why = format!("`{reference}` is not in this schema; put it into `$defs`");
            return Err(refused("$ref", at, why));
        };
        let anchor = self.anchors.get(fragment).cloned();
        let Some(pointer) = anchor.or_else(|| reference::pointer(self.root, reference)) else {
            return Err(invalid(at, &format!("points to `{reference}`, which is not there")));
        };
        let to = reference::encoded(&pointer);
        self.references.push(Reference { to: to.clone(), pointer, at: at.into() });
        Ok(to.into())
    }

    /// What several keywords mean together.
    fn finish(
        &self,
        schema: &Map<String, Value>,
        mut out: Map<String, Value>,
        at: &mut String,
    ) -> Result<Value, GrammarError> {
        if let Some(options) = out.shift_remove("oneOf") {
            let options = options.as_array().cloned().unwrap_or_default();
            let len = options.len() as u64;
            bounded("the number of options of a `oneOf`", len, MAX_ONE_OF as u64)?;
            if let Err((a, b)) = oneof::disjoint(self.root, &options) {
                push(at, "oneOf");
                let why = format!(
                    "its options {a} and {b} do not exclude each other by type or by a required \
                     property with different `const`s; use `anyOf`, or add such a property"
                );
                return Err(refused("oneOf", at, why));
            }
            require(&mut out, json!({"anyOf": options}));
        }
        let format = schema.get("format").and_then(Value::as_str);
        if let Some(pattern) = format.and_then(time_pattern) {
            require(&mut out, json!({"pattern": pattern}));
        }
        check_num_properties(schema, &mut out, at)?;
        bound_numbers(&mut out);
        Ok(out.into())
    }
}

/// Adds to a schema what must hold, too.
fn require(out: &mut Map<String, Value>, other: Value) {
    let [(keyword, value)] = &other.as_object().into_iter().flatten().collect::<Vec<_>>()[..]
    else {
        return;
    };
    if !out.contains_key(*keyword) {
        out.insert((*keyword).clone(), (*value).clone());
        return;
    }
    match out.get_mut("allOf").and_then(Value::as_array_mut) {
        Some(all) => all.push(other),
        None => {
            out.insert("allOf".into(), json!([other]));
        }
    }
}

/// An object may write a key twice, which counts once: a least number of properties holds only
/// where keys cannot repeat.
fn check_num_properties(
    schema: &Map<String, Value>,
    out: &mut Map<String, Value>,
    at: &mut String,
) -> Result<(), GrammarError> {
    let limit = |keyword: &str| schema.get(keyword).and_then(Value::as_u64);
    let count = |keyword: &str| match schema.get(keyword) {
        Some(Value::Object(map)) => map.len() as u64,
        Some(Value::Array(list)) => list.len() as u64,
        _ => 0,
    };
    let num_required = count("required");
    let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false))
        && count("patternProperties") == 0;
    let num_optional = count("properties").saturating_sub(num_required);
    if let Some(min) = limit("minProperties") {
        let left = min.saturating_sub(num_required);
        if left == 0 {
            out.shift_remove("minProperties");
        } else if left > 1 || (num_optional > 0 && !is_closed) {
            push(at, "minProperties");
            let why = "name the properties in `required`; without `additionalProperties: false` \
                       it can be at most one more than these, and none of `properties` optional";
            return Err(refused("minProperties", at, why));
        }
    }
    if let Some(max) = limit("maxProperties") {
        let left = max.saturating_sub(num_required);
        if is_closed && max >= count("properties").max(num_required) {
            out.shift_remove("maxProperties");
        } else if num_optional > 0 && (left != 1 || !is_closed) {
            push(at, "maxProperties");
            let why = "make all of `properties` required, or leave it out";
            return Err(refused("maxProperties", at, why));
        }
    }
    Ok(())
}

/// A number has an end: integers 16 digits, others no exponent, unless the schema says more.
fn bound_numbers(out: &mut Map<String, Value>) {
    let is_type = |name: &str| match out.get("type") {
        Some(Value::String(only)) => only == name,
        Some(Value::Array(several)) => several.iter().any(|one| one == name),
        _ => false,
    };
    let bound = match (is_type("integer"), is_type("number")) {
        _ if out.contains_key("const") || out.contains_key("enum") => return,
        (_, true) => MAX_NUMBER,
        (true, false) => MAX_INTEGER,
        (false, false) => return,
    };
    let number = |keyword: &str| out.get(keyword).and_then(Value::as_f64);
    let low = number("minimum").or(number("exclusiveMinimum"));
    let high = number("maximum").or(number("exclusiveMaximum"));
    let limit = bound as f64;
    if low.is_none() && high.is_none_or(|high| high > -limit) {
        out.insert("minimum".into(), (-bound).into());
    }
    if high.is_none() && low.is_none_or(|low| low < limit) {
        out.insert("maximum".into(), bound.into());
    }
}

fn format(
    value: &Value,
    schema: &Map<String, Value>,
    at: &str,
) -> Result<Option<Value>, GrammarError> {
    let Some(name) = value.as_str() else { return Err(invalid(at, "must be a string")) };
    let is_text = match schema.get("type") {
        Some(Value::String(only)) => only == "string",
        Some(Value::Array(several)) => several.iter().any(|one| one == "string"),
        _ => true,
    };
    if is_text && REFUSED_FORMATS.contains(&name) {
        let why = format!("the format `{name}` cannot be enforced; use `pattern`");
        return Err(refused("format", at, why));
    }
    Ok((is_text && FORMATS.contains(&name)).then(|| value.clone()))
}

fn time_pattern(format: &str) -> Option<String> {
    match format {
        "date" => Some(format!("^{DATE}$")),
        "time" => Some(format!("^{TIME}$")),
        "date-time" => Some(format!("^{DATE}T{TIME}$")),
        _ => None,
    }
}

fn types(value: &Value, at: &str) -> Result<(), GrammarError> {
    const TYPES: &[&str] = &["null", "boolean", "integer", "number", "string", "array", "object"];
    let is_type = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    let is_legal = match value {
        Value::Array(several) => !several.is_empty() && several.iter().all(is_type),
        one => is_type(one),
    };
    if is_legal {
        return Ok(());
    }
    Err(invalid(at, &format!("is {value}; it must be one of {} or a list", TYPES.join(", "))))
}

fn count(keyword: &str, value: &Value, at: &str, limit: u64) -> Result<Value, GrammarError> {
    // 2.0 is 2.
    let whole = value.as_f64().filter(|n| n.fract() == 0.0 && *n >= 0.0);
    let Some(number) = value.as_u64().or(whole.map(|n| n as u64)) else {
        return Err(invalid(at, "must be a number of items, 0 or more"));
    };
    if number > limit {
        return Err(refused(keyword, at, format!("`{number}` is above the limit of {limit}")));
    }
    Ok(number.into())
}

/// Patterns in a schema, and in those that it refers to, `hops` references deep.
fn num_patterns(root: &Value, schema: &Value, hops: usize) -> usize {
    match schema {
        Value::Array(list) => list.iter().map(|one| num_patterns(root, one, hops)).sum(),
        Value::Object(map) => map
            .iter()
            .map(|(keyword, value)| match (keyword.as_str(), value) {
                ("pattern" | "format", Value::String(_)) => 1,
                ("$ref", Value::String(reference)) if hops > 0 => {
                    resolve(root, reference).map_or(0, |to| num_patterns(root, to, hops - 1))
                }
                // As many as it may have.
                ("$ref", _) => MAX_MERGED_PATTERNS / 2,
                ("enum" | "const" | "default" | "examples", _) => 0,
                _ => num_patterns(root, value, hops),
            })
            .sum(),
        _ => 0,
    }
}

fn bounded(what: &'static str, value: u64, limit: u64) -> Result<(), GrammarError> {
    if value <= limit { Ok(()) } else { Err(GrammarError::TooLarge { what, value, limit }) }
}

/// `at` ends with the keyword.
pub(crate) fn refused(keyword: &str, at: &str, why: impl Into<String>) -> GrammarError {
    let parent = at.rfind('/').map_or("", |end| &at[..end]);
    GrammarError::keyword(keyword, parent, why)
}

pub(crate) fn invalid(at: &str, what: &str) -> GrammarError {
    let at = if at.is_empty() { "the schema" } else { at };
    GrammarError::Invalid(format!("`{at}` {what}"))
}
