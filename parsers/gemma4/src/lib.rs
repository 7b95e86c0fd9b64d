//! Gemma 4: `<|tool_call>call:NAME{KEY:VALUE}<tool_call|>` with strings between `<|"|>`, reasoning
//! in a channel.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    Arguments, BareKeys, BareKeysRules, CallFormat, CallGrammar, Declared, Family, Rule,
    export_parser, style,
};

const OPENER: &str = "<|tool_call>";
const CLOSER: &str = "<tool_call|>";
const DELIMITER: &str = "<|\"|>";

/// The format.
pub struct Gemma4;

impl Declared for Gemma4 {
    const FAMILY: &'static Family = &Family {
        aliases: &["gemma-4"],
        reasoning: &[style::GEMMA4],
        calls: Some(&CallFormat {
            again: &["call:"],
            closers: &[CLOSER],
            separators: ",;]",
            ..CallFormat::new(&[OPENER], |opened| {
                let rules = BareKeysRules { delimiter: DELIMITER, closer: CLOSER, is_typed: false };
                Box::new(BareKeys::new(rules, opened))
            })
        }),
        inner_tokens: &[DELIMITER],
        grammar: Some(CallGrammar {
            call: "<|tool_call>call:$NAME{$ARGS}<tool_call|>",
            between: Some(""),
            trigger: "<|tool_call>",
            arguments: Arguments::Bare { quote: DELIMITER, is_typed: false },
            ..CallGrammar::JSON
        }),
        evidence: &[Rule::template(&[OPENER], &[]), Rule::vocabulary(&[OPENER, CLOSER])],
        ..Family::named(
            "gemma4",
            env!("CARGO_PKG_VERSION"),
            "call:NAME{KEY:VALUE} in <|tool_call>: Gemma 4",
        )
    };
}

export_parser!(Gemma4);
