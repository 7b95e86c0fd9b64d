//! The shipped parsers as they are shipped: the built components, in the sandbox, against the
//! conformance cases. Every case whole, one character at a time, at every two-way cut and at 200
//! random cuts, each with and without host-side delivery of watched channels.
#![allow(clippy::unwrap_used)]

mod board;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;
use tenon_chat::cases::{Case, Run, Scope, read};
use tenon_chat::choose::{find_style, for_family};
use tenon_chat::parser::{Descriptor, ParserFactory};
use tenon_extensions::{
    CompilerCommand, ExtensionHost, HostConfig, Limits, Parser, compile_child_main,
};

const NUM_RANDOM_CUTS: usize = 200;

/// A call ends these cases' reasoning, in formats that `think` does not know.
const ENDS_AT_CALL: &[&str] = &["a.qwen3_coder.think_implicit", "trinity-01"];

/// The host starts this test binary again, with this test's name, as its compiler.
#[test]
fn compile_child() {
    if std::env::args().any(|arg| arg == "__compile") {
        compile_child_main();
    }
}

fn root() -> PathBuf {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above.find(|dir| dir.join("tests/cases").is_dir()).unwrap().to_path_buf()
}

/// `index.json`'s entries by name.
fn index() -> BTreeMap<String, Value> {
    let path = root().join("target/guests/index.json");
    let text = fs::read_to_string(&path).expect("run `cargo xtask guests`");
    let entries: Vec<Value> = serde_json::from_str(&text).expect("run `cargo xtask guests`");
    entries.into_iter().map(|entry| (entry["name"].as_str().unwrap().into(), entry)).collect()
}

fn host() -> (ExtensionHost, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let config = HostConfig {
        cache_dir: dir.path().join("compiled"),
        compiler: CompilerCommand {
            program: std::env::current_exe().unwrap(),
            args: ["compile_child", "--exact", "--nocapture", "__compile"].map(Into::into).into(),
        },
        num_sessions: 8,
        limits: Limits::default(),
    };
    (ExtensionHost::new(config).unwrap(), dir)
}

fn admit(host: &ExtensionHost, entry: &Value) -> Arc<Parser> {
    let file = root().join("target/guests").join(entry["file"].as_str().unwrap());
    let wasm = fs::read(file).expect("run `cargo xtask guests`");
    assert_eq!(wasm.len() as u64, entry["size"].as_u64().unwrap());
    host.admit(&wasm).unwrap()
}

fn component(host: &ExtensionHost, name: &str) -> Arc<Parser> {
    admit(
        host,
        index().get(name).unwrap_or_else(|| panic!("no `{name}`: run `cargo xtask guests`")),
    )
}

/// The conformance cases, and those of public reports.
fn cases() -> Vec<Case> {
    let files = ["formats.jsonl", "more_formats.jsonl", "reports.jsonl"];
    let read = |file| read(&fs::read_to_string(root().join("tests/cases").join(file)).unwrap());
    let read = |file| read(file).unwrap();
    files.into_iter().flat_map(read).collect()
}

/// Checks `cases`; returns how many there were, and how many runs they took.
fn check<'a>(
    parser: &Arc<Parser>,
    cases: impl Iterator<Item = (&'a Case, Option<&'a str>)>,
    scope: Scope,
) -> (usize, usize) {
    let factory: Arc<dyn ParserFactory> = parser.clone();
    let (mut num_cases, mut num_runs) = (0, 0);
    for (case, style) in cases {
        let run = Run { factory: &factory, style, scope };
        match run.check(case, NUM_RANDOM_CUTS) {
            Err(failure) if case.doubtful => println!("an open decision: {}: {failure:?}", case.id),
            Err(failure) => panic!("{}: {failure:?}\n{:?}", case.id, case.text),
            Ok(runs) => num_runs += runs,
        }
        num_cases += 1;
    }
    let num_faults: u64 = parser.stats().faults().iter().map(|(_, num)| num).sum();
    assert_eq!(num_faults, 0);
    (num_cases, num_runs)
}

#[test]
fn the_index_says_what_the_components_say() {
    let (host, _dir) = host();
    let index = index();
    let families: Vec<&str> = tenon_formats::all().map(|entry| entry.name).collect();
    assert_eq!(index.len(), families.len(), "{:?} but {families:?}", index.keys());
    for (name, entry) in &index {
        assert!(families.contains(&name.as_str()), "`{name}` is not in the table of families");
        let parser = admit(&host, entry);
        let listed: Descriptor = serde_json::from_value(entry["descriptor"].clone()).unwrap();
        assert_eq!(*parser.descriptor(), listed);
        assert_eq!((&listed.name, parser.digest()), (name, entry["digest"].as_str().unwrap()));
    }
}

#[test]
fn every_component_reads_its_cases_for_every_cut() {
    let (host, _dir) = host();
    let cases = cases();
    let mut rows = Vec::new();
    for family in tenon_formats::all() {
        let ours = cases.iter().filter_map(|case| {
            let (_, style) = family.cases.iter().find(|(read, _)| *read == case.family)?;
            Some((case, case.reasoning_family.as_deref().or(*style)))
        });
        let parser = component(&host, family.name);
        let (num_cases, num_runs) = check(&parser, ours, Scope::Whole);
        assert_eq!(num_cases > 0, !family.cases.is_empty(), "{}", family.name);
        rows.push(board::Row { family, parser, num_cases, num_runs });
    }
    board::check(&root(), &rows);
}

#[test]
fn each_family_of_the_cases_is_found_by_its_name() {
    let index = index();
    let read = |entry: &Value| serde_json::from_value(entry["descriptor"].clone()).unwrap();
    let descriptors: Vec<Descriptor> = index.values().map(read).collect();
    for family in tenon_formats::all() {
        for (name, style) in family.cases {
            let choice = for_family(&descriptors, name).unwrap();
            assert_eq!(choice.parser, family.name, "{name}");
            assert_eq!(choice.style.as_deref().filter(|_| style.is_some()), *style, "{name}");
        }
    }
}

#[test]
fn think_finds_the_reasoning_of_other_families_for_every_cut() {
    let (host, _dir) = host();
    let think = component(&host, "think");
    let names: BTreeMap<String, Value> = serde_json::from_str(
        &fs::read_to_string(root().join("tests/cases/family_names.json")).unwrap(),
    )
    .unwrap();
    let cases = cases();
    let ours = cases.iter().filter_map(|case| {
        if case.kind == "tool" || ENDS_AT_CALL.contains(&case.id.as_str()) {
            return None;
        }
        let style =
            find_style(think.descriptor(), names.get(&case.family)?["reasoning"].as_str()?)?;
        Some((case, Some(style.name.as_str())))
    });
    let (num_cases, _) = check(&think, ours, Scope::Reasoning);
    assert!(num_cases >= 8, "only {num_cases}");
}
