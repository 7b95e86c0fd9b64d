//! `tools`, `tool_choice` and what belongs to them, checked.

use serde_json::{Map, Value};
use tenon_chat::parser::ToolChoice;

use super::fields::Fields;
use crate::error::ApiError;

/// Tools of one request; the rendered prompt grows with each.
const MAX_TOOLS: usize = 1024;
/// Bytes of a function's name.
const MAX_NAME_BYTES: usize = 256;

/// The tools that the model may call now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tools {
    /// OpenAI's objects without `null` members; empty when none may be called.
    pub list: Vec<Value>,
    /// `None` or `Auto`; others are refused until a grammar enforces them.
    pub choice: ToolChoice,
}

impl Tools {
    /// Takes `tools`, `tool_choice` and `parallel_tool_calls`. With `tool_choice: "none"` the model
    /// is not shown the tools: nobody would read its call.
    pub fn take(fields: &mut Fields) -> Result<Tools, ApiError> {
        fields.refuse(&[("functions", "use `tools`"), ("function_call", "use `tool_choice`")])?;
        let list = match fields.value("tools") {
            None => Vec::new(),
            Some(Value::Array(list)) => list,
            Some(_) => return Err(ApiError::invalid("tools", "`tools` must be a list")),
        };
        if list.len() > MAX_TOOLS {
            let message = format!("`tools` has {} entries; at most {MAX_TOOLS} go", list.len());
            return Err(ApiError::invalid("tools", message));
        }
        let list: Vec<Value> = list
            .into_iter()
            .enumerate()
            .map(|(i, tool)| one(tool, &format!("tools[{i}]")))
            .collect::<Result<_, _>>()?;
        let choice = choice(fields.value("tool_choice"), &list)?;
        let parallel = fields.flag("parallel_tool_calls", true)?;
        if choice == ToolChoice::None || list.is_empty() {
            return Ok(Tools { list: Vec::new(), choice: ToolChoice::None });
        }
        if !parallel {
            return Err(ApiError::unsupported(
                "parallel_tool_calls",
                "leave it out: `false` cannot be enforced",
            ));
        }
        Ok(Tools { list, choice })
    }
}

fn choice(value: Option<Value>, tools: &[Value]) -> Result<ToolChoice, ApiError> {
    let Some(value) = value else { return Ok(ToolChoice::Auto) };
    let hint = "send `auto` or `none`: a forced call cannot be enforced";
    match &value {
        Value::String(s) if s == "auto" => Ok(ToolChoice::Auto),
        Value::String(s) if s == "none" => Ok(ToolChoice::None),
        Value::String(s) if s == "required" => Err(ApiError::unsupported("tool_choice", hint)),
        Value::Object(object) => {
            let name = object.get("function").and_then(|f| f.get("name")).and_then(Value::as_str);
            let Some(name) = name.filter(|_| object.get("type") == Some(&"function".into())) else {
                return Err(ApiError::invalid(
                    "tool_choice",
                    "`tool_choice` must be `auto`, `none` or \
                     {\"type\": \"function\", \"function\": {\"name\": …}}",
                ));
            };
            if !tools.iter().any(|tool| tool["function"]["name"] == name) {
                return Err(ApiError::invalid(
                    "tool_choice",
                    format!("`tool_choice` names `{name}`, which is not in `tools`"),
                ));
            }
            Err(ApiError::unsupported("tool_choice", hint))
        }
        other => Err(ApiError::invalid(
            "tool_choice",
            format!("`tool_choice` is `{other}`; it must be `auto` or `none`"),
        )),
    }
}

fn one(tool: Value, path: &str) -> Result<Value, ApiError> {
    let bad = |param: String, what: &str| {
        let message = format!("`{param}` {what}");
        ApiError::invalid(param, message)
    };
    let Value::Object(mut tool) = tool else {
        return Err(bad(path.to_owned(), "must be an object"));
    };
    if tool.get("type").and_then(Value::as_str) != Some("function") {
        return Err(bad(format!("{path}.type"), "must be `function`"));
    }
    let Some(Value::Object(mut function)) = tool.shift_remove("function") else {
        return Err(bad(format!("{path}.function"), "must be an object"));
    };
    function.retain(|_, value| !value.is_null());
    match function.get("name").and_then(Value::as_str) {
        Some(name) if !name.is_empty() && name.len() <= MAX_NAME_BYTES => {}
        _ => {
            let what = format!("must be a string of 1 to {MAX_NAME_BYTES} bytes");
            return Err(bad(format!("{path}.function.name"), &what));
        }
    }
    if function.get("description").is_some_and(|d| !d.is_string()) {
        return Err(bad(format!("{path}.function.description"), "must be a string"));
    }
    if function.get("parameters").is_some_and(|p| !p.is_object()) {
        return Err(bad(format!("{path}.function.parameters"), "must be a JSON schema object"));
    }
    match function.shift_remove("strict") {
        None | Some(Value::Bool(false)) => {}
        Some(Value::Bool(true)) => {
            return Err(ApiError::unsupported(
                format!("{path}.function.strict"),
                "send `false`: the schema cannot be enforced",
            ));
        }
        Some(_) => return Err(bad(format!("{path}.function.strict"), "must be a boolean")),
    }
    let mut out = Map::new();
    out.insert("type".into(), "function".into());
    out.insert("function".into(), function.into());
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn take(body: Value) -> Result<Tools, ApiError> {
        Tools::take(&mut Fields::parse(body.to_string().as_bytes()).unwrap())
    }

    fn tool() -> Value {
        json!({"type": "function", "function": {"name": "f", "parameters": null,
            "strict": null, "description": null}})
    }

    #[test]
    fn accepted() {
        assert!(take(json!({"tools": []})).unwrap().list.is_empty());
        assert!(take(json!({"tools": [], "parallel_tool_calls": false})).is_ok());
        let tools = take(json!({"tools": [tool()], "tool_choice": "auto"})).unwrap();
        assert_eq!(tools.list, [json!({"type": "function", "function": {"name": "f"}})]);
        let none = take(json!({"tools": [tool()], "tool_choice": "none"})).unwrap();
        assert!(none.list.is_empty() && none.choice == ToolChoice::None);
    }

    #[test]
    fn refused() {
        let strict = json!({"type": "function", "function": {"name": "f", "strict": true}});
        let named = json!({"type": "function", "function": {"name": "missing"}});
        let known = json!({"type": "function", "function": {"name": "f"}});
        let rows = [
            (json!({"tools": {"a": 1}}), "tools"),
            (json!({"tools": [{"type": "mcp"}]}), "tools[0].type"),
            (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
            (
                json!({"tools": [{"type": "function", "function": {"name": ""}}]}),
                "tools[0].function.name",
            ),
            (json!({"tools": [strict]}), "tools[0].function.strict"),
            (json!({"tools": [tool()], "tool_choice": "sometimes"}), "tool_choice"),
            (json!({"tools": [tool()], "tool_choice": named}), "tool_choice"),
            (json!({"tools": [tool()], "tool_choice": known}), "tool_choice"),
            (json!({"tools": [tool()], "tool_choice": "required"}), "tool_choice"),
            (json!({"tools": [tool()], "parallel_tool_calls": false}), "parallel_tool_calls"),
            (json!({"functions": [{}]}), "functions"),
        ];
        for (body, want) in rows {
            let error = take(body.clone()).unwrap_err();
            assert_eq!(error.body()["error"]["param"], want, "{body}");
        }
    }
}
