//! MiniCPM5: `<function name="NAME">` and `<param name="KEY">`, all of it ordinary text; a value
//! may stand in a CDATA section.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    Arguments, CallFormat, CallGrammar, Closing, Declared, Family, Keys, Naming, Parameters, Rule,
    TagRules, Tagged, style,
};

const TAGS: TagRules = TagRules {
    naming: Naming::Attribute,
    parameter: "<param name=",
    keys: Keys::Attribute,
    value_closer: "</param>",
    closing: Closing::Anchored,
    closer: "</function>",
    outer: &[],
    next: &["<function name="],
    newlines: false,
    cdata: true,
    nulls: &["null"],
};

/// The format.
pub struct Minicpm5;

impl Declared for Minicpm5 {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::QWEN3],
        calls: Some(&CallFormat::new(TAGS.next, |opened| Box::new(Tagged::new(&TAGS, opened)))),
        grammar: Some(CallGrammar {
            call: "<function name=\"$NAME\">$ARGS</function>",
            between: Some(""),
            trigger: "<function name=",
            // Any text but the section's end: bare values could begin with a section's begin.
            arguments: Arguments::Parameters(Parameters::new(
                "<param name=\"$KEY\"><![CDATA[$VALUE]]></param>",
                &["]]>"],
            )),
            ..CallGrammar::JSON
        }),
        evidence: &[Rule::template(&["<function name=", "<param name="], &[])],
        ..Family::named(
            "minicpm5",
            env!("CARGO_PKG_VERSION"),
            "<function name> and <param name> tags: MiniCPM5",
        )
    };
}

tenon_guest::export_parser!(Minicpm5);
