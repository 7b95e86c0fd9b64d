//! Hermes, Qwen2.5 and Qwen3: `<tool_call>` around a JSON object, `<think>` around reasoning.
//! The closer is optional once the object is whole; a list of objects is read, too.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    CallFormat, CallGrammar, Declared, Envelope, EnvelopeRules, Family, Rule, export_parser, style,
};

/// What templates hold that write something else between the tags, or have other rules around
/// them: Qwen3-Coder and its kin, GLM and its kin, MiniMax M3, Granite 4, ERNIE 4.5, Apriel.
const OTHERS: &[&str] = &[
    "<function=",
    "<arg_key>",
    "]<]minimax[>[",
    "<|start_of_role|>",
    "<global_setting>",
    "<tool_calls>[",
];

/// The format.
pub struct Hermes;

impl Declared for Hermes {
    const FAMILY: &'static Family = &Family {
        aliases: &["qwen", "qwen25", "ling", "exaone4", "holo2", "baichuan_m2"],
        reasoning: &[style::QWEN3, style::DEEPSEEK_R1, style::HOLO2],
        calls: Some(&CallFormat {
            again: &["{"],
            closers: &["</tool_call>"],
            separators: ",;]",
            ..CallFormat::new(&["<tool_call>"], |_| {
                Box::new(Envelope::new(EnvelopeRules::behind_marker("</tool_call>")))
            })
        }),
        grammar: Some(CallGrammar {
            call: "<tool_call>\n{\"name\": $QNAME, \"arguments\": $ARGS}\n</tool_call>",
            between: Some("\n"),
            trigger: "<tool_call>",
            ..CallGrammar::JSON
        }),
        evidence: &[
            Rule::template(&["<tool_call>", "<tools>"], OTHERS),
            Rule::template(&["<tool_call>", "\"name\""], OTHERS),
        ],
        ..Family::named(
            "hermes",
            env!("CARGO_PKG_VERSION"),
            "JSON objects in <tool_call> tags: Hermes, Qwen2.5, Qwen3",
        )
    };
}

export_parser!(Hermes);
