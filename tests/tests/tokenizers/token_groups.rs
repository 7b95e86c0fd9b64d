//! The conformance cases cut as models cut them: each text in the tokens of real vocabularies, 1 to
//! 8 of them at a time. A model that is not there is skipped with a message.

use std::path::Path;

use tenon_formats::{all, request};
use tenon_guest::Channel;
use tenon_guest::harness::cases::{Aspect, Case};
use tenon_guest::harness::{Delivery, Stream};
use tenon_model::Gguf;
use tenon_text::{Bos, Specials, Tokenizer};

use super::{find, vocab};

const FILES: &[&str] = &[
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma-3-270m-q4_k_m.gguf",
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
];

/// Ends of tokens that are ends of characters: what a detokenizer hands on.
fn token_ends(tokenizer: &Tokenizer, text: &str) -> Vec<usize> {
    let ids = tokenizer.encode(text, Specials::Parse, Bos::Skip).unwrap();
    let mut at = 0;
    let mut ends = Vec::new();
    for id in ids {
        at += tokenizer.token_bytes(id).map_or(0, <[u8]>::len);
        if at < text.len() && text.is_char_boundary(at) {
            ends.push(at);
        }
    }
    // A vocabulary that adds or drops a blank is no help in cutting this text.
    if at == text.len() { ends } else { vec![] }
}

fn check(tokenizer: &Tokenizer) -> usize {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases/formats.jsonl");
    let cases = Case::load(path).unwrap();
    let mut num_cut = 0;
    for case in &cases {
        let read = |entry: &&tenon_formats::Entry| {
            entry.cases.iter().any(|(family, _)| *family == case.family)
        };
        let Some(entry) = all().find(read) else { continue };
        let style = entry.cases.iter().find(|(family, _)| *family == case.family).unwrap().1;
        let ends = token_ends(tokenizer, &case.text);
        num_cut += usize::from(!ends.is_empty());
        let start = if case.starts_in_reasoning { Channel::Reasoning } else { Channel::Content };
        let request = request(&case.tools, style, start);
        for group in 1..=8 {
            let cuts: Vec<usize> = ends.iter().copied().skip(group - 1).step_by(group).collect();
            for delivery in [Delivery::Pushed, Delivery::Watched] {
                let stream = Stream::of(&case.text);
                let folded = (entry.run)(&request, &stream, &cuts, case.reason, delivery).unwrap();
                if let Err(violation) = case.compare(&folded, Aspect::All)
                    && !case.is_doubtful
                {
                    panic!("{}, {group} tokens at a time: {violation}", case.id);
                }
            }
        }
    }
    num_cut
}

#[test]
fn every_case_holds_for_groups_of_real_tokens() {
    for file in FILES {
        let Some(path) = find(file) else {
            println!("skipped: `{file}` is not there (cargo xtask fetch-models)");
            continue;
        };
        let tokenizer = Tokenizer::from_gguf(vocab(&Gguf::open(&path).unwrap())).unwrap();
        let num_cut = check(&tokenizer);
        assert!(num_cut >= 50, "{file}: only {num_cut} cases were cut");
    }
}
