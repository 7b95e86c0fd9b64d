//! LongCat: in `<longcat_tool_call>` a JSON object, or a bare name and pairs of keys and values;
//! the first character tells.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    Arguments, ByFirst, CallFormat, CallGrammar, Closing, Declared, Envelope, EnvelopeRules,
    Family, Keys, Naming, Parameters, Rule, TagRules, Tagged, style,
};

const OPENER: &str = "<longcat_tool_call>";
const CLOSER: &str = "</longcat_tool_call>";

const TAGS: TagRules = TagRules {
    naming: Naming::Word,
    parameter: "<longcat_arg_key>",
    keys: Keys::Pair { closer: "</longcat_arg_key>", value: "<longcat_arg_value>", kind: None },
    value_closer: "</longcat_arg_value>",
    closing: Closing::Exact(&[]),
    closer: CLOSER,
    outer: &[],
    next: &[OPENER],
    newlines: false,
    cdata: false,
    nulls: &["null"],
};

const JSON: EnvelopeRules = EnvelopeRules::behind_marker(CLOSER);

/// The format.
pub struct Longcat;

impl Declared for Longcat {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::LONGCAT],
        calls: Some(&CallFormat {
            again: &["{"],
            closers: &[CLOSER],
            separators: ",;]",
            ..CallFormat::new(&[OPENER], |_| {
                Box::new(ByFirst::new(|first| match first {
                    b'{' | b'[' => Some(Box::new(Envelope::new(JSON))),
                    _ => Some(Box::new(Tagged::plain(&TAGS, false, ""))),
                }))
            })
        }),
        inner_tokens: &[
            "<longcat_arg_key>",
            "</longcat_arg_key>",
            "<longcat_arg_value>",
            "</longcat_arg_value>",
        ],
        grammar: Some(CallGrammar {
            call: "<longcat_tool_call>$NAME\n$ARGS</longcat_tool_call>",
            between: Some(""),
            trigger: OPENER,
            arguments: Arguments::Parameters(Parameters::new(
                "<longcat_arg_key>$KEY</longcat_arg_key>\n\
                            <longcat_arg_value>$VALUE</longcat_arg_value>\n",
                &["</longcat_arg_value>"],
            )),
            ..CallGrammar::JSON
        }),
        evidence: &[Rule::template(&[OPENER], &[]), Rule::vocabulary(&[OPENER, CLOSER])],
        ..Family::named(
            "longcat",
            env!("CARGO_PKG_VERSION"),
            "JSON or pairs of tags in <longcat_tool_call>: LongCat",
        )
    };
}

tenon_guest::export_parser!(Longcat);
