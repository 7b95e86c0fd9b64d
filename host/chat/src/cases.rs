//! Conformance cases: what a parser must make of a given text, for every cut of it.
//!
//! The JSON Lines schema is that of `tests/cases/formats.jsonl`. `tenon extension test` and the
//! end-to-end tests run the same code, so a case means the same thing to an author and to us.

use std::ops::Range;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::driver::ParserDriver;
use crate::fold::ChatMessage;
use crate::parser::{Channel, ParseFinish, ParserFactory, ParserFault, RequestInfo, ToolChoice};
use crate::stream::ParserBinding;

/// One case.
#[derive(Debug, Clone, Deserialize)]
pub struct Case {
    /// Unique.
    pub id: String,
    /// The parser's name.
    pub family: String,
    /// `tool`, `reasoning` or `both`.
    #[serde(default)]
    pub kind: String,
    /// The stream starts in reasoning.
    #[serde(default)]
    pub reasoning_starts_in_prompt: bool,
    /// OpenAI's `tools`.
    #[serde(default)]
    pub tools: Vec<Value>,
    /// The model's output.
    pub text: String,
    /// What the engine said: `stop` or `length`.
    #[serde(default)]
    pub engine_finish: Option<String>,
    /// The reasoning style to bind, where the case asks for one.
    #[serde(default)]
    pub reasoning_family: Option<String>,
    /// An open decision.
    #[serde(default)]
    pub doubtful: bool,
    /// What must come out.
    pub expected: Expected,
}

/// What must come out of a case.
#[derive(Debug, Clone, Deserialize)]
pub struct Expected {
    /// Exact.
    pub reasoning: Option<String>,
    /// Exact.
    pub content: Option<String>,
    /// In order.
    #[serde(default)]
    pub tool_calls: Vec<ExpectedCall>,
    /// OpenAI's finish reason.
    #[serde(default)]
    pub finish: Option<String>,
}

/// One expected call.
#[derive(Debug, Clone, Deserialize)]
pub struct ExpectedCall {
    /// Exact.
    pub name: String,
    /// Compared by value.
    pub arguments: Option<Value>,
    /// Compared without blanks outside of strings.
    pub arguments_raw: Option<String>,
    /// Where the format carries one.
    pub id: Option<String>,
}

/// A line that is no case.
#[derive(Debug, thiserror::Error)]
#[error("line {line} is no case: {source}")]
pub struct CaseError {
    line: usize,
    source: serde_json::Error,
}

/// Reads JSON Lines; blank lines are skipped.
pub fn read(text: &str) -> Result<Vec<Case>, CaseError> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(i, line)| {
            serde_json::from_str(line).map_err(|source| CaseError { line: i + 1, source })
        })
        .collect()
}

/// How much of a case counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All of it.
    Whole,
    /// The reasoning only: a parser of reasoning leaves calls in the content.
    Reasoning,
}

/// One way to run a case.
pub struct Run<'a> {
    /// Which parser.
    pub factory: &'a Arc<dyn ParserFactory>,
    /// Which of its reasoning styles; none: its default.
    pub style: Option<&'a str>,
    /// What is compared.
    pub scope: Scope,
}

/// How a case failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Byte positions of the cuts.
    pub cuts: Vec<usize>,
    /// With host-side delivery?
    pub watched: bool,
    /// What differs.
    pub message: String,
}

/// How many runs a case took, or the first that failed.
pub type Outcome = Result<usize, Failure>;

impl Run<'_> {
    /// Runs `case` over the whole text, one character at a time, every two-way cut and
    /// `num_random` seeded random cuts, each watched and not.
    pub fn check(&self, case: &Case, num_random: usize) -> Outcome {
        let mut num_runs = 0;
        for cuts in cut_plans(&case.text, num_random) {
            for watched in [true, false] {
                let result = self.fold(case, &cuts, watched).map_err(|fault| fault.to_string());
                let result = result.and_then(|message| compare(case, &message, self.scope));
                if let Err(message) = result {
                    return Err(Failure { cuts, watched, message });
                }
                num_runs += 1;
            }
        }
        Ok(num_runs)
    }

    /// One run: the text in pieces.
    pub fn fold(
        &self,
        case: &Case,
        cuts: &[usize],
        watched: bool,
    ) -> Result<ChatMessage, ParserFault> {
        let mut driver = ParserDriver::new(&self.binding(case, watched));
        let mut events = Vec::new();
        for piece in pieces(&case.text, cuts) {
            driver.push(&case.text[piece], &[], &mut events);
        }
        driver.finish(engine_finish(case), &mut events);
        if let Some(fault) = driver.fault() {
            return Err(fault.clone());
        }
        let mut message = ChatMessage::default();
        for event in &events {
            message.add_parsed(event);
        }
        Ok(message)
    }

    fn binding(&self, case: &Case, host_watch: bool) -> ParserBinding {
        let styles = &self.factory.descriptor().reasoning_styles;
        let default = styles.first().map(|style| style.name.as_str());
        let start =
            if case.reasoning_starts_in_prompt { Channel::Reasoning } else { Channel::Content };
        let info = RequestInfo {
            tools: serde_json::to_string(&case.tools).expect("JSON values always serialize"),
            tool_choice: ToolChoice::Auto,
            parallel: true,
            strict: false,
            reasoning_style: self.style.or(default).map(str::to_owned),
            start,
            strict_markers: false,
        };
        let factory = self.factory.clone();
        ParserBinding { factory, info, host_watch, fail_on_fault: false }
    }
}

fn engine_finish(case: &Case) -> ParseFinish {
    match case.engine_finish.as_deref() {
        Some("length") => ParseFinish::Length,
        _ => ParseFinish::Stop,
    }
}

/// The pieces between sorted cut positions.
pub fn pieces(text: &str, cuts: &[usize]) -> Vec<Range<usize>> {
    let ends = cuts.iter().copied().chain([text.len()]);
    let mut start = 0;
    ends.map(|end| std::mem::replace(&mut start, end)..end).collect()
}

/// Whole, one character at a time, every two-way cut, and `num_random` seeded random cuts.
pub fn cut_plans(text: &str, num_random: usize) -> Vec<Vec<usize>> {
    let inner: Vec<usize> = text.char_indices().map(|(at, _)| at).skip(1).collect();
    let mut plans = vec![vec![], inner.clone()];
    plans.extend(inner.iter().map(|&at| vec![at]));
    for seed in 0..num_random as u64 {
        let every = 2 + seed % 9;
        let is_cut = |at: &usize| mix(seed << 32 | *at as u64).is_multiple_of(every);
        plans.push(inner.iter().copied().filter(is_cut).collect());
    }
    plans
}

/// SplitMix64's finalizer: a fixed hash, so that a failing cut can be had again.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Err: what differs.
pub fn compare(case: &Case, message: &ChatMessage, scope: Scope) -> Result<(), String> {
    let expected = &case.expected;
    same("reasoning", &expected.reasoning, &message.reasoning)?;
    if scope == Scope::Reasoning {
        return Ok(());
    }
    same("content", &expected.content, &message.content)?;
    same("number of calls", &expected.tool_calls.len(), &message.tool_calls.len())?;
    for (want, found) in expected.tool_calls.iter().zip(&message.tool_calls) {
        same("name", &want.name, &found.name)?;
        if let Some(id) = &want.id {
            same("id", id, &found.id)?;
        }
        if let Some(value) = &want.arguments {
            let parsed = serde_json::from_str::<Value>(&found.arguments)
                .map_err(|e| format!("arguments `{}` are no JSON: {e}", found.arguments))?;
            if !equal(value, &parsed) {
                return Err(format!("arguments: expected {value}, found {parsed}"));
            }
        }
        if let Some(raw) = &want.arguments_raw {
            let (want, found) = (without_blanks(raw), without_blanks(&found.arguments));
            same("raw arguments", &want, &found)?;
        }
    }
    let Some(finish) = expected.finish.as_deref() else { return Ok(()) };
    let found = match (engine_finish(case), message.tool_calls.is_empty()) {
        (ParseFinish::Length, _) => "length",
        (ParseFinish::Stop, false) => "tool_calls",
        (ParseFinish::Stop, true) => "stop",
    };
    same("finish", &finish, &found)
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, want: &T, found: &T) -> Result<(), String> {
    if want == found { Ok(()) } else { Err(format!("{what}: expected {want:?}, found {found:?}")) }
}

/// By value: numbers compare as numbers (1e3 is 1000).
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let same = |(key, a): (&String, &Value)| b.get(key).is_some_and(|b| equal(a, b));
            a.len() == b.len() && a.iter().all(same)
        }
        (a, b) => a == b,
    }
}

fn without_blanks(json: &str) -> String {
    let (mut in_string, mut escaped) = (false, false);
    json.chars()
        .filter(|&c| {
            let keep = in_string || !c.is_ascii_whitespace();
            let was_escaped = escaped;
            escaped = in_string && c == '\\' && !was_escaped;
            if c == '"' && !was_escaped {
                in_string = !in_string;
            }
            keep
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn pieces_give_the_text_back() {
        let text = "Grüße <x>";
        for cuts in cut_plans(text, 20) {
            let glued: String = pieces(text, &cuts).into_iter().map(|p| &text[p]).collect();
            assert_eq!(glued, text);
        }
        assert_eq!(cut_plans(text, 20).len(), 2 + 8 + 20);
    }

    #[test]
    fn blanks_count_only_in_strings() {
        assert_eq!(without_blanks(r#"{ "a b\" c" : [1, 2] }"#), r#"{"a b\" c":[1,2]}"#);
    }

    #[test]
    fn numbers_compare_by_value() {
        let (a, b) = (serde_json::from_str("[1e3]").unwrap(), serde_json::json!([1000]));
        assert!(equal(&a, &b));
        assert!(!equal(&a, &serde_json::json!([1001])));
    }
}
