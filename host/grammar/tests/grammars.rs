//! What each kind of constraint lets through, what is refused and in which words.
#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};
use support::{
    Random, accepts, added, allowed, bytes, compiler, constraint, random_output, refusal, started,
    walk,
};
use tenon_grammar::{
    GrammarError, GrammarSpec, Limits, Starts, StructuralTag, Structure, Trigger, check_schema,
};

fn schema(schema: Value) -> GrammarSpec {
    GrammarSpec::JsonSchema(schema)
}

/// Schema, texts that it takes, texts that it does not.
fn check(of: Value, yes: &[&str], no: &[&str]) {
    let spec = schema(of.clone());
    for text in yes {
        assert!(accepts(&spec, text), "{of} refuses {text}");
    }
    for text in no {
        assert!(!accepts(&spec, text), "{of} takes {text}");
    }
}

#[test]
fn keywords_hold_together() {
    // so-001, so-002, so-006
    let letters = json!({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3});
    check(letters.clone(), &["\"abc\""], &["\"abcdef\"", "\"\"", "\"A\""]);
    let code = json!({"type": "object", "properties": {
        "code": {"pattern": "^[a-z]+$", "maxLength": 3}}, "required": ["code"]});
    check(code, &[r#"{"code":"abc"}"#, r#"{"code": 1}"#], &[r#"{"code":"abcdefgh"}"#, "{}"]);
    check(json!({"type": "integer", "multipleOf": 5}), &["35", "-5", "0"], &["7", "3.5"]);
    check(json!({"type": "integer"}), &["9007199254740991"], &["9007199254740992", "1.0"]);
    check(json!({"format": "date"}), &["\"2024-02-28\"", "1"], &["\"2023-02-29\"", "\"24-1-1\""]);
}

#[test]
fn keys_cannot_hide_behind_escapes() {
    let of = json!({"type": "object", "properties": {"a": {"type": "integer"}},
        "required": ["a"], "additionalProperties": {"type": "string"}});
    check(
        of,
        &[r#"{"a":1}"#, r#"{"a":1,"b":"x"}"#],
        &[r#"{"a":1,"\u0061":"x"}"#, r#"{"a":1,"a":"x"}"#],
    );
}

#[test]
fn white_space_is_bounded() {
    let of = json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]});
    check(
        of,
        &["{\"a\":1}", "{ \"a\": 1 }", "{\n  \"a\": 1\n}"],
        &["{  \"a\":1}", "{\n\n\"a\":1}", "{\t\"a\":1}", " {\"a\":1}"],
    );
}

/// A model that writes blanks wherever it may comes to an end all the same, and to one that
/// validates.
#[test]
fn blanks_come_to_an_end() {
    let of = json!({"type": "object", "properties": {"a": {"const": {"b": [1]}},
        "c": {"type": "integer"}, "d": {"enum": [-1, null]}}, "required": ["a", "c", "d"],
        "additionalProperties": false});
    let mut constraint = constraint(&schema(of.clone()));
    let mut text = Vec::new();
    while !constraint.is_complete() {
        assert!(text.len() < 1000, "{}", String::from_utf8_lossy(&text));
        let allowed = allowed(&mut constraint);
        let blank = allowed.iter().find(|token| b" \n".iter().any(|b| u32::from(*b) == **token));
        // A number ends with the first closer that there is.
        let closer = allowed.iter().find(|token| b",}]".iter().any(|b| u32::from(*b) == **token));
        let token = *blank.or(closer).unwrap_or(&allowed[0]);
        text.extend(bytes(&[token]));
        constraint.commit(token).unwrap();
    }
    let value: Value = serde_json::from_slice(&text).unwrap();
    assert!(jsonschema::is_valid(&of, &value), "{value}");
    assert!(text.len() > 200, "blanks were there");
}

#[test]
fn one_of_needs_a_proof() {
    let kind = |name: &str| {
        json!({"type": "object", "required": ["kind"],
            "properties": {"kind": {"const": name}}, "additionalProperties": false})
    };
    let of = json!({"$defs": {"a": kind("a"), "b": kind("b")},
        "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]});
    check(of, &[r#"{"kind":"a"}"#, r#"{"kind":"b"}"#], &[r#"{"kind":"c"}"#]);
    for overlapping in [
        json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
        json!({"oneOf": [{"type": "string"}, {"const": "x"}]}),
        json!({"oneOf": [{"const": 1}, {"const": 1.0}]}),
        json!({"oneOf": [{"type": "object"}, kind("a")]}),
    ] {
        let error = check_schema(&overlapping).unwrap_err();
        assert!(matches!(&error, GrammarError::Keyword { keyword, .. } if keyword == "oneOf"));
    }
}

#[test]
fn what_cannot_be_enforced_is_named() {
    let rows = [
        // so-007
        (json!({"type": "object", "not": {"required": ["a"]}}), "not", "/"),
        (
            json!({"properties": {"t": {"type": "array", "uniqueItems": true}}}),
            "uniqueItems",
            "/properties/t",
        ),
        (json!({"items": {"contains": {"const": 1}}}), "contains", "/items"),
        (json!({"if": {}, "then": {}}), "if", "/"),
        (json!({"anyOf": [{}, {"dependentRequired": {}}]}), "dependentRequired", "/anyOf/1"),
        (json!({"propertyNames": {"pattern": "a"}}), "propertyNames", "/"),
        (json!({"unevaluatedProperties": false}), "unevaluatedProperties", "/"),
        (json!({"$ref": "https://example.com/other.json"}), "$ref", "/"),
        (json!({"pattern": "(?=a)"}), "pattern", "/"),
        (json!({"patternProperties": {"a/b(": {}}}), "patternProperties", "/patternProperties"),
        (json!({"type": "string", "format": "uri-template"}), "format", "/"),
        (json!({"maxLength": 1_000_000}), "maxLength", "/"),
        (json!({"allOf": vec![json!({"pattern": "a"}); 7]}), "allOf", "/"),
        (json!({"type": "object", "minProperties": 3}), "minProperties", "/"),
        (
            json!({"properties": {"a": {}, "b": {}, "c": {}}, "maxProperties": 2}),
            "maxProperties",
            "/",
        ),
        (json!({"x-guidance": {"lenient": true}}), "x-guidance", "/"),
        (json!({"$defs": {"a~/b": {"not": {}}}}), "not", "/$defs/a~0~1b"),
    ];
    for (of, want, place) in rows {
        match refusal(&schema(of.clone())) {
            GrammarError::Keyword { keyword, pointer, why } => {
                assert_eq!((keyword.as_str(), pointer.as_str()), (want, place), "{of}: {why}");
            }
            other => panic!("{of}: {other:?}"),
        }
    }
    // What looks like a keyword in data is none.
    for fine in [
        json!({"const": {"not": 1}}),
        json!({"properties": {"not": {"type": "null"}}}),
        json!({"enum": [{"if": 1}]}),
        json!({"default": {"uniqueItems": true}, "type": "null"}),
        json!({"type": "array", "items": {"const": 1}, "uniqueItems": false, "maxItems": 1}),
        json!({"type": "integer", "format": "int64", "x-order": 3, "nullable": true}),
    ] {
        let compiled = compiler().compile(&schema(fine.clone()), &Starts::AtOnce);
        assert!(compiled.is_ok(), "{fine}: {compiled:?}");
    }
}

#[test]
fn what_is_no_schema_is_invalid() {
    for of in [
        json!(5),
        json!({"type": "text"}),
        json!({"type": []}),
        json!({"enum": []}),
        json!({"anyOf": {}}),
        json!({"properties": []}),
        json!({"properties": {"a": 1}}),
        json!({"$ref": "#/$defs/missing"}),
        json!({"minItems": -1}),
        json!({"minimum": "1"}),
        json!({"required": "a"}),
        json!({"type": "integer", "minimum": 5, "maximum": 1}),
        json!({"allOf": [{"type": "string"}, {"type": "integer"}]}),
        json!(false),
    ] {
        let error = refusal(&schema(of.clone()));
        assert!(matches!(error, GrammarError::Invalid(_)), "{of}: {error:?}");
        assert!(!error.to_string().contains("panic"), "{of}: {error}");
    }
}

#[test]
fn choices_and_regexes_are_whole_outputs() {
    let choice =
        GrammarSpec::Choice(vec!["yes".into(), "no \"q\" \\ é\n".into(), "yesterday".into()]);
    for (text, want) in [
        ("yes", true),
        ("yesterday", true),
        ("no \"q\" \\ é\n", true),
        ("ye", false),
        ("no", false),
    ] {
        assert_eq!(accepts(&choice, text), want, "{text}");
    }
    let regex = GrammarSpec::Regex(r"[a-z]{2}(-/\d)?".into());
    for (text, want) in [("ab", true), ("ab-/5", true), ("abc", false), ("a", false)] {
        assert_eq!(accepts(&regex, text), want, "{text}");
    }
    assert!(matches!(refusal(&GrammarSpec::Choice(vec![])), GrammarError::Invalid(_)));
    assert!(matches!(refusal(&GrammarSpec::Choice(vec!["".into()])), GrammarError::Invalid(_)));
    assert!(matches!(refusal(&GrammarSpec::Regex("(".into())), GrammarError::Invalid(_)));
    let lark = GrammarSpec::Lark("start: a+\na: \"x\" | \"(\" a \")\"\n".into());
    for (text, want) in [("x", true), ("(x)x", true), ("(x", false), ("()", false)] {
        assert_eq!(accepts(&lark, text), want, "{text}");
    }
    let error = refusal(&GrammarSpec::Lark("start: missing".into()));
    assert!(error.to_string().contains("missing"), "{error}");
}

#[test]
fn either_of_two() {
    let spec = GrammarSpec::AnyOf(vec![
        schema(json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"],
            "additionalProperties": false})),
        GrammarSpec::Lark("start: <tool_call> \"{}\" </tool_call>".into()),
        GrammarSpec::Choice(vec!["no".into()]),
    ]);
    for (text, want) in [("{\"a\":1}", true), ("no", true), ("{}", false), ("<tool_call>", false)] {
        assert_eq!(accepts(&spec, text), want, "{text}");
    }
    let mut constraint = constraint(&spec);
    for token in [added("<tool_call>"), b'{'.into(), b'}'.into(), added("</tool_call>")] {
        assert!(allowed(&mut constraint).contains(&token));
        constraint.commit(token).unwrap();
    }
    assert!(constraint.is_complete());
}

#[test]
fn tags_hold_behind_their_triggers() {
    let structure = |name: &str, of: Value| Structure {
        begin: format!("<fn={name}>"),
        schema: of,
        end: "</fn>".into(),
    };
    let spec = GrammarSpec::StructuralTag(StructuralTag {
        structures: vec![
            structure("f", json!({"type": "integer", "maximum": 9, "minimum": 0})),
            structure("g", json!({"const": "x"})),
        ],
        triggers: vec!["<fn=".into()],
    });
    for (text, want) in [
        ("plain text < fn", true),
        ("", true),
        ("a <fn=f>7</fn> b <fn=g>\"x\"</fn>", true),
        ("a <fn=f>x", false),
        ("a <fn=h>", false),
        ("<fn=f>7", false),
    ] {
        assert_eq!(accepts(&spec, text), want, "{text}");
    }
    let bad = |structures, triggers: &[&str]| {
        let triggers = triggers.iter().map(|t| t.to_string()).collect();
        refusal(&GrammarSpec::StructuralTag(StructuralTag { structures, triggers }))
    };
    assert!(bad(vec![], &["<"]).to_string().contains("structures"));
    assert!(bad(vec![structure("f", json!({}))], &[]).to_string().contains("triggers"));
    assert!(bad(vec![structure("f", json!({}))], &["["]).to_string().contains("begin"));
    let deep = bad(vec![structure("f", json!({"not": {}}))], &["<"]);
    let GrammarError::In { place, error } = deep else { panic!("{deep:?}") };
    assert_eq!(place, "`structures[0].schema`");
    assert!(matches!(*error, GrammarError::Keyword { .. }), "{error:?}");
}

/// Everything that was tried to make a compiler spin or grow.
#[test]
fn hostile_grammars_end() {
    let nested =
        |n: usize| (0..n).fold(json!({"type": "null"}), |inner, _| json!({"items": inner}));
    let chain: serde_json::Map<String, Value> = (0..5000)
        .map(|i| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", i + 1)})))
        .chain([("d5000".to_owned(), json!({"type": "null"}))])
        .collect();
    let rules = |n: usize| {
        let rules = (0..n).map(|i| format!("r{i}: r{}\n", i + 1)).collect::<String>();
        format!("start: r0\n{rules}r{n}: \"x\"\n")
    };
    let wide: Vec<Value> =
        (0..3000).map(|i| json!({"type": "string", "pattern": format!("^.*a{i}.*$")})).collect();
    let names = |n: usize| -> serde_json::Map<String, Value> {
        (0..n).map(|i| (format!("p{i}"), json!({"type": "string"}))).collect()
    };
    let specs = [
        GrammarSpec::Regex("(a|aa)*b".repeat(400)),
        GrammarSpec::Regex("(.*a.{1,99}){1,99}".into()),
        GrammarSpec::Regex("((a?){99}){99}a{99}".into()),
        GrammarSpec::Regex("(".repeat(5000)),
        GrammarSpec::Regex("[\\p{L}--\\p{Lu}]+".into()),
        GrammarSpec::Lark("(".repeat(100_000)),
        GrammarSpec::Lark(format!("start: {}\"x\"{}", "(".repeat(10_000), ")".repeat(10_000))),
        GrammarSpec::Lark("start: start start | \"a\" | \"\"".into()),
        GrammarSpec::Lark("start: start".into()),
        GrammarSpec::Lark(rules(10_000)),
        GrammarSpec::Lark("start: /((a{1,1000}){1,1000}){1,1000}/".into()),
        GrammarSpec::Lark("start: \"a\"{1000000000}".into()),
        GrammarSpec::Lark("start: x{100000}\nx: y{100000}\ny: \"a\"".into()),
        GrammarSpec::Lark("é".repeat(60_000)),
        schema(nested(99)),
        schema(nested(120)),
        schema(json!({"$ref": "#/$defs/d0", "$defs": chain})),
        schema(json!({ "anyOf": wide })),
        schema(json!({ "allOf": wide[..6] })),
        schema(json!({ "allOf": vec![json!({ "anyOf": wide[..40] }); 8] })),
        schema(
            json!({ "allOf": [{"anyOf": vec![json!({"minProperties": 0, "type": "object"}); 3000]},
            {"type": "object", "properties": names(5000)}] }),
        ),
        schema(json!({"type": "object", "properties": names(3000), "patternProperties":
            (0..900).map(|i| (format!("^.*{i}x"), json!({}))).collect::<serde_json::Map<_, _>>()})),
        schema(json!({"oneOf": (0..4000).map(|i| json!({"const": i})).collect::<Vec<_>>()})),
        schema(json!({"type": "array", "items": {"type": "array", "items": {"type": "array",
            "minItems": 4000}, "minItems": 4000}, "minItems": 4000})),
        schema(json!({"type": "string", "minLength": 100_000, "maxLength": 100_000})),
        schema(json!({"enum": (0..4096).map(|i| format!("{i:0100}")).collect::<Vec<_>>()})),
        schema(json!({"type": "integer", "multipleOf": 1e-300})),
        schema(json!({"type": "number", "multipleOf": 7919, "minimum": 1e300})),
        GrammarSpec::Choice((0..4096).map(|i| format!("{i:0200}")).collect()),
        GrammarSpec::Choice((0..5000).map(|i| format!("{i}")).collect()),
    ];
    for spec in specs {
        let name: String = format!("{spec:?}").chars().take(90).collect();
        let began = std::time::Instant::now();
        let compiled = compiler().compile(&spec, &Starts::AtOnce);
        let (took, limit) = (began.elapsed(), Limits::default().timeout);
        let said = compiled.as_ref().map(|_| "compiles").map_err(ToString::to_string);
        println!("{took:>10.1?} {name}: {said:?}");
        assert!(took < 2 * limit, "{name} took {took:?}");
        let Ok(grammar) = compiled else { continue };
        // Each step has its limit, too; what is over it ends the sequence with an error.
        let mut constraint = grammar.start();
        let mut logits = vec![0.0; 400];
        for _ in 0..20 {
            if constraint.is_complete() || constraint.mask(&mut logits).is_err() {
                break;
            }
            let Some(token) = logits.iter().position(|&x| x == 0.0) else { break };
            constraint.commit(token as u32).unwrap();
            logits.fill(0.0);
        }
    }
}

#[test]
fn the_cache_is_bounded_and_finds() {
    let limits = Limits { max_cached: 3, ..Limits::default() };
    let eos = vec![added("<|end|>")];
    let compiler = tenon_grammar::Compiler::new(support::tokenizer(), eos, limits);
    for i in 0..10 {
        let spec = GrammarSpec::Choice(vec![format!("c{i}")]);
        compiler.compile(&spec, &Starts::AtOnce).unwrap();
        assert!(compiler.num_cached() <= 3);
    }
    let json = GrammarSpec::JsonObject;
    let unlike = Starts::After { triggers: vec![Trigger::text("x")], never: vec![], must: true };
    compiler.compile(&json, &unlike).unwrap();
    let mut at_once = compiler.compile(&json, &Starts::AtOnce).unwrap().start();
    assert_eq!(walk(&mut at_once, "x"), (0, false));
}

#[test]
fn a_vocabulary_without_an_end_has_no_grammars() {
    let compiler = tenon_grammar::Compiler::new(support::tokenizer(), vec![], Limits::default());
    let error = compiler.compile(&GrammarSpec::JsonObject, &Starts::AtOnce).unwrap_err();
    assert!(matches!(error, GrammarError::Invalid(_)));
}

#[test]
fn reasoning_comes_first() {
    let spec = GrammarSpec::Choice(vec!["a".into(), "<b".into()]);
    let triggers = vec![Trigger::text("</think>")];
    let never = vec![Trigger { text: "<tool_call>".into(), is_token: true }];
    let after = Starts::After { triggers: triggers.clone(), never: never.clone(), must: true };
    let mut constraint = started(&spec, &after);
    // Free text, but no end and no call.
    let free = allowed(&mut constraint);
    assert!(free.contains(&u32::from(b'x')) && free.contains(&added("</think>")));
    for token in ["<|end|>", "<|eot|>", "<tool_call>"] {
        assert!(!free.contains(&added(token)), "{token}");
    }
    // The closer in pieces: nothing but blanks may stand behind it in its token.
    let id = |text: &str| support::tokenizer().token_id(text).unwrap();
    for text in ["</", "think"] {
        constraint.commit(id(text)).unwrap();
    }
    let last = allowed(&mut constraint);
    assert!(last.contains(&id(">")) && last.contains(&id(">\n\n")) && !last.contains(&id(">x")));
    constraint.commit(id(">\n\n")).unwrap();
    assert_eq!(walk(&mut constraint, "a"), (1, true));
    // The opener may come, or the grammar at once; both begin with `<` here.
    let unless = Starts::Unless { openers: vec!["<think>".into()], triggers, never };
    let start = started(&spec, &unless);
    assert_eq!(walk(&mut start.clone(), "<b"), (2, true));
    assert_eq!(walk(&mut start.clone(), "a"), (1, true));
    assert_eq!(walk(&mut start.clone(), "x").0, 0);
    let mut opened = start.clone();
    assert_eq!(walk(&mut opened, "<think>hm, a</think>"), (20, false));
    assert_eq!(walk(&mut opened, "<b"), (2, true));
    let mut opened = start.clone();
    for token in [added("<think>"), b'x'.into(), added("</think>"), b'a'.into()] {
        assert!(allowed(&mut opened).contains(&token));
        opened.commit(token).unwrap();
    }
    assert!(opened.is_complete());
    // The matcher took `<` before the opener was whole; all of it can be taken back.
    let mut back = start.clone();
    assert_eq!(walk(&mut back, "<think>x</think>a").0, 17);
    back.rollback(17).unwrap();
    assert_eq!(walk(&mut back, "<b"), (2, true));
}

#[test]
fn a_call_may_never_come() {
    let spec = GrammarSpec::Lark("start: \"{}\" </tool_call>".into());
    let triggers = vec![Trigger { text: "<tool_call>".into(), is_token: true }];
    let starts = Starts::After { triggers, never: vec![], must: false };
    let mut constraint = started(&spec, &starts);
    // Written out it is text.
    assert_eq!(walk(&mut constraint, "hello <tool_call>x"), (18, true));
    constraint.commit(added("<tool_call>")).unwrap();
    assert_eq!(
        allowed(&mut constraint),
        [u32::from(b'{'), support::tokenizer().token_id("{}").unwrap()]
    );
}

#[test]
fn mask_commit_and_rollback_agree() {
    let specs = [
        schema(json!({"type": "object", "properties": {
            "name": {"type": "string", "maxLength": 9},
            "tags": {"type": "array", "items": {"enum": ["a", "ab", "abc"]}, "maxItems": 4},
            "n": {"type": ["integer", "null"]}}, "required": ["n", "tags"]})),
        GrammarSpec::JsonObject,
        GrammarSpec::Regex("(ab|abc){1,5}x?".into()),
    ];
    for spec in specs {
        for seed in 0..20 {
            let mut random = Random(seed);
            let mut constraint = constraint(&spec);
            let (tokens, _) = random_output(&mut constraint.clone(), &mut random, 60);
            let mut masks = Vec::new();
            for &token in &tokens {
                let mask = allowed(&mut constraint);
                // What the mask leaves out is refused, and a refusal ends only its own clone.
                let outside = random.below(support::tokenizer().vocab_size()) as u32;
                let taken = constraint.clone().commit(outside);
                assert_eq!(taken.is_ok(), mask.contains(&outside), "{spec:?} {outside}");
                masks.push(mask);
                constraint.commit(token).unwrap();
            }
            // Back to any point and forth again is as if nothing had been.
            for _ in 0..4 {
                let back = random.below(tokens.len() + 1);
                constraint.rollback(back).unwrap();
                let at = tokens.len() - back;
                for (token, mask) in tokens[at..].iter().zip(&masks[at..]) {
                    assert_eq!(&allowed(&mut constraint), mask);
                    constraint.commit(*token).unwrap();
                }
            }
            assert!(constraint.rollback(tokens.len() + 1).is_err());
        }
    }
}
