//! Solar Open2: a bare name and `<|tool_arg:start|>KEY<|tool_arg:value|>VALUE<|tool_arg:end|>`, all
//! of them tokens. The beginning of anything else closes a value, too.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    Arguments, CallFormat, CallGrammar, Closing, Declared, Family, Keys, Naming, Parameters, Rule,
    TagRules, Tagged, style,
};

const OPENER: &str = "<|tool_call:start|>";
const CLOSER: &str = "<|tool_call:end|>";
const PARAMETER: &str = "<|tool_arg:start|>";

const TAGS: TagRules = TagRules {
    naming: Naming::Word,
    parameter: PARAMETER,
    keys: Keys::Pair { closer: "<|tool_arg:value|>", value: "", kind: None },
    value_closer: "<|tool_arg:end|>",
    closing: Closing::Exact(&[PARAMETER, CLOSER, OPENER]),
    closer: CLOSER,
    outer: &[],
    next: &[OPENER],
    newlines: false,
    cdata: false,
    nulls: &["null"],
};

/// The format.
pub struct SolarOpen2;

impl Declared for SolarOpen2 {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::SOLAR_OPEN2],
        calls: Some(&CallFormat::new(&[OPENER], |opened| Box::new(Tagged::new(&TAGS, opened)))),
        inner_tokens: &[CLOSER, PARAMETER, "<|tool_arg:value|>", "<|tool_arg:end|>"],
        grammar: Some(CallGrammar {
            call: "<|tool_call:start|>$NAME\n$ARGS<|tool_call:end|>",
            between: Some("\n"),
            trigger: OPENER,
            arguments: Arguments::Parameters(Parameters::new(
                "<|tool_arg:start|>$KEY<|tool_arg:value|>$VALUE<|tool_arg:end|>\n",
                &["<|tool_arg:end|>", PARAMETER, CLOSER, OPENER],
            )),
            ..CallGrammar::JSON
        }),
        evidence: &[
            Rule::template(&[OPENER, PARAMETER], &[]),
            Rule::vocabulary(&[OPENER, CLOSER, PARAMETER]),
        ],
        ..Family::named(
            "solar_open2",
            env!("CARGO_PKG_VERSION"),
            "arguments between <|tool_arg:...|> tokens: Solar Open2",
        )
    };
}

tenon_guest::export_parser!(SolarOpen2);
