//! Lists that have an opener and no closer, or no marker of their own at all.

use alloc::boxed::Box;

use tenon_guest::{
    CallFormat, CallGrammar, Declared, Envelope, EnvelopeRules, Family, List, Place, Rule, style,
};

use crate::lists;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Behind an opener that has no closer.
const OPEN_ENDED: EnvelopeRules = EnvelopeRules { closer: None, ..EnvelopeRules::in_section("") };

/// Granite 3: the whole message is a list behind a marker.
pub struct Granite;

impl Declared for Granite {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::GRANITE],
        calls: Some(&CallFormat {
            place: Place::MessageStart,
            ..lists(&["<|tool_call|>", "<tool_call>"], &[], |_| Box::new(Envelope::new(OPEN_ENDED)))
        }),
        grammar: Some(CallGrammar {
            opener: "<|tool_call|>[",
            call: "{\"name\": $QNAME, \"arguments\": $ARGS}",
            between: Some(", "),
            closer: "]",
            ..CallGrammar::JSON
        }),
        evidence: &[Rule::template(&["<|start_of_role|>", "<|tool_call|>"], &[])],
        ..Family::named("granite", VERSION, "a JSON list behind <|tool_call|>: Granite 3")
    };
}

/// Phi 4 mini and FireFunction v2.
pub struct Phi4MiniJson;

impl Declared for Phi4MiniJson {
    const FAMILY: &'static Family = &Family {
        aliases: &["phi4", "phi4_mini", "firefunction"],
        calls: Some(&lists(&["functools[", "<|tool_call|>"], &["<|/tool_call|>"], |opened| {
            Box::new(Envelope::new(match opened.marker {
                "<|tool_call|>" => EnvelopeRules::in_section("<|/tool_call|>"),
                "{" => OPEN_ENDED,
                // The word stands in prose, too: there must be an object.
                _ => EnvelopeRules { list: List::Open, empty_is_framing: false, ..OPEN_ENDED },
            }))
        })),
        grammar: Some(CallGrammar {
            opener: "functools[",
            call: "{\"name\": $QNAME, \"arguments\": $ARGS}",
            between: Some(", "),
            closer: "]",
            trigger: "functools[",
            ..CallGrammar::JSON
        }),
        evidence: &[
            Rule::template(&["functools"], &[]),
            Rule::vocabulary(&["<|tool_call|>", "<|/tool_call|>"]),
        ],
        ..Family::named(
            "phi4_mini_json",
            VERSION,
            "functools[…] or a JSON list between tokens: Phi 4 mini, FireFunction v2",
        )
    };
}

/// xLAM: the list is the message, stands in a fence or behind another family's marker.
pub struct Xlam;

/// Without a marker that only calls use: both keys must be there.
const PLAIN: EnvelopeRules = EnvelopeRules::bare();

impl Declared for Xlam {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::DEEPSEEK_R1],
        calls: Some(&CallFormat {
            bare: &["["],
            ..lists(
                &["```json", "```", "[TOOL_CALLS]", "<tool_call>"],
                &["```", "</tool_call>"],
                |opened| {
                    Box::new(Envelope::new(match opened.marker {
                        "```json" | "```" | "[" => EnvelopeRules { list: List::Must, ..PLAIN },
                        "<tool_call>" => EnvelopeRules::in_section("</tool_call>"),
                        "[TOOL_CALLS]" => OPEN_ENDED,
                        _ => PLAIN,
                    }))
                },
            )
        }),
        grammar: Some(CallGrammar {
            opener: "[",
            call: "{\"name\": $QNAME, \"arguments\": $ARGS}",
            between: Some(", "),
            closer: "]",
            ..CallGrammar::JSON
        }),
        // Its templates are those of its base models: nothing shows the format.
        evidence: &[],
        ..Family::named("xlam", VERSION, "a JSON list, plain, fenced or behind a marker: xLAM")
    };
}
