//! Arguments as tagged parameters, each a key and a value: strings as they are, up to the closer,
//! other values as JSON. In the schema's order, required ones always.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::rules::place_of;
use super::rules::{Hole, Rules, joined, put};
use super::schema::{NO_JSON, Schema, type_of, unquoted};
use crate::json::quoted;
use crate::schema::{Types, literal, named_type};

/// A key of an object of anything.
const ANY_KEY: &str = "/[A-Za-z_][A-Za-z0-9_.\\-]*/";
const ANY_TEXT: &str = "/(.|\\n)*/";
/// Texts without a newline at the edges.
const NO_NEWLINES: &str = " & ~(/\\n/ ANY_BYTES) & ~(ANY_BYTES /\\n/)";
/// Types of values that are not strings.
const OTHER_TYPES: [&str; 5] = ["number", "boolean", "null", "object", "array"];
/// How deep a tree's elements are written: behind that a schema that refers to itself is JSON.
const MAX_TREE_DEPTH: u32 = 3;

/// How a parameter is written.
///
/// ```
/// # use tenon_guest::CallGrammar;
/// # use tenon_guest::grammar::Parameters;
/// const XML: CallGrammar = CallGrammar {
///     call: "<tool_call>\n<function=$NAME>\n$ARGS</function>\n</tool_call>",
///     between: Some("\n"),
///     trigger: "<tool_call>",
///     arguments: |rules, schema| {
///         let each = "<parameter=$KEY>\n$VALUE\n</parameter>\n";
///         Parameters::new(each, &["</parameter>"]).write(rules, schema)
///     },
///     ..CallGrammar::JSON
/// };
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Parameters {
    /// One parameter: `$KEY`, `$VALUE`, `$TYPE`, which is JSON's name of the value's type, and
    /// `$IS_TEXT`, which is `true` for strings and else `false`. With either of these two the
    /// call itself says what is a string.
    pub each: &'static str,
    /// What ends a value, so that no string has it; with a newline in front: what does so at the
    /// beginning of a line or of the value.
    pub closers: &'static [&'static str],
    /// A newline at the edge of a value is framing to the parser, but `each` writes none: no
    /// string has one there.
    pub trims_newlines: bool,
    /// Objects and lists may be elements as parameters are, an item's key is `item`.
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
    /// Parameters whose strings have none of `closers`.
    pub const fn new(each: &'static str, closers: &'static [&'static str]) -> Self {
        Parameters { each, closers, trims_newlines: false, is_tree: false }
    }

    /// The parameters of a schema, as an expression.
    ///
    /// # Errors
    /// Words for a 400: what tagged parameters cannot hold.
    #[inline(never)]
    pub fn write(&self, rules: &mut Rules<'_>, schema: &Schema<'_>) -> Result<String, String> {
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
            let values = self.values(rules, &property.schema)?;
            let one = self.parameter(rules, Hole::Text(property.key), &values);
            let end = if property.is_required { " " } else { "? " };
            put(&mut out, &[&rules.add(&one), end]);
        }
        if out.is_empty() {
            out.push_str("\"\"");
        }
        Ok(out)
    }

    /// The parameters of an object of anything.
    #[inline(never)]
    fn anything(&self, rules: &mut Rules<'_>, schema: &Schema<'_>) -> Result<String, String> {
        let (_, tail) = self.parts();
        if has("$KEY", tail) {
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
            values.texts = vec![joined(&[ANY_TEXT, NO_NEWLINES])];
        }
        let any = self.parameter(rules, Hole::Rule(ANY_KEY), &values);
        Ok(joined(&["(", &rules.add(&any), ")*"]))
    }

    /// What stands in front of a value, and behind it.
    fn parts(&self) -> (&'static str, &'static str) {
        let (head, tail) = self.each.split_at(place_of("$VALUE", self.each));
        (head, tail.strip_prefix("$VALUE").unwrap_or(tail))
    }

    /// Does a call itself say what is a string?
    fn says_types(&self) -> bool {
        has("$IS_TEXT", self.each) || has("$TYPE", self.each)
    }

    #[inline(never)]
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
        let mut ways = String::new();
        for word in &values.words {
            let word = rules.fill("$V", &[("$V", Hole::Text(word))]);
            put(&mut ways, &[" | ", &text, &word, &tail]);
        }
        for regex in &values.texts {
            let value = rules.text_up_to(regex, &end, self.closers);
            put(&mut ways, &[" | ", &text, &value]);
        }
        for (name, value) in &values.others {
            put(&mut ways, &[" | ", &head(rules, name), value, &tail]);
        }
        ways.split_off(" | ".len().min(ways.len()))
    }

    /// What a value of a schema may be.
    #[inline(never)]
    fn values<'a>(&self, rules: &mut Rules<'_>, schema: &Schema<'a>) -> Result<Values<'a>, String> {
        let mut values = Values::default();
        values.add(schema)?;
        let mut is_read_alike = true;
        if !self.says_types() {
            if values.others.iter().any(|(name, _)| *name != "null") {
                values.texts.iter_mut().for_each(|text| text.push_str(NO_JSON));
            }
            let types = values
                .others
                .iter()
                .fold(Types::UNKNOWN, |all, (name, _)| all.or(named_type(name)));
            is_read_alike =
                values.words.iter().all(|word| literal(word, types, &["null", "None"]).is_none());
        }
        if self.trims_newlines {
            values.texts.iter_mut().for_each(|text| text.push_str(NO_NEWLINES));
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
        let line = joined(&["\n", word]);
        let is_cut = self.trims_newlines && (word.starts_with('\n') || word.ends_with('\n'));
        !is_cut && !self.closers.iter().any(|closer| line.contains(*closer))
    }

    /// Elements beside JSON, for what is an object or a list and nothing else.
    #[inline(never)]
    fn add_tree(
        &self,
        rules: &mut Rules<'_>,
        schema: &Schema<'_>,
        values: &mut Values<'_>,
    ) -> Result<(), String> {
        let schema = schema.resolved()?;
        let [(name, json)] = &mut values.others[..] else { return Ok(()) };
        if schema.word("type") != Some(*name) || schema.is_deeper(MAX_TREE_DEPTH) {
            return Ok(());
        }
        let tree = match *name {
            "object" if matches!(schema.properties("-.:@"), Ok(Some(_))) => {
                self.write(rules, &schema)
            }
            "array" if schema.has_only(&["type", "items"]) => {
                let Some(items) = schema.keyword("items") else { return Ok(()) };
                self.values(rules, &schema.at(items)).map(|values| {
                    let one = self.parameter(rules, Hole::Text("item"), &values);
                    joined(&["(", &rules.add(&one), ")*"])
                })
            }
            _ => return Ok(()),
        };
        // What elements cannot hold, JSON can.
        if let Ok(tree) = tree {
            *json = joined(&[&rules.add(&joined(&[&json[..], " | ", &tree])), " "]);
        }
        Ok(())
    }
}

impl<'a> Values<'a> {
    #[inline(never)]
    fn add(&mut self, schema: &Schema<'a>) -> Result<(), String> {
        let schema = schema.resolved()?;
        if let Some(options) = schema.options()? {
            for option in options {
                self.add(&option)?;
            }
        } else if let Some(listed) = schema.values()? {
            for value in listed {
                match unquoted(value) {
                    Some(word) => self.words.push(word),
                    None => self.others.push((type_of(value), joined(&[&quoted(value), " "]))),
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

/// Is `part` in `text`?
fn has(part: &str, text: &str) -> bool {
    place_of(part, text) < text.len()
}
