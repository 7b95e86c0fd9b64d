//! Every conformance case, by the parser that reads its family, over every kind of cut.

use tenon_formats::all;
use tenon_guest::harness::cases::{Aspect, Case};

fn cases() -> Vec<Case> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../cases/formats.jsonl");
    Case::load(path).expect("the case file is part of the project")
}

#[test]
fn every_case_holds_for_every_cut() {
    let cases = cases();
    let mut failures = Vec::new();
    for entry in all() {
        for (family, style) in entry.cases {
            let own: Vec<&Case> = cases.iter().filter(|case| case.family == *family).collect();
            assert!(
                !own.is_empty(),
                "`{}` reads `{family}`, of which there are no cases",
                entry.name
            );
            for case in own {
                if let Err(violation) = (entry.check)(case, *style, Aspect::All) {
                    failures.push(violation.to_string());
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} fail:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_family_of_the_cases_has_one_parser() {
    let cases = cases();
    let mut families: Vec<&str> = cases.iter().map(|case| case.family.as_str()).collect();
    families.sort_unstable();
    families.dedup();
    for family in families {
        let reads =
            |entry: &&tenon_formats::Entry| entry.cases.iter().any(|(read, _)| *read == family);
        let readers: Vec<&str> = all().filter(reads).map(|entry| entry.name).collect();
        assert!(readers.len() <= 1, "`{family}` is read by {readers:?}");
    }
}
