//! The readers of tagged calls, rule by rule, on small families: policy U4, U6-U8, U11-U13, U23.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenon_guest::harness::{Delivery, Folded, Stream, any_cut, chars, run};
use tenon_guest::{
    CallFormat, Channel, Closing, Declared, Family, FinishReason, Keys, Naming, Parser,
    RequestInfo, Section, Session, TagRules, Tagged, ToolChoice, Tree, TreeRules,
};

const EQUALS: TagRules = TagRules {
    naming: Naming::Equals,
    parameter: "<p=",
    keys: Keys::Equals,
    value_closer: "</p>",
    closing: Closing::AnchoredOrNewline,
    closer: "</f>",
    outer: &["</calls>"],
    next: &["<f="],
    newlines: true,
    cdata: false,
    nulls: &["null"],
};

/// `<f=NAME>` and `<p=KEY>`, perhaps in `<calls>`.
struct Equals;

impl Declared for Equals {
    const FAMILY: &'static Family = &Family {
        calls: Some(&CallFormat {
            sections: &[Section { opener: "<calls>", closer: "</calls>", empty_is_text: true }],
            openers_count_bare: true,
            ..CallFormat::new(&["<f="], |opened| Box::new(Tagged::new(&EQUALS, opened)))
        }),
        ..Family::named("equals", "0.1.0", "for tests")
    };
}

const PAIRS: TagRules = TagRules {
    naming: Naming::Word,
    parameter: "<k>",
    keys: Keys::Pair { closer: "</k>", value: "<v>", kind: Some(("<t>", "</t>")) },
    value_closer: "</v>",
    closing: Closing::Exact(&[]),
    closer: "</c>",
    outer: &[],
    next: &["<c>"],
    newlines: false,
    cdata: false,
    nulls: &["null"],
};

/// `<c>NAME` and pairs.
struct Pairs;

impl Declared for Pairs {
    const FAMILY: &'static Family = &Family {
        calls: Some(&CallFormat::new(&["<c>"], |opened| Box::new(Tagged::new(&PAIRS, opened)))),
        ..Family::named("pairs", "0.1.0", "for tests")
    };
}

const NAMED: TagRules = TagRules {
    naming: Naming::Proved(&["do", "<sep>", "<f name="]),
    parameter: "<p name=",
    keys: Keys::Attribute,
    closing: Closing::Anchored,
    outer: &["<end>", "</calls>"],
    next: &["<begin>"],
    newlines: false,
    cdata: true,
    ..EQUALS
};

/// `<begin>do<sep><f name="NAME">` and `<p name="KEY">` in `<calls>`.
struct Named;

impl Declared for Named {
    const FAMILY: &'static Family = &Family {
        calls: Some(&CallFormat {
            sections: &[Section { opener: "<calls>", closer: "</calls>", empty_is_text: false }],
            closers: &["<end>"],
            ..CallFormat::new(&["<begin>"], |opened| Box::new(Tagged::new(&NAMED, opened)))
        }),
        ..Family::named("named", "0.1.0", "for tests")
    };
}

/// `@<f name="NAME">` and a tree of tags.
struct Leaves;

impl Declared for Leaves {
    const FAMILY: &'static Family = &Family {
        calls: Some(&CallFormat {
            sections: &[Section { opener: "@<calls>", closer: "@</calls>", empty_is_text: false }],
            ..CallFormat::new(&["@<f name="], |_| {
                const RULES: TreeRules =
                    TreeRules { tag: "@<", closer: "@</f>", outer: &["@</calls>", "@<f name="] };
                Box::new(Tree::new(&RULES))
            })
        }),
        ..Family::named("leaves", "0.1.0", "for tests")
    };
}

fn request() -> RequestInfo {
    let integer = json!({"type": "integer"});
    let properties = json!({
        "s": {"type": "string"},
        "z": {"type": "string"},
        "i": integer,
        "o": {"type": "object", "properties": {"i": integer, "l": {"items": integer}}},
        "l": {"type": "array", "items": integer},
        "n": {"type": ["string", "null"]},
    });
    RequestInfo {
        tools: json!([{"function": {"name": "f", "parameters": {"properties": properties}}}])
            .to_string(),
        tool_choice: ToolChoice::Auto,
        tool_name: None,
        parallel: true,
        strict: false,
        reasoning_style: None,
        start: Channel::Content,
        strict_markers: false,
    }
}

#[track_caller]
fn read<D: Declared>(text: &str) -> Folded {
    match any_cut::<D>(&request(), &Stream::of(text), FinishReason::Stop) {
        Ok(folded) => folded,
        Err(violation) => panic!("{text:?}: {violation}"),
    }
}

/// The arguments of the calls, and the content. An ended call's are JSON; one that is not ended has
/// a `~` behind what came.
#[track_caller]
fn check<D: Declared>(text: &str, calls: &[&str], content: Option<&str>) {
    let folded = read::<D>(text);
    let found: Vec<String> = folded
        .calls
        .iter()
        .map(|call| {
            if call.is_ended {
                let parsed: Value = serde_json::from_str(&call.arguments).expect("JSON");
                assert!(parsed.is_object(), "{text:?}");
            }
            format!("{}{}", call.arguments, if call.is_ended { "" } else { "~" })
        })
        .collect();
    assert_eq!(
        (found.iter().map(String::as_str).collect::<Vec<_>>(), folded.content.as_deref()),
        (calls.to_vec(), content),
        "{text:?}"
    );
}

#[test]
fn a_name_needs_what_follows_it() {
    check::<Equals>("<calls><f=f></f></calls>", &["{}"], None);
    check::<Equals>("<f=f>\n</f>x", &["{}"], Some("x"));
    check::<Equals>("a\n<f=f></f>\n</calls>\n b", &["{}"], Some("a\n\n b"));
    check::<Equals>("a\n<f=f></f>\n</cal", &["{}"], Some("a\n\n</cal"));
    check::<Equals>("<f=f> <p=", &["{~"], None);
    check::<Equals>("<f=f> <p", &[], Some("<f=f> <p"));
    check::<Equals>("<f=f>", &[], Some("<f=f>"));
    check::<Equals>("<f=f> or <p=s>", &[], Some("<f=f> or <p=s>"));
    check::<Equals>("<f=a b></f>", &[], Some("<f=a b></f>"));
    check::<Equals>("<f=></f>", &[], Some("<f=></f>"));
    check::<Equals>("<f=<f=f></f>", &["{}"], Some("<f="));
    check::<Equals>("<calls><f=f>.<f=f></f></calls>", &["{}"], Some("<calls><f=f>."));
    check::<Pairs>("<c>f</c>", &["{}"], None);
    check::<Pairs>("<c>\nf\n</c>", &["{}"], None);
    check::<Pairs>("<c>f", &[], Some("<c>f"));
    check::<Pairs>("<c></c>", &[], Some("<c></c>"));
    check::<Pairs>("<c>…</c>", &[], Some("<c>…</c>"));
    check::<Pairs>("<c>a b</c>", &[], Some("<c>a b</c>"));
    check::<Pairs>("<c>{\"name\":\"f\"}</c>", &[], Some("<c>{\"name\":\"f\"}</c>"));
    check::<Named>("<calls><begin>do<sep><f name=\"f\">", &["{~"], None);
    check::<Named>("<calls> <begin>do <sep>\n<f name='f'></f><end> </calls>", &["{}"], None);
    let wrong = "<calls><begin>dig<sep><f name='f'></f><end></calls>";
    check::<Named>(wrong, &[], Some(wrong));
}

#[test]
fn closers_of_text_count_only_with_what_follows() {
    let call = |value: &str| format!("<f=f><p=s>{value}</p></f>");
    check::<Equals>(&call("a</p>b"), &[r#"{"s": "a</p>b"}"#], None);
    check::<Equals>(&call("</p></p>"), &[r#"{"s": "</p></p>"}"#], None);
    check::<Equals>(&call("a</p> \n<p x></f "), &[r#"{"s": "a</p> \n<p x></f "}"#], None);
    check::<Equals>(&call("a</p> </calls>"), &[r#"{"s": "a"}"#], Some("</p></f>"));
    check::<Equals>("<f=f><p=s>a</p>\n", &[r#"{"s": "a"~"#], None);
    check::<Equals>("<f=f><p=s>a</p>\n</", &[r#"{"s": "a"~"#], None);
    check::<Equals>("<f=f><p=s>a</p>.", &[r#"{"s": "a</p>.~"#], None);
    check::<Equals>("<f=f><p=s>a</p", &[r#"{"s": "a</p~"#], None);
    check::<Equals>("<f=f><p=i>1</p>", &[r#"{"i": 1~"#], None);
    check::<Equals>("<f=f><p=i>1</", &["{~"], None);
    check::<Named>(
        "<calls><begin>do<sep><f name=f><p name=s>a<p name=\"i\"></p>\n</f>",
        &[r#"{"s": "a<p name=\"i\">"}"#],
        None,
    );
    // Tokens close at once.
    check::<Pairs>("<c>f<k>s</k><v>a</c><k></v></c>", &[r#"{"s": "a</c><k>"}"#], None);
}

#[test]
fn a_newline_and_a_tag_close_where_the_closer_was_forgotten() {
    check::<Equals>("<f=f><p=s>a\n<p=i>1\n</f>", &[r#"{"s": "a", "i": 1}"#], None);
    check::<Equals>("<f=f><p=s>\n<p=i>\n1\n</f>", &[r#"{"s": "", "i": 1}"#], None);
    check::<Equals>("<f=f><p=s>a<p=i></p></f>", &[r#"{"s": "a<p=i>"}"#], None);
    check::<Equals>("<f=f><p=s>a\n</f", &[r#"{"s": "a\n</f~"#], None);
}

#[test]
fn one_newline_on_each_side_is_framing() {
    let value = |text: &str| format!("<f=f><p=s>{text}</p></f>");
    check::<Equals>(&value("\na\n"), &[r#"{"s": "a"}"#], None);
    check::<Equals>(&value("\n\na\n\n"), &[r#"{"s": "\na\n"}"#], None);
    check::<Equals>(&value("\n"), &[r#"{"s": ""}"#], None);
    check::<Equals>(&value("\n\n\n"), &[r#"{"s": "\n"}"#], None);
    check::<Equals>(&value(" a\n "), &[r#"{"s": " a\n "}"#], None);
    check::<Equals>("<f=f><p=s>\n", &["{~"], None);
    check::<Equals>("<f=f><p=s>\na\n", &[r#"{"s": "a\n~"#], None);
    check::<Pairs>("<c>f<k>\ns </k><v>\na\n</v></c>", &[r#"{"s": "\na\n"}"#], None);
}

#[test]
fn values_are_typed_and_the_first_of_a_key_counts() {
    check::<Pairs>(
        "<c>f<k>i</k><v> 3.0 </v>\n<k>n</k>\n<v>null</v><k>x</k><v>1</v><k>i</k><v>4</v></c>",
        &[r#"{"i": 3, "n": null, "x": "1"}"#],
        None,
    );
    // The call's own type counts where the schema says nothing.
    let text = "<c>f<k>x</k><t>int</t><v>1</v><k>s</k><t>int</t><v>1</v></c>";
    check::<Pairs>(text, &[r#"{"x": 1, "s": "1"}"#], None);
    check::<Pairs>("<c>g<k>i</k><v>1</v></c>", &[r#"{"i": "1"}"#], None);
    let flags = "<calls><begin>do<sep><f name=f><p name='i' string=\"true\">1</p>\
                 <p name=\"s\" string='false'>[1]</p><p name=\"z\" string=\"false\">x</p></f>";
    check::<Named>(flags, &[r#"{"i": "1", "s": [1], "z": "x"}"#], None);
}

#[test]
fn text_between_tags_is_content() {
    check::<Equals>("<f=f><p=s>a</p></f> b", &[r#"{"s": "a"}"#], Some(" b"));
    let text = "A.<c>f<k>s</k> so <v>a</v> <x <k>i</k><v>1</v>\n</c>B";
    check::<Pairs>(text, &[r#"{"s": "a", "i": 1}"#], Some("A. so  <x B"));
    check::<Pairs>("<c>f<k>s</c>", &["{}"], Some("<k>s"));
    check::<Equals>("<f=f><p=>1</p></f>", &["{}"], Some("<p=>1</p>"));
    check::<Equals>("<f=f><p=a\nb>1</p></f>", &["{}"], Some("<p=a\nb>1</p>"));
    check::<Pairs>("<c>f<k>s</k><v>a</v><", &[r#"{"s": "a"~"#], None);
    check::<Pairs>("<c>f<k>s</k><v>a</v>x <", &[r#"{"s": "a"~"#], Some("x <"));
}

#[test]
fn other_calls_are_unharmed() {
    check::<Pairs>("<c>f<k>s</k><v>a</v><c>g</c>", &[r#"{"s": "a"}"#, "{}"], None);
    check::<Equals>("<calls><f=f>\n<p=s>a</p></calls>b", &[r#"{"s": "a"}"#], Some("b"));
    check::<Equals>("<calls><f=f></f><f=g></f></calls>", &["{}", "{}"], None);
    check::<Named>(
        "<calls><begin>do<sep><f name=f><end><begin>do<sep><f name=g></f><end></calls>",
        &["{}", "{}"],
        None,
    );
}

#[test]
fn cdata_protects_a_value() {
    let value = |text: &str| format!("<calls><begin>do<sep><f name=f><p name=s>{text}</p></f>");
    check::<Named>(&value("<![CDATA[</p></f>]]>"), &[r#"{"s": "</p></f>"}"#], None);
    check::<Named>(&value("<![CDATA[a]]]]><![CDATA[>]]>"), &[r#"{"s": "a]]>"}"#], None);
    check::<Named>(&value("x<![CDATA[y]]>"), &[r#"{"s": "x<![CDATA[y]]>"}"#], None);
    let cut = "<calls><begin>do<sep><f name=f><p name=s><![CDATA[a]]";
    check::<Named>(cut, &[r#"{"s": "a]]~"#], None);
}

#[test]
fn trees_nest_and_are_typed() {
    let call = |inside: &str| format!("@<calls>\n@<f name=\"f\">{inside}@</f>\n@</calls>");
    check::<Leaves>(&call(""), &["{}"], None);
    let text = "@<s>a@<b>\n@</s>\n@<o>\n@<i>1@</i>\n@<x>1@</x>@<l>[2]@</l>@</o>";
    check::<Leaves>(&call(text), &[r#"{"s": "a@<b>\n", "o": {"i": 1, "x": "1", "l": [2]}}"#], None);
    check::<Leaves>(
        &call("@<l>@<item>1@</item>@<item>x@</item>@</l>"),
        &[r#"{"l": [1, "x"]}"#],
        None,
    );
    check::<Leaves>(&call("@<l>1@</l>@<l>2@</l>@<i>3@</i>"), &[r#"{"l": [1, 2], "i": 3}"#], None);
    check::<Leaves>(
        &call("@<x>@<y>1@</y>@<z>@</z>@<y>2@</y>@</x>"),
        &[r#"{"x": {"y": ["1", "2"], "z": ""}}"#],
        None,
    );
    check::<Leaves>(&call("@<o> so @<i>1@</i>@</o>"), &[r#"{"o": {"i": 1, "$text": "so"}}"#], None);
    check::<Leaves>(&call("@<o>@</o>@<l>@</l>"), &[r#"{"o": {}, "l": []}"#], None);
    check::<Leaves>(&call("@<o>@<i>1@</x>@</i>@</o>"), &[r#"{"o": {"i": "1@</x>"}}"#], None);
    check::<Leaves>(&call("@<s>a@</s>@<i>1@</i>@<s>b@</s>"), &[r#"{"s": "a", "i": 1}"#], None);
    check::<Leaves>(&call("hm @<s>a@</s>"), &[r#"{"s": "a"}"#], Some("hm"));
    check::<Leaves>("@<calls>@<f name=f>@<i>1@</i>@<o>@<i>2@</i>", &[r#"{"i": 1~"#], None);
    check::<Leaves>("@<calls>@<f name=f>@<i>1@</i>", &[r#"{"i": 1~"#], None);
    check::<Leaves>("@<calls>@<f name=f>@<s>a@</", &[r#"{"s": "a@</~"#], None);
    check::<Leaves>("@<calls>@<f name=f>@<i>1@</i>@<f name=g>@</f>", &[r#"{"i": 1}"#, "{}"], None);
    let deep = 70;
    let text = call(&format!("{}1{}", "@<x>".repeat(deep), "@</x>".repeat(deep)));
    assert_eq!(read::<Leaves>(&text).calls.len(), 1);
}

/// One run, a character at a time.
fn time<D: Declared>(text: &str) -> Duration {
    let begin = Instant::now();
    let mut session = D::open(request());
    let mut from = 0;
    for end in chars(text).into_iter().chain([text.len()]) {
        session.push(&text[from..end], &[], 0);
        from = end;
    }
    session.finish(FinishReason::Stop);
    begin.elapsed()
}

/// Four times the text may not take much more than four times as long; quadratic would be 16. The
/// best of many runs each, all of them shorter than a busy machine's time slice.
#[track_caller]
fn check_growth<D: Declared>(head: &str, unit: impl Fn(usize) -> String, tail: &str) {
    let num_units = 1_500 / unit(0).len();
    let text = |times| {
        let units: String = (0..num_units * times).map(&unit).collect();
        format!("{head}{units}{tail}")
    };
    let (short, long) = (text(1), text(4));
    let mut best = (Duration::MAX, Duration::MAX);
    for _ in 0..50 {
        best.0 = best.0.min(time::<D>(&short));
        best.1 = best.1.min(time::<D>(&long));
    }
    let growth = best.1.as_secs_f64() / best.0.as_secs_f64();
    assert!(growth < 8.0, "four times `{}` takes {growth:.1} times as long", unit(0));
}

#[test]
fn time_grows_with_the_text_and_not_faster() {
    let same = |unit: &'static str| move |_| unit.to_string();
    check_growth::<Equals>("", same("<f=f>\n"), "");
    check_growth::<Equals>("<f=f><p=s>", same("</p>  \n  "), "</p></f>");
    check_growth::<Equals>("<f=f><p=s>a</p>", same(" \n"), "</f>");
    check_growth::<Equals>("<f=f><p=s>", same("<p=i>\n\n"), "</p></f>");
    check_growth::<Equals>("<f=f>", |n| format!("<p=k{n}>1</p>"), "</f>");
    check_growth::<Pairs>("<c>f<k>i</k><v>", same("12 "), "</v></c>");
    check_growth::<Pairs>("<c>f<k>i</k>", same("stray <"), "</c>");
    check_growth::<Pairs>("<c>f<k>i</k><v>1</v>", same(" \n"), "</c>");
    check_growth::<Leaves>(
        "@<calls>@<f name=f>@<x>",
        |n| format!("@<k{n}>1@</k{n}>"),
        "@</x>@</f>",
    );
    check_growth::<Leaves>("@<calls>@<f name=f>", same("@<l>1@</l>"), "@</f>");
}

#[test]
fn a_call_before_its_commit_is_bounded() {
    let long = " ".repeat(3 << 19);
    let text = format!("<f=f>{long}</f>");
    assert_eq!(whole::<Equals>(&text), (Some(text.clone()), 0));
    let name = "x".repeat(1 << 20);
    let text = format!("<f={name}></f>");
    assert_eq!(whole::<Equals>(&text), (Some(text.clone()), 0));
    let text = format!("<c>{name}</c>");
    assert_eq!(whole::<Pairs>(&text), (Some(text.clone()), 0));
}

/// Content and the number of calls, the text in one piece.
fn whole<D: Declared>(text: &str) -> (Option<String>, usize) {
    let stream = Stream::of(text);
    let folded = run::<D>(&request(), &stream, &[], FinishReason::Stop, Delivery::Pushed)
        .expect("the contract holds");
    (folded.content, folded.calls.len())
}
