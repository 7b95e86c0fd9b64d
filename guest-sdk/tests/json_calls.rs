//! The readers of JSON calls, each in a small family: random calls written in the format are read
//! back for any cut, an early end invents nothing, time grows with the text and not faster.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tenon_guest::harness::{Delivery, Folded, Stream, Violation, any_cut, chars, run};
use tenon_guest::{
    ByFirst, CallFormat, CallReader, Channel, Declared, Envelope, EnvelopeRules, Family,
    FinishReason, Headed, HeadedRules, List, Opened, Parser, Part, RequestInfo, Session,
    ToolChoice,
};

const FENCED: HeadedRules = HeadedRules {
    fence: "```",
    ..HeadedRules::new(
        &[
            Part::Blanks,
            Part::Text("function<s>"),
            Part::Name,
            Part::Blanks,
            Part::Maybe("```json", 1),
            Part::Blanks,
        ],
        &["```", "</c>"],
    )
};
const WITH_ID: HeadedRules = HeadedRules {
    may_be_empty: true,
    ..HeadedRules::new(
        &[Part::Blanks, Part::NameInId, Part::Blanks, Part::Text("<a>"), Part::Blanks],
        &["</c>"],
    )
};
const LOOSE: HeadedRules = HeadedRules::new(
    &[Part::Name, Part::Maybe("[I]", 1), Part::Id, Part::Maybe("[A]", 1), Part::Blanks],
    &["<c>"],
);
const LISTED: EnvelopeRules =
    EnvelopeRules { id_keys: &["id"], ..EnvelopeRules::in_section("</c>") };
const KEYED: EnvelopeRules =
    EnvelopeRules { key_is_name: true, ..EnvelopeRules::in_section("</c>") };
const LED: EnvelopeRules = EnvelopeRules {
    lead: "<p>",
    name_keys: &["tool"],
    argument_keys: &["args"],
    ..EnvelopeRules::behind_marker("</c>")
};
const OPEN: EnvelopeRules = EnvelopeRules { list: List::Open, ..EnvelopeRules::in_section("]!") };

fn by_first(first: u8) -> Option<Box<dyn CallReader>> {
    Some(match first {
        b'[' | b'{' => Box::new(Envelope::new(LISTED)),
        _ => Box::new(Headed::new(&LOOSE)),
    })
}

/// A family with one opener.
macro_rules! family {
    ($name:ident, $reader:expr) => {
        struct $name;

        impl Declared for $name {
            const FAMILY: &'static Family = &Family {
                calls: Some(&CallFormat {
                    again: &["{"],
                    closers: &["</c>"],
                    separators: ",;]",
                    ..CallFormat::new(&["<c>"], $reader)
                }),
                ..Family::named("test", "0.1.0", "a family for tests")
            };
        }
    };
}

family!(Fenced, |_| Box::new(Headed::new(&FENCED)));
family!(WithId, |_| Box::new(Headed::new(&WITH_ID)));
family!(Loose, |_| Box::new(ByFirst::new(by_first)));
family!(Listed, |opened: &Opened<'_>| Box::new(Envelope::new(EnvelopeRules {
    list: if opened.marker == "{" { List::No } else { List::Must },
    ..LISTED
})));
family!(Keyed, |_| Box::new(Envelope::new(KEYED)));
family!(Led, |_| Box::new(Envelope::new(LED)));
family!(Open, |opened: &Opened<'_>| Box::new(Envelope::new(EnvelopeRules {
    list: if opened.marker == "{" { List::No } else { List::Open },
    ..OPEN
})));

#[derive(Debug, Clone)]
struct Written {
    name: String,
    id: Option<String>,
    arguments: Map<String, Value>,
    shape: bool,
}

/// A format: how it is run and how calls are written in it.
#[derive(Debug)]
struct Format {
    name: &'static str,
    run: fn(&Stream, bool) -> Result<Folded, Violation>,
    time: fn(&str, &[usize]) -> Duration,
    write: fn(&[Written]) -> String,
    has_ids: bool,
    /// Grows by the unit: head, unit, tail.
    growth: &'static [[&'static str; 3]],
}

const FORMATS: &[Format] = &[
    Format {
        name: "fenced",
        run: run_in::<Fenced>,
        time: time::<Fenced>,
        write: |calls| {
            let one = |call: &Written| {
                let (name, text) = (&call.name, text_of(call));
                if call.shape {
                    format!("<c>function<s>{name}\n```json\n{text}\n```</c>")
                } else {
                    format!("<c>\nfunction<s>{name}\n{text}</c>")
                }
            };
            joined(calls, "\n", one)
        },
        has_ids: false,
        growth: &[
            ["<c>function<s>f\n{\"a\": \"", "```</c>", "\"}\n```</c>"],
            ["", "<c>function<s>", ""],
            ["", "<c>function<s>f\n```", ""],
        ],
    },
    Format {
        name: "with id",
        run: run_in::<WithId>,
        time: time::<WithId>,
        write: |calls| {
            let one = |call: &Written| {
                let (name, text) = (&call.name, text_of(call));
                match &call.id {
                    Some(_) if call.shape => format!("<c>functions.{name}:12<a>{text}</c>"),
                    Some(_) => format!("<c> {name}:12 <a>\n{text}\n</c>"),
                    None => format!("<c>functions.{name}<a>{text}</c>"),
                }
            };
            joined(calls, "", one)
        },
        has_ids: false,
        growth: &[["<c>f:1<a>{\"a\": [", "{\"b\": \"</c>\"}, ", "0]}</c>"], ["<c>", "a:1", "<a>"]],
    },
    Format {
        name: "loose",
        run: run_in::<Loose>,
        time: time::<Loose>,
        write: |calls| {
            let one = |call: &Written| {
                let (name, text) = (&call.name, text_of(call));
                match &call.id {
                    Some(id) => format!("<c>{name}[I]{id}[A]{text}"),
                    None if call.shape => format!("<c> {name}[A] {text}"),
                    None => format!("<c>{name}{text}"),
                }
            };
            joined(calls, "", one)
        },
        has_ids: true,
        growth: &[["", "<c>f[A", ""], ["<c>f{", "\"<c>\": 0, ", "}"]],
    },
    Format {
        name: "listed",
        run: run_in::<Listed>,
        time: time::<Listed>,
        write: |calls| {
            let one = |call: &Written| {
                let (name, text) = (json!(call.name), text_of(call));
                let id = call.id.as_ref().map(|id| format!("\"id\": {}", json!(id)));
                match (id, call.shape) {
                    (Some(id), true) => {
                        format!("{{\"name\": {name}, \"arguments\": {text}, {id}}}")
                    }
                    (Some(id), false) => {
                        format!("{{\"arguments\":{text},{id},\"name\":{name}}}")
                    }
                    (None, true) => format!("{{\"name\": {name}, \"arguments\": {text}}}"),
                    (None, false) => {
                        format!("{{\"name\":{name},\"arguments\":{}}}", json!(text))
                    }
                }
            };
            format!("<c> [{}]\n</c>", joined(calls, ",\n ", one))
        },
        has_ids: true,
        growth: &[
            ["<c>[{\"name\": \"f\", \"arguments\": {\"a\": \"", "</c>\\n", "\"}, \"id\": \"x\"}]"],
            ["", "<c>[", ""],
        ],
    },
    Format {
        name: "keyed",
        run: run_in::<Keyed>,
        time: time::<Keyed>,
        write: |calls| {
            let one = |call: &Written| format!("{}: {}", json!(call.name), text_of(call));
            if calls.first().is_some_and(|call| call.shape) {
                return format!("<c>{{{}}}</c>", joined(calls, ", ", one));
            }
            format!("<c>[{{{}}}]</c>", joined(calls, "}, {", one))
        },
        has_ids: false,
        growth: &[["<c>[", "{\"f\": {}}, ", "]"], ["<c>[{", "\"f\": null, ", "]"]],
    },
    Format {
        name: "led",
        run: run_in::<Led>,
        time: time::<Led>,
        write: |calls| {
            let one = |call: &Written| {
                let (name, text) = (json!(call.name), text_of(call));
                format!("<c> <p>{{\"x\": [1.0], \"tool\": {name}, \"args\": {text}}}</c>")
            };
            joined(calls, "", one)
        },
        has_ids: false,
        growth: &[["", "<c><p>{", ""], ["", "<c><", ""]],
    },
    Format {
        name: "open",
        run: run_in::<Open>,
        time: time::<Open>,
        write: |calls| {
            let one = |call: &Written| {
                format!("{{\"name\": {}, \"parameters\": {}}}", json!(call.name), text_of(call))
            };
            format!("<c>{}]", joined(calls, "; ", one))
        },
        has_ids: false,
        growth: &[["<c>", "{\"name\": \"f\"}, ", ""]],
    },
];

fn text_of(call: &Written) -> String {
    Value::Object(call.arguments.clone()).to_string()
}

fn joined(calls: &[Written], between: &str, one: impl Fn(&Written) -> String) -> String {
    calls.iter().map(one).collect::<Vec<_>>().join(between)
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

fn run_in<P: Parser>(stream: &Stream, every_cut: bool) -> Result<Folded, Violation> {
    if every_cut {
        return any_cut::<P>(&request(), stream, FinishReason::Stop);
    }
    run::<P>(&request(), stream, &[], FinishReason::Stop, Delivery::Pushed)
}

fn time<P: Parser>(text: &str, cuts: &[usize]) -> Duration {
    let begin = Instant::now();
    let mut session = P::open(request());
    let mut from = 0;
    for end in cuts.iter().copied().chain([text.len()]) {
        session.push(&text[from..end], &[], 0);
        from = end;
    }
    session.finish(FinishReason::Stop);
    begin.elapsed()
}

#[track_caller]
fn read(format: &str, text: &str) -> Folded {
    let format = FORMATS.iter().find(|known| known.name == format).expect("one of the table");
    match (format.run)(&Stream::of(text), true) {
        Ok(folded) => folded,
        Err(violation) => panic!("{text:?}: {violation}"),
    }
}

/// What was read: content, and each call as `NAME#ID(ARGUMENTS)`, with a `…` if it is not whole.
#[track_caller]
fn check(format: &str, text: &str, content: Option<&str>, calls: &[&str]) {
    let folded = read(format, text);
    let written = folded.calls.iter().map(|call| {
        let id = call.id.as_ref().map(|id| format!("#{id}")).unwrap_or_default();
        let end = if call.is_ended { "" } else { "…" };
        format!("{}{id}({}){end}", call.name, call.arguments)
    });
    assert_eq!(written.collect::<Vec<_>>(), calls, "{text:?}");
    assert_eq!(folded.content.as_deref(), content, "{text:?}");
}

#[test]
fn headers_of_every_shape() {
    check("fenced", "<c>function<s>f\n```json\n{}\n```</c>!", Some("!"), &["f({})"]);
    check("fenced", "<c>function<s>f\n{} </c>!", Some("!"), &["f({})"]);
    check("fenced", "<c>function<s>f{}``", Some("``"), &["f({})"]);
    check("fenced", "<c>function<s>f{\"a\": [\n```</c>!", Some("!"), &["f({\"a\": [\n)"]);
    check("fenced", "<c>function<s>f{\"a\": [</c>!", Some("!"), &["f({\"a\": [)"]);
    check("fenced", "<c>function<s>f{\"a\": \"</c", None, &["f({\"a\": \"</c)…"]);
    for text in ["<c>f<s>{}</c>", "<c>function<s>{}</c>", "<c>function<s>f", "<c>function<s>f g{}"]
    {
        check("fenced", text, Some(text), &[]);
    }
    check("with id", "<c>functions.a.b:0<a>{}</c>", None, &["a.b#functions.a.b:0({})"]);
    check("with id", "<c>a:b:10 <a></c>", None, &["a:b#a:b:10({})"]);
    check("with id", "<c>functions.f<a> </c>", None, &["f({})"]);
    for text in
        ["<c>functions.:0<a>{}</c>", "<c>f:0{}</c>", "<c>f:0<a>x</c>", "<c>f:0<a></", "<c>f:0<a>"]
    {
        check("with id", text, Some(text), &[]);
    }
    check("loose", "<c>f{\"a\": tru}<c>g[I]x9[A]{}", None, &["f({\"a\": tru})", "g#x9({})"]);
    check("loose", "<c>f[A]{\"a\": [<c>g{}", None, &["f({\"a\": [)", "g({})"]);
    check("loose", "<c>f[I]i{}", None, &["f#i({})"]);
    for text in ["<c> is a token, [A] too", "<c>f[I][A]{}", "<c>f {}", "<c>f[A]", "<c>f[A"] {
        check("loose", text, Some(text), &[]);
    }
    let long = format!("<c>{}{{}}", "x".repeat(2000));
    check("loose", &long, Some(&long), &[]);
}

#[test]
fn ids_keys_and_lists() {
    let call = "{\"name\": \"f\", \"arguments\": {}";
    check("listed", &format!("<c>[{call}, \"id\": \"a1\"}}]</c>"), None, &["f#a1({})"]);
    check("listed", &format!("<c>[{call}, \"id\": 7, \"x\": 1}}]</c>"), None, &["f({})"]);
    check("listed", &format!("<c>[{call}, \"id\": \"a"), None, &["f({})"]);
    check("listed", &format!("<c>[{call}, x"), Some("x"), &["f({})"]);
    let cut = "<c>[{\"name\": \"f\", \"arguments\": {\"a\": \"b";
    check("listed", cut, None, &["f({\"a\": \"b)…"]);
    check(
        "listed",
        "<c>[{\"name\": \"f\", \"arguments\": {\"a\": [</c>.",
        Some("."),
        &["f({\"a\": [)"],
    );
    check("listed", "<c>[ ]</c>.", Some("."), &[]);
    check("listed", "<c>\n</c>.", Some("."), &[]);
    check("listed", "<c>{\"name\": \"f\"}</c>", Some("<c>{\"name\": \"f\"}</c>"), &[]);
    check(
        "listed",
        "<c>[{\"name\": \"f\"}, {\"name\": \"g\", \"arguments\": null}]",
        None,
        &["f({})", "g({})"],
    );
    check(
        "keyed",
        "<c>[{\"f\": {\"g\": {}}}, {\"h\": \"{}\"}]</c>",
        None,
        &["f({\"g\": {}})", "h({})"],
    );
    check("keyed", "<c>{\"f\": null, \"g\": {}}", None, &["f({})", "g({})"]);
    check("keyed", "<c>{\"f\": {}, \"g\": 3}</c>.", Some("3}</c>."), &["f({})"]);
    check("keyed", "<c>{\"f\": {\"a", None, &["f({\"a)…"]);
    for text in ["<c>{}</c>", "<c>{\"f\": 3}</c>", "<c>{\"\": {}}</c>", "<c>{\"f\"", "<c>none</c>"]
    {
        check("keyed", text, Some(text), &[]);
    }
    for text in ["<c><q>{}</c>", "<c>{\"tool\": \"f\", \"args\": {}}", "<c><p></c>", "<c><"] {
        check("led", text, Some(text), &[]);
    }
    check("open", "<c>]x", Some("x"), &[]);
    check("open", "<c>0]", Some("<c>0]"), &[]);
}

#[test]
fn a_call_that_waits_for_its_id_is_bounded() {
    let long = "x".repeat(2 << 20);
    let text =
        format!("<c>[{{\"name\": \"f\", \"arguments\": {{\"a\": \"{long}\"}}, \"id\": \"i\"}}]");
    let format = FORMATS.iter().find(|format| format.name == "listed").expect("in the table");
    let folded = (format.run)(&Stream::of(&text), false).expect("the contract holds");
    let call = &folded.calls[0];
    assert_eq!(
        (call.id.as_deref(), call.is_ended, call.arguments.len()),
        (None, true, long.len() + 9)
    );
}

/// Any JSON, its strings full of what could be taken for markup.
fn any_value() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        "[a-zé🛶 \"\\\\\n{}\\[\\]<>/:,`]{0,12}",
        prop::sample::select(vec!["</c>", "<c>", "```", "[A]", "<a>", "{\"name\": \"x\"}"])
            .prop_map(String::from),
    ];
    let leaf = prop_oneof![
        text.clone().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
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

fn any_call() -> impl Strategy<Value = Written> {
    let arguments = prop::collection::vec(("[a-z]{1,6}|name|id", any_value()), 0..4);
    (prop::option::of("[a-zA-Z0-9]{9}"), "[a-z_é.-]{1,8}x", arguments, any::<bool>()).prop_map(
        |(id, name, pairs, shape)| Written {
            name,
            id,
            arguments: pairs.into_iter().collect(),
            shape,
        },
    )
}

fn any_format() -> impl Strategy<Value = &'static Format> {
    (0..FORMATS.len()).prop_map(|index| &FORMATS[index])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn written_calls_are_read(
        format in any_format(), calls in prop::collection::vec(any_call(), 1..4),
        lead in "[a-z<{ ]{0,6}",
    ) {
        let text = format!("{lead}.{}", (format.write)(&calls));
        let folded = match (format.run)(&Stream::of(&text), true) {
            Ok(folded) => folded,
            Err(violation) => return Err(TestCaseError::fail(format!("{text}: {violation}"))),
        };
        prop_assert_eq!(folded.content, Some(format!("{lead}.")), "{:?}", &text);
        prop_assert_eq!(folded.calls.len(), calls.len(), "{:?}", &text);
        for (found, call) in folded.calls.iter().zip(&calls) {
            prop_assert!(found.is_ended);
            prop_assert_eq!(&found.name, &call.name);
            let arguments: Value = serde_json::from_str(&found.arguments).expect("JSON");
            prop_assert_eq!(arguments, Value::Object(call.arguments.clone()));
            if format.has_ids {
                prop_assert_eq!(&found.id, &call.id, "{:?}", &text);
            }
        }
    }

    /// Wherever the stream ends, no call is whole that was not written as a whole.
    #[test]
    fn an_early_end_invents_nothing(
        format in any_format(), calls in prop::collection::vec(any_call(), 1..3),
    ) {
        let text = (format.write)(&calls);
        for end in chars(&text) {
            let stream = Stream::of(&text[..end]);
            let folded = (format.run)(&stream, false).expect("the contract holds");
            prop_assert!(folded.calls.len() <= calls.len());
            for (found, call) in folded.calls.iter().zip(&calls) {
                prop_assert_eq!(&found.name, &call.name);
                if found.is_ended {
                    let arguments: Value = serde_json::from_str(&found.arguments).expect("JSON");
                    prop_assert_eq!(arguments, Value::Object(call.arguments.clone()));
                }
            }
        }
    }
}

/// How much longer four times the text takes: the best of several short runs each, so that a busy
/// machine disturbs neither. Linear: 4. Quadratic: 16.
#[test]
fn time_grows_with_the_text_and_not_faster() {
    for format in FORMATS {
        for [head, unit, tail] in format.growth {
            let num_units = 2_000 / unit.len();
            let text = |times| format!("{head}{}{tail}", unit.repeat(num_units * times));
            let (short, long) = (text(1), text(4));
            let (short_cuts, long_cuts) = (chars(&short), chars(&long));
            let mut best = (Duration::MAX, Duration::MAX);
            for _ in 0..10 {
                best.0 = best.0.min((format.time)(&short, &short_cuts));
                best.1 = best.1.min((format.time)(&long, &long_cuts));
            }
            let growth = best.1.as_secs_f64() / best.0.as_secs_f64();
            assert!(growth < 8.0, "{}: four times `{unit}` takes {growth:.1} times", format.name);
        }
    }
}
