//! Types the values that formats without types of their own write (policy U12): which types a
//! property's schema admits, and what a text is under them.
//!
//! Reads `type` (also a list, also other languages' names for types), `enum`, `const`, `anyOf`,
//! `oneOf`, `allOf`, `nullable` and local `$ref`s. What it cannot tell admits strings only.

use alloc::string::String;

use crate::document::Document;
use crate::{json, trimmed};

/// Schemas that one look-up may visit: recursive references end somewhere.
const MAX_VISITS: u32 = 256;

/// A set of JSON types. Empty: nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Types(u8);

impl Types {
    /// Nothing is known.
    pub const UNKNOWN: Types = Types(0);
    /// `null`.
    pub const NULL: Types = Types(1);
    /// A number without a fraction.
    pub const INTEGER: Types = Types(2);
    /// Any number; integers are among them.
    pub const NUMBER: Types = Types(4 | 2);
    /// `true` or `false`.
    pub const BOOLEAN: Types = Types(8);
    /// An object.
    pub const OBJECT: Types = Types(16);
    /// A list.
    pub const ARRAY: Types = Types(32);
    /// A string.
    pub const STRING: Types = Types(64);
    /// Whatever is JSON, strings in quotes; a string if it is none.
    pub const JSON: Types = Types(127);

    /// Are all of `types` in it?
    pub fn has(self, types: Types) -> bool {
        types.0 != 0 && self.0 & types.0 == types.0
    }

    /// Can a value be nothing but text?
    pub fn is_text(self) -> bool {
        self == Types::UNKNOWN || self == Types::STRING
    }

    /// Of either.
    pub(crate) fn or(self, other: Types) -> Types {
        Types(self.0 | other.0)
    }

    /// Both hold; one that knows nothing does not count.
    fn and(self, other: Types) -> Types {
        match (self.0, other.0) {
            (0, _) => other,
            (_, 0) => self,
            (a, b) => Types(a & b),
        }
    }
}

/// A place in a tool's schema; perhaps nothing is there.
#[derive(Debug, Clone, Copy)]
pub struct Schema<'a> {
    root: Option<Document<'a>>,
    node: Option<Document<'a>>,
}

impl<'a> Schema<'a> {
    /// The schema of the arguments of the tool `name` in `tools`, OpenAI's list as JSON.
    pub fn of_tool(tools: &'a str, name: &str) -> Self {
        let tool = Document::of(tools).and_then(|tools| {
            tools
                .items()
                .map(|tool| tool.get("function").unwrap_or(tool))
                .find(|tool| tool.get("name").is_some_and(|found| found.is_string(name)))
        });
        let root = tool.and_then(|tool| tool.get("parameters"));
        Schema { root, node: root }
    }

    /// The schema of a member.
    pub fn property(self, key: &str) -> Self {
        let mut visits = MAX_VISITS;
        let node = self.node.and_then(|node| self.find_property(node, key, &mut visits));
        Schema { node, ..self }
    }

    fn find_property(
        self,
        node: Document<'a>,
        key: &str,
        visits: &mut u32,
    ) -> Option<Document<'a>> {
        *visits = visits.checked_sub(1)?;
        if let Some(target) = self.target(node) {
            return self.find_property(target, key, visits);
        }
        let own = node.get("properties").and_then(|properties| properties.get(key));
        let any = || node.get("additionalProperties").filter(|any| any.text().starts_with('{'));
        let inside = |visits: &mut u32| {
            let lists = ["allOf", "anyOf", "oneOf"];
            let mut members =
                lists.iter().filter_map(|list| node.get(list)).flat_map(|l| l.items());
            members.find_map(|member| self.find_property(member, key, visits))
        };
        own.or_else(|| inside(visits)).or_else(any)
    }

    /// The schema of a list's items.
    pub fn items(self) -> Self {
        let mut visits = MAX_VISITS;
        let node = self.node.and_then(|node| self.find_items(node, &mut visits));
        Schema { node, ..self }
    }

    fn find_items(self, node: Document<'a>, visits: &mut u32) -> Option<Document<'a>> {
        *visits = visits.checked_sub(1)?;
        if let Some(target) = self.target(node) {
            return self.find_items(target, visits);
        }
        node.get("items").or_else(|| {
            let lists = ["allOf", "anyOf", "oneOf"];
            let mut members =
                lists.iter().filter_map(|list| node.get(list)).flat_map(|l| l.items());
            members.find_map(|member| self.find_items(member, visits))
        })
    }

    /// What a local `$ref` points to.
    fn target(self, node: Document<'a>) -> Option<Document<'a>> {
        let reference = node.get("$ref")?.string()?;
        let path = reference.strip_prefix('#')?;
        let mut target = self.root?;
        for key in path.split('/').skip(1) {
            target = target.get(&unescaped(key))?;
        }
        Some(target)
    }

    /// The types that it admits.
    pub fn types(self) -> Types {
        let mut visits = MAX_VISITS;
        self.node.map_or(Types::UNKNOWN, |node| self.types_of(node, &mut visits))
    }

    fn types_of(self, node: Document<'a>, visits: &mut u32) -> Types {
        let Some(left) = visits.checked_sub(1) else { return Types::UNKNOWN };
        *visits = left;
        let mut types = Types::UNKNOWN;
        let mut is_nullable = false;
        for (key, value) in node.members() {
            let said = match key.text().get(1..key.text().len() - 1).unwrap_or_default() {
                "type" => named_types(value),
                "enum" => value.items().fold(Types::UNKNOWN, |all, item| all.or(type_of(item))),
                "const" => type_of(value),
                "anyOf" | "oneOf" => value
                    .items()
                    .fold(Types::UNKNOWN, |all, member| all.or(self.types_of(member, visits))),
                "allOf" => value
                    .items()
                    .fold(Types::UNKNOWN, |all, member| all.and(self.types_of(member, visits))),
                "$ref" => self.target(node).map_or(Types::UNKNOWN, |to| self.types_of(to, visits)),
                "nullable" => {
                    is_nullable = value.text() == "true";
                    Types::UNKNOWN
                }
                _ => Types::UNKNOWN,
            };
            types = types.and(said);
        }
        if types == Types::UNKNOWN && node.get("properties").is_some() {
            types = Types::OBJECT;
        }
        if types == Types::UNKNOWN && node.get("items").is_some() {
            types = Types::ARRAY;
        }
        if is_nullable && types != Types::UNKNOWN { types.or(Types::NULL) } else { types }
    }
}

fn named_types(value: Document<'_>) -> Types {
    match value.string() {
        Some(name) => named_type(&name),
        None => value.items().fold(Types::UNKNOWN, |all, item| all.or(named_types(item))),
    }
}

/// JSON Schema's names and those of other languages, `list[str]` and `int32` among them.
pub fn named_type(name: &str) -> Types {
    const NAMES: [(&str, Types); 24] = [
        ("string", Types::STRING),
        ("str", Types::STRING),
        ("text", Types::STRING),
        ("char", Types::STRING),
        ("varchar", Types::STRING),
        ("enum", Types::STRING),
        ("integer", Types::INTEGER),
        ("int", Types::INTEGER),
        ("uint", Types::INTEGER),
        ("long", Types::INTEGER),
        ("short", Types::INTEGER),
        ("unsigned", Types::INTEGER),
        ("number", Types::NUMBER),
        ("num", Types::NUMBER),
        ("float", Types::NUMBER),
        ("double", Types::NUMBER),
        ("decimal", Types::NUMBER),
        ("bool", Types::BOOLEAN),
        ("boolean", Types::BOOLEAN),
        ("object", Types::OBJECT),
        ("dict", Types::OBJECT),
        ("map", Types::OBJECT),
        ("array", Types::ARRAY),
        ("list", Types::ARRAY),
    ];
    let word = name.split(['[', '<', '(', ' ']).next().unwrap_or_default();
    let word = word.trim_end_matches(|c: char| c.is_ascii_digit());
    if word.eq_ignore_ascii_case("null") || word.eq_ignore_ascii_case("none") {
        return Types::NULL;
    }
    let found = NAMES.iter().find(|(known, _)| word.eq_ignore_ascii_case(known));
    found.map_or(Types::UNKNOWN, |(_, types)| *types)
}

fn type_of(value: Document<'_>) -> Types {
    match value.text().as_bytes().first() {
        Some(b'"') => Types::STRING,
        Some(b'{') => Types::OBJECT,
        Some(b'[') => Types::ARRAY,
        Some(b't' | b'f') => Types::BOOLEAN,
        Some(b'n') => Types::NULL,
        _ if integer(value.text()).is_some() => Types::INTEGER,
        _ => Types::NUMBER,
    }
}

/// `text` as a JSON literal of one of `types`, in the order null, integer, number, boolean,
/// object, list; none: it is a string, exactly as it stands. `nulls`: the words for null.
pub fn literal<'t>(text: &'t str, types: Types, nulls: &[&str]) -> Option<&'t str> {
    let word = trimmed(text);
    if types == Types::JSON {
        return json::is_value(word).then_some(word);
    }
    if types.has(Types::NULL) && nulls.contains(&word) {
        return Some("null");
    }
    if types.has(Types::NUMBER) {
        if is_number(word) {
            return Some(word);
        }
    } else if types.has(Types::INTEGER)
        && let Some(integer) = integer(word)
    {
        return Some(integer);
    }
    if types.has(Types::BOOLEAN) {
        if word.eq_ignore_ascii_case("true") || word == "1" {
            return Some("true");
        }
        if word.eq_ignore_ascii_case("false") || word == "0" {
            return Some("false");
        }
    }
    let begins = |byte| word.as_bytes().first() == Some(&byte);
    let is_container =
        (types.has(Types::OBJECT) && begins(b'{')) || (types.has(Types::ARRAY) && begins(b'['));
    (is_container && json::is_value(word)).then_some(word)
}

fn is_number(word: &str) -> bool {
    matches!(word.as_bytes().first(), Some(b'-' | b'0'..=b'9')) && json::is_value(word)
}

/// A step of a JSON pointer (RFC 6901).
fn unescaped(step: &str) -> String {
    let mut text = String::with_capacity(step.len());
    let mut is_escaped = false;
    for c in step.chars() {
        text.push(match c {
            '~' if !is_escaped => {
                is_escaped = true;
                continue;
            }
            '0' if is_escaped => '~',
            '1' if is_escaped => '/',
            _ => c,
        });
        is_escaped = false;
    }
    text
}

/// A JSON number without a fraction, also if it is written with one (`3.0`) or with an exponent.
fn integer(word: &str) -> Option<&str> {
    if !is_number(word) {
        return None;
    }
    let position = |wanted: fn(&u8) -> bool| word.bytes().position(|byte| wanted(&byte));
    let exponent_at = position(|byte| matches!(byte, b'e' | b'E'));
    let mantissa_len = exponent_at.unwrap_or(word.len());
    let point = position(|byte| *byte == b'.').unwrap_or(mantissa_len);
    let fraction = word.as_bytes().get(point + 1..mantissa_len).unwrap_or_default();
    let num_digits = fraction.iter().rposition(|byte| *byte != b'0').map_or(0, |last| last + 1);
    let Some(exponent_at) = exponent_at else {
        return (num_digits == 0).then(|| &word[..point]);
    };
    // Whole if the exponent moves the point behind the fraction.
    let mut exponent = 0usize;
    for byte in word[exponent_at + 1..].bytes() {
        match byte {
            b'-' => return None,
            b'+' => {}
            digit => {
                exponent = exponent.saturating_mul(10).saturating_add(usize::from(digit - b'0'))
            }
        }
    }
    (exponent >= num_digits).then_some(word)
}
