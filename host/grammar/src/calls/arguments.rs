//! How arguments are written: as Python's keyword arguments, as members with bare keys.
//! ([`Parameters`](super::Parameters) is a further way; JSON needs nothing.)

use serde_json::Value;

use super::rules::{Hole, Rules};
use super::schema::{NO_JSON, Schema};
use crate::lark::literal;

const ANY_KEY: &str = "/[A-Za-z_][A-Za-z0-9_]*/";

/// `a=1, b="x", c=True`: values in JSON, which Python reads alike, but for a flag or `None`.
pub(super) fn keywords(rules: &mut Rules<'_>, schema: Schema<'_>) -> Result<String, String> {
    let Some(properties) = schema.properties("")? else {
        let any = ["\"=\" ", &schema.any().json()].concat();
        return Ok(many(ANY_KEY, &any, "\", \""));
    };
    let mut items = Vec::new();
    for property in &properties {
        let value = keyword_value(rules, property.schema)?;
        let key = rules.fill("$K=", &[("$K", Hole::Text(property.key))]);
        items.push((property.is_required, key + &value));
    }
    Ok(chain(rules, &items, "\", \""))
}

/// JSON, but for a flag or `None`.
fn keyword_value(rules: &mut Rules<'_>, schema: Schema<'_>) -> Result<String, String> {
    let schema = schema.resolved()?;
    if schema.keyword("enum").is_some() || schema.keyword("const").is_some() {
        return Ok(schema.json());
    }
    let mut ways = Vec::new();
    let Ok(options) = schema.options() else { return Ok(schema.json()) };
    for option in options.iter().flatten() {
        ways.push(keyword_value(rules, *option)?);
    }
    for name in if options.is_none() { schema.types() } else { Vec::new() } {
        ways.push(match name {
            "boolean" => "(\"True\" | \"False\")".into(),
            "null" => "\"None\"".into(),
            _ => schema.json_of(name),
        });
    }
    match ways.is_empty() {
        true => Ok(schema.json()),
        false => Ok(rules.add(&ways.join(" | "))),
    }
}

/// `a:1,b:"x",c:{d:[true]}` with `quote` around strings, which have no escapes. Without the braces
/// around it. `is_typed`: to the parser a string at the top is another value if the schema admits
/// one.
pub(super) fn bare(
    rules: &mut Rules<'_>,
    schema: Schema<'_>,
    quote: &str,
    is_typed: bool,
) -> Result<String, String> {
    let Some(properties) = schema.properties("-.")? else {
        let any = any_bare(rules, schema, quote);
        return Ok(many(ANY_KEY, &(String::from("\":\" ") + &any), "\",\""));
    };
    let mut items = Vec::new();
    for property in &properties {
        let is_mixed = is_typed && admits_others(property.schema)?;
        let no_text = if is_mixed { NO_JSON } else { "" };
        let value = bare_value(rules, property.schema, quote, no_text)?;
        let key = rules.fill("$K:", &[("$K", Hole::Text(property.key))]);
        items.push((property.is_required, key + &value));
    }
    Ok(chain(rules, &items, "\",\""))
}

/// May it be neither a string nor `null`?
fn admits_others(schema: Schema<'_>) -> Result<bool, String> {
    let schema = schema.resolved()?;
    for option in schema.options()?.into_iter().flatten() {
        if admits_others(option)? {
            return Ok(true);
        }
    }
    Ok(schema.types().iter().any(|name| !matches!(*name, "string" | "null")))
}

/// `no_text`: what no string is, for the end of a regular expression.
fn bare_value(
    rules: &mut Rules<'_>,
    schema: Schema<'_>,
    quote: &str,
    no_text: &str,
) -> Result<String, String> {
    let schema = schema.resolved()?;
    let mut ways = Vec::new();
    if let Some(options) = schema.options()? {
        for option in options {
            ways.push(bare_value(rules, option, quote, no_text)?);
        }
    } else if let Some(listed) = schema.values()? {
        for value in listed {
            ways.push(match value {
                Value::String(word) if word.contains(quote) => return Err(schema.refused("enum")),
                Value::String(word) => {
                    let word = rules.fill("$V", &[("$V", Hole::Text(word))]);
                    rules.text(quote) + &word + &rules.text(quote)
                }
                Value::Object(_) | Value::Array(_) => return Err(schema.refused("enum")),
                scalar => literal(&scalar.to_string()),
            });
        }
    } else {
        let types = schema.types();
        if types.is_empty() {
            ways.push(any_bare(rules, schema, quote));
        }
        for name in types {
            ways.push(match name {
                "string" => {
                    let text = schema.text_regex()? + no_text;
                    rules.text(quote) + &rules.text_up_to(&text, quote, &[quote])
                }
                "object" => ["\"{\" ", &bare(rules, schema, quote, false)?, " \"}\""].concat(),
                "array" => bare_list(rules, schema, quote)?,
                _ => schema.json_of(name),
            });
        }
    }
    Ok(rules.add(&ways.join(" | ")) + " ")
}

fn bare_list(rules: &mut Rules<'_>, schema: Schema<'_>, quote: &str) -> Result<String, String> {
    for keyword in ["prefixItems", "minItems", "maxItems"] {
        if schema.keyword(keyword).is_some_and(|value| *value != 0) {
            return Err(schema.refused(keyword));
        }
    }
    let item = match schema.keyword("items") {
        Some(items) => bare_value(rules, schema.at(items), quote, "")?,
        None => any_bare(rules, schema, quote),
    };
    Ok(["\"[\" ", &many("", &item, "\",\""), " \"]\""].concat())
}

/// Any value with bare keys.
fn any_bare(rules: &mut Rules<'_>, schema: Schema<'_>, quote: &str) -> String {
    const NAME: &str = "calls_any_value";
    if rules.is_new(NAME) {
        let text = rules.text(quote) + &rules.text_up_to("/(.|\\n)*/", quote, &[quote]);
        let list = many("", NAME, "\",\"");
        let object = many(ANY_KEY, "\":\" calls_any_value", "\",\"");
        let scalar = schema.json_scalar();
        let body =
            [&text[..], " | ", &scalar, " | \"[\" ", &list, " \"]\" | \"{\" ", &object, " \"}\""];
        rules.named(NAME, &body.concat());
    }
    NAME.into()
}

/// Any number of `key value`, also none.
fn many(key: &str, value: &str, between: &str) -> String {
    ["(", key, " ", value, " (", between, " ", key, " ", value, ")*)?"].concat()
}

/// The items in their order with a text between any two; what is not required may be left out.
fn chain(rules: &mut Rules<'_>, items: &[(bool, String)], between: &str) -> String {
    // What may follow once nothing, or something, has been written.
    let (mut first, mut next) = (String::from("\"\""), String::from("\"\""));
    for (is_required, item) in items.iter().rev() {
        let item = rules.add(item);
        let begins = [&item[..], " ", &next].concat();
        let goes_on = [between, " ", &item, " ", &next].concat();
        match is_required {
            true => {
                first = rules.add(&begins);
                next = rules.add(&goes_on);
            }
            false => {
                first = rules.add(&[&begins[..], " | ", &first].concat());
                next = rules.add(&[&goes_on[..], " | ", &next].concat());
            }
        }
    }
    first
}
