//! K2 Horizon: in `<ifm|tool_calls>` calls with a bare name and pairs of keys and values, perhaps
//! with a type between them, or JSON objects.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    Arguments, ByFirst, CallFormat, CallGrammar, Closing, Declared, Envelope, EnvelopeRules,
    Family, Keys, Naming, Parameters, Rule, Section, TagRules, Tagged, style,
};

const OPENER: &str = "<ifm|tool_call>";
const CLOSER: &str = "</ifm|tool_call>";
const SECTION_CLOSER: &str = "</ifm|tool_calls>";

const TAGS: TagRules = TagRules {
    naming: Naming::Word,
    parameter: "<ifm|arg_key>",
    keys: Keys::Pair {
        closer: "</ifm|arg_key>",
        value: "<ifm|arg_value>",
        kind: Some(("<ifm|arg_type>", "</ifm|arg_type>")),
    },
    value_closer: "</ifm|arg_value>",
    closing: Closing::Exact(&[]),
    closer: CLOSER,
    outer: &[SECTION_CLOSER],
    next: &[OPENER],
    newlines: false,
    cdata: false,
    nulls: &["null"],
};

const JSON: EnvelopeRules = EnvelopeRules::behind_marker(CLOSER);

/// The format.
pub struct K2Horizon;

impl Declared for K2Horizon {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::K2_HORIZON],
        calls: Some(&CallFormat {
            sections: &[Section {
                opener: "<ifm|tool_calls>",
                closer: SECTION_CLOSER,
                empty_is_text: false,
            }],
            again: &["{", "["],
            closers: &[CLOSER],
            separators: ",;]",
            ..CallFormat::new(&[OPENER], |_| {
                Box::new(ByFirst::new(|first| match first {
                    b'{' | b'[' => Some(Box::new(Envelope::new(JSON))),
                    _ => Some(Box::new(Tagged::plain(&TAGS, true, ""))),
                }))
            })
        }),
        inner_tokens: &[
            "<ifm|arg_key>",
            "</ifm|arg_key>",
            "<ifm|arg_type>",
            "</ifm|arg_type>",
            "<ifm|arg_value>",
            "</ifm|arg_value>",
        ],
        grammar: Some(CallGrammar {
            opener: "<ifm|tool_calls>\n",
            call: "<ifm|tool_call>$NAME\n$ARGS</ifm|tool_call>\n",
            between: Some(""),
            closer: SECTION_CLOSER,
            trigger: "<ifm|tool_calls>",
            arguments: Arguments::Parameters(Parameters::new(
                "<ifm|arg_key>$KEY</ifm|arg_key>\n\
                            <ifm|arg_value>$VALUE</ifm|arg_value>\n",
                &["</ifm|arg_value>"],
            )),
            ..CallGrammar::JSON
        }),
        evidence: &[
            Rule::template(&["<ifm|tool_call"], &[]),
            Rule::vocabulary(&["<ifm|tool_calls>", "<ifm|tool_call>"]),
        ],
        ..Family::named(
            "k2_horizon",
            env!("CARGO_PKG_VERSION"),
            "pairs of tags or JSON in <ifm|tool_calls>: K2 Horizon",
        )
    };
}

tenon_guest::export_parser!(K2Horizon);
