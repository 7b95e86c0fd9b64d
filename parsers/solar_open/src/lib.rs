//! Solar Open 100B: frames of control tokens. Reasoning, answer and calls each begin with
//! `<|begin|>assistant` and their own token; a call is id, name and JSON arguments.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    CallFormat, CallGrammar, Declared, Family, Frame, Headed, HeadedRules, Part, Rule, Section,
    export_parser, style,
};

const RULES: HeadedRules = HeadedRules::new(
    &[Part::Id, Part::Text("<|tool_call:name|>"), Part::Name, Part::Text("<|tool_call:args|>")],
    &["<|tool_call:end|>"],
);

/// The format.
pub struct SolarOpen;

impl Declared for SolarOpen {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::SOLAR_OPEN],
        // The prompt may hold the first part of the first one.
        frames: &[
            Frame { opener: "<|begin|>assistant<|content|>", closer: "<|end|>", is_control: true },
            Frame { opener: "<|content|>", closer: "<|end|>", is_control: true },
        ],
        calls: Some(&CallFormat {
            sections: &[
                Section {
                    opener: "<|begin|>assistant<|tool_calls|>",
                    closer: "<|calls|>",
                    empty_is_text: false,
                },
                Section { opener: "<|tool_calls|>", closer: "<|calls|>", empty_is_text: false },
            ],
            closers: &["<|tool_call:end|>"],
            ..CallFormat::new(&["<|tool_call:begin|>"], |_| Box::new(Headed::new(&RULES)))
        }),
        inner_tokens: &["<|tool_call:name|>", "<|tool_call:args|>", "<|begin|>", "<|content|>"],
        grammar: Some(CallGrammar {
            opener: "<|tool_calls|>",
            call: "<|tool_call:begin|>$ID$N<|tool_call:name|>$NAME\
                   <|tool_call:args|>$ARGS<|tool_call:end|>",
            between: Some(""),
            closer: "<|calls|>",
            trigger: "<|tool_calls|>",
            ..CallGrammar::JSON
        }),
        evidence: &[
            Rule::template(&["<|tool_call:begin|>", "<|tool_call:args|>"], &[]),
            Rule::vocabulary(&["<|tool_call:begin|>", "<|tool_call:args|>"]),
        ],
        ..Family::named("solar_open", env!("CARGO_PKG_VERSION"), "frames of tokens: Solar Open")
    };
}

export_parser!(SolarOpen);
