//! GLM 4.5 to 5 and what writes calls alike (Poolside, Ling 3, Spark 2.5): a bare name and pairs of
//! `<arg_key>` and `<arg_value>` in `<tool_call>`. All of these tags are tokens, so the first
//! closer counts; values are exact.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    Arguments, CallFormat, CallGrammar, Closing, Declared, Family, Keys, Naming, Parameters, Rule,
    TagRules, Tagged, style,
};

const TAGS: TagRules = TagRules {
    naming: Naming::Word,
    parameter: "<arg_key>",
    keys: Keys::Pair { closer: "</arg_key>", value: "<arg_value>", kind: None },
    value_closer: "</arg_value>",
    closing: Closing::Exact(&[]),
    closer: "</tool_call>",
    outer: &[],
    next: &["<tool_call>"],
    newlines: false,
    cdata: false,
    nulls: &["null"],
};

const CALLS: CallFormat =
    CallFormat::new(&["<tool_call>"], |opened| Box::new(Tagged::new(&TAGS, opened)));

/// Tags on lines of their own.
const GRAMMAR: CallGrammar = CallGrammar {
    call: "<tool_call>$NAME\n$ARGS</tool_call>",
    between: Some("\n"),
    trigger: "<tool_call>",
    arguments: Arguments::Parameters(Parameters::new(
        "<arg_key>$KEY</arg_key>\n<arg_value>$VALUE</arg_value>\n",
        &["</arg_value>"],
    )),
    ..CallGrammar::JSON
};

/// The tags inside of a call.
const INNER: &[&str] = &["</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"];

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What others have that write `<arg_key>`, too.
const OTHERS: &[&str] = &["{function-name}<arg_key>", "<tool_sep>", "<available_tools>"];

/// GLM 4.5 and 4.6.
pub struct Glm45;

impl Declared for Glm45 {
    const FAMILY: &'static Family = &Family {
        aliases: &["glm"],
        reasoning: &[style::GLM45, style::GLM47, style::DEEPSEEK_R1],
        calls: Some(&CALLS),
        inner_tokens: INNER,
        grammar: Some(GRAMMAR),
        evidence: &[Rule::template(&["<tool_call>", "<arg_key>"], OTHERS)],
        ..Family::named("glm45", VERSION, "<arg_key> pairs in <tool_call> tags: GLM 4.5, 4.6")
    };
}

#[cfg(feature = "glm45")]
tenon_guest::export_parser!(Glm45);

/// GLM 4.7 and 5, which write no newlines between the tags.
pub struct Glm47;

impl Declared for Glm47 {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::GLM47, style::GLM45, style::DEEPSEEK_R1],
        calls: Some(&CALLS),
        inner_tokens: INNER,
        grammar: Some(CallGrammar {
            call: "<tool_call>$NAME$ARGS</tool_call>",
            between: Some(""),
            arguments: Arguments::Parameters(Parameters::new(
                "<arg_key>$KEY</arg_key><arg_value>$VALUE</arg_value>",
                &["</arg_value>"],
            )),
            ..GRAMMAR
        }),
        evidence: &[Rule::template(
            &["<tool_call>{function-name}<arg_key>"],
            &["<available_tools>"],
        )],
        ..Family::named("glm47", VERSION, "<arg_key> pairs in <tool_call> tags: GLM 4.7, 5")
    };
}

#[cfg(feature = "glm47")]
tenon_guest::export_parser!(Glm47);

/// Poolside's Laguna.
pub struct PoolsideV1;

impl Declared for PoolsideV1 {
    const FAMILY: &'static Family = &Family {
        aliases: &["laguna"],
        reasoning: &[style::POOLSIDE_V1],
        calls: Some(&CALLS),
        inner_tokens: INNER,
        grammar: Some(GRAMMAR),
        evidence: &[Rule::template(&["<available_tools>", "<arg_key>"], &[])],
        ..Family::named("poolside_v1", VERSION, "<arg_key> pairs in <tool_call> tags: Laguna")
    };
}

#[cfg(feature = "poolside_v1")]
tenon_guest::export_parser!(PoolsideV1);

/// Ling 3. Nothing is known to tell its template from GLM's: it is chosen by name.
pub struct Ling3;

impl Declared for Ling3 {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::QWEN3],
        calls: Some(&CALLS),
        inner_tokens: INNER,
        grammar: Some(GRAMMAR),
        ..Family::named("ling3", VERSION, "<arg_key> pairs in <tool_call> tags: Ling 3")
    };
}

#[cfg(feature = "ling3")]
tenon_guest::export_parser!(Ling3);

/// Spark 2.5. Chosen by name, as Ling 3.
pub struct Spark25;

impl Declared for Spark25 {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::QWEN3],
        calls: Some(&CALLS),
        inner_tokens: INNER,
        grammar: Some(GRAMMAR),
        ..Family::named("spark25", VERSION, "<arg_key> pairs in <tool_call> tags: Spark 2.5")
    };
}

#[cfg(feature = "spark25")]
tenon_guest::export_parser!(Spark25);
