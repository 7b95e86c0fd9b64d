//! The engine's rules one by one, on a small family with tags, and the descriptor that it derives.

use tenon_guest::harness::{Folded, Stream, any_cut};
use tenon_guest::{
    CallFormat, Channel, Declared, Envelope, EnvelopeRules, Family, FinishReason, Parser,
    RequestInfo, Rule, Session, ToolChoice, style,
};

struct Tags;

impl Declared for Tags {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::QWEN3, style::DEEPSEEK_R1],
        calls: Some(&CallFormat {
            again: &["{"],
            closers: &["</c>"],
            separators: ",;]",
            ..CallFormat::new(&["<c>"], |_| {
                Box::new(Envelope::new(EnvelopeRules::behind_marker("</c>")))
            })
        }),
        evidence: &[Rule::template(&["<c>"], &[])],
        ..Family::named("tags", "0.1.0", "a family for tests")
    };
}

const CALL: &str = "<c>{\"name\": \"f\", \"arguments\": {}}</c>";

fn request(style: Option<&str>, start: Channel) -> RequestInfo {
    RequestInfo {
        tools: "[{}]".into(),
        tool_choice: ToolChoice::Auto,
        tool_name: None,
        parallel: true,
        strict: false,
        reasoning_style: style.map(Into::into),
        start,
        strict_markers: false,
    }
}

fn read_as(request: &RequestInfo, text: &str) -> Folded {
    let text = text.replace("CALL", CALL);
    match any_cut::<Tags>(request, &Stream::of(&text), FinishReason::Stop) {
        Ok(folded) => folded,
        Err(violation) => panic!("{text:?}: {violation}"),
    }
}

/// Reasoning, content and the number of calls. `CALL` in `text` stands for a whole call.
#[track_caller]
fn check(text: &str, reasoning: Option<&str>, content: Option<&str>, num_calls: usize) {
    let folded = read_as(&request(Some("qwen3"), Channel::Content), text);
    let found = (folded.reasoning.as_deref(), folded.content.as_deref(), folded.calls.len());
    assert_eq!(found, (reasoning, content, num_calls), "{text:?}");
}

#[test]
fn content_is_glued_and_its_edges_cut_only_at_markup() {
    check(" \nHi \n", None, Some(" \nHi \n"), 0);
    check(" \n", None, Some(" \n"), 0);
    check("Hi \nCALL \nBye", None, Some("Hi \n \nBye"), 1);
    check("CALL\n\n  indented\n", None, Some("  indented"), 1);
    check("Hi\n CALL \n", None, Some("Hi"), 1);
    check(" \nCALL\n ", None, None, 1);
    check("<think>a</think>\nHi\n", Some("a"), Some("Hi\n"), 0);
    check("Hi\n<c>{</c> \n", None, Some("Hi\n<c>{</c> \n"), 0);
}

#[test]
fn reasoning_parts_are_trimmed_and_joined() {
    check("<think>\n  a \n</think>\nHi", Some("  a"), Some("Hi"), 0);
    check("<think>a</think>\n<think>\nb</think>c", Some("a\nb"), Some("c"), 0);
    check("<think>\n</think>\n<think>b</think>", Some("b"), None, 0);
    check("<think>a</think>CALL<think>b</think>c", Some("a\nb"), Some("c"), 1);
    check("HiCALL<think>b</think> you", Some("b"), Some("Hi you"), 1);
    check("<think>\n \n</think>Hi", None, Some("Hi"), 0);
    check("<think>open \n\n", Some("open "), None, 0);
}

#[test]
fn reasoning_markers_count_only_where_they_may() {
    check("Say <think> now</think>", None, Some("Say <think> now</think>"), 0);
    check("</think>Hi</think>", None, Some("Hi</think>"), 0);
    check("<think>a</think>b</think>", Some("a"), Some("b</think>"), 0);
    check("<think>\n<think>a", Some("a"), None, 0);
    check("<think>a<think>b</think>", Some("a<think>b"), None, 0);
    check("<thinking>a", None, Some("<thinking>a"), 0);
}

#[test]
fn a_call_ends_reasoning_only_where_the_style_says_so() {
    check("<think>a\nCALL\nb</think>", Some("a"), Some("b</think>"), 1);
    check("<think>a <c> b</think>c", Some("a <c> b"), Some("c"), 0);
    let quoted = read_as(&request(Some("deepseek_r1"), Channel::Content), "<think>a CALL</think>b");
    assert_eq!(quoted.reasoning, Some(format!("a {CALL}")));
    assert_eq!((quoted.content.as_deref(), quoted.calls.len()), (Some("b"), 0));
}

#[test]
fn the_start_and_the_request_decide_what_counts() {
    let prompt = request(Some("qwen3"), Channel::Reasoning);
    let folded = read_as(&prompt, "a</think>\nHi");
    assert_eq!((folded.reasoning.as_deref(), folded.content.as_deref()), (Some("a"), Some("Hi")));
    let folded = read_as(&request(None, Channel::Reasoning), "<think>a</think>");
    assert_eq!(folded.content.as_deref(), Some("<think>a</think>"));
    let folded =
        read_as(&request(None, Channel::Tools), "{\"name\": \"f\", \"arguments\": {}}</c>");
    assert_eq!((folded.content, folded.calls.len()), (None, 1));
    let folded = read_as(&request(None, Channel::Tools), "no call");
    assert_eq!((folded.content.as_deref(), folded.calls.len()), (Some("no call"), 0));
    for off in [
        RequestInfo { tools: " [ ] ".into(), ..request(Some("qwen3"), Channel::Content) },
        RequestInfo { tool_choice: ToolChoice::None, ..request(Some("qwen3"), Channel::Content) },
    ] {
        let folded = read_as(&off, "<think>a</think>CALL");
        assert_eq!((folded.content.as_deref(), folded.calls.len()), (Some(CALL), 0));
        assert_eq!(folded.reasoning.as_deref(), Some("a"));
    }
}

#[test]
fn envelopes_of_every_shape() {
    let call = |text: &str| {
        let folded = read_as(&request(None, Channel::Content), &format!("<c>{text}</c>"));
        let content = folded.content.unwrap_or_default();
        folded.calls.into_iter().next().map_or(content, |call| call.arguments)
    };
    // The first of several argument keys wins, null and nothing are `{}`, a string is unwrapped.
    assert_eq!(call("{\"name\":\"f\",\"parameters\":{\"a\":1},\"arguments\":{}}"), "{\"a\":1}");
    assert_eq!(call("{\"name\":\"f\"}"), "{}");
    assert_eq!(call("{\"arguments\":null,\"name\":\"f\"}"), "{}");
    assert_eq!(call("{\"arguments\":\" {\\\"a\\\": 1} \",\"name\":\"f\"}"), "{\"a\": 1}");
    assert_eq!(call("{\"name\":\"f\",\"arguments\":\" {\\\"a\\\": 1}\\n\"}"), "{\"a\": 1}");
    assert_eq!(call("[{\"n\":-0.5,\"name\":\"f\",\"arguments\":{}}]"), "{}");
    // Malformed behind the commit: as it came, up to the closer.
    assert_eq!(call("{\"name\":\"f\",\"arguments\":{\"a\": [1, oops"), "{\"a\": [1, oops");
    // No calls, word for word.
    for text in [
        "",
        "[]",
        "{}",
        "{{\"name\":\"f\"}}",
        "{\"name\":\"\",\"arguments\":{}}",
        "{\"name\":1}",
        "{\"name\":\"f\",\"arguments\":[1]}",
        "{\"name\":\"f\",\"arguments\":\"x\"}",
        "{\"name\":\"f\" \"arguments\":{}}",
        "{\"arguments\":{\"a\":01},\"name\":\"f\"}",
    ] {
        assert_eq!(call(text), format!("<c>{text}</c>"));
    }
}

#[test]
fn several_calls_behind_one_opener() {
    let f = "{\"name\":\"f\",\"arguments\":{}}";
    check(&format!("<c>{f}\n{f} ; {f}</c>"), None, None, 3);
    check(&format!("<c>[{f}, {f}]</c>\nBye"), None, Some("Bye"), 2);
    check(&format!("<c>{f}; {{\"done\": 1}}</c>"), None, Some("{\"done\": 1}</c>"), 1);
    check(&format!("<c>{f} and"), None, Some("and"), 1);
    check("<c>CALL", None, Some("<c>"), 1);
}

#[test]
fn plain_text_is_left_to_the_host() {
    let mut session = Tags::open(request(Some("qwen3"), Channel::Content));
    assert_eq!(session.push("<think>a", &[], 0).watch, Some(Channel::Reasoning));
    assert_eq!(session.push("</think>", &[], 5).watch, None, "an opener may follow");
    assert_eq!(session.push("Hi ", &[], 0).watch, None, "a blank is held");
    assert_eq!(session.push("you", &[], 0).watch, Some(Channel::Content));
    let behind_call = format!("{CALL}!{CALL}");
    assert_eq!(session.push(&behind_call, &[], 9).watch, None, "reasoning may begin again");
    assert_eq!(session.push(".", &[], 0).watch, Some(Channel::Content));
    let reply = session.push(" <c>{\"na", &[], 700);
    assert_eq!((reply.held, reply.watch), (8, None));
}

#[test]
fn the_descriptor_says_what_the_family_is() {
    let descriptor = Tags::describe();
    assert_eq!(descriptor.added_tokens, ["<c>", "</c>", "<think>", "</think>"]);
    assert_eq!(descriptor.openers, ["<c>"]);
    let triggers: Vec<(Channel, Vec<String>)> =
        descriptor.triggers.into_iter().map(|t| (t.channel, t.texts)).collect();
    let wanted = [
        (Channel::Content, vec!["<c>".to_string()]),
        (Channel::Reasoning, vec!["</think>".to_string(), "<c>".to_string()]),
    ];
    assert_eq!(triggers, wanted);
}
