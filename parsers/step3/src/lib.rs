//! Step 3: calls between tokens, in them the word `function`, a separator and `steptml` tags, which
//! are ordinary text.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    Arguments, CallFormat, CallGrammar, Closing, Declared, Family, Keys, Naming, Parameters, Rule,
    Section, TagRules, Tagged, style,
};

const TAGS: TagRules = TagRules {
    naming: Naming::Proved(&["function", "<｜tool_sep｜>", "<steptml:invoke name="]),
    parameter: "<steptml:parameter name=",
    keys: Keys::Attribute,
    value_closer: "</steptml:parameter>",
    closing: Closing::Anchored,
    closer: "</steptml:invoke>",
    outer: &["<｜tool_call_end｜>", "<｜tool_calls_end｜>"],
    next: &["<｜tool_call_begin｜>"],
    newlines: false,
    cdata: false,
    nulls: &["null"],
};

/// The format.
pub struct Step3;

impl Declared for Step3 {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::STEP3],
        calls: Some(&CallFormat {
            sections: &[Section {
                opener: "<｜tool_calls_begin｜>",
                closer: "<｜tool_calls_end｜>",
                empty_is_text: false,
            }],
            closers: &["<｜tool_call_end｜>"],
            ..CallFormat::new(TAGS.next, |opened| Box::new(Tagged::new(&TAGS, opened)))
        }),
        inner_tokens: &["<｜tool_sep｜>"],
        grammar: Some(CallGrammar {
            opener: "<｜tool_calls_begin｜>\n",
            call: "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"$NAME\">\n\
                   $ARGS</steptml:invoke><｜tool_call_end｜>\n",
            between: Some(""),
            closer: "<｜tool_calls_end｜>",
            trigger: "<｜tool_calls_begin｜>",
            arguments: Arguments::Parameters(Parameters::new(
                "<steptml:parameter name=\"$KEY\">$VALUE</steptml:parameter>\n",
                &["</steptml:parameter>"],
            )),
            ..CallGrammar::JSON
        }),
        evidence: &[Rule::template(&["<steptml:invoke"], &[])],
        ..Family::named("step3", env!("CARGO_PKG_VERSION"), "steptml tags between tokens: Step 3")
    };
}

tenon_guest::export_parser!(Step3);
