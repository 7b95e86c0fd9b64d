//! The Jinja environment that chat templates are written for: Jinja2 with `trim_blocks`,
//! `lstrip_blocks` and loop controls, Python's methods, and Hugging Face's functions and filters.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, State, Value, escape_formatter};

use super::error::{self, Raised, TemplateError, TooLong};
use super::{FUEL, MAX_DEPTH, MAX_PROMPT_BYTES, json, python};

const NAME: &str = "chat_template";

/// Compiles `source` into an environment of its own.
pub(super) fn environment(source: &str) -> Result<Environment<'static>, TemplateError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the default delimiters are valid"));
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(MAX_DEPTH);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out, state, value| match python::container(value)? {
        Some(text) => {
            state.consume_fuel(text.len() as u64 / 8)?;
            out.write_str(&text).map_err(Error::from)
        }
        None => escape_formatter(out, state, value),
    });
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment
        .add_template_owned(NAME, without_generation_tags(source))
        .map_err(|e| error::syntax(&e))?;
    Ok(environment)
}

/// Renders within the limits.
pub(super) fn render(
    environment: &Environment<'static>,
    context: Value,
) -> Result<String, TemplateError> {
    let mut prompt = Limited(Vec::new());
    let template = environment.get_template(NAME).expect("compiled with the environment");
    template.render_captured_to(context, &mut prompt).map_err(|e| error::render(&e))?;
    Ok(String::from_utf8(prompt.0).expect("templates write UTF-8"))
}

struct Limited(Vec<u8>);

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_PROMPT_BYTES {
            return Err(io::Error::other(TooLong(MAX_PROMPT_BYTES)));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `json.dumps` as Hugging Face calls it: no HTML escapes, no ASCII escapes unless asked.
fn tojson(
    state: &State,
    value: &Value,
    ensure_ascii: Option<bool>,
    options: Kwargs,
) -> Result<Value, Error> {
    let named: Option<bool> = options.get("ensure_ascii")?;
    let indent: Option<Value> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let indent = match indent.filter(|v| !v.is_none()) {
        None => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(String::from),
        Some(number) => Some(" ".repeat(usize::try_from(number)?.min(json::MAX_INDENT))),
    };
    let separators = match separators {
        None => None,
        Some(pair) => match <[String; 2]>::try_from(pair) {
            Ok(pair) => Some(pair),
            Err(_) => {
                let what = "separators of tojson are a pair of strings";
                return Err(Error::new(ErrorKind::InvalidOperation, what));
            }
        },
    };
    let style = json::Dump {
        ensure_ascii: named.or(ensure_ascii).unwrap_or(false),
        sort_keys: sort_keys.unwrap_or(false),
        indent,
        separators,
    };
    let text = json::dumps(value, &style, &|bytes| state.consume_fuel(bytes as u64 / 8))?;
    Ok(Value::from(text))
}

fn raise_exception(message: String) -> Result<Value, Error> {
    let error = Error::new(ErrorKind::InvalidOperation, message.clone());
    Err(error.with_source(Raised(message)))
}

/// The time now, UTC, in C's notation.
fn strftime_now(format: &str) -> Result<String, Error> {
    let now = jiff::Timestamp::now().to_zoned_datetime(jiff::tz::TimeZone::UTC);
    jiff::fmt::strtime::format(format, &now).map_err(|e| {
        Error::new(ErrorKind::InvalidOperation, format!("strftime_now(`{format}`): {e}"))
    })
}

/// `{% generation %} … {% endgeneration %}` marks the assistant's text for training. Here it is a
/// block that always renders, with the same treatment of blanks.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open);
        let Some(close) = tag[2..].find("%}").map(|at| at + 2) else { break };
        out.push_str(before);
        let inner = &tag[2..close];
        match inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+') {
            "generation" => out.push_str(&tag[..close + 2].replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag[..close + 2].replace("endgeneration", "endif")),
            _ => out.push_str(&tag[..close + 2]),
        }
        rest = &tag[close + 2..];
    }
    out.push_str(rest);
    out
}
