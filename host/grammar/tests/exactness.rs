//! What used to be let through and was not held to, or held up everybody else.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use support::{accepts, added, refusal, tokenizer};
use tenon_grammar::{
    Compiler, GrammarError, GrammarSpec, Limits, Starts, StructuralTag, Structure, check_schema,
};

fn schema(schema: Value) -> GrammarSpec {
    GrammarSpec::JsonSchema(schema)
}

fn lark(text: String) -> GrammarSpec {
    GrammarSpec::Lark(text)
}

/// Schema, texts that it takes, texts that it does not.
fn check(of: Value, yes: &[&str], no: &[&str]) {
    for text in yes {
        assert!(accepts(&schema(of.clone()), text), "{of} refuses {text}");
    }
    for text in no {
        assert!(!accepts(&schema(of.clone()), text), "{of} takes {text}");
    }
}

#[test]
fn large_numbers_are_exact_or_refused() {
    const BIG: i64 = 1_234_567_890_123_456_789;
    for (of, keyword, place) in [
        (json!({"const": BIG}), "const", "/const"),
        (json!({"properties": {"a": {"enum": [1, BIG]}}}), "enum", "/properties/a/enum/1"),
        (json!({"type": "integer", "enum": [9_007_199_254_740_993_i64]}), "enum", "/enum/0"),
        (json!({"const": {"a": [BIG]}}), "const", "/const/a/0"),
        (json!({"const": 18_446_744_073_709_551_615_u64}), "const", "/const"),
        (json!({"type": "integer", "minimum": 9_007_199_254_740_993_i64}), "minimum", "/"),
        (json!({"items": {"maximum": 9_007_199_254_740_993_i64}}), "maximum", "/items"),
        (json!({"exclusiveMinimum": 9_007_199_254_740_993_i64}), "exclusiveMinimum", "/"),
        (json!({"type": "number", "minimum": 1e20}), "minimum", "/"),
        (json!({"type": "number", "exclusiveMaximum": -1e300}), "exclusiveMaximum", "/"),
        (json!({"type": "integer", "multipleOf": 1e-300}), "multipleOf", "/"),
        (json!({"type": "number", "multipleOf": 0.07}), "multipleOf", "/"),
        (json!({"multipleOf": 9_007_199_254_740_993_i64}), "multipleOf", "/"),
    ] {
        match check_schema(&of).unwrap_err() {
            GrammarError::Keyword { keyword: said, pointer, .. } => {
                assert_eq!((said.as_str(), pointer.as_str()), (keyword, place), "{of}");
            }
            other => panic!("{of}: {other:?}"),
        }
    }
    check(
        json!({"const": 9_007_199_254_740_992_i64}),
        &["9007199254740992"],
        &["9007199254740993"],
    );
    check(
        json!({"type": "integer", "enum": [1_152_921_504_606_846_976_i64, -5]}),
        &["1152921504606846976", "-5"],
        &["1152921504606846977", "5"],
    );
    // What is beyond all numbers bounds none of them.
    check(
        json!({"type": "integer", "minimum": i64::MIN, "maximum": u64::MAX}),
        &["0", "-999999999999999999", "1000000000000000000"],
        &["1000000000000000001"],
    );
    check(
        json!({"type": "number", "minimum": -3.4028234663852886e38, "maximum": 1e300}),
        &["0", "-2.5", "1000000000000000000"],
        &["1000000000000000001"],
    );
    check(json!({"type": "number", "const": 2.5}), &["2.5"], &["2", "3"]);
}

#[test]
fn malformed_numbers_and_lists_are_named() {
    for (of, words) in [
        (json!({"multipleOf": 0}), "`/multipleOf`"),
        (json!({"multipleOf": -2}), "`/multipleOf`"),
        (json!({"items": {"exclusiveMinimum": "3"}}), "`/items/exclusiveMinimum`"),
        (json!({"type": "object", "required": "a"}), "`/required`"),
        (json!({"type": "object", "required": ["a", 1]}), "`/required`"),
        (json!({"pattern": r"\bfoo\b"}), "`\\b`"),
        (json!({"pattern": r"foo\B"}), "`\\B`"),
        (json!({"$ref": "#/title", "title": "x"}), "`$ref`"),
    ] {
        let error = refusal(&schema(of.clone())).to_string();
        assert!(error.contains(words), "{of}: {error}");
    }
    check(
        json!({"type": "integer", "minimum": 0, "maximum": 1, "exclusiveMinimum": true}),
        &["1"],
        &["0"],
    );
}

#[test]
fn references_have_any_names() {
    for (name, reference) in [
        ("My Model", "#/$defs/My Model"),
        ("My Model", "#/$defs/My%20Model"),
        ("List<Foo>", "#/$defs/List<Foo>"),
        ("List[Foo]", "#/$defs/List[Foo]"),
        ("Größe", "#/$defs/Größe"),
        ("日本", "#/$defs/%E6%97%A5%E6%9C%AC"),
        ("50%", "#/$defs/50%"),
        ("50%", "#/$defs/50%25"),
        ("a/b~c", "#/$defs/a~1b~0c"),
        ("a\"#?b", "#/$defs/a\"#?b"),
    ] {
        let mut defs = Map::new();
        defs.insert(name.into(), json!({"type": "integer", "minimum": 3, "maximum": 4}));
        let of = json!({"$defs": defs, "type": "array", "items": {"$ref": reference}});
        check(of, &["[3]", "[3,4]"], &["[5]"]);
    }
    check(json!({"$defs": {"a": {"$anchor": "x y", "const": 1}}, "$ref": "#x y"}), &["1"], &["2"]);
    // What is no place of a schema is checked as one when it is referred to.
    let outside = |of: Value| json!({"components": {"a": of}, "$ref": "#/components/a"});
    check(outside(json!({"type": "integer", "minimum": 3, "maximum": 4})), &["3"], &["5"]);
    check(outside(json!({"pattern": "^[^a&&b]$"})), &["\"x\""], &["\"a\"", "\"&\""]);
    for refused in [json!({"const": i64::MAX}), json!({"not": {}}), json!({"pattern": "(?=a)"})] {
        assert!(check_schema(&outside(refused)).is_err());
    }
}

#[test]
fn recursion_that_has_no_end_is_refused() {
    let node = |next: Value| {
        json!({"$defs": {"n": {"type": "object", "properties": {"next": next},
            "required": ["next"]}}, "items": {"$ref": "#/$defs/n"}})
    };
    let again = json!({"$ref": "#/$defs/n"});
    for (of, place) in [
        (node(again.clone()), "/$defs/n/properties/next"),
        (
            node(json!({"type": "array", "items": again, "minItems": 1})),
            "/$defs/n/properties/next/items",
        ),
        (json!({"$ref": "#"}), "/"),
    ] {
        match refusal(&schema(of.clone())) {
            GrammarError::Keyword { keyword, pointer, .. } => {
                assert_eq!((keyword.as_str(), pointer.as_str()), ("$ref", place), "{of}");
            }
            other => panic!("{of}: {other:?}"),
        }
    }
    let list = json!({"$defs": {"n": {"type": "object", "properties":
        {"next": {"anyOf": [again, {"type": "null"}]}}, "required": ["next"],
        "additionalProperties": false}}, "$ref": "#/$defs/n"});
    check(list, &[r#"{"next":{"next":null}}"#], &["{}"]);
}

#[test]
fn classes_of_patterns_are_those_of_ecmascript() {
    check(
        json!({"pattern": "^[^a&&b]{1,3}$"}),
        &["\"xyz\"", "\"o\""],
        &["\"owa\"", "\"b\"", "\"&\""],
    );
    check(json!({"pattern": "^[a[b]$"}), &["\"[\"", "\"a\""], &["\"]\""]);
}

#[test]
fn digits_of_a_regex_are_ascii() {
    let spec = GrammarSpec::Regex(r"\d\w".into());
    assert!(accepts(&spec, "1_"));
    for text in ["٣a", "1é"] {
        assert!(!accepts(&spec, text), "{text}");
    }
    for (regex, words) in [(r"\bfoo\b", "`\\b`"), (r"foo\B", "`\\B`"), ("(?m)^a$", "`(?m)`")] {
        let error = refusal(&GrammarSpec::Regex(regex.into())).to_string();
        assert!(error.contains(words) && !error.contains("start:"), "{error}");
    }
}

#[test]
fn schemas_in_a_grammar_are_held_to() {
    for (of, words) in [
        (json!({"properties": {"a": {"not": {}}}}), "`not` at `/properties/a`"),
        (json!({"x-guidance": {"lenient": true}}), "`x-guidance`"),
        (json!({"const": i64::MAX}), "`const`"),
        (json!({"allOf": vec![json!({"pattern": "a"}); 7]}), "`allOf`"),
    ] {
        for text in [
            format!("start: \"x\"\n  %json {of}"),
            format!("start: %lark {{\nstart: %json {of} }}"),
        ] {
            let error = refusal(&lark(text.clone())).to_string();
            assert!(error.contains(words) && error.contains("line 2"), "{text}: {error}");
        }
    }
    let spec =
        lark("start: \"%json\" /%json/ %json{\"type\": \"array\"} // %json {\"not\": 1}".into());
    assert!(accepts(&spec, "%json%json[\n  1]"));
    assert!(!accepts(&spec, "%json%json[\n\n1]"), "blanks are bounded");
    let error = refusal(&lark("start: %json {\"a\"".into())).to_string();
    assert!(error.contains("line 1"), "{error}");
    let tag = |of: Value| {
        let structure = |schema| Structure { begin: "<f".into(), schema, end: ">".into() };
        GrammarSpec::StructuralTag(StructuralTag {
            structures: vec![structure(json!({})), structure(of)],
            triggers: vec!["<f".into()],
        })
    };
    for of in [json!({"not": {}}), json!({"type": "integer", "minimum": 5, "maximum": 1})] {
        let error = refusal(&tag(of.clone())).to_string();
        assert!(error.starts_with("`structures[1].schema`: "), "{of}: {error}");
    }
}

/// Properties that are tried with patterns, and options that are merged.
fn bombs() -> Vec<GrammarSpec> {
    let names = |n: usize| -> Map<String, Value> {
        (0..n).map(|i| (format!("a{i}b"), json!({"type": "integer"}))).collect()
    };
    let patterns: Map<String, Value> = ('b'..='z')
        .map(|c| (format!("^{c}.*[0-9]{{3}}.*x$"), json!({"type": "integer"})))
        .collect();
    let object = |n: usize| {
        json!({"type": "object", "properties": names(n), "patternProperties": patterns,
            "additionalProperties": false})
    };
    let five = |j: usize| {
        let one = |i: usize| {
            let mut properties = Map::new();
            properties.insert(format!("p{j}_{i}"), json!({"type": "integer"}));
            json!({"type": "object", "properties": properties})
        };
        json!({"anyOf": (0..5).map(one).collect::<Vec<_>>()})
    };
    let tags = |n: usize, schema: Value| {
        let structures = (0..n).map(|i| Structure {
            begin: format!("<f{i}>"),
            schema: schema.clone(),
            end: "</f>".into(),
        });
        let (structures, triggers) = (structures.collect(), vec!["<f".into()]);
        GrammarSpec::StructuralTag(StructuralTag { structures, triggers })
    };
    vec![
        lark(format!("start: %json {} \"x\"", object(5000))),
        lark(format!("start: {}", format!("%json {} ", object(60)).repeat(60))),
        schema(json!({"anyOf": vec![object(60); 60]})),
        tags(90, json!({"allOf": (0..4).map(five).collect::<Vec<_>>()})),
        tags(60, object(60)),
        lark(format!("start: {}", "%json {} ".repeat(900))),
        lark(format!("start: {}", "%json {\"type\":\"object\"} ".repeat(9_000))),
    ]
}

#[test]
fn long_compiles_are_refused_before_they_begin() {
    for spec in bombs() {
        let name: String = format!("{spec:?}").chars().take(90).collect();
        let began = Instant::now();
        let compiled = support::compiler().compile(&spec, &Starts::AtOnce);
        let took = began.elapsed();
        let said = compiled.map(|_| "compiles").map_err(|error| error.to_string());
        println!("{took:>10.1?} {name}: {said:?}");
        assert!(took < Limits::default().timeout, "{name} took {took:?}");
        assert!(!said.is_err_and(|why| why.contains("within")), "{name}");
    }
}

#[test]
fn what_is_overdue_holds_nobody_else_up() {
    let limits = Limits {
        timeout: Duration::from_millis(1),
        max_compiling: 1,
        max_overdue: 2,
        max_overdue_of_one: 1,
        ..Limits::default()
    };
    let compiler = Compiler::new(tokenizer(), vec![added("<|end|>")], limits);
    let slow = |i: usize| GrammarSpec::Regex(format!("(a{{1,99}}b{{1,99}}|c)+{i}(.*x.{{1,99}})+"));
    let too_slow = |caller, i| {
        let error = compiler.compile_for(caller, &slow(i), &Starts::AtOnce).unwrap_err();
        matches!(error, GrammarError::TooSlow { .. })
    };
    // The first makes the vocabulary, too; the permit is free again at once.
    assert!(too_slow(1, 0));
    assert!(too_slow(2, 1), "another caller has the permit");
    // Until its own has ended the first is refused.
    let again = compiler.compile_for(1, &slow(2), &Starts::AtOnce);
    assert!(matches!(again, Err(GrammarError::Busy | GrammarError::TooSlow { .. })), "{again:?}");
    let limit = Instant::now() + Duration::from_secs(60);
    let easy = GrammarSpec::Choice(vec!["a".into()]);
    while compiler.compile_for(1, &easy, &Starts::AtOnce).is_err() {
        assert!(Instant::now() < limit, "what was overdue never ended");
        std::thread::yield_now();
    }
}
