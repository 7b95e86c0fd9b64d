//! Reasoning between `<think>` tags and nothing else, for models without a known tool format. A
//! hermes call ends the reasoning of the style `qwen3`, and is content.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    CallFormat, Declared, Envelope, EnvelopeRules, Family, Rule, export_parser, style,
};

/// Openers of call formats that other parsers read.
const TOOL_MARKERS: &[&str] = &[
    "<tool_call>",
    "<tool_calls>",
    "<TOOLCALL>",
    "<|tool_call|>",
    "<function=",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<｜tool▁calls▁begin｜>",
    "<|tool_calls_section_begin|>",
];

/// The format.
pub struct Think;

impl Declared for Think {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::QWEN3, style::DEEPSEEK_R1, style::HOLO2, style::TELECHAT4, style::KIMI],
        quoted_calls: Some(&CallFormat {
            ..CallFormat::new(&["<tool_call>"], |_| {
                Box::new(Envelope::new(EnvelopeRules::behind_marker("</tool_call>")))
            })
        }),
        evidence: &[
            Rule::template(&["<think>"], TOOL_MARKERS),
            Rule { template_lacks: TOOL_MARKERS, ..Rule::vocabulary(&["<think>", "</think>"]) },
        ],
        ..Family::named(
            "think",
            env!("CARGO_PKG_VERSION"),
            "reasoning in <think> tags, no tool calls",
        )
    };
}

export_parser!(Think);
