//! Every shape in which models write calls, enforced from a declaration: right calls pass, others
//! do not, and what a format cannot hold is refused in words.
#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};
use support::{Random, added, allowed, bytes, random_output, refusal, started};
use tenon_grammar::{Constraint, GrammarSpec, Starts, Trigger};
use tenon_guest::{
    Arguments, CallGrammar, Channel, ModelInfo, Parameters, RequestInfo, Starts as GuestStarts,
    ToolChoice,
};

/// Names, counts and flags; an optional text, one of a few words, a list, an object, a `null`.
fn tools() -> Value {
    let ferry = json!({"type": "object", "x-guidance": tenon_grammar::json_options(),
        "$defs": {"Day": {"enum": ["mon", "tue"], "type": "string"}},
        "properties": {
            "harbour": {"type": "string", "description": "where"},
            "seats": {"type": "integer", "minimum": 1, "maximum": 99},
            "day": {"$ref": "#/$defs/Day"},
            "warm": {"type": "boolean"},
            "note": {"anyOf": [{"type": "string", "maxLength": 8}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
            "at": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"],
                "additionalProperties": false}},
        "required": ["harbour", "seats"]});
    let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
    json!([
        {"type": "function", "function": {"name": "ferry_times", "parameters": ferry}},
        {"type": "function", "function": {"name": "ping", "parameters": none}},
    ])
}

fn request(tools: &Value, choice: ToolChoice, parallel: bool) -> RequestInfo {
    RequestInfo {
        tools: tools.to_string(),
        tool_choice: choice,
        tool_name: None,
        parallel,
        strict: true,
        reasoning_style: None,
        start: Channel::Content,
        strict_markers: true,
    }
}

fn model(tokens: &[&str]) -> ModelInfo {
    let added_tokens = tokens.iter().map(|text| text.to_string()).collect();
    ModelInfo { name: "m".into(), template: None, added_tokens }
}

/// A format under test, with the tokens that its vocabulary has.
struct Format {
    grammar: CallGrammar,
    tokens: &'static [&'static str],
}

impl Format {
    fn constraint(&self, choice: ToolChoice, parallel: bool) -> Constraint {
        let request = request(&tools(), choice, parallel);
        let grammar = self.grammar.build(&model(self.tokens), &request).unwrap();
        let starts = match grammar.starts {
            GuestStarts::AtOnce => Starts::AtOnce,
            GuestStarts::After(texts) => {
                let trigger = |text: String| {
                    let is_token = self.tokens.iter().any(|token| text.starts_with(token));
                    Trigger { text, is_token }
                };
                let triggers = texts.into_iter().map(trigger).collect();
                Starts::After { triggers, never: vec![], must: false }
            }
        };
        started(&GrammarSpec::Lark(grammar.lark), &starts)
    }

    /// How much of the text is an output; none when all of it is.
    fn stops(&self, mut constraint: Constraint, text: &str) -> Option<usize> {
        let mut at = 0;
        while at < text.len() {
            let here = self.tokens.iter().find(|token| text[at..].starts_with(**token));
            let (token, len) = match here {
                Some(token) => (added(token), token.len()),
                None => (u32::from(text.as_bytes()[at]), 1),
            };
            if constraint.is_complete() || !allowed(&mut constraint).contains(&token) {
                return Some(at);
            }
            constraint.commit(token).unwrap();
            at += len;
            while !text.is_char_boundary(at) {
                constraint.commit(text.as_bytes()[at].into()).unwrap();
                at += 1;
            }
        }
        let may_end =
            constraint.is_complete() || allowed(&mut constraint).contains(&added("<|end|>"));
        (!may_end).then_some(text.len())
    }

    /// Required calls: these are, those are not.
    fn check(&self, yes: &[&str], no: &[&str]) {
        let required = self.constraint(ToolChoice::Required, true);
        for text in yes {
            let stops = self.stops(required.clone(), text);
            assert!(stops.is_none(), "{text:?} stops at {:?}", &text[stops.unwrap()..]);
            // Where calls may come, they are the same.
            let auto = self.stops(self.constraint(ToolChoice::Auto, true), text);
            assert!(auto.is_none(), "auto: {text:?} stops at {:?}", &text[auto.unwrap()..]);
        }
        for text in no {
            assert!(self.stops(required.clone(), text).is_some(), "{text:?}");
        }
        // Free text needs no call, unless one is required.
        let auto = self.constraint(ToolChoice::Auto, true);
        assert_eq!(self.stops(auto, "Hello there."), None);
        assert!(self.stops(required, "Hello there.").is_some());
    }

    /// Of two calls the second is one too many.
    fn one(&self, two: &str) {
        assert_eq!(self.stops(self.constraint(ToolChoice::Required, true), two), None);
        assert!(self.stops(self.constraint(ToolChoice::Required, false), two).is_some());
        assert!(self.stops(self.constraint(ToolChoice::Auto, false), two).is_some());
    }

    /// Random outputs that end by themselves.
    fn random(&self) -> Vec<String> {
        let required = self.constraint(ToolChoice::Required, false);
        let outputs = (0..30).filter_map(|seed| {
            let (tokens, is_ended) = random_output(&mut required.clone(), &mut Random(seed), 3000);
            is_ended.then(|| String::from_utf8(bytes(&tokens)).unwrap())
        });
        outputs.collect()
    }
}

#[test]
fn json_with_other_keys_in_a_list() {
    let cohere = Format {
        grammar: CallGrammar {
            opener: "<think>[",
            call: "{\"tool_call_id\": \"$N\", \"tool_name\": $QNAME, \"parameters\": $ARGS}",
            between: Some(", "),
            closer: "]</think>",
            trigger: "<think>",
            ..CallGrammar::JSON
        },
        tokens: &["<think>", "</think>"],
    };
    let one = r#"{"tool_call_id": "0", "tool_name": "ping", "parameters": {}}"#;
    let arguments = r#"{"harbour": "Frøya", "seats": 2}"#;
    let two = format!(
        r#"{{"tool_call_id": "1", "tool_name": "ferry_times", "parameters": {arguments}}}"#
    );
    let both = format!("<think>[{one}, {two}]</think>");
    cohere.check(
        &[&format!("<think>[{two}]</think>"), &both],
        &[
            &format!("[{two}]"),
            &format!("<think>[{}]</think>", two.replace('2', "200")),
            &format!("<think>[{one} {two}]</think>"),
            &format!("<think>[{one}]"),
            "<think>[]</think>",
        ],
    );
    cohere.one(&both);
    // Single-key objects, and no marker at all.
    let apertus = Format {
        grammar: CallGrammar {
            opener: "[",
            call: "{$QNAME: $ARGS}",
            between: Some(", "),
            closer: "]",
            ..CallGrammar::JSON
        },
        tokens: &[],
    };
    apertus.check(&[r#"[{"ping": {}}]"#], &[r#"[{"pong": {}}]"#, "{\"ping\": {}}"]);
    apertus.one(r#"[{"ping": {}}, {"ping": {}}]"#);
}

#[test]
fn a_header_in_front_of_json() {
    let deepseek = Format {
        grammar: CallGrammar {
            opener: "<｜calls▁begin｜>",
            call: "<｜call▁begin｜>function<｜sep｜>$NAME\n```json\n$ARGS\n```<｜call▁end｜>",
            between: Some("\n"),
            closer: "<｜calls▁end｜>",
            trigger: "<｜calls▁begin｜>",
            ..CallGrammar::JSON
        },
        tokens: &[
            "<｜calls▁begin｜>",
            "<｜call▁begin｜>",
            "<｜sep｜>",
            "<｜call▁end｜>",
            "<｜calls▁end｜>",
        ],
    };
    let ping = "<｜call▁begin｜>function<｜sep｜>ping\n```json\n{}\n```<｜call▁end｜>";
    let two = format!("<｜calls▁begin｜>{ping}\n{ping}<｜calls▁end｜>");
    deepseek.check(
        &[&format!("<｜calls▁begin｜>{ping}<｜calls▁end｜>")],
        &[ping, &two.replace("ping", "pong"), "<｜calls▁begin｜><｜calls▁end｜>"],
    );
    deepseek.one(&two);
    let kimi = Format {
        grammar: CallGrammar {
            opener: "<｜calls▁begin｜>",
            call: "<｜call▁begin｜>functions.$NAME:$N<｜sep｜>$ARGS<｜call▁end｜>",
            between: Some(""),
            closer: "<｜calls▁end｜>",
            trigger: "<｜calls▁begin｜>",
            ..CallGrammar::JSON
        },
        tokens: deepseek.tokens,
    };
    let ping = "<｜call▁begin｜>functions.ping:12<｜sep｜>{}<｜call▁end｜>";
    kimi.check(
        &[&format!("<｜calls▁begin｜>{ping}<｜calls▁end｜>")],
        &[&format!("<｜calls▁begin｜>{}<｜calls▁end｜>", ping.replace("12", ""))],
    );
    kimi.one(&format!("<｜calls▁begin｜>{ping}{ping}<｜calls▁end｜>"));
    let mistral = Format {
        grammar: CallGrammar {
            call: "[TOOL_CALLS]$NAME[CALL_ID]$ID[ARGS]$ARGS",
            between: Some(""),
            trigger: "[TOOL_CALLS]",
            ..CallGrammar::JSON
        },
        tokens: &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
    };
    let ping = "[TOOL_CALLS]ping[CALL_ID]Zz9Yy8Xx7[ARGS]{}";
    mistral.check(&[ping], &["[TOOL_CALLS]ping[ARGS]{}", "ping[CALL_ID]Zz9Yy8Xx7[ARGS]{}"]);
    mistral.one(&format!("{ping}{ping}"));
}

#[test]
fn a_recipient_in_the_header_behind_other_channels() {
    let harmony = Format {
        grammar: CallGrammar {
            call: "<|channel|>commentary to=functions.$NAME <|constrain|>json<|message|>$ARGS",
            trigger: "<|channel|>commentary to=functions.",
            lead: Some(["<|channel|>analysis<|message|>", "<|stop|><|start|>assistant"]),
            ..CallGrammar::JSON
        },
        tokens: &["<|channel|>", "<|constrain|>", "<|message|>", "<|stop|>", "<|start|>"],
    };
    let ping = "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}";
    harmony.check(&[ping], &["<|channel|>final<|message|>Hi", &format!("{ping}{ping}")]);
    let thought = "<|channel|>analysis<|message|>I <b>\nthink.<|stop|><|start|>assistant";
    let required = harmony.constraint(ToolChoice::Required, true);
    assert_eq!(harmony.stops(required.clone(), &format!("{thought}{thought}{ping}")), None);
    assert!(harmony.stops(required, thought).is_some());
    let auto = harmony.constraint(ToolChoice::Auto, true);
    let text = format!("{thought}<|channel|>final<|message|>Hi");
    assert_eq!(harmony.stops(auto.clone(), &text), None);
    assert_eq!(harmony.stops(auto, &format!("{thought}{ping}")), None);
}

fn xml() -> Format {
    Format {
        grammar: CallGrammar {
            call: "<tool_call>\n<function=$NAME>\n$ARGS</function>\n</tool_call>",
            between: Some("\n"),
            trigger: "<tool_call>",
            arguments: Arguments::Parameters(Parameters::new(
                "<parameter=$KEY>\n$VALUE\n</parameter>\n",
                &["</parameter>"],
            )),
            ..CallGrammar::JSON
        },
        tokens: &["<tool_call>", "</tool_call>"],
    }
}

fn in_xml(parameters: &[(&str, &str)]) -> String {
    let one = |(key, value): &(&str, &str)| format!("<parameter={key}>\n{value}\n</parameter>\n");
    let all: String = parameters.iter().map(one).collect();
    format!("<tool_call>\n<function=ferry_times>\n{all}</function>\n</tool_call>")
}

#[test]
fn tagged_parameters() {
    let xml = xml();
    let (harbour, seats) = (("harbour", "Os\n\n<b> "), ("seats", "12"));
    let ping = "<tool_call>\n<function=ping>\n</function>\n</tool_call>";
    xml.check(
        &[
            ping,
            &in_xml(&[harbour, seats]),
            &in_xml(&[("harbour", ""), seats, ("day", "tue"), ("warm", "true")]),
            &in_xml(&[harbour, seats, ("note", "null"), ("tags", "[\"a\", \"b\"]")]),
            &in_xml(&[harbour, seats, ("note", "12345678"), ("at", "{\"x\": 1.5}")]),
        ],
        &[
            &in_xml(&[harbour]),
            &in_xml(&[seats, harbour]),
            &in_xml(&[harbour, ("seats", "many")]),
            &in_xml(&[harbour, seats, ("day", "wed")]),
            &in_xml(&[harbour, seats, ("note", "123456789")]),
            &in_xml(&[harbour, seats, ("tags", "[\"c\"]")]),
            &in_xml(&[harbour, seats, ("at", "{}")]),
            &in_xml(&[harbour, seats, ("other", "x")]),
            &in_xml(&[("harbour", "a</parameter>b"), seats]),
        ],
    );
    xml.one(&format!("{ping}\n{ping}"));
    for text in xml.random() {
        assert_eq!(
            text.matches("<parameter=harbour>").count(),
            text.matches("ferry_times").count()
        );
    }
}

#[test]
fn tagged_parameters_with_tokens_and_flags() {
    let glm = Format {
        grammar: CallGrammar {
            call: "<tool_call>$NAME\n$ARGS</tool_call>",
            between: Some("\n"),
            trigger: "<tool_call>",
            arguments: Arguments::Parameters(Parameters::new(
                "<arg_key>$KEY</arg_key>\n<arg_value>$VALUE</arg_value>\n",
                &["</arg_value>"],
            )),
            ..CallGrammar::JSON
        },
        tokens: &[
            "<tool_call>",
            "</tool_call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ],
    };
    let one = |key: &str, value: &str| {
        format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")
    };
    let call = |args: &str| format!("<tool_call>ferry_times\n{args}</tool_call>");
    let (harbour, seats) = (one("harbour", "\nå </arg"), one("seats", "7"));
    glm.check(
        &[
            "<tool_call>ping\n</tool_call>",
            &call(&[harbour.clone(), seats.clone(), one("day", "mon")].concat()),
        ],
        &[&call(&harbour), &call(&[harbour.clone(), one("seats", "0")].concat())],
    );
    glm.one("<tool_call>ping\n</tool_call>\n<tool_call>ping\n</tool_call>");
    // The flag says whether the value is a string; all of it is text here but one token.
    let dsml = Format {
        grammar: CallGrammar {
            opener: "<｜DSML｜calls>\n",
            call: "<｜DSML｜invoke name=\"$NAME\">\n$ARGS</｜DSML｜invoke>\n",
            between: Some(""),
            closer: "</｜DSML｜calls>",
            trigger: "<｜DSML｜calls>",
            arguments: Arguments::Parameters(Parameters::new(
                "<｜DSML｜parameter name=\"$KEY\" string=\"$IS_TEXT\">$VALUE\
                            </｜DSML｜parameter>\n",
                &["</｜DSML｜parameter>"],
            )),
            ..CallGrammar::JSON
        },
        tokens: &["｜DSML｜"],
    };
    let one = |key: &str, flag: &str, value: &str| {
        format!("<｜DSML｜parameter name=\"{key}\" string=\"{flag}\">{value}</｜DSML｜parameter>\n")
    };
    let call = |args: &[String]| {
        let args = args.concat();
        format!(
            "<｜DSML｜calls>\n<｜DSML｜invoke name=\"ferry_times\">\n{args}</｜DSML｜invoke>\n\
             </｜DSML｜calls>"
        )
    };
    let (harbour, seats) = (one("harbour", "true", "5"), one("seats", "false", "5"));
    dsml.check(
        &[
            &call(&[harbour.clone(), seats.clone()]),
            &call(&[harbour.clone(), seats.clone(), one("note", "false", "null")]),
        ],
        &[
            &call(&[harbour.clone(), one("seats", "true", "5")]),
            &call(&[one("harbour", "false", "5"), seats.clone()]),
        ],
    );
}

#[test]
fn python_calls() {
    let python = Format {
        grammar: CallGrammar {
            opener: "[",
            call: "$NAME($ARGS)",
            between: Some(", "),
            closer: "]",
            arguments: Arguments::Keywords,
            ..CallGrammar::JSON
        },
        tokens: &[],
    };
    python.check(
        &[
            "[ping()]",
            "[ferry_times(harbour=\"V\\\"r\", seats=2)]",
            "[ferry_times(harbour=\"\", seats=2, warm=True, at={\"x\": 1})]",
            "[ferry_times(harbour=\"\", seats=2, day=\"mon\", note=None, tags=[\"a\"]), ping()]",
        ],
        &[
            "ping()",
            "[ping(), ]",
            "[pong()]",
            "[ferry_times()]",
            "[ferry_times(seats=2, harbour=\"\")]",
            "[ferry_times(harbour=\"\", seats=2,)]",
            "[ferry_times(harbour=\"\", seats=2, warm=true)]",
            "[ferry_times(harbour=\"\", seats=two)]",
            "[ferry_times(harbour=\"\", seats=2, day=\"wed\")]",
        ],
    );
    python.one("[ping(), ping()]");
}

fn gemma(quote_is_token: bool) -> Format {
    Format {
        grammar: CallGrammar {
            call: "<tool_call>call:$NAME{$ARGS}</tool_call>",
            between: Some(""),
            trigger: "<tool_call>",
            arguments: Arguments::Bare { quote: "<|\"|>", is_typed: false },
            ..CallGrammar::JSON
        },
        tokens: if quote_is_token {
            &["<tool_call>", "</tool_call>", "<|\"|>"]
        } else {
            &["<tool_call>", "</tool_call>"]
        },
    }
}

#[test]
fn members_with_bare_keys() {
    let call = |args: &str| {
        let args = args.replace('Q', "<|\"|>");
        format!("<tool_call>call:ferry_times{{{args}}}</tool_call>")
    };
    for format in [gemma(true), gemma(false)] {
        format.check(
            &[
                "<tool_call>call:ping{}</tool_call>",
                &call("harbour:QOs, {\"} Q,seats:2"),
                &call("harbour:QQ,seats:2,day:QmonQ,warm:false,note:null"),
                &call("harbour:QQ,seats:2,note:QxQ,tags:[QaQ,QbQ],at:{x:1.5}"),
                &call("harbour:QQ,seats:2,tags:[]"),
            ],
            &[
                &call("harbour:QOsQ"),
                &call("harbour:\"Os\",seats:2"),
                &call("harbour:QQ,seats:100"),
                &call("harbour:QQ,seats:2,day:QwedQ"),
                &call("harbour:QQ,seats:2,at:{}"),
                &call("harbour:QQ,seats:2,at:{\"x\":1}"),
                &call("harbour:QQ,seats:2,tags:[QcQ]"),
            ],
        );
        let ping = "<tool_call>call:ping{}</tool_call>";
        format.one(&format!("{ping}{ping}"));
        assert!(format.random().len() > 5);
    }
}

#[test]
fn arguments_of_anything() {
    // What a tool that is not strict is given when only the number of calls is limited.
    let open = json!({"type": "object", "x-guidance": tenon_grammar::json_options()});
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": open}}]);
    let check = |format: Format, yes: &str, no: &str| {
        let request = request(&tools, ToolChoice::Required, false);
        let grammar = format.grammar.build(&model(format.tokens), &request).unwrap();
        let constraint = started(&GrammarSpec::Lark(grammar.lark), &Starts::AtOnce);
        assert_eq!(format.stops(constraint.clone(), yes), None, "{yes}");
        assert!(format.stops(constraint, no).is_some(), "{no}");
    };
    let of_f = |text: String| text.replace("ferry_times", "f");
    check(xml(), &of_f(in_xml(&[("a", "1"), ("b.c", "x\ny")])), &of_f(in_xml(&[("a b", "1")])));
    let call =
        |args: &str| format!("<tool_call>call:f{{{}}}</tool_call>", args.replace('Q', "<|\"|>"));
    check(gemma(true), &call("a:{b:[QxQ,1,{}],c:null},d:true"), &call("a:{\"b\":1}"));
    let python =
        CallGrammar { call: "$NAME($ARGS)", arguments: Arguments::Keywords, ..CallGrammar::JSON };
    check(Format { grammar: python, tokens: &[] }, "f(a=1, b={\"c\": [null]})", "f(1)");
}

#[test]
fn what_a_format_cannot_hold_is_named() {
    let refused = |format: &Format, parameters: Value, words: &str| {
        let tools =
            json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
        let request = request(&tools, ToolChoice::Required, true);
        let grammar = format.grammar.build(&model(format.tokens), &request).unwrap();
        let said = refusal(&GrammarSpec::Lark(grammar.lark)).to_string();
        assert!(said.contains(words) && said.contains("`f`"), "{parameters}: {said}");
    };
    let of = |schema: Value| json!({"type": "object", "properties": {"a": schema}});
    for format in [xml(), gemma(true)] {
        refused(&format, json!({"anyOf": [{"type": "object"}]}), "`anyOf`");
        refused(&format, json!({"type": "object", "patternProperties": {}}), "`patternProperties`");
        refused(&format, json!({"type": "object", "required": ["b"]}), "b");
        refused(&format, of(json!({"type": "string", "format": "email"})), "`format`");
        refused(&format, of(json!({"allOf": [{}, {}]})), "`allOf`");
        refused(&format, json!({"type": "object", "properties": {"a>": {}}}), "a>");
        refused(&format, of(json!({"$ref": "#/properties/a"})), "nesting");
    }
    let nested = of(json!({"type": "array", "items": {"type": "string"}, "minItems": 2}));
    refused(&gemma(true), nested, "`minItems`");
    let spaced = json!([{"type": "function", "function": {"name": "a b", "parameters": {}}}]);
    let request = request(&spaced, ToolChoice::Required, true);
    let grammar = xml().grammar.build(&model(&[]), &request).unwrap();
    let said = refusal(&GrammarSpec::Lark(grammar.lark)).to_string();
    assert!(said.contains("`a b`"), "{said}");
}

#[test]
fn declarations_are_checked() {
    let refused = |declaration: &str, words: &str| {
        let said = refusal(&GrammarSpec::Lark(format!("start: {declaration}"))).to_string();
        assert!(said.contains(words), "{declaration}: {said}");
    };
    let call = json!({"tools": tools(), "parallel": true, "call": "$QNAME $ARGS"});
    let with = |key: &str, value: Value| {
        let mut call = call.clone();
        call[key] = value;
        format!("%calls {call}")
    };
    started(&GrammarSpec::Lark(format!("start: %calls {call} \"!\"")), &Starts::AtOnce);
    refused("%calls", "behind `%calls`");
    refused("%calls {}", "tools");
    refused(&with("colour", json!("red")), "colour");
    refused(&with("arguments", json!("yaml")), "yaml");
    refused(&with("tools", json!([])), "not in `tools`");
    refused(&with("tool_name", json!("missing")), "`missing`");
    refused(&format!("%calls {call} %calls {call}"), "one `%calls`");
    refused(&with("opener", json!("<".repeat(2000))), "templates");
    refused(&with("tokens", json!(["<no_such>"])).replace("$QNAME", "<no_such>"), "<no_such>");
    // References that fan out end somewhere.
    let fan = json!({"anyOf": vec![json!({"$ref": "#/$defs/a"}); 8]});
    let parameters =
        json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": fan}});
    let tool = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
    let mut fans = call.clone();
    fans["tools"] = tool;
    fans["arguments"] = json!({"parameters": {"each": "$KEY=$VALUE;", "closers": [";"]}});
    refused(&format!("%calls {fans}"), "`f`");
}
