//! A tool's JSON schema for a format that writes its parts by itself. Every keyword was checked
//! before; here only what the format cannot hold is refused, in words for the client.

use std::cell::Cell;

use serde_json::{Map, Value, json};

use crate::reference::resolve;

/// How deep schemas may nest, and references be followed, where a format writes each part itself.
const MAX_DEPTH: u32 = 16;

/// How many parts one tool may have, with what references are followed to, again and again.
const MAX_VISITS: u32 = 5_000;

/// Texts that a parser would take for other values than strings, where these are allowed, too. Not
/// even as a beginning: a text that goes on would win over the value that ends.
pub(super) const NO_JSON: &str = " & ~(/[ \\t\\r\\n]*(-?[0-9]|[\\[\\{]|\
    [tT][rR][uU][eE]|[fF][aA][lL][sS][eE]|null|None)/ CALLS_ANY_BYTES)";

/// The schema of a tool's arguments.
#[derive(Debug)]
pub(super) struct Root<'a> {
    tool: &'a str,
    schema: &'a Value,
    num_left: Cell<u32>,
}

impl<'a> Root<'a> {
    pub fn new(tool: &'a str, schema: &'a Value) -> Self {
        Root { tool, schema, num_left: Cell::new(MAX_VISITS) }
    }
}

/// A schema within a tool's arguments.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schema<'a> {
    value: &'a Value,
    root: &'a Root<'a>,
    depth: u32,
}

/// One property of an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Property<'a> {
    /// Its name, of letters, digits and what [`Schema::properties`] lets through.
    pub key: &'a str,
    /// Must it be there?
    pub is_required: bool,
    /// What it holds.
    pub schema: Schema<'a>,
}

impl<'a> Schema<'a> {
    pub fn of(root: &'a Root<'a>) -> Self {
        Schema { value: root.schema, root, depth: 0 }
    }

    /// A keyword's value.
    pub fn keyword(&self, name: &str) -> Option<&'a Value> {
        self.value.get(name)
    }

    /// A keyword's value that is a string.
    pub fn word(&self, name: &str) -> Option<&'a str> {
        self.keyword(name)?.as_str()
    }

    /// A schema within this one.
    pub fn at(&self, value: &'a Value) -> Schema<'a> {
        Schema { value, depth: self.depth + 1, ..*self }
    }

    /// Behind its `$ref`, if it is one.
    pub fn resolved(self) -> Result<Schema<'a>, String> {
        let mut at = self;
        for _ in self.depth..MAX_DEPTH {
            let num_left = self.root.num_left.get();
            if num_left == 0 {
                return Err(self.refused("so many parts"));
            }
            self.root.num_left.set(num_left - 1);
            if *at.value == Value::Bool(false) {
                return Err(at.refused("false"));
            }
            let Some(reference) = at.word("$ref") else { return Ok(at) };
            at.asks_only(&["$ref"])?;
            let Some(value) = resolve(self.root.schema, reference) else {
                return Err(at.refused("$ref"));
            };
            at = Schema { value, ..at };
        }
        Err(self.refused("a nesting so deep"))
    }

    /// The values that it lists: an `enum` or a `const`.
    ///
    /// # Errors
    /// When a listed value needs to fit anything besides but a type, or none is of that type.
    pub fn values(&self) -> Result<Option<Vec<&'a Value>>, String> {
        let (keyword, mut listed) = match (self.keyword("enum"), self.keyword("const")) {
            (Some(list), _) => ("enum", items(list)),
            (None, Some(value)) => ("const", vec![value]),
            (None, None) => return Ok(None),
        };
        self.asks_only(&["type", keyword])?;
        if self.keyword("type").is_some() {
            let types = self.types();
            listed.retain(|value| types.iter().any(|name| is_of(value, name)));
        }
        match listed.is_empty() {
            true => Err(self.refused(keyword)),
            false => Ok(Some(listed)),
        }
    }

    /// The schemas of which a value needs to fit one.
    ///
    /// # Errors
    /// When it needs to fit anything besides.
    pub fn options(&self) -> Result<Option<Vec<Schema<'a>>>, String> {
        let Some(keyword) =
            ["anyOf", "oneOf", "allOf"].into_iter().find(|k| self.keyword(k).is_some())
        else {
            return Ok(None);
        };
        self.asks_only(&[keyword])?;
        let listed = self.keyword(keyword).map(items).unwrap_or_default();
        let options: Vec<_> = listed.into_iter().map(|value| self.at(value)).collect();
        match keyword == "allOf" && options.len() > 1 {
            true => Err(self.refused(keyword)),
            false => Ok(Some(options)),
        }
    }

    fn keywords(&self) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
        self.value.as_object().into_iter().flatten()
    }

    /// It asks for these, and for nothing beside them.
    fn asks_only(&self, keywords: &[&str]) -> Result<(), String> {
        let mut others = self.keywords().filter(|(name, _)| !is_among(name, keywords));
        others.next().map_or(Ok(()), |(name, _)| Err(self.refused(name)))
    }

    /// The same as a question.
    pub fn has_only(&self, keywords: &[&str]) -> bool {
        self.keywords().all(|(name, _)| is_among(name, keywords))
    }

    /// Is it nested deeper than that?
    pub fn is_deeper(&self, depth: u32) -> bool {
        self.depth > depth
    }

    /// Its types; none: any.
    pub fn types(&self) -> Vec<&'a str> {
        match self.keyword("type") {
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
            Some(one) => one.as_str().into_iter().collect(),
            None if self.keyword("properties").is_some() => vec!["object"],
            None if self.keyword("items").is_some() => vec!["array"],
            None => Vec::new(),
        }
    }

    /// What a string of it is, for [`Rules::text_up_to`](super::Rules::text_up_to).
    pub fn text_regex(&self) -> Result<String, String> {
        if let Some(keyword) = ["format", "allOf"].into_iter().find(|k| self.keyword(k).is_some()) {
            return Err(self.refused(keyword));
        }
        let mut out = String::from("/(.|\\n)");
        match (self.keyword("minLength"), self.keyword("maxLength")) {
            (None, None) => out.push('*'),
            (min, max) => {
                let min = min.map_or_else(|| "0".into(), Value::to_string);
                let max = max.map(Value::to_string).unwrap_or_default();
                out.push_str(&format!("{{{min},{max}}}"));
            }
        }
        out.push('/');
        if let Some(pattern) = self.word("pattern") {
            let (inner, is_begun) = match pattern.strip_prefix('^') {
                Some(inner) => (inner, true),
                None => (pattern, false),
            };
            // An escaped `$` is a character.
            let (inner, is_ended) = match inner.strip_suffix('$') {
                Some(inner) if !inner.ends_with('\\') => (inner, true),
                _ => (inner, false),
            };
            let any = |is_bound: bool| if is_bound { "" } else { "(.|\\n)*" };
            out.extend([" & /", any(is_begun), "("]);
            let mut is_escaped = false;
            for c in inner.chars() {
                match c {
                    '/' if !is_escaped => out.push_str("\\/"),
                    // Whoever looks for strings in the grammar shall not find one here.
                    '"' => out.push_str(if is_escaped { "x22" } else { "\\x22" }),
                    '\n' => out.push_str("\\n"),
                    _ => out.push(c),
                }
                is_escaped = c == '\\' && !is_escaped;
            }
            out.extend([")", any(is_ended), "/"]);
        }
        Ok(out)
    }

    /// The properties of an object, in their order; none: an object of anything.
    ///
    /// # Errors
    /// When more is asked for than properties, or a name has other characters
    /// than letters, digits, `_` and those of `also`.
    pub fn properties(self, also: &str) -> Result<Option<Vec<Property<'a>>>, String> {
        let object = self.resolved()?;
        for (keyword, value) in object.keywords() {
            let is_open = match &keyword[..] {
                "type" => value == "object",
                "minProperties" => *value == 0,
                "properties" | "required" | "additionalProperties" => true,
                _ => is_annotation(keyword),
            };
            if !is_open {
                return Err(object.refused(keyword));
            }
        }
        let required = object.keyword("required").map(items).unwrap_or_default();
        let required: Vec<_> = required.into_iter().filter_map(Value::as_str).collect();
        let mut list = Vec::new();
        let named = object.keyword("properties").and_then(Value::as_object);
        for (key, value) in named.into_iter().flatten() {
            let is_held = |c: char| {
                c.is_ascii_alphanumeric() || c == '_' || !c.is_ascii() || also.contains(c)
            };
            if key.is_empty() || !key.chars().all(is_held) {
                return Err(object.refused(key));
            }
            let is_required = required.contains(&&key[..]);
            list.push(Property { key, is_required, schema: object.at(value) });
        }
        if let Some(name) = required.iter().find(|name| list.iter().all(|p| p.key != **name)) {
            return Err(object.refused(name));
        }
        let is_open = |others: &Value| *others == true || *others == json!({});
        match object.keyword("additionalProperties") {
            None if list.is_empty() => Ok(None),
            Some(others) if list.is_empty() && is_open(others) => Ok(None),
            Some(others) if list.is_empty() && *others != false => {
                Err(object.refused("additionalProperties"))
            }
            _ => Ok(Some(list)),
        }
    }

    /// A value of it in JSON, as an expression.
    pub fn json(&self) -> String {
        self.json_with(Map::new())
    }

    /// As [`Schema::json`], of one of its types only.
    pub fn json_of(&self, name: &str) -> String {
        let mut also = Map::new();
        if self.word("type") != Some(name) {
            also.insert("allOf".into(), json!([{"type": name}]));
        }
        self.json_with(also)
    }

    /// A number, a flag or nothing.
    pub fn json_scalar(&self) -> String {
        let types = json!(["number", "boolean", "null"]);
        self.any().json_with(Map::from_iter([("type".into(), types)]))
    }

    /// The schema of anything, in the same place.
    pub fn any(&self) -> Schema<'a> {
        Schema { value: &Value::Bool(true), ..*self }
    }

    /// `also`: further keywords.
    fn json_with(&self, mut also: Map<String, Value>) -> String {
        if !std::ptr::eq(self.value, self.root.schema) {
            for name in ["$defs", "definitions", "x-guidance"] {
                if let Some(value) = self.root.schema.get(name) {
                    also.insert(name.into(), value.clone());
                }
            }
        }
        match self.value {
            Value::Object(own) if !own.is_empty() => also.extend(own.clone()),
            // Nothing is a value of `false`.
            Value::Bool(false) => drop(also.insert("enum".into(), json!([]))),
            // The library does not take an empty schema.
            _ => drop(also.insert("title".into(), "".into())),
        }
        format!("%json {} ", Value::Object(also))
    }

    /// Words for a 400.
    pub fn refused(&self, what: &str) -> String {
        format!(
            "the tool `{}` asks for `{what}`, which calls in this model's format cannot be held \
             to; leave it out, or do without a forced or strict call",
            self.root.tool
        )
    }
}

/// JSON Schema's name of a value's type.
pub(super) fn type_of(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "string",
        Value::Object(_) => "object",
        Value::Array(_) => "array",
        Value::Bool(_) => "boolean",
        Value::Null => "null",
        Value::Number(_) => "number",
    }
}

/// Is a value of the type `name`? For numbers: may it be?
fn is_of(value: &Value, name: &str) -> bool {
    match type_of(value) {
        "number" => name == "number" || name == "integer",
        of => of == name,
    }
}

/// Is the keyword one of these, or does it ask for nothing?
fn is_among(name: &str, keywords: &[&str]) -> bool {
    keywords.contains(&name) || is_annotation(name)
}

fn is_annotation(name: &str) -> bool {
    matches!(
        name,
        "title"
            | "description"
            | "default"
            | "examples"
            | "deprecated"
            | "$id"
            | "$comment"
            | "$defs"
            | "definitions"
            | "x-guidance"
    )
}

/// The items of a list. What is no list has none.
fn items(list: &Value) -> Vec<&Value> {
    list.as_array().into_iter().flatten().collect()
}
