//! Every conformance case, and every case from a public report, by the parser that reads its
//! family, over every kind of cut. And the names: each one that other engines use finds one parser.

use std::collections::BTreeMap;

use tenon_formats::{Entry, all};
use tenon_guest::harness::cases::{Aspect, Case};

fn cases(file: &str) -> Vec<Case> {
    let path = format!("{}/../cases/{file}", env!("CARGO_MANIFEST_DIR"));
    Case::load(path).expect("the case files are part of the project")
}

/// The parser of a family of the case files, and the style to bind.
fn reader(family: &str) -> Option<(&'static Entry, Option<&'static str>)> {
    let find = |entry: &'static Entry| {
        let read = entry.cases.iter().find(|(read, _)| *read == family);
        read.map(|(_, style)| (entry, *style))
    };
    all().find_map(find)
}

fn check(file: &str, at_least: usize) {
    let cases = cases(file);
    assert!(cases.len() >= at_least, "only {} cases", cases.len());
    let mut failures = Vec::new();
    for case in &cases {
        let Some((entry, style)) = reader(&case.family) else {
            failures.push(format!("case `{}`: nobody reads `{}`", case.id, case.family));
            continue;
        };
        let style = case.style.as_deref().or(style);
        match (entry.check)(case, style, Aspect::All) {
            Err(violation) if case.is_doubtful => println!("an open decision: {violation}"),
            Err(violation) => failures.push(violation.to_string()),
            Ok(()) => {}
        }
    }
    assert!(failures.is_empty(), "{} fail:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_case_holds_for_every_cut() {
    check("formats.jsonl", 350);
}

#[test]
fn every_case_of_further_formats_holds_for_every_cut() {
    check("more_formats.jsonl", 140);
}

#[test]
fn every_report_holds_for_every_cut() {
    check("reports.jsonl", 49);
}

#[test]
fn a_family_has_one_parser_and_a_name_too() {
    let mut readers: BTreeMap<&str, &str> = BTreeMap::new();
    let mut names: BTreeMap<String, &str> = BTreeMap::new();
    for entry in all() {
        for (family, _) in entry.cases {
            let before = readers.insert(family, entry.name);
            assert_eq!(before, None, "`{family}` is read by `{}`, too", entry.name);
        }
        let descriptor = (entry.describe)();
        assert_eq!(descriptor.name, entry.name);
        for name in descriptor.aliases.into_iter().chain([descriptor.name]) {
            let before = names.insert(name.clone(), entry.name);
            assert_eq!(before, None, "`{name}` names `{}`, too", entry.name);
        }
    }
}

#[test]
fn every_name_of_other_engines_finds_a_parser() {
    let path = format!("{}/../cases/parser_names.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("part of the project");
    let names: BTreeMap<String, Vec<String>> = serde_json::from_str(&text).expect("JSON");
    let (mut tools, mut styles) = (Vec::new(), Vec::new());
    for descriptor in all().map(|entry| (entry.describe)()) {
        if descriptor.tools {
            tools.extend(descriptor.aliases.iter().chain([&descriptor.name]).cloned());
        }
        for style in &descriptor.reasoning_styles {
            styles.extend(style.aliases.iter().chain([&style.name]).cloned());
        }
    }
    let missing = |kind: &str, known: &[String]| -> Vec<String> {
        names[kind].iter().filter(|name| !known.contains(name)).cloned().collect()
    };
    assert_eq!(missing("tool_call_parsers", &tools), Vec::<String>::new());
    assert_eq!(missing("reasoning_parsers", &styles), Vec::<String>::new());
}
