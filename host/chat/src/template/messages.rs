//! Messages of the OpenAI API in the shape that a template expects.

use serde_json::{Map, Value, json};

use super::TemplateError;

/// What a template expects of messages. Found by trying ([`super::probe`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Style {
    /// Content is a string; else a list of parts.
    pub(super) text_content: bool,
    /// `arguments` of a tool call is a map; else JSON text.
    pub(super) object_arguments: bool,
    /// An assistant's missing content beside tool calls is null; else an empty string.
    pub(super) null_content: bool,
    /// Role `developer` is known; else it becomes `system`.
    pub(super) knows_developer: bool,
}

impl Default for Style {
    fn default() -> Self {
        Style {
            text_content: true,
            object_arguments: true,
            null_content: true,
            knows_developer: false,
        }
    }
}

fn wrong<T>(field: String, problem: impl Into<String>) -> Result<T, TemplateError> {
    Err(TemplateError::Message { field, problem: problem.into() })
}

/// Brings messages into shape. Fields that this does not know stay as they are.
pub(super) fn normalize(messages: &[Value], style: Style) -> Result<Vec<Value>, TemplateError> {
    let one = |(i, message)| normalize_one(&format!("messages[{i}]"), message, style);
    messages.iter().enumerate().map(one).collect()
}

fn normalize_one(field: &str, message: &Value, style: Style) -> Result<Value, TemplateError> {
    let Value::Object(message) = message else {
        return wrong(field.into(), "is not an object with `role` and `content`");
    };
    let mut out = message.clone();
    match message.get("role") {
        Some(Value::String(role)) if role == "developer" && !style.knows_developer => {
            out.insert("role".into(), "system".into());
        }
        Some(Value::String(_)) => {}
        _ => return wrong(format!("{field}.role"), "must be a string, such as `user`"),
    }
    let num_calls = match message.get("tool_calls") {
        None | Some(Value::Null) => {
            out.shift_remove("tool_calls");
            0
        }
        Some(Value::Array(calls)) => {
            let calls: Result<Vec<_>, _> = calls
                .iter()
                .enumerate()
                .map(|(i, call)| call_of(&format!("{field}.tool_calls[{i}]"), call, style))
                .collect();
            let calls = calls?;
            let num_calls = calls.len();
            if num_calls == 0 {
                out.shift_remove("tool_calls");
            } else {
                out.insert("tool_calls".into(), Value::Array(calls));
            }
            num_calls
        }
        Some(_) => return wrong(format!("{field}.tool_calls"), "must be a list"),
    };
    let content = message.get("content").unwrap_or(&Value::Null);
    let content = content_of(&format!("{field}.content"), content, num_calls > 0, style)?;
    out.insert("content".into(), content);
    share_reasoning(&mut out);
    Ok(Value::Object(out))
}

/// Both names of the same field are in use, by clients and by templates.
fn share_reasoning(message: &mut Map<String, Value>) {
    for (given, wanted) in [("reasoning", "reasoning_content"), ("reasoning_content", "reasoning")]
    {
        let text = message.get(given).filter(|text| text.is_string()).cloned();
        if let Some(text) = text.filter(|_| message.get(wanted).is_none_or(Value::is_null)) {
            message.insert(wanted.into(), text);
        }
    }
}

fn content_of(
    field: &str,
    content: &Value,
    has_calls: bool,
    style: Style,
) -> Result<Value, TemplateError> {
    let text = match content {
        Value::Null if has_calls && style.null_content => return Ok(Value::Null),
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let mut texts = Vec::with_capacity(parts.len());
            for (i, part) in parts.iter().enumerate() {
                texts.push(part_text(&format!("{field}[{i}]"), part)?);
            }
            if !style.text_content {
                let part = |text: &&str| json!({"type": "text", "text": text});
                return Ok(texts.iter().map(part).collect());
            }
            texts.join("\n")
        }
        _ => return wrong(field.into(), "must be a string or a list of parts"),
    };
    if style.text_content { Ok(text.into()) } else { Ok(json!([{"type": "text", "text": text}])) }
}

fn part_text<'p>(field: &str, part: &'p Value) -> Result<&'p str, TemplateError> {
    if let Value::String(text) = part {
        return Ok(text);
    }
    let kind = part.get("type").and_then(Value::as_str).unwrap_or("");
    let key = match kind {
        "text" | "input_text" | "output_text" => "text",
        "refusal" => "refusal",
        _ => {
            let problem = format!("is `{kind}`, which this server does not take; send text");
            return wrong(format!("{field}.type"), problem);
        }
    };
    match part.get(key).and_then(Value::as_str) {
        Some(text) => Ok(text),
        None => wrong(format!("{field}.{key}"), "must be a string"),
    }
}

/// The text of a content, joined as for templates that take strings.
pub(super) fn plain_text(content: &Value) -> Option<String> {
    match content_of("", content, false, Style::default()) {
        Ok(Value::String(text)) => Some(text),
        _ => None,
    }
}

fn call_of(field: &str, call: &Value, style: Style) -> Result<Value, TemplateError> {
    let Some(Value::Object(function)) = call.get("function") else {
        return wrong(format!("{field}.function"), "must be an object with `name` and `arguments`");
    };
    if !function.get("name").is_some_and(Value::is_string) {
        return wrong(format!("{field}.function.name"), "must be a string");
    }
    let field = format!("{field}.function.arguments");
    let arguments = match function.get("arguments").unwrap_or(&Value::Null) {
        Value::String(text) if text.trim().is_empty() => Value::Object(Map::new()),
        Value::String(text) if !style.object_arguments => Value::String(text.clone()),
        Value::String(text) => match serde_json::from_str(text) {
            Ok(value) => value,
            Err(error) => return wrong(field, format!("is not JSON: {error}")),
        },
        Value::Null => Value::Object(Map::new()),
        value @ Value::Object(_) => value.clone(),
        _ => return wrong(field, "must be a JSON text or an object"),
    };
    let arguments = match arguments {
        value if style.object_arguments || value.is_string() => value,
        value => Value::String(value.to_string()),
    };
    let mut function = function.clone();
    function.insert("arguments".into(), arguments);
    let mut call = call.as_object().cloned().unwrap_or_default();
    call.insert("function".into(), Value::Object(function));
    if !call.contains_key("type") {
        call.insert("type".into(), "function".into());
    }
    Ok(Value::Object(call))
}
