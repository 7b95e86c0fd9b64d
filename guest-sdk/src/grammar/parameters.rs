//! Arguments as tagged parameters, each a key and a value: strings as they are, up to the closer,
//! other values as JSON. In the schema's order, required ones always.

use super::rules::{Hole, Rules};
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
    pub fn write(&self, rules: &mut Rules<'_>, schema: &Schema<'_>) -> Result<String, String> {
        let Some(properties) = schema.properties("-. :/@")? else {
            let values = Values { texts: vec![ANY_TEXT.into()], ..Values::default() };
            let any = self.parameter(rules, Hole::Rule(ANY_KEY), &values);
            return Ok(["(", &any, ")*"].concat());
        };
        let mut out = String::new();
        for property in &properties {
            let mut values = Values::default();
            values.add(&property.schema)?;
            if values.others.iter().any(|other| other != "\"null\" ") {
                values.texts.iter_mut().for_each(|text| text.push_str(NO_JSON));
            }
            let one = self.parameter(rules, Hole::Text(property.key), &values);
            out.push_str(&rules.add(&one));
            out.push_str(if property.is_required { " " } else { "? " });
        }
        if out.is_empty() {
            out.push_str("\"\"");
        }
        Ok(out)
    }

    fn parameter(&self, rules: &mut Rules<'_>, key: Hole<'_>, values: &Values) -> String {
        let (head, tail) = self.each.split_once("$VALUE").unwrap_or_default();
        let begin = |rules: &Rules<'_>, is_text| {
            rules.fill(head, &[("$KEY", key), ("$IS_TEXT", Hole::Text(is_text))])
        };
        let mut ways = Vec::new();
        for word in &values.words {
            let word = rules.fill("$V", &[("$V", Hole::Text(word))]);
            ways.push(begin(rules, "true") + &word + &rules.text(tail));
        }
        for text in &values.texts {
            ways.push(begin(rules, "true") + &rules.text_up_to(text, tail, self.closer));
        }
        for other in &values.others {
            ways.push(begin(rules, "false") + other + &rules.text(tail));
        }
        ways.join(" | ")
    }
}

impl Values {
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
                    None => self.others.push(quoted(value) + " "),
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
