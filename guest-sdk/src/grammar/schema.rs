//! A tool's JSON schema as text: its parts are cut out as they are written. The host sends valid
//! JSON and has checked every keyword; here only what a format cannot hold is refused.

use crate::json::{Unescape, Unescaped};

/// How deep schemas may nest, and references be followed, where a format writes each part itself.
const MAX_DEPTH: u32 = 16;

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
    pub fn keyword(&self, name: &str) -> Option<&'a str> {
        member(self.text, name)
    }

    /// A keyword's value, a string without escapes.
    pub fn word(&self, name: &str) -> Option<&'a str> {
        self.keyword(name)?.strip_prefix('"')?.strip_suffix('"')
    }

    /// A schema within this one.
    pub fn at(&self, text: &'a str) -> Schema<'a> {
        Schema { text, depth: self.depth + 1, ..*self }
    }

    /// Behind its `$ref`, if it is one.
    pub fn resolved(self) -> Result<Schema<'a>, String> {
        let mut at = self;
        for _ in self.depth..MAX_DEPTH {
            let Some(reference) = at.word("$ref") else { return Ok(at) };
            let asks = |(name, _): &(&str, &str)| *name != "$ref" && !is_annotation(name);
            if let Some((other, _)) = members(at.text).find(asks) {
                return Err(at.refused(other));
            }
            let found = reference.strip_prefix("#/").and_then(|path| {
                path.split('/').try_fold(self.root, |text, part| member(text, part))
            });
            let Some(text) = found else { return Err(at.refused("$ref")) };
            at = Schema { text, ..at };
        }
        Err(self.refused("a nesting so deep"))
    }

    /// The values that it lists, as they are written: an `enum` or a `const`.
    pub fn values(&self) -> Option<Vec<&'a str>> {
        match (self.keyword("enum"), self.keyword("const")) {
            (Some(list), _) => Some(elements(list).collect()),
            (None, value) => value.map(|value| vec![value]),
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
        let options: Vec<_> = elements(self.keyword(keyword).unwrap_or_default()).collect();
        let asks = |(name, _): &(&str, &str)| *name != keyword && !is_annotation(name);
        match members(self.text).find(asks) {
            Some((other, _)) => Err(self.refused(other)),
            None if keyword == "allOf" && options.len() > 1 => Err(self.refused(keyword)),
            None => Ok(Some(options.into_iter().map(|text| self.at(text)).collect())),
        }
    }

    /// Its types; none: any.
    pub fn types(&self) -> Vec<&'a str> {
        let name = |literal: &'a str| literal.trim_matches('"');
        match self.keyword("type") {
            Some(list) if list.starts_with('[') => elements(list).map(name).collect(),
            Some(one) => vec![name(one)],
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
                for part in ["{", min.unwrap_or("0"), ",", max.unwrap_or_default(), "}"] {
                    out.push_str(part);
                }
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
            for part in [" & /", any(is_begun), "("] {
                out.push_str(part);
            }
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
            for part in [")", any(is_ended), "/"] {
                out.push_str(part);
            }
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
        let required = || elements(object.keyword("required").unwrap_or("[]"));
        let mut list = Vec::new();
        for (key, text) in members(object.keyword("properties").unwrap_or("{}")) {
            let is_held = |c: char| {
                c.is_ascii_alphanumeric() || c == '_' || !c.is_ascii() || also.contains(c)
            };
            if key.is_empty() || !key.chars().all(is_held) {
                return Err(object.refused(key));
            }
            let is_required = required().any(|name| is_literal_of(name, key));
            list.push(Property { key, is_required, schema: object.at(text) });
        }
        let is_listed = |name: &str| list.iter().any(|p| is_literal_of(name, p.key));
        if let Some(name) = required().find(|name| !is_listed(name)) {
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
    pub fn json(&self) -> String {
        self.json_with("")
    }

    /// As [`Schema::json`], of one of its types only.
    pub fn json_of(&self, name: &str) -> String {
        match self.word("type") == Some(name) {
            true => self.json(),
            false => self.json_with(&["\"allOf\": [{\"type\": \"", name, "\"}], "].concat()),
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
    fn json_with(&self, more: &str) -> String {
        let mut out = String::from("%json {");
        out.push_str(more);
        if self.text != self.root {
            for name in ["$defs", "definitions", "x-guidance"] {
                if let Some(value) = member(self.root, name) {
                    for part in ["\"", name, "\": ", value, ", "] {
                        out.push_str(part);
                    }
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
    pub fn refused(&self, what: &str) -> String {
        [
            "the tool `",
            self.tool,
            "` asks for `",
            what,
            "`, which calls in this model's format \
            cannot be held to; leave it out, or do without a forced or strict call",
        ]
        .concat()
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

fn is_literal_of(literal: &str, text: &str) -> bool {
    literal.strip_prefix('"').and_then(|inside| inside.strip_suffix('"')) == Some(text)
}

/// The items of a list, as they are written. What is no list has none.
pub(super) fn elements(list: &str) -> impl Iterator<Item = &str> {
    let mut rest = list.trim().strip_prefix('[').unwrap_or_default();
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches([' ', '\n', ',']);
        let len = value_len(rest);
        let (item, behind) = rest.split_at(len);
        rest = behind;
        (len > 0).then_some(item)
    })
}

/// An object's members, as they are written, the keys without their quotes. What is no object has
/// none.
pub(super) fn members(object: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = object.trim().strip_prefix('{').unwrap_or_default();
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches([' ', '\n', ',']);
        let (key, behind) = rest.split_at(value_len(rest));
        let value = behind.trim_start().strip_prefix(':')?.trim_start();
        let (value, behind) = value.split_at(value_len(value));
        rest = behind;
        Some((key.strip_prefix('"')?.strip_suffix('"')?, value))
    })
}

/// The value of an object's member, as it is written.
pub(super) fn member<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    members(object).find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// What a string literal says; none for other values.
pub(super) fn unquoted(literal: &str) -> Option<String> {
    let inside = literal.strip_prefix('"')?;
    let mut out = String::new();
    matches!(Unescape::default().feed(inside, &mut out), Unescaped::Closed(_)).then_some(out)
}

/// Bytes of the JSON value that a text begins with: the host sends valid JSON.
fn value_len(text: &str) -> usize {
    let (mut depth, mut is_text, mut is_escaped) = (0_u32, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => {
                is_text = !is_text;
                if !is_text && depth == 0 {
                    return at + 1;
                }
            }
            _ if is_text => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth <= 1 => return at + usize::from(depth == 1),
            b'}' | b']' => depth -= 1,
            b',' | b':' if depth == 0 => return at,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn json_is_cut_as_it_is_written() {
        let list = r#"[{"a": "]}\"", "f": {"name": "x", "b": [1, {"c": 2}]}}, "s,", 5, null]"#;
        let items: Vec<_> = elements(list).collect();
        assert_eq!(items.len(), 4);
        assert_eq!(items[1..], ["\"s,\"", "5", "null"]);
        assert_eq!(member(items[0], "a"), Some(r#""]}\"""#));
        assert_eq!(unquoted(member(items[0], "a").unwrap()).unwrap(), "]}\"");
        let function = member(items[0], "f").unwrap();
        assert_eq!(member(function, "b"), Some(r#"[1, {"c": 2}]"#));
        assert_eq!(member(function, "c"), None);
        assert_eq!(elements("[]").count() + elements("{}").count(), 0);
    }
}
