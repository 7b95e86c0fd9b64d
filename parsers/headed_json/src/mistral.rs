//! Mistral: `[TOOL_CALLS]` and then a list of JSON objects with ids (up to v7) or, call by call,
//! `NAME[CALL_ID]ID[ARGS]{…}` (from v11 on), of which only the name and the object are always
//! there.

use alloc::boxed::Box;

use tenon_guest::{
    ByFirst, CallFormat, CallGrammar, CallReader, Declared, Envelope, EnvelopeRules, Family,
    Headed, HeadedRules, List, Part, Rule, style,
};

const OPENER: &str = "[TOOL_CALLS]";

const HEADER: HeadedRules = HeadedRules::new(
    &[Part::Name, Part::Maybe("[CALL_ID]", 1), Part::Id, Part::Maybe("[ARGS]", 1), Part::Blanks],
    &[OPENER],
);

const LISTED: EnvelopeRules =
    EnvelopeRules { id_keys: &["id"], ..EnvelopeRules::in_section(OPENER) };

fn reader(first: u8) -> Option<Box<dyn CallReader>> {
    Some(match first {
        b'[' | b'{' => Box::new(Envelope::new(LISTED)),
        _ => Box::new(Headed::new(&HEADER)),
    })
}

/// Mistral and Magistral.
pub struct Mistral;

impl Declared for Mistral {
    const FAMILY: &'static Family = &Family {
        id_pattern: "*********", // the only ids that Mistral's own checks accept
        reasoning: &[style::MISTRAL],
        inner_tokens: &["[ARGS]", "[CALL_ID]"],
        calls: Some(&CallFormat {
            again: &["{"],
            separators: ",;]",
            ..CallFormat::new(&[OPENER], |opened| match opened.marker {
                OPENER => Box::new(ByFirst::new(reader)),
                _ => Box::new(Envelope::new(EnvelopeRules { list: List::No, ..LISTED })),
            })
        }),
        grammar: Some(CallGrammar {
            call: "[TOOL_CALLS]$NAME[ARGS]$ARGS",
            between: Some(""),
            trigger: "[TOOL_CALLS]",
            ..CallGrammar::JSON
        }),
        evidence: &[
            Rule::template(&[OPENER], &[]),
            Rule { template_lacks: &["<tool_call>"], ..Rule::vocabulary(&[OPENER]) },
        ],
        ..Family::named(
            "mistral",
            env!("CARGO_PKG_VERSION"),
            "a JSON list, or names and JSON objects, behind [TOOL_CALLS]: Mistral",
        )
    };
}
