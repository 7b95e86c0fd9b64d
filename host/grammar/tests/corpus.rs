//! Every schema of the corpus: whatever the grammar lets through validates, and what has an end
//! ends. The walk is uniform over all allowed tokens, so it finds corners that no model would.
#![allow(clippy::unwrap_used)]

mod support;

use serde_json::Value;
use support::{Random, bytes, constraint, random_output};
use tenon_grammar::GrammarSpec;

const CORPUS: &str = include_str!("../../../tests/cases/schemas.jsonl");
const NUM_WALKS: u64 = 24;
/// A walk meets many blanks and one-byte tokens.
const MAX_TOKENS: usize = 1500;

#[test]
fn every_walk_validates() {
    let (mut num_ended, mut num_cut) = (0, 0);
    for line in CORPUS.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let (name, schema) = (&case["name"], &case["schema"]);
        let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
        let is_free = ["anything", "true-schema", "open-object"].contains(&name.as_str().unwrap());
        let grammar = constraint(&GrammarSpec::JsonSchema(schema.clone()));
        for seed in 0..NUM_WALKS {
            let mut random = Random(seed);
            let (tokens, is_ended) = random_output(&mut grammar.clone(), &mut random, MAX_TOKENS);
            let text = String::from_utf8_lossy(&bytes(&tokens)).into_owned();
            if !is_ended {
                assert!(!case["bounded"].as_bool().unwrap(), "{name} has no end: {text}");
                num_cut += 1;
                continue;
            }
            num_ended += 1;
            let value: Value = match serde_json::from_str(&text) {
                Ok(value) => value,
                // Where a schema says nothing, JSON's numbers have any exponent.
                Err(error) if is_free && error.to_string().contains("out of range") => continue,
                Err(error) => panic!("{name}, seed {seed}: {error}: {text}"),
            };
            let errors: Vec<_> = validator.iter_errors(&value).map(|e| e.to_string()).collect();
            assert!(errors.is_empty(), "{name}, seed {seed}: {text}: {errors:?}");
        }
    }
    println!("{num_ended} outputs validated, {num_cut} were cut");
    assert!(num_ended > 60 * NUM_WALKS / 2);
}

#[test]
fn the_corpus_is_wide() {
    assert!(CORPUS.lines().count() >= 60);
}
