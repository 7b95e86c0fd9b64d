//! The format's own cases, over every kind of cut, and text that only looks like it.

use acme_parser::Acme;
use tenon_guest::FinishReason;
use tenon_guest::harness::cases::{Aspect, Case};
use tenon_guest::harness::{Stream, any_cut};

fn cases() -> Vec<Case> {
    Case::load(concat!(env!("CARGO_MANIFEST_DIR"), "/cases.jsonl")).expect("cases.jsonl is here")
}

#[test]
fn every_case_holds_for_every_cut() {
    for case in cases() {
        if let Err(violation) = case.check::<Acme>(Some("qwen3"), Aspect::All) {
            panic!("{violation}");
        }
    }
}

#[test]
fn an_early_end_keeps_the_contract() {
    for case in cases() {
        for (end, _) in case.text.char_indices() {
            let stream = Stream::of(&case.text[..end]);
            let request = case.request(Some("qwen3"));
            if let Err(violation) = any_cut::<Acme>(&request, &stream, FinishReason::Length) {
                panic!("case `{}` up to {end}: {violation}", case.id);
            }
        }
    }
}
