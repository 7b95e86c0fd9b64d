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
    /// Beyond `Auto` the call is enforced while the model writes.
    pub choice: ToolChoice,
    /// May one answer hold several calls?
    pub parallel: bool,
    /// One of the tools is `strict`: the arguments of all of them follow their schemas.
    pub strict: bool,
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
        let mut strict = false;
        let list: Vec<Value> = list
            .into_iter()
            .enumerate()
            .map(|(i, tool)| one(tool, &format!("tools[{i}]"), &mut strict))
            .collect::<Result<_, _>>()?;
        let choice = choice(fields.value("tool_choice"), &list)?;
        let parallel = fields.flag("parallel_tool_calls", true)?;
        if choice == ToolChoice::None || list.is_empty() {
            let list = Vec::new();
            return Ok(Tools { list, choice: ToolChoice::None, parallel, strict: false });
        }
        Ok(Tools { list, choice, parallel, strict })
    }
}

fn choice(value: Option<Value>, tools: &[Value]) -> Result<ToolChoice, ApiError> {
    let Some(value) = value else { return Ok(ToolChoice::Auto) };
    match &value {
        Value::String(s) if s == "auto" => Ok(ToolChoice::Auto),
        Value::String(s) if s == "none" => Ok(ToolChoice::None),
        Value::String(s) if s == "required" && tools.is_empty() => Err(ApiError::invalid(
            "tool_choice",
            "`tool_choice` is `required` and there are no `tools`; send some",
        )),
        Value::String(s) if s == "required" => Ok(ToolChoice::Required),
        Value::Object(object) => {
            let name = object.get("function").and_then(|f| f.get("name")).and_then(Value::as_str);
            let Some(name) = name.filter(|_| object.get("type") == Some(&"function".into())) else {
                return Err(ApiError::invalid(
                    "tool_choice",
                    "`tool_choice` must be `auto`, `none`, `required` or \
                     {\"type\": \"function\", \"function\": {\"name\": …}}",
                ));
            };
            if !tools.iter().any(|tool| tool["function"]["name"] == name) {
                return Err(ApiError::invalid(
                    "tool_choice",
                    format!("`tool_choice` names `{name}`, which is not in `tools`"),
                ));
            }
            Ok(ToolChoice::Named(name.to_owned()))
        }
        other => Err(ApiError::invalid(
            "tool_choice",
            format!("`tool_choice` is `{other}`; it must be `auto`, `none` or `required`"),
        )),
    }
}

fn one(tool: Value, path: &str, strict: &mut bool) -> Result<Value, ApiError> {
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
        Some(Value::Bool(true)) => *strict = true,
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
        assert!(!tools.strict && tools.parallel);
        let required = json!({"tools": [tool()], "tool_choice": "required",
            "parallel_tool_calls": false});
        let required = take(required).unwrap();
        assert!(required.choice == ToolChoice::Required && !required.parallel);
        let mut strict = tool();
        strict["function"]["strict"] = true.into();
        let named = json!({"type": "function", "function": {"name": "f"}});
        let named = take(json!({"tools": [strict, tool()], "tool_choice": named})).unwrap();
        assert!(named.choice == ToolChoice::Named("f".into()) && named.strict);
        assert_eq!(named.list[0], json!({"type": "function", "function": {"name": "f"}}));
        let none = take(json!({"tools": [tool()], "tool_choice": "none"})).unwrap();
        assert!(none.list.is_empty() && none.choice == ToolChoice::None);
    }

    #[test]
    fn refused() {
        let strict = json!({"type": "function", "function": {"name": "f", "strict": 1}});
        let named = json!({"type": "function", "function": {"name": "missing"}});
        let rows = [
            (json!({"tools": {"a": 1}}), "tools"),
            (json!({"tools": [{"type": "mcp"}]}), "tools[0].type"),
            (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
            (
                json!({"tools": [{"type": "function", "function": {"name": ""}}]}),
                "tools[0].function.name",
            ),
            (json!({"tools": [strict]}), "tools[0].function.strict"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"tools": [tool()], "tool_choice": "sometimes"}), "tool_choice"),
            (json!({"tools": [tool()], "tool_choice": named}), "tool_choice"),
            (json!({"functions": [{}]}), "functions"),
        ];
        for (body, want) in rows {
            let error = take(body.clone()).unwrap_err();
            assert_eq!(error.body()["error"]["param"], want, "{body}");
        }
    }
}
