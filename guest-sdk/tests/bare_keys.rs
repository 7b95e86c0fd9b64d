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
            ..CallFormat::new(&["<c>"], |_| {
                Box::new(BareKeys::new(BareKeysRules { delimiter: "<|\"|>", closer: "</c>" }))
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
    check("<c>call:f{a:1, oops}</c>b", Some("b"), &["f {\"a\": 1,oops}"]);
}
