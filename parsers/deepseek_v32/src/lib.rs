//! DeepSeek V3.2 and V4, and GigaChat 3.5: `invoke` and `parameter` tags whose names carry a token
//! (`｜DSML｜`, `｜GCML｜`). A parameter says itself whether it is a string.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    Arguments, CallFormat, CallGrammar, Closing, Declared, Family, Keys, Naming, Parameters, Rule,
    Section, TagRules, Tagged, style,
};

/// One of them is a token each.
const TAGS: TagRules = TagRules {
    naming: Naming::Proved(&[]),
    parameter: "<｜DSML｜parameter name=",
    keys: Keys::Attribute,
    value_closer: "</｜DSML｜parameter>",
    closing: Closing::Exact(&[]),
    closer: "</｜DSML｜invoke>",
    outer: &["</｜DSML｜function_calls>"],
    next: &["<｜DSML｜invoke name="],
    newlines: false,
    cdata: false,
    nulls: &["null"],
};

const V4_TAGS: TagRules = TagRules { outer: &["</｜DSML｜tool_calls>"], ..TAGS };

const GIGA_TAGS: TagRules = TagRules {
    parameter: "<｜GCML｜parameter name=",
    value_closer: "</｜GCML｜parameter>",
    closer: "</｜GCML｜invoke>",
    outer: &["</｜GCML｜tool_calls>"],
    next: &["<｜GCML｜invoke name="],
    ..TAGS
};

const GRAMMAR: CallGrammar = CallGrammar {
    opener: "<｜DSML｜function_calls>\n",
    call: "<｜DSML｜invoke name=\"$NAME\">\n$ARGS</｜DSML｜invoke>\n",
    between: Some(""),
    closer: "</｜DSML｜function_calls>",
    trigger: "<｜DSML｜function_calls>",
    arguments: Arguments::Parameters(Parameters::new(
        "<｜DSML｜parameter name=\"$KEY\" string=\"$IS_TEXT\">$VALUE\
                    </｜DSML｜parameter>\n",
        &["</｜DSML｜parameter>"],
    )),
    ..CallGrammar::JSON
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// DeepSeek V3.2.
pub struct DeepseekV32;

impl Declared for DeepseekV32 {
    const FAMILY: &'static Family = &Family {
        aliases: &["deepseekv32", "deepseek_v3_2"],
        reasoning: &[style::DEEPSEEK_V3, style::DEEPSEEK_R1],
        calls: Some(&CallFormat {
            sections: &[Section {
                opener: "<｜DSML｜function_calls>",
                closer: "</｜DSML｜function_calls>",
                empty_is_text: false,
            }],
            ..CallFormat::new(TAGS.next, |opened| Box::new(Tagged::new(&TAGS, opened)))
        }),
        inner_tokens: &["｜DSML｜"],
        grammar: Some(GRAMMAR),
        evidence: &[Rule::template(&["｜DSML｜", "function_calls"], &["DSML｜tool_calls"])],
        ..Family::named("deepseek_v32", VERSION, "<｜DSML｜function_calls>: DeepSeek V3.2")
    };
}

#[cfg(feature = "deepseek_v32")]
tenon_guest::export_parser!(DeepseekV32);

/// DeepSeek V4.
pub struct DeepseekV4;

impl Declared for DeepseekV4 {
    const FAMILY: &'static Family = &Family {
        aliases: &["deepseekv4", "deepseek-v4", "deepseek_v41", "deepseekv41"],
        reasoning: &[style::DEEPSEEK_V4, style::DEEPSEEK_R1],
        calls: Some(&CallFormat {
            sections: &[Section {
                opener: "<｜DSML｜tool_calls>",
                closer: "</｜DSML｜tool_calls>",
                empty_is_text: false,
            }],
            ..CallFormat::new(TAGS.next, |opened| Box::new(Tagged::new(&V4_TAGS, opened)))
        }),
        inner_tokens: &["｜DSML｜"],
        grammar: Some(CallGrammar {
            opener: "<｜DSML｜tool_calls>\n",
            closer: "</｜DSML｜tool_calls>",
            trigger: "<｜DSML｜tool_calls>",
            ..GRAMMAR
        }),
        evidence: &[Rule::template(&["｜DSML｜", "tool_calls"], &["function_calls"])],
        ..Family::named("deepseek_v4", VERSION, "<｜DSML｜tool_calls>: DeepSeek V4")
    };
}

#[cfg(feature = "deepseek_v4")]
tenon_guest::export_parser!(DeepseekV4);

/// GigaChat 3.5.
pub struct Gigachat35;

impl Declared for Gigachat35 {
    const FAMILY: &'static Family = &Family {
        calls: Some(&CallFormat {
            sections: &[Section {
                opener: "<｜GCML｜tool_calls>",
                closer: "</｜GCML｜tool_calls>",
                empty_is_text: false,
            }],
            ..CallFormat::new(GIGA_TAGS.next, |opened| Box::new(Tagged::new(&GIGA_TAGS, opened)))
        }),
        inner_tokens: &["｜GCML｜"],
        grammar: Some(CallGrammar {
            opener: "<｜GCML｜tool_calls>\n",
            call: "<｜GCML｜invoke name=\"$NAME\">\n$ARGS</｜GCML｜invoke>\n",
            closer: "</｜GCML｜tool_calls>",
            trigger: "<｜GCML｜tool_calls>",
            arguments: Arguments::Parameters(Parameters::new(
                "<｜GCML｜parameter name=\"$KEY\" string=\"$IS_TEXT\">$VALUE\
                            </｜GCML｜parameter>\n",
                &["</｜GCML｜parameter>"],
            )),
            ..GRAMMAR
        }),
        evidence: &[Rule::template(&["｜GCML｜"], &[]), Rule::vocabulary(&["｜GCML｜"])],
        ..Family::named("gigachat35", VERSION, "<｜GCML｜tool_calls>: GigaChat 3.5")
    };
}

#[cfg(feature = "gigachat35")]
tenon_guest::export_parser!(Gigachat35);
