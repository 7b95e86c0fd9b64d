//! dots: `<invoke name="NAME">` and `<parameter name="KEY">`, or JSON objects, in
//! `<dots_function_call>`.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    Arguments, ByFirst, CallFormat, CallGrammar, Closing, Declared, Envelope, EnvelopeRules,
    Family, Keys, Naming, Parameters, Rule, Section, TagRules, Tagged,
};

const TAGS: TagRules = TagRules {
    naming: Naming::Proved(&[]),
    parameter: "<parameter name=",
    keys: Keys::Attribute,
    value_closer: "</parameter>",
    closing: Closing::Anchored,
    closer: "</invoke>",
    outer: &["</dots_function_call>"],
    next: &["<invoke name="],
    newlines: false,
    cdata: false,
    nulls: &["null"],
};

const JSON: EnvelopeRules = EnvelopeRules::behind_marker("</dots_function_call>");

/// The format.
pub struct Dots;

impl Declared for Dots {
    const FAMILY: &'static Family = &Family {
        calls: Some(&CallFormat {
            sections: &[Section {
                opener: "<dots_function_call>",
                closer: "</dots_function_call>",
                empty_is_text: false,
            }],
            again: &["{", "["],
            separators: ",;]",
            ..CallFormat::new(TAGS.next, |_| {
                Box::new(ByFirst::new(|first| match first {
                    b'{' | b'[' => Some(Box::new(Envelope::new(JSON))),
                    _ => Some(Box::new(Tagged::plain(&TAGS, true, ""))),
                }))
            })
        }),
        grammar: Some(CallGrammar {
            opener: "<dots_function_call>\n",
            call: "<invoke name=\"$NAME\">\n$ARGS</invoke>\n",
            between: Some(""),
            closer: "</dots_function_call>",
            trigger: "<dots_function_call>",
            arguments: Arguments::Parameters(Parameters::new(
                "<parameter name=\"$KEY\">$VALUE</parameter>\n",
                &["</parameter>"],
            )),
            ..CallGrammar::JSON
        }),
        evidence: &[Rule::template(&["<dots_function_call>"], &[])],
        ..Family::named(
            "dots",
            env!("CARGO_PKG_VERSION"),
            "<invoke> tags or JSON in <dots_function_call>: dots",
        )
    };
}

tenon_guest::export_parser!(Dots);
