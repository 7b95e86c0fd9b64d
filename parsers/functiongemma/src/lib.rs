//! FunctionGemma: `<start_function_call>call:NAME{KEY:VALUE}<end_function_call>`. Templates put
//! strings or all values between `<escape>`s, so the schema says what such a value is.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    Arguments, BareKeys, BareKeysRules, CallFormat, CallGrammar, Declared, Family, Rule,
    export_parser,
};

const OPENER: &str = "<start_function_call>";
const CLOSER: &str = "<end_function_call>";
const DELIMITER: &str = "<escape>";

/// The format.
pub struct FunctionGemma;

impl Declared for FunctionGemma {
    const FAMILY: &'static Family = &Family {
        calls: Some(&CallFormat {
            again: &["call:"],
            closers: &[CLOSER],
            separators: ",;]",
            ..CallFormat::new(&[OPENER], |opened| {
                let rules = BareKeysRules { delimiter: DELIMITER, closer: CLOSER, is_typed: true };
                Box::new(BareKeys::new(rules, opened))
            })
        }),
        inner_tokens: &[DELIMITER],
        grammar: Some(CallGrammar {
            call: "<start_function_call>call:$NAME{$ARGS}<end_function_call>",
            between: Some(""),
            trigger: "<start_function_call>",
            arguments: Arguments::Bare { quote: DELIMITER, is_typed: true },
            ..CallGrammar::JSON
        }),
        evidence: &[Rule::template(&[OPENER], &[]), Rule::vocabulary(&[OPENER, CLOSER])],
        ..Family::named(
            "functiongemma",
            env!("CARGO_PKG_VERSION"),
            "call:NAME{KEY:VALUE} in <start_function_call>: FunctionGemma",
        )
    };
}

export_parser!(FunctionGemma);
