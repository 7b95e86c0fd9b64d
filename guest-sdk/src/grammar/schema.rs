//! A tool's JSON schema as text: its parts are cut out as they are written. The host sends valid
//! JSON and has checked every keyword; here only what a format cannot hold is refused.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::rules::{joined, put};
use crate::document::Document;

/// How deep schemas may nest, and references be followed, where a format writes each part itself.
const MAX_DEPTH: u32 = 16;

/// Texts that a parser would take for other values than strings, where these are allowed, too. Not
/// even as a beginning: a text that goes on would win over the value that ends.
pub(super) const NO_JSON: &str = " & ~(/[ \\t\\r\\n]*(-?[0-9]|[\\[\\{]|\
    [tT][rR][uU][eE]|[fF][aA][lL][sS][eE]|null|None)/ ANY_BYTES)";

/// A schema within a tool's parameters.
#[derive(Debug, Clone, Copy)]
pub struct Schema<'a> {
    /// As it is written.
    text: &'a str,
    root: &'a str,
    tool: &'a str,
    depth: u32,
}

/// One property of an object.
#[derive(Debug, Clone, Copy)]
pub struct Property<'a> {
    /// Its name, of letters, digits and what [`Schema::properties`] lets through.
    pub key: &'a str,
    /// Must it be there?
    pub is_required: bool,
    /// What it holds.
    pub schema: Schema<'a>,
}

impl<'a> Schema<'a> {
    pub(super) fn of_tool(tool: &'a str, parameters: &'a str) -> Self {
        Schema { text: parameters, root: parameters, tool, depth: 0 }
    }

    /// A keyword's value, as it is written.
    #[inline(never)]
    pub fn keyword(&self, name: &str) -> Option<&'a str> {
        member(self.text, name)
    }

    /// A keyword's value, a string without escapes.
    #[inline(never)]
    pub fn word(&self, name: &str) -> Option<&'a str> {
        inside(self.keyword(name)?)
    }

    /// A schema within this one.
    pub fn at(&self, text: &'a str) -> Schema<'a> {
        Schema { text, depth: self.depth + 1, ..*self }
    }

    /// Behind its `$ref`, if it is one.
    #[inline(never)]
    pub fn resolved(self) -> Result<Schema<'a>, String> {
        let mut at = self;
        for _ in self.depth..MAX_DEPTH {
            if at.text == "false" {
                return Err(at.refused("false"));
            }
            let Some(reference) = at.word("$ref") else { return Ok(at) };
            at.asks_only(&["$ref"])?;
            let found = reference.strip_prefix("#/").and_then(|path| {
                path.split('/').try_fold(self.root, |text, part| member(text, part))
            });
            let Some(text) = found else { return Err(at.refused("$ref")) };
            at = Schema { text, ..at };
        }
        Err(self.refused("a nesting so deep"))
    }

    /// The values that it lists, as they are written: an `enum` or a `const`.
    ///
    /// # Errors
    /// When a listed value needs to fit anything besides but a type, or none is of that type.
    #[inline(never)]
    pub fn values(&self) -> Result<Option<Vec<&'a str>>, String> {
        let (keyword, mut listed) = match (self.keyword("enum"), self.keyword("const")) {
            (Some(list), _) => ("enum", elements(list)),
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
    #[inline(never)]
    pub fn options(&self) -> Result<Option<Vec<Schema<'a>>>, String> {
        let Some(keyword) =
            ["anyOf", "oneOf", "allOf"].into_iter().find(|k| self.keyword(k).is_some())
        else {
            return Ok(None);
        };
        self.asks_only(&[keyword])?;
        let mut options = Vec::new();
        for text in elements(self.keyword(keyword).unwrap_or_default()) {
            options.push(self.at(text));
        }
        match keyword == "allOf" && options.len() > 1 {
            true => Err(self.refused(keyword)),
            false => Ok(Some(options)),
        }
    }

    /// It asks for these, and for nothing beside them.
    #[inline(never)]
    fn asks_only(&self, keywords: &[&str]) -> Result<(), String> {
        for (name, _) in members(self.text) {
            if !keywords.contains(&name) && !is_annotation(name) {
                return Err(self.refused(name));
            }
        }
        Ok(())
    }

    /// The same as a question.
    pub(super) fn has_only(&self, keywords: &[&str]) -> bool {
        members(self.text).iter().all(|(name, _)| keywords.contains(name) || is_annotation(name))
    }

    /// Is it nested deeper than that?
    pub(super) fn is_deeper(&self, depth: u32) -> bool {
        self.depth > depth
    }

    /// Its types; none: any.
    #[inline(never)]
    pub fn types(&self) -> Vec<&'a str> {
        match self.keyword("type") {
            Some(list) if list.starts_with('[') => {
                let mut names = elements(list);
                for name in &mut names {
                    *name = inside(name).unwrap_or_default();
                }
                names
            }
            Some(one) => vec![inside(one).unwrap_or_default()],
            None if self.keyword("properties").is_some() => vec!["object"],
            None if self.keyword("items").is_some() => vec!["array"],
            None => Vec::new(),
        }
    }

    /// What a string of it is, for [`Rules::text_up_to`](super::Rules::text_up_to).
    #[inline(never)]
    pub fn text_regex(&self) -> Result<String, String> {
        if let Some(keyword) = ["format", "allOf"].into_iter().find(|k| self.keyword(k).is_some()) {
            return Err(self.refused(keyword));
        }
        let mut out = String::from("/(.|\\n)");
        match (self.keyword("minLength"), self.keyword("maxLength")) {
            (None, None) => out.push('*'),
            (min, max) => {
                put(&mut out, &["{", min.unwrap_or("0"), ",", max.unwrap_or_default(), "}"]);
            }
        }
        out.push('/');
        if let Some(pattern) = self.keyword("pattern").and_then(unquoted) {
            let (inner, is_begun) = match pattern.strip_prefix('^') {
                Some(inner) => (inner, true),
                None => (&pattern[..], false),
            };
            // An escaped `$` is a character.
            let (inner, is_ended) = match inner.strip_suffix('$') {
                Some(inner) if !inner.ends_with('\\') => (inner, true),
                _ => (inner, false),
            };
            let any = |is_bound: bool| if is_bound { "" } else { "(.|\\n)*" };
            put(&mut out, &[" & /", any(is_begun), "("]);
            let mut is_escaped = false;
            for c in inner.chars() {
                match c {
                    '/' if !is_escaped => out.push_str("\\/"),
                    // The host looks for strings.
                    '"' => out.push_str(if is_escaped { "x22" } else { "\\x22" }),
                    '\n' => out.push_str("\\n"),
                    _ => out.push(c),
                }
                is_escaped = c == '\\' && !is_escaped;
            }
            put(&mut out, &[")", any(is_ended), "/"]);
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
        for (keyword, value) in members(object.text) {
            let is_open = match keyword {
                "type" => value == "\"object\"",
                "minProperties" => value == "0",
                "properties" | "required" | "additionalProperties" => true,
                _ => is_annotation(keyword),
            };
            if !is_open {
                return Err(object.refused(keyword));
            }
        }
        let required = elements(object.keyword("required").unwrap_or("[]"));
        let mut list = Vec::new();
        for (key, text) in members(object.keyword("properties").unwrap_or("{}")) {
            let is_held = |c: char| {
                c.is_ascii_alphanumeric() || c == '_' || !c.is_ascii() || also.contains(c)
            };
            if key.is_empty() || !key.chars().all(is_held) {
                return Err(object.refused(key));
            }
            let is_required = required.iter().any(|name| inside(name) == Some(key));
            list.push(Property { key, is_required, schema: object.at(text) });
        }
        let is_listed = |name: &str| list.iter().any(|p| inside(name) == Some(p.key));
        if let Some(name) = required.iter().find(|name| !is_listed(name)) {
            return Err(object.refused(name));
        }
        match object.keyword("additionalProperties") {
            None | Some("true" | "{}") if list.is_empty() => Ok(None),
            Some(other) if list.is_empty() && other != "false" => {
                Err(object.refused("additionalProperties"))
            }
            _ => Ok(Some(list)),
        }
    }

    /// A value of it in JSON, as an expression.
    #[inline(never)]
    pub fn json(&self) -> String {
        self.json_with("")
    }

    /// As [`Schema::json`], of one of its types only.
    #[inline(never)]
    pub fn json_of(&self, name: &str) -> String {
        match self.word("type") == Some(name) {
            true => self.json(),
            false => self.json_with(&joined(&["\"allOf\": [{\"type\": \"", name, "\"}], "])),
        }
    }

    /// A number, a flag or nothing.
    pub fn json_scalar(&self) -> String {
        self.any().json_with("\"type\": [\"number\", \"boolean\", \"null\"], ")
    }

    /// The schema of anything, in the same place.
    pub fn any(&self) -> Schema<'a> {
        Schema { text: "{}", ..*self }
    }

    /// `more`: further keywords, each with a comma behind it.
    #[inline(never)]
    fn json_with(&self, more: &str) -> String {
        let mut out = String::from("%json {");
        out.push_str(more);
        if self.text != self.root {
            for name in ["$defs", "definitions", "x-guidance"] {
                if let Some(value) = member(self.root, name) {
                    put(&mut out, &["\"", name, "\": ", value, ", "]);
                }
            }
        }
        match self.text.strip_prefix('{').map(str::trim_start) {
            Some(rest) if !rest.starts_with('}') => out.push_str(rest),
            // Empty or a boolean; nothing is no value of `false`.
            _ if self.text == "false" => out.push_str("\"enum\": []}"),
            _ => out.push_str("\"title\": \"\"}"),
        }
        out.push(' ');
        out
    }

    /// Words for a 400.
    #[inline(never)]
    pub fn refused(&self, what: &str) -> String {
        joined(&[
            "the tool `",
            self.tool,
            "` asks for `",
            what,
            "`, which calls in this model's format \
            cannot be held to; leave it out, or do without a forced or strict call",
        ])
    }
}

/// JSON Schema's name of a value's type.
pub(super) fn type_of(value: &str) -> &'static str {
    match value.as_bytes().first() {
        Some(b'"') => "string",
        Some(b'{') => "object",
        Some(b'[') => "array",
        Some(b't' | b'f') => "boolean",
        Some(b'n') => "null",
        _ => "number",
    }
}

/// Is a value of the type `name`? For numbers: may it be?
fn is_of(value: &str, name: &str) -> bool {
    match type_of(value) {
        "number" => name == "number" || name == "integer",
        of => of == name,
    }
}

/// Asks it for nothing?
fn is_annotation(keyword: &str) -> bool {
    matches!(
        keyword,
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

/// The items of a list, as they are written. What is no list has none.
#[inline(never)]
pub(super) fn elements(list: &str) -> Vec<&str> {
    let mut out = Vec::new();
    for item in Document::of(list).iter().flat_map(|list| list.items()) {
        out.push(item.text());
    }
    out
}

/// An object's members, as they are written, the keys without their quotes. What is no object has
/// none.
#[inline(never)]
pub(super) fn members(object: &str) -> Vec<(&str, &str)> {
    let mut out = Vec::new();
    for (key, value) in Document::of(object).iter().flat_map(|object| object.members()) {
        out.push((inside(key.text()).unwrap_or_default(), value.text()));
    }
    out
}

/// The value of an object's member, as it is written.
#[inline(never)]
pub(super) fn member<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    for (key, value) in members(object) {
        if key == name {
            return Some(value);
        }
    }
    None
}

/// What a string literal says; none for other values.
#[inline(never)]
pub(super) fn unquoted(literal: &str) -> Option<String> {
    Document::of(literal)?.string()
}

/// A string literal as it is written, without its quotes; none for other values.
#[inline(never)]
fn inside(literal: &str) -> Option<&str> {
    literal.strip_prefix('"')?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn json_is_cut_as_it_is_written() {
        let list = r#"[{"a": "]}\"", "f": {"name": "x", "b": [1, {"c": 2}]}}, "s,", 5, null]"#;
        let items = elements(list);
        assert_eq!(items.len(), 4);
        assert_eq!(items[1..], ["\"s,\"", "5", "null"]);
        assert_eq!(member(items[0], "a"), Some(r#""]}\"""#));
        assert_eq!(unquoted(member(items[0], "a").unwrap()).unwrap(), "]}\"");
        let function = member(items[0], "f").unwrap();
        assert_eq!(member(function, "b"), Some(r#"[1, {"c": 2}]"#));
        assert_eq!(member(function, "c"), None);
        assert_eq!(elements("[]").len() + elements("{}").len(), 0);
    }
}
