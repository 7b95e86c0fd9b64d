//! Arguments as tagged parameters, each a key and a value: strings as they are, up to the closer,
//! other values as JSON. In the schema's order, required ones always.

use serde::Deserialize;
use serde_json::Value;

use super::rules::{ANY_BYTES, Hole, Rules};
use super::schema::{NO_JSON, Schema, type_of};
use crate::lark::literal;

/// A key of an object of anything.
const ANY_KEY: &str = "/[A-Za-z_][A-Za-z0-9_.\\-]*/";
const ANY_TEXT: &str = "/(.|\\n)*/";
/// Types of values that are not strings.
const OTHER_TYPES: [&str; 5] = ["number", "boolean", "null", "object", "array"];
/// How deep a tree's elements are written: behind that a schema that refers to itself is JSON.
const MAX_TREE_DEPTH: u32 = 3;

/// How a parameter is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameters {
    /// One parameter: `$KEY`, `$VALUE`, `$TYPE`, which is JSON's name of the value's type, and
    /// `$IS_TEXT`, which is `true` for strings and else `false`. With either of these two the
    /// call itself says what is a string.
    pub each: String,
    /// What ends a value, so that no string has it; with a newline in front: what does so at the
    /// beginning of a line or of the value.
    pub closers: Vec<String>,
    /// A newline at the edge of a value is framing to the parser, but `each` writes none: no
    /// string has one there.
    #[serde(default)]
    pub trims_newlines: bool,
    /// Objects and lists may be elements as parameters are, an item's key is `item`.
    #[serde(default)]
    pub is_tree: bool,
}

/// What a value may be.
#[derive(Debug, Default)]
struct Values<'a> {
    /// Strings: regular expressions.
    texts: Vec<String>,
    /// Strings, each as it is.
    words: Vec<String>,
    /// Others: the type and an expression, mostly JSON.
    others: Vec<(&'a str, String)>,
}

impl Parameters {
    /// The parameters of a schema, as an expression.
    ///
    /// # Errors
    /// Words for a 400: what tagged parameters cannot hold.
    pub fn write(&self, rules: &mut Rules<'_>, schema: Schema<'_>) -> Result<String, String> {
        // The reader of a tree takes no blanks in a tag.
        let also = if self.is_tree { "-.:@" } else { "-. :/@" };
        let Some(properties) = schema.properties(also)? else {
            return self.anything(rules, schema);
        };
        let mut out = String::new();
        for property in &properties {
            if property.key.trim() != property.key {
                return Err(schema.refused(property.key));
            }
            let values = self.values(rules, property.schema)?;
            let one = self.parameter(rules, Hole::Text(property.key), &values);
            let end = if property.is_required { " " } else { "? " };
            out.extend([&*rules.add(&one), end]);
        }
        if out.is_empty() {
            out.push_str("\"\"");
        }
        Ok(out)
    }

    /// The parameters of an object of anything.
    fn anything(&self, rules: &mut Rules<'_>, schema: Schema<'_>) -> Result<String, String> {
        let (_, tail) = self.parts();
        if tail.contains("$KEY") {
            // Both ends of an element name it: only a name that is known stands at both.
            return match schema.resolved()?.keyword("properties") {
                Some(_) => Ok("\"\"".into()),
                None => Err(schema.refused("an object of anything")),
            };
        }
        let mut values = Values { texts: vec![ANY_TEXT.into()], ..Values::default() };
        if self.says_types() {
            let any = schema.any();
            for name in OTHER_TYPES {
                values.others.push((name, any.json_of(name)));
            }
        } else if self.trims_newlines {
            values.texts = vec![ANY_TEXT.to_owned() + &no_newlines(rules)];
        }
        let any = self.parameter(rules, Hole::Rule(ANY_KEY), &values);
        Ok(format!("({})*", rules.add(&any)))
    }

    /// What stands in front of a value, and behind it.
    fn parts(&self) -> (&str, &str) {
        self.each.split_once("$VALUE").unwrap_or((&self.each, ""))
    }

    /// Does a call itself say what is a string?
    fn says_types(&self) -> bool {
        self.each.contains("$IS_TEXT") || self.each.contains("$TYPE")
    }

    fn parameter(&self, rules: &mut Rules<'_>, key: Hole<'_>, values: &Values<'_>) -> String {
        let (head, tail) = self.parts();
        let end = match key {
            Hole::Text(key) => tail.replace("$KEY", key),
            Hole::Rule(_) => tail.into(),
        };
        let tail = rules.text(&end);
        let head = |rules: &Rules<'_>, name: &str| {
            let is_text = if name == "string" { "true" } else { "false" };
            let name = if name == "integer" { "number" } else { name };
            let holes =
                [("$KEY", key), ("$TYPE", Hole::Text(name)), ("$IS_TEXT", Hole::Text(is_text))];
            rules.fill(head, &holes)
        };
        let text = head(rules, "string");
        let mut ways = Vec::new();
        for word in &values.words {
            let word = rules.fill("$V", &[("$V", Hole::Text(word))]);
            ways.push([&*text, &word, &tail].concat());
        }
        for regex in &values.texts {
            let value = rules.text_up_to(regex, &end, &self.closers);
            ways.push([&*text, &value].concat());
        }
        for (name, value) in &values.others {
            ways.push([&*head(rules, name), value, &tail].concat());
        }
        ways.join(" | ")
    }

    /// What a value of a schema may be.
    fn values<'a>(&self, rules: &mut Rules<'_>, schema: Schema<'a>) -> Result<Values<'a>, String> {
        let mut values = Values::default();
        values.add(schema)?;
        let mut is_read_alike = true;
        if !self.says_types() {
            if values.others.iter().any(|(name, _)| *name != "null") {
                values.texts.iter_mut().for_each(|text| text.push_str(NO_JSON));
            }
            is_read_alike = !values
                .words
                .iter()
                .any(|word| values.others.iter().any(|(name, _)| reads_as(word.trim(), name)));
        }
        if self.trims_newlines {
            let no_newlines = no_newlines(rules);
            values.texts.iter_mut().for_each(|text| text.push_str(&no_newlines));
        }
        if !is_read_alike || !values.words.iter().all(|word| self.holds(word)) {
            return Err(schema.refused("enum"));
        }
        if self.is_tree {
            self.add_tree(rules, schema, &mut values)?;
        }
        Ok(values)
    }

    /// May the word be a value?
    fn holds(&self, word: &str) -> bool {
        let line = format!("\n{word}");
        let is_cut = self.trims_newlines && (word.starts_with('\n') || word.ends_with('\n'));
        !is_cut && !self.closers.iter().any(|closer| line.contains(closer.as_str()))
    }

    /// Elements beside JSON, for what is an object or a list and nothing else.
    fn add_tree(
        &self,
        rules: &mut Rules<'_>,
        schema: Schema<'_>,
        values: &mut Values<'_>,
    ) -> Result<(), String> {
        let schema = schema.resolved()?;
        let [(name, json)] = &mut values.others[..] else { return Ok(()) };
        if schema.word("type") != Some(*name) || schema.is_deeper(MAX_TREE_DEPTH) {
            return Ok(());
        }
        let tree = match *name {
            "object" if matches!(schema.properties("-.:@"), Ok(Some(_))) => {
                self.write(rules, schema)
            }
            "array" if schema.has_only(&["type", "items"]) => {
                let Some(items) = schema.keyword("items") else { return Ok(()) };
                self.values(rules, schema.at(items)).map(|values| {
                    let one = self.parameter(rules, Hole::Text("item"), &values);
                    format!("({})*", rules.add(&one))
                })
            }
            _ => return Ok(()),
        };
        // What elements cannot hold, JSON can.
        if let Ok(tree) = tree {
            *json = rules.add(&format!("{json} | {tree}")) + " ";
        }
        Ok(())
    }
}

impl<'a> Values<'a> {
    fn add(&mut self, schema: Schema<'a>) -> Result<(), String> {
        let schema = schema.resolved()?;
        if let Some(options) = schema.options()? {
            for option in options {
                self.add(option)?;
            }
        } else if let Some(listed) = schema.values()? {
            for value in listed {
                match value {
                    Value::String(word) => self.words.push(word.clone()),
                    other => {
                        let text = literal(&other.to_string()) + " ";
                        self.others.push((type_of(other), text));
                    }
                }
            }
        } else {
            let types = schema.types();
            if types.is_empty() {
                self.texts.push(schema.text_regex()?);
            }
            for name in types {
                match name {
                    "string" => self.texts.push(schema.text_regex()?),
                    "null" => self.others.push((name, "\"null\" ".into())),
                    _ => self.others.push((name, schema.json_of(name))),
                }
            }
        }
        Ok(())
    }
}

/// Texts without a newline at the edges.
fn no_newlines(rules: &mut Rules<'_>) -> String {
    rules.any_bytes();
    format!(" & ~(/\\n/ {ANY_BYTES}) & ~({ANY_BYTES} /\\n/)")
}

/// Would a parser take the word for a value of the type, where one is allowed?
fn reads_as(word: &str, name: &str) -> bool {
    let is_json = || serde_json::from_str::<serde::de::IgnoredAny>(word).is_ok();
    match name {
        "null" => word == "null" || word == "None",
        "boolean" => ["true", "false", "1", "0"].iter().any(|flag| word.eq_ignore_ascii_case(flag)),
        "object" => word.starts_with('{') && is_json(),
        "array" => word.starts_with('[') && is_json(),
        _ => word.starts_with(|c: char| c == '-' || c.is_ascii_digit()) && is_json(),
    }
}
