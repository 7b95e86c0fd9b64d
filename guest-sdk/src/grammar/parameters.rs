//! Arguments as tagged parameters, each a key and a value: strings as they are, up to the closer,
//! other values as JSON. In the schema's order, required ones always.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::rules::place_of;
use super::rules::{Hole, Rules, joined, put};
use super::schema::{Schema, unquoted};
use crate::json::quoted;

/// A key of an object of anything.
const ANY_KEY: &str = "/[A-Za-z_][A-Za-z0-9_.\\-]*/";
const ANY_TEXT: &str = "/(.|\\n)*/";
/// Texts that a parser would take for other values than strings, where these are allowed, too.
const NO_JSON: &str = " & ~/\\s*([\\-+.]?[0-9](.|\\n)*|[\\[\\{](.|\\n)*\
                       |([tT]rue|[fF]alse|TRUE|FALSE|null|NULL|[nN]one)\\s*)/";

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
///         Parameters { each, closer: "</parameter>" }.write(rules, schema)
///     },
///     ..CallGrammar::JSON
/// };
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Parameters {
    /// One parameter: `$KEY`, `$VALUE`, and `$IS_TEXT`, which is `true` for strings and else
    /// `false`.
    pub each: &'static str,
    /// What ends a value, so that no string has it.
    pub closer: &'static str,
}

/// What a value may be.
#[derive(Debug, Default)]
struct Values {
    /// Strings: regular expressions.
    texts: Vec<String>,
    /// Strings, each as it is.
    words: Vec<String>,
    /// JSON, as expressions.
    others: Vec<String>,
}

impl Parameters {
    /// The parameters of a schema, as an expression.
    ///
    /// # Errors
    /// Words for a 400: what tagged parameters cannot hold.
    #[inline(never)]
    pub fn write(&self, rules: &mut Rules<'_>, schema: &Schema<'_>) -> Result<String, String> {
        let Some(properties) = schema.properties("-. :/@")? else {
            let values = Values { texts: vec![ANY_TEXT.into()], ..Values::default() };
            let any = self.parameter(rules, Hole::Rule(ANY_KEY), &values);
            return Ok(joined(&["(", &any, ")*"]));
        };
        let mut out = String::new();
        for property in &properties {
            let mut values = Values::default();
            values.add(&property.schema)?;
            if values.others.iter().any(|other| other != "\"null\" ") {
                values.texts.iter_mut().for_each(|text| text.push_str(NO_JSON));
            }
            let one = self.parameter(rules, Hole::Text(property.key), &values);
            let end = if property.is_required { " " } else { "? " };
            put(&mut out, &[&rules.add(&one), end]);
        }
        if out.is_empty() {
            out.push_str("\"\"");
        }
        Ok(out)
    }

    #[inline(never)]
    fn parameter(&self, rules: &mut Rules<'_>, key: Hole<'_>, values: &Values) -> String {
        let (head, tail) = self.each.split_at(place_of("$VALUE", self.each));
        let tail = tail.strip_prefix("$VALUE").unwrap_or(tail);
        let of = |is_text| [("$KEY", key), ("$IS_TEXT", Hole::Text(is_text))];
        let (tail, end) = (rules.fill(tail, &of("")), tail);
        let (text, other) = (rules.fill(head, &of("true")), rules.fill(head, &of("false")));
        let mut ways = String::new();
        for word in &values.words {
            let word = rules.fill("$V", &[("$V", Hole::Text(word))]);
            put(&mut ways, &[" | ", &text, &word, &tail]);
        }
        for regex in &values.texts {
            let value = rules.text_up_to(regex, end, self.closer);
            put(&mut ways, &[" | ", &text, &value]);
        }
        for value in &values.others {
            put(&mut ways, &[" | ", &other, value, &tail]);
        }
        ways.split_off(" | ".len().min(ways.len()))
    }
}

impl Values {
    #[inline(never)]
    fn add(&mut self, schema: &Schema<'_>) -> Result<(), String> {
        let schema = schema.resolved()?;
        if let Some(options) = schema.options()? {
            for option in options {
                self.add(&option)?;
            }
        } else if let Some(listed) = schema.values() {
            for value in listed {
                match unquoted(value) {
                    Some(word) => self.words.push(word),
                    None => self.others.push(joined(&[&quoted(value), " "])),
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
                    "null" => self.others.push("\"null\" ".into()),
                    _ => self.others.push(schema.json_of(name)),
                }
            }
        }
        Ok(())
    }
}
