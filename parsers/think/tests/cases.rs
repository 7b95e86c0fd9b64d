//! The reasoning of other families' conformance cases that use the same tags.

use tenon_guest::harness::cases::{Aspect, Case};
use tenon_parser_think::Think;

#[test]
fn reasoning_is_found_for_every_cut() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cases/formats.jsonl");
    let cases = Case::load(path).expect("the case file is part of the project");
    let mut num_cases = 0;
    for case in &cases {
        let style = match case.family.as_str() {
            "hermes" => "qwen3",
            "deepseek_v3" => "deepseek_r1",
            _ => continue,
        };
        if case.kind == "tool" {
            continue;
        }
        num_cases += 1;
        if let Err(violation) = case.check::<Think>(Some(style), Aspect::Reasoning) {
            panic!("{violation}");
        }
    }
    assert!(num_cases >= 9, "only {num_cases} cases");
}
