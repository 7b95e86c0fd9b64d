//! Every conformance case of the family, over every kind of cut.

use tenon_guest::harness::cases::{Aspect, Case};
use tenon_parser_llama3_json::Llama3Json;

#[test]
fn conformance_cases_hold_for_every_cut() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cases/formats.jsonl");
    let cases = Case::load(path).expect("the case file is part of the project");
    let cases: Vec<&Case> = cases.iter().filter(|case| case.family == "llama3_json").collect();
    assert!(cases.len() >= 14, "only {} cases", cases.len());
    for case in cases {
        if let Err(violation) = case.check::<Llama3Json>(None, Aspect::All) {
            panic!("{violation}");
        }
    }
}
