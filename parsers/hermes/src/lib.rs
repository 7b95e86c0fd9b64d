//! Hermes, Qwen2.5 and Qwen3: `<tool_call>` around a JSON object, `<think>` around reasoning.
//! The closer is optional once the object is whole; a list of objects is read, too.

use tenon_guest::{
    CallFormat, Declared, Envelope, EnvelopeRules, Family, Rule, export_parser, style,
};

/// The format.
pub struct Hermes;

impl Declared for Hermes {
    const FAMILY: &'static Family = &Family {
        aliases: &["qwen", "qwen25"],
        reasoning: &[style::QWEN3, style::DEEPSEEK_R1],
        calls: Some(&CallFormat {
            again: &["{"],
            closers: &["</tool_call>"],
            separators: ",;]",
            ..CallFormat::new(&["<tool_call>"], |_| {
                Box::new(Envelope::new(EnvelopeRules::behind_marker("</tool_call>")))
            })
        }),
        evidence: &[
            Rule::template(&["<tool_call>", "<tools>"], &["<function="]),
            Rule::template(&["<tool_call>", "\"name\""], &["<function="]),
        ],
        ..Family::named(
            "hermes",
            env!("CARGO_PKG_VERSION"),
            "JSON objects in <tool_call> tags: Hermes, Qwen2.5, Qwen3",
        )
    };
}

export_parser!(Hermes);
