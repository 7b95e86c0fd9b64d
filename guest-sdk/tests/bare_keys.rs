//! Calls as Gemma writes them: values, commit, cut ends.

use tenon_guest::harness::{Stream, any_cut};
use tenon_guest::{
    BareKeys, BareKeysRules, CallFormat, Channel, Declared, Family, FinishReason, RequestInfo,
    ToolChoice,
};

struct Gemma;

impl Declared for Gemma {
    const FAMILY: &'static Family = &Family {
        calls: Some(&CallFormat {
            again: &["call:"],
            closers: &["</c>"],
            separators: ",;]",
            ..CallFormat::new(&["<c>"], |opened| {
                let rules = BareKeysRules { delimiter: "<|\"|>", closer: "</c>", is_typed: false };
                Box::new(BareKeys::new(rules, opened))
            })
        }),
        ..Family::named("gemma", "0.1.0", "a family for tests")
    };
}

/// Content, then each call as `NAME ARGUMENTS`, with `…` if it has no end. `Q` stands for the
/// delimiter.
#[track_caller]
fn check(text: &str, content: Option<&str>, calls: &[&str]) {
    let text = text.replace('Q', "<|\"|>");
    let request = RequestInfo {
        tools: "[{}]".into(),
        tool_choice: ToolChoice::Auto,
        tool_name: None,
        parallel: true,
        strict: false,
        reasoning_style: None,
        start: Channel::Content,
        strict_markers: false,
    };
    let folded = match any_cut::<Gemma>(&request, &Stream::of(&text), FinishReason::Stop) {
        Ok(folded) => folded,
        Err(violation) => panic!("{text:?}: {violation}"),
    };
    let end = |is_ended| if is_ended { "" } else { "…" };
    let found: Vec<String> = folded
        .calls
        .iter()
        .map(|call| format!("{} {}{}", call.name, call.arguments, end(call.is_ended)))
        .collect();
    let content = content.map(|content| content.replace('Q', "<|\"|>"));
    assert_eq!((folded.content, found), (content, calls.iter().map(|c| c.to_string()).collect()));
}

#[track_caller]
fn value(source: &str, json: &str) {
    check(
        &format!("<c>call:f{{a:{source},b:1}}</c>"),
        None,
        &[&format!("f {{\"a\": {json}, \"b\": 1}}")],
    );
}

#[test]
fn values_become_json() {
    for (source, json) in [
        ("QxQ", "\"x\""),
        ("QQ", "\"\""),
        ("Qa\"b\\n}</c>,\n<|\"|Q", "\"a\\\"b\\\\n}</c>,\\n<|\\\"|\""),
        ("108.", "108.0"),
        ("-07", "-7"),
        ("true", "true"),
        ("nil", "null"),
        ("[]", "[]"),
        ("[ QaQ, [1,],{} ]", "[\"a\", [1], {}]"),
        ("{k:{l:QxQ}, Qy zQ : 2}", "{\"k\": {\"l\": \"x\"}, \"y z\": 2}"),
        // No literals: their source text.
        ("to day (it's)", "\"to day (it's)\""),
        ("\"x, y\"", "\"x, y\""),
    ] {
        value(source, json);
    }
}

#[test]
fn a_call_exists_from_its_bracket_on() {
    check("a<c>call:f{}</c>b<c>call:g.h-1{}</c>", Some("ab"), &["f {}", "g.h-1 {}"]);
    check("<c>\ncall:f{}call:g{}</c>", None, &["f {}", "g {}"]);
    check("<c>call:f{", None, &["f {…"]);
    for text in ["<c></c>", "<c>call:f", "<c>call:{}", "<c>f{}</c>", "<c>call:f(a)</c>", "call:f{}"]
    {
        check(text, Some(text), &[]);
    }
    check("<c>call:f <c>call:g{}", Some("<c>call:f"), &["g {}"]);
}

#[test]
fn a_cut_call_closes_nothing() {
    check("<c>call:f{a:108.", None, &["f {…"]);
    check("<c>call:f{a:QxQ,b:tru", None, &["f {\"a\": \"x\"…"]);
    check("<c>call:f{a:Qx<|\"|", None, &["f {\"a\": \"x<|\\\"|…"]);
    check("<c>call:f{a:[Qx", None, &["f {\"a\": [\"x…"]);
    check("<c>call:f{a:{b:[1,2", None, &["f {\"a\": {\"b\": [1…"]);
    check("<c>call:f{a:1}", None, &["f {\"a\": 1}"]);
}

#[test]
fn malformed_arguments_pass_as_they_came() {
    check("<c>call:f{a:1</c>b", Some("b"), &["f {\"a\": 1"]);
    check("<c>call:f{a:[1}, b:Q</c>Q</c>b", Some("b"), &["f {\"a\": [1}, b:<|\"|></c><|\"|>"]);
    check("<c>call:f{a:1,k<x</c>b", Some("b"), &["f {\"a\": 1"]);
    check("<c>call:f{a:1, oops}</c>b", Some("b"), &["f {\"a\": 1,oops}"]);
}

struct Typed;

impl Declared for Typed {
    const FAMILY: &'static Family = &Family {
        calls: Some(&CallFormat::new(&["<c>"], |opened| {
            let rules = BareKeysRules { delimiter: "<q>", closer: "</c>", is_typed: true };
            Box::new(BareKeys::new(rules, opened))
        })),
        ..Family::named("typed", "0.1.0", "a family for tests")
    };
}

#[test]
fn the_schema_says_what_a_string_is() {
    const TOOLS: &str = r#"[{"function": {"name": "f", "parameters": {"properties": {
        "i": {"type": "integer"}, "n": {"type": ["number", "null"]}, "b": {"type": "boolean"},
        "s": {"type": "string"}, "l": {"items": {"type": "integer"}},
        "m": {"items": {"type": ["integer", "string"]}},
        "o": {"type": "object", "properties": {"i": {"type": "integer"}}}}}}}]"#;
    let arguments = |text: &str| {
        let request = RequestInfo {
            tools: TOOLS.into(),
            tool_choice: ToolChoice::Auto,
            tool_name: None,
            parallel: true,
            strict: false,
            reasoning_style: None,
            start: Channel::Content,
            strict_markers: false,
        };
        let text = format!("<c>call:f{{{}", text.replace('Q', "<q>"));
        let folded = any_cut::<Typed>(&request, &Stream::of(&text), FinishReason::Stop);
        folded.expect("no broken promise").calls.remove(0).arguments
    };
    assert_eq!(arguments("i:Q3Q}"), "{\"i\": 3}");
    assert_eq!(arguments("i:Qthree \"Q}"), "{\"i\": \"three \\\"\"}");
    assert_eq!(
        arguments("n:QnullQ,b:QTrueQ,s:Q3Q,x:Q3Q}"),
        "{\"n\": null, \"b\": true, \"s\": \"3\", \"x\": \"3\"}"
    );
    assert_eq!(arguments("l:[Q3Q,Q4Q],i:QxQ}"), "{\"l\": [3, 4], \"i\": \"x\"}");
    assert_eq!(arguments("m:[Q3Q]}"), "{\"m\": [\"3\"]}");
    assert_eq!(
        arguments("o:{i:Q3Q,l:[Q3Q]},i:Q1Q}"),
        "{\"o\": {\"i\": 3, \"l\": [\"3\"]}, \"i\": 1}"
    );
    assert_eq!(arguments("o:Q{\"i\": [1]}Q}"), "{\"o\": {\"i\": [1]}}");
    // Not known before it is whole.
    assert_eq!(arguments("s:QaQ,i:Q3"), "{\"s\": \"a\"");
    assert_eq!(arguments("s:Qa"), "{\"s\": \"a");
}
