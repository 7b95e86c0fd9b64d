//! Hy3: `<tool_call>NAME<tool_sep>` and pairs of `<arg_key>` and `<arg_value>` in `<tool_calls>`.
//! Shipped vocabularies carry one suffix on every marker (`<tool_calls:opensource>`).

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    Arguments, CallFormat, CallGrammar, Closing, Declared, Family, Keys, Naming, Parameters, Rule,
    Section, TagRules, Tagged, style,
};

const TAGS: TagRules = TagRules {
    naming: Naming::WordUpTo("<tool_sep>"),
    parameter: "<arg_key>",
    keys: Keys::Pair { closer: "</arg_key>", value: "<arg_value>", kind: None },
    value_closer: "</arg_value>",
    closing: Closing::Exact(&[]),
    closer: "</tool_call>",
    outer: &["</tool_calls>"],
    next: &["<tool_call>"],
    newlines: false,
    cdata: false,
    nulls: &["null"],
};

/// The format.
pub struct HyV3;

impl Declared for HyV3 {
    const FAMILY: &'static Family = &Family {
        aliases: &["hunyuan"],
        reasoning: &[style::HY_V3],
        calls: Some(&CallFormat {
            sections: &[Section {
                opener: "<tool_calls>",
                closer: "</tool_calls>",
                empty_is_text: false,
            }],
            ..CallFormat::new(&["<tool_call>"], |opened| Box::new(Tagged::new(&TAGS, opened)))
        }),
        suffixed: true,
        inner_tokens: &[
            "</tool_call>",
            "<tool_sep>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ],
        grammar: Some(CallGrammar {
            opener: "<tool_calls>\n",
            call: "<tool_call>$NAME<tool_sep>\n$ARGS</tool_call>\n",
            between: Some(""),
            closer: "</tool_calls>",
            trigger: "<tool_calls>",
            arguments: Arguments::Parameters(Parameters::new(
                "<arg_key>$KEY</arg_key>\n<arg_value>$VALUE</arg_value>\n",
                &["</arg_value>"],
            )),
            ..CallGrammar::JSON
        }),
        evidence: &[
            Rule::template(&["<tool_calls", "<tool_sep", "<arg_key"], &[]),
            Rule::vocabulary(&["<tool_calls>", "<tool_sep>", "<arg_key>"]),
        ],
        ..Family::named(
            "hy_v3",
            env!("CARGO_PKG_VERSION"),
            "<arg_key> pairs in <tool_calls> sections: Hy3",
        )
    };
}

tenon_guest::export_parser!(HyV3);
