//! MiniMax M2: `<invoke name="NAME">` and `<parameter name="KEY">` in `<minimax:tool_call>`, which
//! may be forgotten. The inner tags are ordinary text.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    Arguments, CallFormat, CallGrammar, Closing, Declared, Family, Keys, Naming, Parameters, Rule,
    Section, TagRules, Tagged, style,
};

/// In the wrapper an `invoke` is a call; without it the next tag has to prove it.
const TAGS: TagRules = TagRules {
    naming: Naming::Proved(&[]),
    parameter: "<parameter name=",
    keys: Keys::Attribute,
    value_closer: "</parameter>",
    closing: Closing::Anchored,
    closer: "</invoke>",
    outer: &["</minimax:tool_call>"],
    next: &["<invoke name="],
    newlines: true,
    cdata: false,
    nulls: &["null"],
};

const BARE_TAGS: TagRules = TagRules { naming: Naming::Attribute, ..TAGS };

/// The format.
pub struct MinimaxM2;

impl Declared for MinimaxM2 {
    const FAMILY: &'static Family = &Family {
        aliases: &["minimax-m2"],
        reasoning: &[style::MINIMAX_M2, style::MINIMAX_M2_APPEND_THINK],
        calls: Some(&CallFormat {
            sections: &[Section {
                opener: "<minimax:tool_call>",
                closer: "</minimax:tool_call>",
                empty_is_text: false,
            }],
            openers_count_bare: true,
            ..CallFormat::new(TAGS.next, |opened| {
                let tags = if opened.in_section { &TAGS } else { &BARE_TAGS };
                Box::new(Tagged::new(tags, opened))
            })
        }),
        grammar: Some(CallGrammar {
            opener: "<minimax:tool_call>\n",
            call: "<invoke name=\"$NAME\">\n$ARGS</invoke>\n",
            between: Some(""),
            closer: "</minimax:tool_call>",
            trigger: "<minimax:tool_call>",
            arguments: Arguments::Parameters(Parameters {
                trims_newlines: true,
                ..Parameters::new(
                    "<parameter name=\"$KEY\">$VALUE</parameter>\n",
                    &["</parameter>"],
                )
            }),
            ..CallGrammar::JSON
        }),
        evidence: &[
            Rule::template(&["<minimax:tool_call>"], &[]),
            Rule::vocabulary(&["<minimax:tool_call>", "</minimax:tool_call>"]),
        ],
        ..Family::named(
            "minimax_m2",
            env!("CARGO_PKG_VERSION"),
            "<invoke> in <minimax:tool_call> tags: MiniMax M2",
        )
    };
}

tenon_guest::export_parser!(MinimaxM2);
