//! Case files: one JSON object a line with the model's `text`, the request's `tools` and what is
//! `expected` (reasoning, content, tool_calls, finish). The conformance cases of this project and
//! the fixtures of an extension have the same form.

use std::path::Path;

use serde_json::Value;

use super::{Folded, FoldedCall, Stream, Violation, any_cut, broken};
use crate::{Channel, FinishReason, Parser, RequestInfo, ToolChoice};

/// One line of a case file.
#[derive(Debug, Clone)]
pub struct Case {
    /// Its name in messages.
    pub id: String,
    /// The parser's name.
    pub family: String,
    /// `tool`, `reasoning` or `both`.
    pub kind: String,
    /// What the model said.
    pub text: String,
    /// The prompt ended inside open reasoning.
    pub starts_in_reasoning: bool,
    /// What the engine said.
    pub reason: FinishReason,
    /// OpenAI's tools, JSON.
    pub tools: String,
    /// The reasoning style to bind, where the case asks for one.
    pub style: Option<String>,
    /// An open decision: it may not decide a design.
    pub is_doubtful: bool,
    expected: Value,
}

/// What of a case is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aspect {
    /// Everything.
    All,
    /// Only the reasoning.
    Reasoning,
}

impl Case {
    /// Reads a case file.
    ///
    /// # Errors
    /// An unreadable file, or the line that is no case.
    pub fn load(path: impl AsRef<Path>) -> Result<Vec<Case>, Violation> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .or_else(|error| broken(format!("cannot read `{}`: {error}", path.display())))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        lines.map(|(number, line)| Case::from_line(number + 1, line)).collect()
    }

    fn from_line(number: usize, line: &str) -> Result<Case, Violation> {
        let value: Value = serde_json::from_str(line)
            .or_else(|error| broken(format!("line {number} is no JSON: {error}")))?;
        let word = |key: &str| value[key].as_str().map(str::to_string);
        let (Some(text), true) = (word("text"), value["expected"].is_object()) else {
            return broken(format!("line {number} has no `text` or no `expected`; add them"));
        };
        Ok(Case {
            id: word("id").unwrap_or_else(|| format!("line {number}")),
            family: word("family").unwrap_or_default(),
            kind: word("kind").unwrap_or_default(),
            text,
            starts_in_reasoning: value["reasoning_starts_in_prompt"] == true,
            reason: match value["engine_finish"].as_str() {
                Some("length") => FinishReason::Length,
                _ => FinishReason::Stop,
            },
            tools: if value["tools"].is_array() { value["tools"].to_string() } else { "[]".into() },
            style: word("reasoning_family"),
            is_doubtful: value["doubtful"] == true,
            expected: value["expected"].clone(),
        })
    }

    /// The request behind the case, with reasoning read in `style`.
    pub fn request(&self, style: Option<&str>) -> RequestInfo {
        RequestInfo {
            tools: self.tools.clone(),
            tool_choice: ToolChoice::Auto,
            tool_name: None,
            parallel: true,
            strict: false,
            reasoning_style: style.map(Into::into),
            start: if self.starts_in_reasoning { Channel::Reasoning } else { Channel::Content },
            strict_markers: false,
        }
    }

    /// Runs the case over every kind of cut, pushed and watched.
    ///
    /// # Errors
    /// The first difference, with the cut that shows it.
    pub fn check<P: Parser>(&self, style: Option<&str>, aspect: Aspect) -> Result<(), Violation> {
        let stream = Stream::of(&self.text);
        any_cut::<P>(&self.request(style), &stream, self.reason)
            .and_then(|folded| self.compare(&folded, aspect))
            .or_else(|Violation(what)| broken(format!("case `{}`: {what}", self.id)))
    }

    /// Is this what is expected?
    ///
    /// # Errors
    /// The first difference.
    pub fn compare(&self, folded: &Folded, aspect: Aspect) -> Result<(), Violation> {
        same_text("reasoning", &self.expected["reasoning"], folded.reasoning.as_deref())?;
        if aspect == Aspect::Reasoning {
            return Ok(());
        }
        same_text("content", &self.expected["content"], folded.content.as_deref())?;
        let finish = folded.finish(self.reason);
        same_text("finish", &self.expected["finish"], Some(finish))?;
        let calls = self.expected["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        if calls.len() != folded.calls.len() {
            return broken(format!("{} calls, expected {}", folded.calls.len(), calls.len()));
        }
        calls.iter().zip(&folded.calls).try_for_each(|(wanted, call)| same_call(wanted, call))
    }
}

fn same_text(what: &str, wanted: &Value, found: Option<&str>) -> Result<(), Violation> {
    if wanted.as_str() == found {
        return Ok(());
    }
    broken(format!("{what} is {}, expected {wanted}", Value::from(found)))
}

fn same_call(wanted: &Value, call: &FoldedCall) -> Result<(), Violation> {
    same_text("name", &wanted["name"], Some(&call.name))?;
    if wanted["id"].is_string() {
        same_text("id", &wanted["id"], call.id.as_deref())?;
    }
    let is_same = match wanted["arguments_raw"].as_str() {
        Some(raw) => squeezed(raw) == squeezed(&call.arguments),
        None => serde_json::from_str(&call.arguments)
            .is_ok_and(|found: Value| same_value(&wanted["arguments"], &found)),
    };
    if is_same {
        return Ok(());
    }
    broken(format!("arguments are `{}`, expected {wanted}", call.arguments))
}

/// Are two JSON values the same, numbers by their value?
pub fn same_value(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_value(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let is_same =
                |(key, a): (&String, &Value)| b.get(key).is_some_and(|b| same_value(a, b));
            a.len() == b.len() && a.iter().all(is_same)
        }
        _ => a == b,
    }
}

/// Without blanks outside strings.
fn squeezed(json: &str) -> String {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let keep = |c: &char| {
        if is_quoted {
            is_quoted = *c != '"' || is_escaped;
            is_escaped = *c == '\\' && !is_escaped;
            return true;
        }
        is_quoted = *c == '"';
        !matches!(c, ' ' | '\t' | '\r' | '\n')
    };
    json.chars().filter(keep).collect()
}
