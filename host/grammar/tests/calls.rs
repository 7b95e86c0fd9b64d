//! The grammars that the shipped call formats give, enforced: what they let through is a call that
//! the same parser reads, and what was not asked for is out of reach.
#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};
use support::{Random, added, allowed, bytes, random_output, refusal, started};
use tenon_grammar::{Constraint, GrammarSpec, Starts, Trigger};
use tenon_guest::harness::{Delivery, Stream, run};
use tenon_guest::{
    Channel, FinishReason, ModelInfo, Parser, RequestInfo, Starts as GuestStarts, ToolChoice,
};
use tenon_parser_hermes::Hermes;
use tenon_parser_llama3_json::Llama3Json;

fn tools() -> Value {
    let city = json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 4},
        "days": {"$ref": "#/$defs/d"}}, "required": ["city"], "additionalProperties": false,
        "$defs": {"d": {"enum": [1, 2]}}, "x-guidance": tenon_grammar::json_options()});
    let none = json!({"type": "object", "additionalProperties": false});
    json!([
        {"type": "function", "function": {"name": "get \"weather\"", "parameters": city}},
        {"type": "function", "function": {"name": "now", "description": "]}", "parameters": none}},
    ])
}

fn request(choice: ToolChoice, parallel: bool, strict: bool) -> RequestInfo {
    RequestInfo {
        tools: tools().to_string(),
        tool_choice: choice,
        tool_name: (choice == ToolChoice::Named).then(|| "now".into()),
        parallel,
        strict,
        reasoning_style: None,
        start: Channel::Content,
        strict_markers: true,
    }
}

fn model(tokens: &[&str]) -> ModelInfo {
    let added_tokens = tokens.iter().map(|text| text.to_string()).collect();
    ModelInfo { name: "m".into(), template: None, added_tokens }
}

fn enforced<P: Parser>(model: &ModelInfo, request: &RequestInfo) -> Constraint {
    let grammar = P::constraint(model, request).unwrap().unwrap();
    assert_eq!(grammar.dialect, "llguidance-lark/1");
    let starts = match grammar.starts {
        GuestStarts::AtOnce => Starts::AtOnce,
        GuestStarts::After(texts) => Starts::After {
            triggers: texts.into_iter().map(|text| Trigger { text, is_token: true }).collect(),
            never: vec![],
            must: false,
        },
    };
    started(&GrammarSpec::Lark(grammar.lark), &starts)
}

/// Is this an output? Markers are one token where `as_tokens` says so.
fn takes(mut constraint: Constraint, text: &str, as_tokens: bool) -> bool {
    let mut rest = text;
    while !rest.is_empty() {
        let marker = ["<tool_call>", "</tool_call>"].into_iter().find(|m| rest.starts_with(*m));
        let (token, len) = match marker.filter(|_| as_tokens) {
            Some(marker) => (added(marker), marker.len()),
            None => (u32::from(rest.as_bytes()[0]), 1),
        };
        if constraint.is_complete() || !allowed(&mut constraint).contains(&token) {
            return false;
        }
        constraint.commit(token).unwrap();
        // One byte per token: the text may be cut inside of a character.
        rest = std::str::from_utf8(&rest.as_bytes()[len..]).unwrap();
    }
    constraint.is_complete() || allowed(&mut constraint).contains(&added("<|end|>"))
}

const WEATHER: &str = r#"{"name": "get \"weather\"", "arguments": {"city": "Rom", "days": 2}}"#;
const NOW: &str = r#"{"name": "now", "arguments": {}}"#;

fn call(object: &str) -> String {
    format!("<tool_call>\n{object}\n</tool_call>")
}

#[test]
fn hermes_calls() {
    let markers = model(&["<tool_call>", "</tool_call>"]);
    let two = format!("{}\n{}", call(WEATHER), call(NOW));
    let wrong = call(&WEATHER.replace("Rom", "Roma!"));
    let required = enforced::<Hermes>(&markers, &request(ToolChoice::Required, true, true));
    for (text, want) in [
        (call(WEATHER), true),
        (two.clone(), true),
        (wrong, false),
        (call(r#"{"name": "other", "arguments": {}}"#), false),
        ("hello".into(), false),
        (String::new(), false),
    ] {
        assert_eq!(takes(required.clone(), &text, true), want, "{text}");
    }
    // A marker is its token, if the vocabulary has it, and a text otherwise.
    assert!(!takes(required, &call(NOW), false));
    let plain = enforced::<Hermes>(&model(&[]), &request(ToolChoice::Required, true, true));
    assert!(takes(plain.clone(), &call(NOW), false) && !takes(plain, &call(NOW), true));
    let one = enforced::<Hermes>(&markers, &request(ToolChoice::Required, false, true));
    assert!(takes(one.clone(), &call(NOW), true) && !takes(one, &two, true));
    let named = enforced::<Hermes>(&markers, &request(ToolChoice::Named, true, true));
    assert!(takes(named.clone(), &call(NOW), true) && !takes(named, &call(WEATHER), true));
    let auto = enforced::<Hermes>(&markers, &request(ToolChoice::Auto, false, false));
    for (text, want) in [
        (format!("let me see {}", call(NOW)), true),
        ("no call {\"name\": 1}".into(), true),
        (format!("{} and more", call(NOW)), false),
        (two, false),
    ] {
        assert_eq!(takes(auto.clone(), &text, true), want, "{text}");
    }
}

#[test]
fn llama_calls() {
    let weather = WEATHER.replace("arguments", "parameters");
    let now = NOW.replace("arguments", "parameters");
    let two = format!("{weather}; {now}");
    let required = enforced::<Llama3Json>(&model(&[]), &request(ToolChoice::Required, true, true));
    for (text, want) in [(weather.as_str(), true), (&two, true), ("{}", false), ("x", false)] {
        assert_eq!(takes(required.clone(), text, false), want, "{text}");
    }
    let auto = enforced::<Llama3Json>(&model(&[]), &request(ToolChoice::Auto, false, true));
    for (text, want) in
        [(now.as_str(), true), (&two, false), ("Hello {}", true), ("", true), ("{\"a\": 1}", false)]
    {
        assert_eq!(takes(auto.clone(), text, false), want, "{text}");
    }
}

#[test]
fn nothing_to_enforce() {
    for (choice, parallel, strict) in
        [(ToolChoice::None, false, true), (ToolChoice::Auto, true, false)]
    {
        let request = request(choice, parallel, strict);
        assert!(Hermes::constraint(&model(&[]), &request).unwrap().is_none());
        assert!(Llama3Json::constraint(&model(&[]), &request).unwrap().is_none());
    }
    let mut request = request(ToolChoice::Named, true, true);
    request.tool_name = Some("missing".into());
    let grammar = Hermes::constraint(&model(&[]), &request).unwrap().unwrap();
    let words = refusal(&GrammarSpec::Lark(grammar.lark)).to_string();
    assert!(words.contains("`missing`"), "{words}");
}

/// Whatever the grammar lets through, the parser reads as calls and nothing else.
#[test]
fn random_calls_are_read() {
    let info = RequestInfo { strict_markers: false, ..request(ToolChoice::Required, true, true) };
    let llama = enforced::<Llama3Json>(&model(&[]), &info);
    let hermes = enforced::<Hermes>(&model(&["<tool_call>", "</tool_call>"]), &info);
    let mut num_calls = 0;
    for seed in 0..40 {
        for is_llama in [false, true] {
            let mut constraint = if is_llama { llama.clone() } else { hermes.clone() };
            let (tokens, is_ended) = random_output(&mut constraint, &mut Random(seed), 600);
            if !is_ended {
                continue;
            }
            let text = String::from_utf8(bytes(&tokens)).unwrap();
            let stream = Stream::of(&text);
            let stop = FinishReason::Stop;
            let read = match is_llama {
                true => run::<Llama3Json>(&info, &stream, &[], stop, Delivery::Pushed),
                false => run::<Hermes>(&info, &stream, &[], stop, Delivery::Pushed),
            };
            let read = read.unwrap();
            assert!(!read.calls.is_empty() && read.content.is_none(), "{text}: {read:?}");
            num_calls += read.calls.len();
        }
    }
    assert!(num_calls > 20, "{num_calls}");
}
