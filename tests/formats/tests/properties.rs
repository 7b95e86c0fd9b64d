//! What must hold for any text in any family: written calls are read, for every cut; a prefix
//! never shows a whole call that was not written; hostile text breaks no promise.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tenon_formats::{Entry, all, request};
use tenon_guest::harness::cases::same_value;
use tenon_guest::harness::{Delivery, Folded, Stream};
use tenon_guest::{Channel, FinishReason, RequestInfo};

/// Cases per family and property.
const NUM_CASES: u32 = 6;

fn for_each_family<T: std::fmt::Debug>(
    strategy: impl Fn(&'static Entry) -> BoxedStrategy<T>,
    check: impl Fn(&'static Entry, T) -> Result<(), TestCaseError>,
) {
    for entry in all() {
        let config = ProptestConfig {
            cases: NUM_CASES,
            failure_persistence: None,
            ..ProptestConfig::default()
        };
        let mut runner = proptest::test_runner::TestRunner::new(config);
        if let Err(error) = runner.run(&strategy(entry), |value| check(entry, value)) {
            panic!("{}: {error}", entry.name);
        }
    }
}

/// Text that a string value may hold. With `markers` the family's own, where its format quotes.
fn any_text(markers: Vec<String>) -> BoxedStrategy<String> {
    let mut pieces: Vec<String> = [
        "a", "Oban", " ", "é", "🛶", "\"", "'", "\\", "\n", "\\n", "{", "}", "[", "]", ",", ":",
        "<", ">", "&lt;", "</b>", "null", "true", "7", "=", "(", ")", "`", "```", "|",
    ]
    .map(String::from)
    .into();
    pieces.extend(markers);
    prop::collection::vec(prop::sample::select(pieces), 0..8).prop_map(|p| p.concat()).boxed()
}

fn any_value(text: BoxedStrategy<String>) -> BoxedStrategy<Value> {
    let leaf = prop_oneof![
        text.clone().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        (-400i32..400).prop_map(|n| json!(f64::from(n) + 0.5)),
        any::<bool>().prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec(("[a-z]{1,5}", inner), 0..3)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
    .boxed()
}

type Calls = Vec<(String, Value)>;

fn any_calls(entry: &'static Entry) -> BoxedStrategy<Calls> {
    let markers = if entry.strings_are_quoted { (entry.describe)().added_tokens } else { vec![] };
    let value = any_value(any_text(markers));
    let arguments = prop::collection::vec(("[a-z]{1,4}_[a-z]{1,4}", value), 0..4);
    let arguments = arguments.prop_map(|pairs| Value::Object(pairs.into_iter().collect()));
    // A tool is called once, so that its schema is that of the call.
    let calls = prop::collection::btree_map("[a-z]{1,6}_[a-z0-9]{1,6}", arguments, 1..3);
    calls.prop_map(|calls| calls.into_iter().collect()).boxed()
}

/// Tools whose schemas are what the calls hold.
fn tools(calls: &Calls) -> String {
    let tool = |(name, arguments): &(String, Value)| {
        let arguments: &Map<String, Value> = arguments.as_object().expect("made so");
        let properties: Map<String, Value> =
            arguments.iter().map(|(key, value)| (key.clone(), schema(value))).collect();
        let parameters = json!({"type": "object", "properties": properties});
        json!({"type": "function", "function": {"name": name, "parameters": parameters}})
    };
    Value::Array(calls.iter().map(tool).collect()).to_string()
}

fn schema(value: &Value) -> Value {
    match value {
        Value::Array(items) => {
            let items: Vec<Value> = items.iter().map(schema).collect();
            if items.is_empty() {
                json!({"type": "array"})
            } else {
                json!({"type": "array", "items": {"anyOf": items}})
            }
        }
        Value::Object(members) => {
            let properties: Map<String, Value> =
                members.iter().map(|(key, value)| (key.clone(), schema(value))).collect();
            json!({"type": "object", "properties": properties})
        }
        Value::Number(number) if number.is_f64() => json!({"type": "number"}),
        Value::Number(_) => json!({"type": "integer"}),
        Value::Bool(_) => json!({"type": "boolean"}),
        _ => json!({"type": "string"}),
    }
}

fn with_tools(calls: &Calls) -> RequestInfo {
    request(&tools(calls), None, Channel::Content)
}

#[test]
fn written_calls_are_read_for_every_cut() {
    for_each_family(any_calls, |entry, calls| {
        let Some(render) = entry.render else { return Ok(()) };
        let text = render(&calls);
        let folded = (entry.any_cut)(&with_tools(&calls), &Stream::of(&text), FinishReason::Stop)
            .map_err(|violation| TestCaseError::fail(format!("{violation}\n{text}")))?;
        prop_assert_eq!(folded.calls.len(), calls.len(), "{}\n{:?}", text, folded);
        prop_assert_eq!(&folded.content, &None, "{}", text);
        for (found, (name, arguments)) in folded.calls.iter().zip(&calls) {
            prop_assert_eq!(&found.name, name);
            let value: Value = serde_json::from_str(&found.arguments)
                .map_err(|_| TestCaseError::fail(format!("{}\n{text}", found.arguments)))?;
            prop_assert!(same_value(&value, arguments), "{} is not {}\n{}", value, arguments, text);
        }
        Ok(())
    });
}

#[test]
fn a_prefix_never_shows_a_whole_call_that_was_not_written() {
    for_each_family(any_calls, |entry, calls| {
        let Some(render) = entry.render else { return Ok(()) };
        let (text, request) = (render(&calls), with_tools(&calls));
        for at in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
            let stream = Stream::of(&text[..at]);
            let folded =
                (entry.run)(&request, &stream, &[], FinishReason::Length, Delivery::Pushed)
                    .map_err(|violation| TestCaseError::fail(violation.to_string()))?;
            prop_assert!(folded.calls.len() <= calls.len(), "{:?}\n{:?}", &text[..at], folded);
            for (found, (name, arguments)) in folded.calls.iter().zip(&calls) {
                prop_assert_eq!(&found.name, name);
                let value: Option<Value> = serde_json::from_str(&found.arguments).ok();
                let is_whole = value.is_some_and(|value| same_value(&value, arguments));
                prop_assert!(!found.is_ended || is_whole, "{:?}\n{:?}", &text[..at], folded);
            }
        }
        Ok(())
    });
}

/// The family's markers, parts of calls, near misses.
fn hostile(entry: &'static Entry) -> BoxedStrategy<(String, usize, bool, bool)> {
    let descriptor = (entry.describe)();
    let mut pieces: Vec<String> = descriptor.added_tokens.clone();
    pieces.extend(descriptor.openers.clone());
    for marker in &descriptor.added_tokens {
        let half = marker.char_indices().nth(marker.chars().count() / 2).map_or(0, |(at, _)| at);
        pieces.push(marker[..half].to_string());
    }
    pieces.extend(entry.pieces.iter().map(|piece| piece.to_string()));
    pieces.extend(
        [
            "{",
            "}",
            "[",
            "]",
            "\"",
            "\\",
            ":",
            ",",
            ";",
            " ",
            "\n",
            "x",
            "é",
            "f",
            "(",
            ")",
            "=",
            "'",
            "<",
            "</",
            ">",
            "1",
            "null",
            "{\"name\": \"f\", \"arguments\": {",
            "}}",
            "\"name\"",
            "f(a=1)",
            "Hi there.",
        ]
        .map(String::from),
    );
    let text = prop::collection::vec(prop::sample::select(pieces), 0..14).prop_map(|p| p.concat());
    (text, 0..=descriptor.reasoning_styles.len(), any::<bool>(), any::<bool>()).boxed()
}

#[test]
fn hostile_text_breaks_no_promise_for_any_cut() {
    let tools =
        json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"a": {"type": "integer"}, "x": {"type": "string"}}}}}])
        .to_string();
    for_each_family(hostile, |entry, (text, style, has_tools, in_reasoning)| {
        let styles = (entry.describe)().reasoning_styles;
        let style = styles.get(style).map(|style| style.name.as_str());
        let start = if in_reasoning { Channel::Reasoning } else { Channel::Content };
        let request = request(if has_tools { &tools } else { "[]" }, style, start);
        for reason in [FinishReason::Stop, FinishReason::Length] {
            let folded: Folded = (entry.any_cut)(&request, &Stream::of(&text), reason)
                .map_err(|violation| TestCaseError::fail(format!("{violation}\n{text:?}")))?;
            prop_assert!(has_tools || folded.calls.is_empty());
        }
        Ok(())
    });
}
