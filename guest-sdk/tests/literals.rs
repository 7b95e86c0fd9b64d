//! Generated calls in Python's and in Gemma's notation: rendered, cut anywhere, read, compared.
//! And what must hold for any text: the same for every cut, nothing invented by an early end.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Map, Value};
use tenon_guest::harness::{Delivery, Folded, Stream, any_cut, chars, run};
use tenon_guest::{
    BareKeys, BareKeysRules, CallFormat, Channel, Declared, Family, FinishReason, Parser, Python,
    PythonRules, RequestInfo, Session, ToolChoice,
};

struct Exact;
struct Unescaped;
struct Gemma;

const CALLS: CallFormat = CallFormat {
    closers: &["</c>"],
    separators: ",;]",
    ..CallFormat::new(&["<c>"], |_| {
        let rules = PythonRules { needs_list: false, closer: "</c>", is_unescaped: false };
        Box::new(Python::new(rules))
    })
};

impl Declared for Exact {
    const FAMILY: &'static Family =
        &Family { calls: Some(&CALLS), ..Family::named("exact", "0.1.0", "for tests") };
}

impl Declared for Unescaped {
    const FAMILY: &'static Family = &Family {
        calls: Some(&CallFormat {
            reader: |_| {
                let rules = PythonRules { needs_list: false, closer: "</c>", is_unescaped: true };
                Box::new(Python::new(rules))
            },
            ..CALLS
        }),
        ..Family::named("unescaped", "0.1.0", "for tests")
    };
}

impl Declared for Gemma {
    const FAMILY: &'static Family = &Family {
        calls: Some(&CallFormat {
            again: &["call:"],
            reader: |opened| {
                let rules = BareKeysRules { delimiter: "<|\"|>", closer: "</c>", is_typed: false };
                Box::new(BareKeys::new(rules, opened))
            },
            ..CALLS
        }),
        ..Family::named("gemma", "0.1.0", "for tests")
    };
}

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

/// Decisions of a renderer, the same ones for the same seed.
struct Choices(u64);

impl Choices {
    fn one_of(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % count
    }

    fn pick<'a>(&mut self, texts: &[&'a str]) -> &'a str {
        texts[self.one_of(texts.len() as u64) as usize]
    }
}

fn python_string(text: &str, choices: &mut Choices) -> String {
    let (open, is_triple) = (choices.pick(&["'", "\""]), choices.one_of(4) == 0);
    let quotes = open.repeat(if is_triple { 3 } else { 1 });
    let mut out = quotes.clone();
    for c in text.chars() {
        let code = u32::from(c);
        match choices.one_of(6) {
            0 if code < 0x100 => out.push_str(&format!("\\x{code:02x}")),
            1 if code < 0x1_0000 => out.push_str(&format!("\\u{code:04X}")),
            2 => out.push_str(&format!("\\U{code:08x}")),
            3 if code < 0o1000 => out.push_str(&format!("\\{code:03o}")),
            4 => out.push_str(&format!("\\\n{}", python_char(c, open))),
            _ if is_triple && c == '\n' => out.push(c),
            _ => out.push_str(&python_char(c, open)),
        }
    }
    out + &quotes
}

fn python_char(c: char, quote: &str) -> String {
    match c {
        '\n' => "\\n".into(),
        '\\' => "\\\\".into(),
        _ if quote.starts_with(c) => format!("\\{c}"),
        _ => c.into(),
    }
}

fn blank(choices: &mut Choices) -> &'static str {
    choices.pick(&["", "", "", " ", "\n  "])
}

/// `items` between brackets, with blanks and perhaps a trailing comma.
fn listed(items: Vec<String>, brackets: [&str; 2], choices: &mut Choices) -> String {
    let mut out = brackets[0].to_string();
    let last = items.len();
    for (at, item) in items.into_iter().enumerate() {
        out += blank(choices);
        out += &item;
        out += blank(choices);
        if at + 1 < last || choices.one_of(4) == 0 {
            out.push(',');
        }
    }
    out + blank(choices) + brackets[1]
}

type Text = fn(&str, &mut Choices) -> String;

fn python(value: &Value, text: Text, choices: &mut Choices) -> String {
    match value {
        Value::Null => choices.pick(&["None", "null"]).into(),
        Value::Bool(true) => choices.pick(&["True", "true"]).into(),
        Value::Bool(false) => choices.pick(&["False", "false"]).into(),
        Value::Number(number) => number.to_string(),
        Value::String(string) => text(string, choices),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| python(item, text, choices)).collect();
            // A tuple of one needs its comma, and the reader does not.
            let brackets = if choices.one_of(3) == 0 { ["(", ")"] } else { ["[", "]"] };
            listed(items, brackets, choices)
        }
        Value::Object(members) => {
            let members = members.iter();
            let members = members
                .map(|(key, value)| {
                    let (key, value) = (text(key, choices), python(value, text, choices));
                    format!("{key}{}:{}{value}", blank(choices), blank(choices))
                })
                .collect();
            listed(members, ["{", "}"], choices)
        }
    }
}

fn python_call(arguments: &Map<String, Value>, text: Text, choices: &mut Choices) -> String {
    let members = arguments.iter();
    let members = members
        .map(|(key, value)| format!("{key}{}={}", blank(choices), python(value, text, choices)))
        .collect();
    listed(members, ["get.it(", ")"], choices)
}

fn gemma(value: &Value, choices: &mut Choices) -> String {
    match value {
        Value::Null => choices.pick(&["null", "none", "nil"]).into(),
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        Value::Array(items) => {
            let items = items.iter().map(|item| gemma(item, choices)).collect();
            listed(items, ["[", "]"], choices)
        }
        Value::Object(members) => {
            let members = members
                .iter()
                .map(|(key, value)| match choices.one_of(3) {
                    0 => format!("<|\"|>{key}<|\"|>:{}", gemma(value, choices)),
                    _ => format!("{key}: {}", gemma(value, choices)),
                })
                .collect();
            listed(members, ["{", "}"], choices)
        }
        _ => value.to_string(),
    }
}

fn value(string: &'static str, key: &'static str) -> impl Strategy<Value = Value> {
    let number = prop_oneof![any::<i32>().prop_map(Value::from), Just(Value::from(-0.25))];
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number,
        string.prop_map(Value::from),
    ];
    scalar.prop_recursive(3, 12, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn arguments(string: &'static str, key: &'static str) -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::vec(("[a-z_]{1,6}", value(string, key)), 0..4)
        .prop_map(|members| members.into_iter().collect())
}

const HOSTILE: &str = "[a'\"\\\\\n,)\\]:{<é😀 /c>=]{0,8}";
/// No quote that its own rule would close at, no backslash.
const PLAIN: &str = "[a\"\n,)\\]:{<é😀 />|=]{0,8}('s [a<,\"]{0,4})?";

fn read<P: Declared>(text: &str) -> Result<Folded, TestCaseError> {
    any_cut::<P>(&request(), &Stream::of(text), FinishReason::Stop)
        .map_err(|violation| TestCaseError::fail(format!("{text}: {violation}")))
}

/// One call with these arguments, and text behind it.
fn expect<P: Declared>(call: &str, wanted: &Map<String, Value>) -> Result<(), TestCaseError> {
    let text = format!("Hi.<c>{call}</c>Bye");
    let folded = read::<P>(&text)?;
    prop_assert_eq!(folded.content.as_deref(), Some("Hi.Bye"), "{}", text);
    prop_assert_eq!(folded.calls.len(), 1, "{}", text);
    prop_assert_eq!(&folded.calls[0].name, "get.it");
    prop_assert!(folded.calls[0].is_ended, "{}", text);
    let found: Value = serde_json::from_str(&folded.calls[0].arguments)
        .map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?;
    prop_assert_eq!(&found, &Value::Object(wanted.clone()), "{}", text);
    Ok(())
}

/// Wherever the stream ends, there is a beginning of what the whole says.
fn no_invention<P: Declared>(text: &str) -> Result<(), TestCaseError> {
    let whole = |text: &str| {
        run::<P>(&request(), &Stream::of(text), &[], FinishReason::Length, Delivery::Pushed)
            .map_err(|violation| TestCaseError::fail(format!("{text}: {violation}")))
    };
    let all = whole(text)?;
    for end in chars(text) {
        let folded = whole(&text[..end])?;
        prop_assert!(folded.calls.len() <= all.calls.len(), "{:?} at {}", text, end);
        for (call, full) in folded.calls.iter().zip(&all.calls) {
            prop_assert_eq!(&call.name, &full.name);
            // A closer or a quote that is cut off counts as what it is so far.
            let sure = call.arguments.trim_end_matches(|c: char| "\"'\\<|/c \n".contains(c));
            let is_same = call.arguments == full.arguments || !call.is_ended;
            prop_assert!(is_same && full.arguments.starts_with(sure), "{:?} at {}", text, end);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn python_calls_are_read(arguments in arguments(HOSTILE, HOSTILE), seed in any::<u64>()) {
        let call = python_call(&arguments, python_string, &mut Choices(seed));
        expect::<Exact>(&call, &arguments)?;
        no_invention::<Exact>(&format!("<c>{call}</c>"))?;
    }

    #[test]
    fn strings_without_escapes_are_read(
        arguments in arguments(PLAIN, "[a-z ]{0,5}"), seed in any::<u64>(),
    ) {
        let call = python_call(&arguments, |text, _| format!("'{text}'"), &mut Choices(seed));
        expect::<Unescaped>(&call, &arguments)?;
    }

    #[test]
    fn gemma_calls_are_read(arguments in arguments(HOSTILE, "[a-z_é]{1,5}"), seed in any::<u64>()) {
        let value = gemma(&Value::Object(arguments.clone()), &mut Choices(seed));
        let call = format!("call:get.it{value}");
        expect::<Gemma>(&call, &arguments)?;
        no_invention::<Gemma>(&format!("<c>{call}</c>"))?;
    }

    #[test]
    fn any_text_reads_the_same_for_any_cut(
        pieces in prop::collection::vec(prop::sample::select(PIECES), 0..14),
    ) {
        let text = pieces.concat();
        read::<Exact>(&text)?;
        read::<Unescaped>(&text)?;
        read::<Gemma>(&text)?;
    }
}

const PIECES: &[&str] = &[
    "<c>", "</c>", "<|\"|>", "<|", "<", "[", "]", "(", ")", "{", "}", "f(", "f(a=", "g()",
    "call:f{", "call:", "a:", "b=", ",", ";", "=", ":", "'", "\"", "'''", "\\", "\\x4", "\\ud83d",
    "\\ude00", "1", "0.", "-", "True", "None", "nil", "x", "r'", "é", " ", "\n", "it's",
];

fn time<P: Parser>(text: &str) -> Duration {
    let begin = Instant::now();
    let mut session = P::open(request());
    for from in (0..text.len()).step_by(7) {
        session.push(&text[from..(from + 7).min(text.len())], &[], 0);
    }
    session.finish(FinishReason::Stop);
    begin.elapsed()
}

#[test]
fn time_grows_with_the_text_and_not_faster() {
    for (head, unit, tail) in [
        ("<c>f(a='", "it's ", "')"),
        ("<c>f(a='", "\\x41", "')"),
        ("<c>f(a='x'", " ", ")"),
        ("<c>f(a=", "x", ")"),
        ("<c>f(a=['", "x', '", "'])"),
        ("<c>f(a=1", ", b=[1", ")"),
        ("<c>f(a=1 ", "</ ", ")"),
        ("<c>f(a=1, ", "oops ", ")"),
        ("<c>f(", " ", ")"),
        ("<c>", " ", "f()"),
        ("<c>", "f() ", ""),
        ("<c>", "f(a=1) f( ", ""),
        ("<c>call:f{a:", "<|\"|>x</<|\"|>,b:", "1}"),
        ("<c>call:f{a:[", "1,", "2]}"),
        ("<c>call:f{", "<|", ":1}"),
    ] {
        let text = |count: usize| format!("{head}{}{tail}", unit.repeat(count / unit.len()));
        let (short, long) = (text(14_000), text(56_000));
        let best = |time: fn(&str) -> Duration, text: &str| {
            (0..6).map(|_| time(text)).min().unwrap_or_default().as_secs_f64()
        };
        for time in [time::<Exact>, time::<Unescaped>, time::<Gemma>] {
            let growth = best(time, &long) / best(time, &short);
            assert!(growth < 8.0, "four times `{unit}` takes {growth:.1} times as long");
        }
    }
}
