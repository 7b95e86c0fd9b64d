//! Chat messages from the wire, checked: roles, contents, calls. What a template wants of them
//! (`developer` or `system`, arguments as text or object) is `chat::template`'s business.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// Messages of one request. Rendering is linear in them.
const MAX_MESSAGES: usize = 16_384;

/// Takes the value of `messages`: text parts joined, `null` extras and unknown fields gone.
pub(crate) fn normalize(value: Option<Value>) -> Result<Vec<Value>, ApiError> {
    let messages = match value {
        None => return Err(ApiError::invalid("messages", "`messages` is missing; send a list")),
        Some(Value::Array(messages)) => messages,
        Some(_) => return Err(ApiError::invalid("messages", "`messages` must be a list")),
    };
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` is empty; send at least one"));
    }
    if messages.len() > MAX_MESSAGES {
        let message =
            format!("`messages` has {} entries; at most {MAX_MESSAGES} go", messages.len());
        return Err(ApiError::invalid("messages", message));
    }
    messages
        .into_iter()
        .enumerate()
        .map(|(i, message)| one(message, &format!("messages[{i}]")))
        .collect()
}

fn one(message: Value, path: &str) -> Result<Value, ApiError> {
    let Value::Object(mut message) = message else {
        return Err(ApiError::invalid(path, format!("`{path}` must be an object")));
    };
    message.retain(|key, value| key == "content" || !value.is_null());
    let role = role(&message, path)?;
    let calls = match message.shift_remove("tool_calls") {
        Some(calls) if role == "assistant" => tool_calls(calls, path)?,
        Some(Value::Array(calls)) if calls.is_empty() => Vec::new(),
        Some(_) => {
            let param = format!("{path}.tool_calls");
            let message = format!("`{param}`: only an assistant message has tool calls");
            return Err(ApiError::invalid(param, message));
        }
        None => Vec::new(),
    };
    let content = content(message.shift_remove("content"), path, role)?;
    if message.contains_key("function_call") {
        let param = format!("{path}.function_call");
        return Err(ApiError::unsupported(param, "use `tool_calls`"));
    }
    let mut out = Map::new();
    out.insert("role".into(), role.into());
    out.insert("content".into(), content);
    if !calls.is_empty() {
        out.insert("tool_calls".into(), calls.into());
    }
    for key in ["reasoning", "reasoning_content", "tool_call_id", "name"] {
        match message.shift_remove(key) {
            None => {}
            Some(text @ Value::String(_)) => {
                out.insert(key.into(), text);
            }
            Some(_) => {
                let param = format!("{path}.{key}");
                let message = format!("`{param}` must be a string");
                return Err(ApiError::invalid(param, message));
            }
        }
    }
    Ok(Value::Object(out))
}

fn role(message: &Map<String, Value>, path: &str) -> Result<&'static str, ApiError> {
    const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
    let param = format!("{path}.role");
    let Some(role) = message.get("role") else {
        let message = format!("`{param}` is missing; it is one of {}", ROLES.join(", "));
        return Err(ApiError::invalid(param, message));
    };
    match ROLES.iter().find(|known| role.as_str() == Some(known)) {
        Some(known) => Ok(known),
        None => {
            let message = format!("`{param}` is `{role}`; it must be one of {}", ROLES.join(", "));
            Err(ApiError::invalid(param, message))
        }
    }
}

/// A string as it is, text parts joined without a separator. An assistant may have said nothing.
fn content(value: Option<Value>, path: &str, role: &str) -> Result<Value, ApiError> {
    let param = format!("{path}.content");
    match value {
        Some(text @ Value::String(_)) => Ok(text),
        Some(Value::Array(parts)) => {
            let mut joined = String::new();
            for (j, part) in parts.iter().enumerate() {
                joined.push_str(text_part(part, &format!("{param}[{j}]"))?);
            }
            Ok(joined.into())
        }
        None | Some(Value::Null) if role == "assistant" => Ok(Value::Null),
        None | Some(Value::Null) => {
            let message = format!("`{param}` is missing; send a string or text parts");
            Err(ApiError::invalid(param, message))
        }
        Some(_) => {
            let message = format!("`{param}` must be a string or a list of text parts");
            Err(ApiError::invalid(param, message))
        }
    }
}

fn text_part<'a>(part: &'a Value, path: &str) -> Result<&'a str, ApiError> {
    let Some(part) = part.as_object() else {
        return Err(ApiError::invalid(path, format!("`{path}` must be an object with a `type`")));
    };
    let key = match part.get("type").and_then(Value::as_str) {
        Some("text" | "input_text" | "output_text") => "text",
        Some("refusal") => "refusal",
        Some(other) => {
            let param = format!("{path}.type");
            let message = format!("`{param}` is `{other}`; this model takes only `text` parts");
            return Err(ApiError::invalid(param, message));
        }
        None => {
            let param = format!("{path}.type");
            let message = format!("`{param}` is missing; send `text`");
            return Err(ApiError::invalid(param, message));
        }
    };
    part.get(key).and_then(Value::as_str).ok_or_else(|| {
        let param = format!("{path}.{key}");
        let message = format!("`{param}` must be a string");
        ApiError::invalid(param, message)
    })
}

fn tool_calls(value: Value, path: &str) -> Result<Vec<Value>, ApiError> {
    let path = format!("{path}.tool_calls");
    let Value::Array(calls) = value else {
        let message = format!("`{path}` must be a list");
        return Err(ApiError::invalid(path, message));
    };
    calls
        .into_iter()
        .enumerate()
        .map(|(j, call)| tool_call(call, &format!("{path}[{j}]")))
        .collect()
}

fn tool_call(call: Value, path: &str) -> Result<Value, ApiError> {
    let bad = |param: String, what: &str| {
        let message = format!("`{param}` {what}");
        ApiError::invalid(param, message)
    };
    let Value::Object(mut call) = call else {
        return Err(bad(path.to_owned(), "must be an object"));
    };
    if call.get("type").is_some_and(|t| !t.is_null() && t.as_str() != Some("function")) {
        return Err(bad(format!("{path}.type"), "must be `function`"));
    }
    let Some(Value::Object(mut function)) = call.shift_remove("function") else {
        return Err(bad(format!("{path}.function"), "must be an object"));
    };
    let Some(name @ Value::String(_)) = function.shift_remove("name") else {
        return Err(bad(format!("{path}.function.name"), "must be a string"));
    };
    let arguments = match function.shift_remove("arguments") {
        None | Some(Value::Null) => "{}".into(),
        Some(arguments @ (Value::Object(_) | Value::String(_))) => arguments,
        Some(_) => return Err(bad(format!("{path}.function.arguments"), "must be a string")),
    };
    let mut out = Map::new();
    match call.shift_remove("id") {
        None | Some(Value::Null) => {}
        Some(id @ Value::String(_)) => {
            out.insert("id".into(), id);
        }
        Some(_) => return Err(bad(format!("{path}.id"), "must be a string")),
    }
    out.insert("type".into(), "function".into());
    let function = Map::from_iter([("name".to_owned(), name), ("arguments".to_owned(), arguments)]);
    out.insert("function".into(), function.into());
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn param(messages: Value) -> String {
        let error = normalize(Some(messages)).unwrap_err();
        assert_eq!(error.status().as_u16(), 400);
        error.body()["error"]["param"].as_str().unwrap().to_owned()
    }

    #[test]
    fn wrong_messages_name_the_place() {
        let rows = [
            (json!([]), "messages"),
            (json!({}), "messages"),
            (json!(["x"]), "messages[0]"),
            (json!([{"content": "x"}]), "messages[0].role"),
            (json!([{"role": "robot", "content": "x"}]), "messages[0].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "user", "content": null}]), "messages[0].content"),
            (json!([{"role": "user", "content": 7}]), "messages[0].content"),
            (
                json!([{"role": "user", "content": [[{"type": "text", "text": "x"}]]}]),
                "messages[0].content[0]",
            ),
            (
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
                "messages[0].content[0].type",
            ),
            (
                json!([{"role": "user", "content": [{"type": "text"}]}]),
                "messages[0].content[0].text",
            ),
            (
                json!([{"role": "user", "content": "a", "tool_calls": [{}]}]),
                "messages[0].tool_calls",
            ),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {}}]}]),
                "messages[0].tool_calls[0].function.name",
            ),
            (json!([{"role": "user", "content": "a", "name": 1}]), "messages[0].name"),
        ];
        for (messages, want) in rows {
            assert_eq!(param(messages.clone()), want, "{messages}");
        }
    }

    #[test]
    fn parts_and_strings_are_the_same() {
        for role in ["system", "developer", "user", "assistant", "tool"] {
            let forms = [
                json!("7 knots"),
                json!([{"type": "text", "text": "7 knots"}]),
                json!([{"type": "text", "text": "7"}, {"type": "text", "text": " knots"}]),
            ];
            let all: Vec<_> = forms
                .iter()
                .map(|c| normalize(Some(json!([{"role": role, "content": c}]))).unwrap())
                .collect();
            assert!(all.iter().all(|m| *m == all[0]));
        }
    }

    #[test]
    fn assistant_history() {
        let call = json!({"id": "c1", "type": "function",
            "function": {"name": "f", "arguments": ""}});
        let history = json!([
            {"role": "assistant", "content": null, "tool_calls": [call.clone()],
             "refusal": null, "function_call": null, "audio": null, "reasoning": "hm"},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        ]);
        let out = normalize(Some(history)).unwrap();
        assert_eq!(
            out[0],
            json!({"role": "assistant", "content": null, "tool_calls": [call], "reasoning": "hm"})
        );
        assert_eq!(out[1]["tool_call_id"], "c1");
    }
}
