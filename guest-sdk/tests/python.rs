//! Calls as Python writes them: values, commit, cut ends, several calls.

use tenon_guest::harness::{Folded, Stream, any_cut};
use tenon_guest::{
    CallFormat, Channel, Declared, Family, FinishReason, Python, PythonRules, RequestInfo,
    ToolChoice,
};

const LIST: PythonRules = PythonRules { needs_list: true, closer: "", is_unescaped: false };
const LINES: PythonRules =
    PythonRules { needs_list: false, closer: "</calls>", is_unescaped: false };
const LOOSE: PythonRules =
    PythonRules { needs_list: false, closer: "</calls>", is_unescaped: true };

struct List;
struct Lines;
struct Loose;

macro_rules! family {
    ($name:ty, $openers:expr, $bare:expr, $rules:expr) => {
        impl Declared for $name {
            const FAMILY: &'static Family = &Family {
                calls: Some(&CallFormat {
                    bare: $bare,
                    closers: &["</calls>"],
                    separators: ",;]",
                    ..CallFormat::new($openers, |_| Box::new(Python::new($rules)))
                }),
                ..Family::named("python", "0.1.0", "a family for tests")
            };
        }
    };
}
family!(List, &[], &["["], LIST);
family!(Lines, &["<calls>"], &[], LINES);
family!(Loose, &["<calls>"], &[], LOOSE);

fn request() -> RequestInfo {
    RequestInfo {
        tools: "[{}]".into(),
        tool_choice: ToolChoice::Auto,
        tool_name: None,
        parallel: true,
        strict: false,
        reasoning_style: None,
        start: Channel::Content,
        strict_markers: false,
    }
}

fn read<P: Declared>(text: &str) -> Folded {
    match any_cut::<P>(&request(), &Stream::of(text), FinishReason::Stop) {
        Ok(folded) => folded,
        Err(violation) => panic!("{text:?}: {violation}"),
    }
}

/// Content, then each call as `NAME ARGUMENTS`, with `…` if it has no end.
#[track_caller]
fn check<P: Declared>(text: &str, content: Option<&str>, calls: &[&str]) {
    let folded = read::<P>(text);
    let found: Vec<String> = folded
        .calls
        .iter()
        .map(|call| {
            format!("{} {}{}", call.name, call.arguments, if call.is_ended { "" } else { "…" })
        })
        .collect();
    assert_eq!(
        (folded.content.as_deref(), found),
        (content, calls.iter().map(|call| call.to_string()).collect()),
        "{text:?}"
    );
}

/// The value of `a` in a call.
#[track_caller]
fn value<P: Declared>(source: &str, json: &str) {
    let prefix =
        if P::FAMILY.calls.is_some_and(|calls| calls.bare.is_empty()) { "<calls>" } else { "" };
    let text = format!("{prefix}[f(z='', a={source}, b=1)]");
    check::<P>(&text, None, &[&format!("f {{\"z\": \"\", \"a\": {json}, \"b\": 1}}")]);
}

#[test]
fn values_become_json() {
    for (source, json) in [
        ("'x'", "\"x\""),
        ("\"x\"", "\"x\""),
        ("''", "\"\""),
        ("\"it's\"", "\"it's\""),
        (r#"'it\'s \"x\"'"#, r#""it's \"x\"""#),
        ("'''a'b''c\n'''", "\"a'b''c\\n\""),
        ("\"\"\"a\"b\"\"\"", "\"a\\\"b\""),
        ("'a' \"b\" '''c'''", "\"abc\""),
        (
            r"'\n\t\r\\\a\b\f\v\0\101\x41\u00e9\U0001f600\q'",
            "\"\\n\\t\\r\\\\\\u0007\\u0008\\u000c\\u000b\\u0000AAé😀\\\\q\"",
        ),
        (r"'\ud83d\ude00\ud83d'", "\"😀\u{fffd}\""),
        (r"'\xg\u12z'", "\"\\\\xg\\\\u12z\""),
        ("'a\\\nb'", "\"ab\""),
        (r"r'\n\''", r#""\\n\\'""#),
        ("b'x'", "\"x\""),
        ("07", "7"),
        ("-1_000", "-1000"),
        ("1.5e2", "1.5e2"),
        ("5.", "5.0"),
        ("True", "true"),
        ("false", "false"),
        ("None", "null"),
        ("null", "null"),
        ("[]", "[]"),
        ("[1, 'a', [True,], ( ), (1,)]", "[1, \"a\", [true], [], [1]]"),
        ("{}", "{}"),
        (
            "{'k': {'l': [1, {}]}, 2: None, True: 'x' ,}",
            "{\"k\": {\"l\": [1, {}]}, \"2\": null, \"true\": \"x\"}",
        ),
        ("{x: 1}", "{\"x\": 1}"),
        // No literals: their source text.
        ("nowhere", "\"nowhere\""),
        ("get(x, [1, ')'])", "\"get(x, [1, ')'])\""),
        ("1 + 2", "\"1 + 2\""),
        ("f'{x}'", "\"f'{x}'\""),
        ("[foo, bar(1)]", "[\"foo\", \"bar(1)\"]"),
        // A quote that nothing follows which may follow a value.
        ("'it's here'", "\"it's here\""),
    ] {
        value::<List>(source, json);
        value::<Lines>(source, json);
        if !source.starts_with("'a' ") {
            value::<Loose>(source, json);
        }
    }
    value::<Loose>("'say \"hi\" to 'em''", "\"say \\\"hi\\\" to 'em'\"");
    value::<Loose>("'a\nb </calls>'", "\"a\\nb </calls>\"");
}

#[test]
fn a_call_exists_from_the_first_literal_on() {
    check::<List>("[f()]", None, &["f {}"]);
    check::<List>(" [ f( a = 1 ,\n) ,\n g.h( ) ]\n", None, &["f {\"a\": 1}", "g.h {}"]);
    for text in [
        "[]",
        "[1, 2]",
        "[f]",
        "[f(",
        "[f(a",
        "[f(a=",
        "[f(1)]",
        "[f('x')]",
        "[f(a=x)]",
        "[f(a==1)]",
        "[f(a 1)]",
        "[f (a=1)]",
        "[f.(a=1)]",
        "[(a=1)]",
        "[f(,)]",
        "[f(a=r)]",
        "[f(a=ru)]",
        "[f(a=)]",
        "[a](http://x?b=1)",
        "[f(**{})]",
        "[[f()]]",
    ] {
        check::<List>(text, Some(text), &[]);
    }
    check::<List>("[f(a=t", None, &["f {…"]);
    check::<List>("[f(a=r'", None, &["f {\"a\": \"…"]);
    check::<List>("Hi [f()]", Some("Hi [f()]"), &[]);
}

#[test]
fn a_cut_call_closes_nothing() {
    check::<List>("[f(), g(a='x", None, &["f {}", "g {\"a\": \"x…"]);
    check::<List>("[f(a='x'", None, &["f {\"a\": \"x\"…"]);
    check::<List>("[f(a='x', b", None, &["f {\"a\": \"x\"…"]);
    check::<List>("[f(a=12", None, &["f {…"]);
    check::<List>("[f(a=[1, 2", None, &["f {\"a\": [1…"]);
    check::<List>("[f(a={'k", None, &["f {\"a\": {…"]);
    check::<List>("[f(a='''x''", None, &["f {\"a\": \"x''…"]);
    check::<List>("[f(a='x\\u00", None, &["f {\"a\": \"x…"]);
    check::<List>("[f(a=1)", None, &["f {\"a\": 1}"]);
    check::<List>("[f(), g(a", Some("g(a"), &["f {}"]);
    check::<Lines>("<calls>f(a='x\n</cal", None, &["f {\"a\": \"x\\n</cal…"]);
}

#[test]
fn malformed_arguments_pass_as_they_came() {
    check::<List>("[f(a=1, 'x')] Hi", Some("Hi"), &["f {\"a\": 1,'x'"]);
    check::<List>("[f(a=[1, 2), g()]", None, &["f {\"a\": [1, 2", "g {}"]);
    check::<List>("[f(a=[1] 2, b='(')]", None, &["f {\"a\": [1]2, b='('"]);
    check::<Lines>("<calls>f(a=[1</calls>Hi", Some("Hi"), &["f {\"a\": [1"]);
    check::<Lines>("<calls>f(a='x'</calls>Hi", Some("Hi"), &["f {\"a\": \"x\""]);
    check::<Lines>("<calls>f(a=1, b</calls>Hi", Some("Hi"), &["f {\"a\": 1"]);
    let deep = "[".repeat(600);
    let folded = read::<List>(&format!("[f(a={deep})]"));
    assert_eq!(folded.calls[0].arguments, format!("{{\"a\": {deep}"));
}

#[test]
fn calls_and_text_around_them() {
    check::<List>("[f(), 3] x", Some("3] x"), &["f {}"]);
    check::<List>("[f()]\n[g()]", Some("[g()]"), &["f {}"]);
    check::<Lines>("a <calls>\nf()\ng(x=1)\n</calls>\nb", Some("a \nb"), &["f {}", "g {\"x\": 1}"]);
    check::<Lines>("<calls>\n</calls>b", Some("b"), &[]);
    check::<Lines>("<calls>[]</calls>b", Some("b"), &[]);
    check::<Lines>("<calls>\n", Some("<calls>\n"), &[]);
    check::<Lines>("<calls>3</calls>", Some("<calls>3</calls>"), &[]);
    check::<Lines>("<calls>f()\nnow 1</calls>", Some("now 1</calls>"), &["f {}"]);
    check::<Lines>("<calls>f()<calls>é()", None, &["f {}", "é {}"]);
}
