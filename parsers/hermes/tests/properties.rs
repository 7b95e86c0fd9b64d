//! What must hold for any text: the same events for any cut, every byte once, no call that was not
//! written, no work that grows faster than the text.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tenon_guest::harness::{Delivery, Folded, Stream, any_cut, chars, run};
use tenon_guest::{Channel, Event, FinishReason, Parser, RequestInfo, Session, ToolChoice};
use tenon_parser_hermes::Hermes;

const MARKERS: &[&str] = &["<tool_call>", "</tool_call>", "<think>", "</think>"];

fn request(style: Option<&str>) -> RequestInfo {
    RequestInfo {
        tools: "[{}]".into(),
        tool_choice: ToolChoice::Auto,
        tool_name: None,
        parallel: true,
        strict: false,
        reasoning_style: style.map(Into::into),
        start: Channel::Content,
        strict_markers: false,
    }
}

fn whole(request: &RequestInfo, stream: &Stream) -> Folded {
    run::<Hermes>(request, stream, &[], FinishReason::Stop, Delivery::Pushed)
        .expect("the contract holds")
}

/// Markers, parts of calls, near misses.
fn hostile() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "<tool_",
        "</",
        "<",
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
        "🛶",
        "\"name\"",
        "\"arguments\": ",
        "\"f\"",
        "null",
        "1",
        "true",
        "\"{\\\"a\\\": 1}\"",
        "{\"name\": \"f\", \"arguments\": {",
        "{\"parameters\": {\"k\": [1, \"}\"]}, \"name\": \"g\"",
        "{\"name\": \"h\"",
        "}}",
        "{\"arguments\": 3",
        "\n</tool_call>\n",
    ]);
    prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
}

fn any_request() -> impl Strategy<Value = RequestInfo> {
    let style = prop::sample::select(vec![None, Some("qwen3"), Some("deepseek_r1")]);
    let start = prop::sample::select(vec![Channel::Content, Channel::Reasoning, Channel::Tools]);
    let tools = prop::sample::select(vec!["[]", "[{}]", "[{}]", "[{}]"]);
    (style, start, tools, any::<bool>()).prop_map(|(style, start, tools, strict_markers)| {
        RequestInfo { tools: tools.into(), start, strict_markers, ..request(style) }
    })
}

/// Any JSON, its strings full of what could be taken for markup.
fn any_value() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        "[a-zé🛶 \"\\\\\n{}\\[\\]<>/:,]{0,12}",
        prop::sample::select(vec!["</tool_call>", "<tool_call>", "</think>", "{\"name\": \"x\"}"])
            .prop_map(String::from),
    ];
    let leaf = prop_oneof![
        text.clone().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
        Just(json!(-1.5)),
    ];
    leaf.prop_recursive(3, 12, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((text.clone(), inner), 0..4)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

fn any_arguments() -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::vec(("[a-z]{1,6}|name|arguments", any_value()), 0..4)
        .prop_map(|pairs| pairs.into_iter().collect())
}

/// One call as text, in one of the shapes that are read.
fn written(name: &str, arguments: &Map<String, Value>, shape: usize) -> String {
    let text = Value::Object(arguments.clone()).to_string();
    let name = json!(name);
    let object = match shape % 4 {
        0 => format!("{{\"name\": {name}, \"arguments\": {text}}}"),
        1 => format!("{{\"arguments\": {text}, \"id\": 7.0, \"name\": {name}}}"),
        2 => format!(
            "{{\"type\": [\"function\"], \"name\": {name}, \"parameters\": {text}, \"x\": {{}}}}"
        ),
        _ => format!("{{\"name\":{name},\"arguments\":{}}}", json!(text)),
    };
    match shape / 4 {
        0 => format!("<tool_call>\n{object}\n</tool_call>"),
        1 => format!("<tool_call>[{object}]</tool_call>"),
        _ => format!("<tool_call>{object}</tool_call>"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn any_text_reads_the_same_for_any_cut(
        text in hostile(), request in any_request(), with_tokens in any::<bool>(),
    ) {
        let markers = if with_tokens { MARKERS } else { &MARKERS[..1] };
        let stream = Stream::with_tokens(&text, markers);
        if let Err(violation) = any_cut::<Hermes>(&request, &stream, FinishReason::Stop) {
            prop_assert!(false, "{:?}: {}", text, violation);
        }
    }

    #[test]
    fn written_calls_are_read(
        name in "[a-z_é]{1,8}", arguments in any_arguments(), more in any_arguments(),
        shape in 0usize..12, lead in "[a-z <]{0,6}", thought in "[a-z<{ ]{0,6}",
    ) {
        let first = written(&name, &arguments, shape);
        let second = written("second", &more, 11 - shape);
        let text = format!("<think>{thought}.</think>{lead}.{first}\n{second}");
        let folded = any_cut::<Hermes>(
            &request(Some("qwen3")), &Stream::of(&text), FinishReason::Stop,
        );
        let folded = match folded {
            Ok(folded) => folded,
            Err(violation) => return Err(TestCaseError::fail(format!("{text}: {violation}"))),
        };
        prop_assert_eq!(folded.reasoning, Some(format!("{thought}.")));
        prop_assert_eq!(folded.content, Some(format!("{lead}.")));
        let calls: Vec<(&str, Value)> = folded.calls.iter().map(|call| {
            assert!(call.is_ended);
            (call.name.as_str(), serde_json::from_str(&call.arguments).expect("JSON"))
        }).collect();
        prop_assert_eq!(
            calls, vec![(name.as_str(), Value::Object(arguments)), ("second", Value::Object(more))]
        );
    }

    /// Wherever the stream ends, there is nothing but a beginning of what the whole would say.
    #[test]
    fn an_early_end_invents_nothing(text in hostile(), request in any_request()) {
        let all = whole(&request, &Stream::of(&text));
        for end in chars(&text) {
            let folded = whole(&request, &Stream::of(&text[..end]));
            prop_assert!(folded.calls.len() <= all.calls.len(), "{:?} at {}", text, end);
            for (call, full) in folded.calls.iter().zip(&all.calls) {
                prop_assert_eq!(&call.name, &full.name);
                // A closer that is cut off is argument text, as it came.
                let cut = call.arguments.rfind('<').unwrap_or(0);
                let (before, tail) = call.arguments.split_at(cut);
                let is_prefix = full.arguments.starts_with(&call.arguments)
                    || (full.arguments.starts_with(before) && "</tool_call>".starts_with(tail));
                prop_assert!(is_prefix, "{:?} at {}", text, end);
            }
        }
    }

    /// The host's fallback after a fault: what was said, what is held, and the rest.
    #[test]
    fn held_bytes_complete_what_was_said(text in hostile()) {
        let request = request(None);
        prop_assume!(whole(&request, &Stream::of(&text)).calls.is_empty());
        let mut session = Hermes::open(request);
        let (mut said, mut given) = (String::new(), 0);
        for end in chars(&text).into_iter().chain([text.len()]) {
            let reply = session.push(&text[given..end], &[], 0);
            given = end;
            for event in reply.events {
                if let Event::Content(piece) = event { said.push_str(&piece) }
            }
            let rest = &text[given - reply.held as usize..];
            prop_assert_eq!(format!("{said}{rest}"), &text[..]);
        }
    }
}

#[test]
fn strict_markers_are_tokens() {
    let text = "Write <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let request = RequestInfo { strict_markers: true, ..request(Some("qwen3")) };
    let forged = whole(&request, &Stream::of(text));
    assert_eq!((forged.content.as_deref(), forged.calls.len()), (Some(text), 0));
    let real = whole(&request, &Stream::with_tokens(text, MARKERS));
    assert_eq!((real.content.as_deref(), real.calls.len()), (Some("Write"), 1));
    // A closer in ordinary tokens does not end reasoning that a token began.
    let text = "<think>say </think> now";
    let stream = Stream::with_tokens(text, &["<think>"]);
    assert_eq!(whole(&request, &stream).reasoning.as_deref(), Some("say </think> now"));
}

#[test]
fn a_call_before_its_commit_is_bounded() {
    let long = "x".repeat(2 << 20);
    let text = format!("<tool_call>{{\"arguments\": {{\"a\": \"{long}\"}}, \"name\": \"f\"}}");
    let folded = whole(&request(None), &Stream::of(&text));
    assert_eq!((folded.content.as_deref(), folded.calls.len()), (Some(text.as_str()), 0));
}

/// One run, a character at a time.
fn time(text: &str, cuts: &[usize]) -> Duration {
    let begin = Instant::now();
    let mut session = Hermes::open(request(Some("qwen3")));
    let mut from = 0;
    for end in cuts.iter().copied().chain([text.len()]) {
        session.push(&text[from..end], &[], 0);
        from = end;
    }
    session.finish(FinishReason::Stop);
    begin.elapsed()
}

/// How much longer four times the text takes: the best of several short runs each, so that a busy
/// machine disturbs neither. Linear: 4. Quadratic: 16.
fn growth(text: impl Fn(usize) -> String) -> f64 {
    let (short, long) = (text(1), text(4));
    let (short_cuts, long_cuts) = (chars(&short), chars(&long));
    let mut best = (Duration::MAX, Duration::MAX);
    for _ in 0..20 {
        best.0 = best.0.min(time(&short, &short_cuts));
        best.1 = best.1.min(time(&long, &long_cuts));
    }
    best.1.as_secs_f64() / best.0.as_secs_f64()
}

#[test]
fn time_grows_with_the_text_and_not_faster() {
    let shapes: [(&str, &str, &str); 8] = [
        ("", "word and ", ""),
        ("", "<tool_call>{", ""),
        ("", "<tool_call><think>", ""),
        ("", "<tool_cal", ""),
        ("x", " \n", "y"),
        ("<tool_call>{\"arguments\": {\"a\": [", "[1, \"<tool_call>{\"], ", "0]}"),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"", "<tool_call> </tool_c ", "\"}}"),
        ("<think>", "<tool_call>\"", "</think>"),
    ];
    for (head, unit, tail) in shapes {
        let num_units = 8_000 / unit.len();
        let growth = growth(|times| format!("{head}{}{tail}", unit.repeat(num_units * times)));
        assert!(growth < 8.0, "four times `{unit}` takes {growth:.1} times as long");
    }
}
