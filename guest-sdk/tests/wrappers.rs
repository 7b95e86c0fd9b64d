//! Sections, frames, phrases, suffixes and calls inside reasoning, one by one, on small families.

use tenon_guest::harness::{Folded, Stream, any_cut};
use tenon_guest::{
    AtCall, CallFormat, Channel, Declared, Envelope, EnvelopeRules, Family, FinishReason, Frame,
    Parser, RequestInfo, Section, Style, ToolChoice, style,
};

const CALL: &str = "<c>{\"name\": \"f\", \"arguments\": {}}</c>";
const RULES: EnvelopeRules = EnvelopeRules::behind_marker("</c>");

const fn calls(sections: &'static [Section]) -> CallFormat {
    CallFormat {
        sections,
        closers: &["</c>"],
        ..CallFormat::new(&["<c>"], |_| Box::new(Envelope::new(RULES)))
    }
}

const SECTIONS: &[Section] = &[Section { opener: "<cs>", closer: "</cs>", empty_is_text: false }];
const WRAPPERS: &[Section] = &[Section { opener: "<cs>", closer: "</cs>", empty_is_text: true }];

struct Sectioned;

impl Declared for Sectioned {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::QWEN3, style::DEEPSEEK_R1, Style { name: "on", ..style::TRINITY }],
        calls: Some(&calls(SECTIONS)),
        ..Family::named("sectioned", "0.1.0", "a wrapper around calls")
    };
}

struct Wrapped;

impl Declared for Wrapped {
    const FAMILY: &'static Family = &Family {
        calls: Some(&CallFormat { openers_count_bare: true, ..calls(WRAPPERS) }),
        ..Family::named("wrapped", "0.1.0", "a wrapper that may be missing")
    };
}

struct Framed;

impl Declared for Framed {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::GRANITE, Style::think("think", &[], AtCall::Ends)],
        frames: &[
            Frame { opener: "<answer>", closer: "</answer>", is_control: false },
            Frame { opener: "AI:", closer: "", is_control: false },
            Frame { opener: "<|r|>", closer: "<|/r|>", is_control: true },
        ],
        calls: Some(&calls(&[])),
        ..Family::named("framed", "0.1.0", "wrappers around the answer")
    };
}

struct Suffixed;

impl Declared for Suffixed {
    const FAMILY: &'static Family = &Family {
        suffixed: true,
        reasoning: &[style::HY_V3],
        calls: Some(&calls(SECTIONS)),
        ..Family::named("suffixed", "0.1.0", "markers with a suffix")
    };
}

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

fn read<P: Parser>(style: Option<&str>, text: &str) -> Folded {
    let text = text.replace("CALL", CALL);
    let request = request(style, Channel::Content);
    match any_cut::<P>(&request, &Stream::of(&text), FinishReason::Stop) {
        Ok(folded) => folded,
        Err(violation) => panic!("{text:?}: {violation}"),
    }
}

/// Reasoning, content and the number of calls. `CALL` in `text` stands for a whole call.
#[track_caller]
fn check<P: Parser>(
    style: Option<&str>,
    text: &str,
    reasoning: Option<&str>,
    content: Option<&str>,
    num_calls: usize,
) {
    let folded = read::<P>(style, text);
    let content = content.map(|content| content.replace("CALL", CALL));
    let reasoning = reasoning.map(|reasoning| reasoning.replace("CALL", CALL));
    let found = (folded.reasoning, folded.content, folded.calls.len());
    assert_eq!(found, (reasoning, content, num_calls), "{text:?}");
}

#[test]
fn calls_count_inside_their_section() {
    let content = |text, content, num| check::<Sectioned>(None, text, None, content, num);
    content("Hi\n<cs>\nCALL\nCALL\n</cs>\nBye", Some("Hi\n\nBye"), 2);
    content("<cs>CALL and CALL</cs>", Some("and"), 2);
    content("<cs>CALL", None, 1);
    content("CALL", Some("CALL"), 0);
    content("<cs>\n</cs>Ok", Some("Ok"), 0);
    content("See <cs> and CALL", Some("See <cs> and CALL"), 0);
    content("<cs>", Some("<cs>"), 0);
    content("<cs><c>no</c></cs>", Some("<cs><c>no</c></cs>"), 0);
    content("<cs>CALL</cs> CALL", Some(" CALL"), 1);
    content("<cs>CALL</cs><cs>CALL</cs>", None, 2);
}

#[test]
fn a_wrapper_may_be_missing_where_the_family_says_so() {
    let content = |text, content, num| check::<Wrapped>(None, text, None, content, num);
    content("Hi CALL", Some("Hi"), 1);
    content("<cs>CALL</cs>", None, 1);
    content("CALL</cs>\nBye", Some("Bye"), 1);
    content("<cs></cs>Ok", Some("<cs></cs>Ok"), 0);
    content("<cs>so CALL", Some("<cs>so"), 1);
}

#[test]
fn a_section_in_reasoning_is_a_call_a_quote_or_an_aside() {
    let text = "<think>a <cs>CALL</cs> b</think>c";
    check::<Sectioned>(Some("qwen3"), text, Some("a"), Some(" b</think>c"), 1);
    check::<Sectioned>(Some("deepseek_r1"), text, Some("a <cs>CALL</cs> b"), Some("c"), 0);
    check::<Sectioned>(Some("on"), text, Some("a  b"), Some("c"), 1);
    check::<Sectioned>(Some("on"), "<think>a <cs> b</think>c", Some("a <cs> b"), Some("c"), 0);
    check::<Sectioned>(Some("qwen3"), "<think>a <cs></cs>b", Some("a <cs></cs>b"), None, 0);
}

#[test]
fn frames_are_dropped_where_they_frame() {
    let content = |text, content, num| check::<Framed>(Some("think"), text, None, content, num);
    content("<answer>\nHi\n</answer>\n", Some("Hi"), 0);
    content("<answer>\nWrite </answer> so.\n</answer>", Some("Write </answer> so."), 0);
    content("Say <answer> so", Some("Say <answer> so"), 0);
    content("<answer>Hi</answer> CALL", Some("Hi"), 1);
    content("<answer>Hi</answer> <c>no", Some("Hi</answer> <c>no"), 0);
    content("<answer><answer>Hi", Some("<answer>Hi"), 0);
    content("AI: Hi AI: you", Some(" Hi AI: you"), 0);
    content("AI:<answer>Hi</answer>", Some("Hi"), 0);
    content("Well <|r|>Hi<|/r|> then", Some("Well Hi then"), 0);
    check::<Framed>(Some("think"), "<think>a<|r|>b<|/r|>", Some("a"), Some("b"), 0);
}

#[test]
fn phrases_count_at_the_message_start_and_take_their_blanks() {
    fn phrase(text: &str, reasoning: Option<&str>, content: Option<&str>) {
        check::<Framed>(Some("granite"), text, reasoning, content, 0);
    }
    let (think, answer) = ("Here is my thought process:", "Here's my response:");
    phrase(&format!("{think}  a\nb \n{answer} \n  Done"), Some("a\nb"), Some("Done"));
    phrase(&format!("So. {think} a"), None, Some(&format!("So. {think} a")));
    phrase("Here is my dog: Rex", None, Some("Here is my dog: Rex"));
}

#[test]
fn a_suffix_is_shared_by_all_markers() {
    let both = |text: &str, reasoning, content, num| {
        let text = text.replace("@", ":opensource>");
        check::<Suffixed>(Some("hy_v3"), &text, reasoning, content, num);
    };
    let body = "{\"name\": \"f\", \"arguments\": {}}";
    both(&format!("<think@a</think@<cs@<c@{body}</c@</cs@b"), Some("a"), Some("b"), 1);
    both("<think>a</think>b", Some("a"), Some("b"), 0);
    both("<think@a</think>b", Some("a</think>b"), None, 0);
    both("<think:>a", None, Some("<think:>a"), 0);
}

#[test]
fn a_style_may_leave_reasoning_in_the_content() {
    struct Left;
    impl Declared for Left {
        const FAMILY: &'static Family = &Family {
            reasoning: &[style::MINIMAX_M2_APPEND_THINK],
            ..Family::named("left", "0.1.0", "reasoning is content")
        };
    }
    let request = request(Some("minimax_m2_append_think"), Channel::Reasoning);
    let folded = any_cut::<Left>(&request, &Stream::of("\na</think>b"), FinishReason::Stop);
    let content = folded.map(|folded| folded.content);
    assert_eq!(content, Ok(Some("<think>\na</think>b".into())));
}
