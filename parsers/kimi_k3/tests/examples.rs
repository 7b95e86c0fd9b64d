//! What the format's elements are, one by one, over every cut.

use tenon_guest::harness::{Stream, any_cut};
use tenon_guest::{Channel, FinishReason, RequestInfo, ToolChoice};
use tenon_parser_kimi_k3::KimiK3;

/// Reasoning, content, and each call as `NAME(ARGUMENTS)`, with a `…` if it is not whole. `O`, `C`
/// and `S` in braces stand for the tokens.
#[track_caller]
fn check(text: &str, reasoning: Option<&str>, content: Option<&str>, calls: &[&str]) {
    let tokens = |text: &str| {
        text.replace("{O}", "<|open|>").replace("{C}", "<|close|>").replace("{S}", "<|sep|>")
    };
    let request = RequestInfo {
        tools: "[{}]".into(),
        tool_choice: ToolChoice::Auto,
        tool_name: None,
        parallel: true,
        strict: false,
        reasoning_style: Some("kimi_k3".into()),
        start: Channel::Content,
        strict_markers: false,
    };
    let stream = Stream::of(&tokens(text));
    let folded = match any_cut::<KimiK3>(&request, &stream, FinishReason::Stop) {
        Ok(folded) => folded,
        Err(violation) => panic!("{text:?}: {violation}"),
    };
    let written = folded.calls.iter().map(|call| {
        format!("{}({}){}", call.name, call.arguments, if call.is_ended { "" } else { "…" })
    });
    assert_eq!(written.collect::<Vec<_>>(), calls, "{text:?}");
    assert_eq!(folded.reasoning.as_deref(), reasoning, "{text:?}");
    assert_eq!(folded.content.map(|text| text.replace('<', "(")).as_deref(), content, "{text:?}");
}

const HEAD: &str = "{O}tools{S}{O}call tool=\"f\" index=\"1\"{S}";

#[test]
fn channels() {
    let text = "{O}think{S}Hm.{C}think{S}{O}response{S}Hi.{C}response{S}{C}message{S}";
    check(text, Some("Hm."), Some("Hi."), &[]);
    check("Hi.{C}response{S}{O}tools{S}{C}tools{S}", None, Some("Hi."), &[]);
    let text = "{O}think{S}Hm.{O}tools{S}{O}call tool=\"f\"{S}{C}call{S}{C}tools{S}";
    check(text, Some("Hm."), None, &["f({})"]);
    check("Say {O}think or call.", None, Some("Say (|open|>think or call."), &[]);
}

#[test]
fn arguments() {
    let check = |body: &str, content: Option<&str>, call: &str| {
        check(&format!("{HEAD}{body}"), None, content, &[call]);
    };
    let text = "{O}argument key=\"a\" type=\"string\"{S} x\"{C}arg{S}\n{C}argument{S}";
    check(
        &format!("{text}{{C}}call{{S}}{{C}}tools{{S}}"),
        None,
        "f({\"a\": \" x\\\"<|close|>arg<|sep|>\\n\"})",
    );
    let typed = "{O}argument key=\"a\" type=\"number\"{S} 7 {C}argument{S}\
                 {O}argument key=\"a\" type=\"number\"{S}8{C}argument{S}\
                 {O}argument key=\"b\" type=\"object\"{S}{x}{C}argument{S}";
    check(&format!("{typed}{{C}}call{{S}}"), None, "f({\"a\": 7, \"b\": \"{x}\"})");
    let json = "{O}json type=\"object\"{S}{\"a\": \"{C}json{S}\"}{C}json{S}{C}call{S}";
    check(json, None, "f({\"a\": \"<|close|>json<|sep|>\"})");
    check("odd text {O}b{S}{C}call{S}", Some("odd text (|open|>b(|sep|>"), "f({})");
    check("{C}tools{S}.", Some("."), "f({})");
    check("{O}call tool=\"f", Some("(|open|>call tool=\"f"), "f({})");
}

#[test]
fn cut_calls() {
    let check = |body: &str, call: &str| check(&format!("{HEAD}{body}"), None, None, &[call]);
    check("", "f({)…");
    check("{O}argument key=\"a\" type=\"number\"{S}1", "f({)…");
    check("{O}argument key=\"a\" type=\"string\"{S}", "f({)…");
    check("{O}argument key=\"a\" type=\"string\"{S}x", "f({\"a\": \"x)…");
    check("{O}argument key=\"a\" type=\"number\"{S}1{C}argument{S}{O}arg", "f({\"a\": 1)…");
}

#[test]
fn what_is_no_call_is_text() {
    for body in ["{O}call index=\"1\"{S}", "{O}call tool=\"\"{S}", "{O}call tool=\"f\"", "text"] {
        let text = format!("{{O}}tools{{S}}{body}");
        let content = text.replace("{O}", "(|open|>").replace("{S}", "(|sep|>");
        check(&text, None, Some(&content), &[]);
    }
}
