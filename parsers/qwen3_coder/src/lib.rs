//! Qwen3-Coder and its kin (Qwen3.5, Nemotron 3, MiMo, Step 3.5, Seed-OSS): `<function=NAME>` and
//! `<parameter=KEY>` in a wrapper. The wrapper may be forgotten; a value's closer counts only with
//! what follows it; one newline on each side of a value is framing.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    Arguments, CallFormat, CallGrammar, Closing, Declared, Family, Keys, Naming, Parameters, Rule,
    Section, TagRules, Tagged, style,
};

const TAGS: TagRules = TagRules {
    naming: Naming::Equals,
    parameter: "<parameter=",
    keys: Keys::Equals,
    value_closer: "</parameter>",
    closing: Closing::AnchoredOrNewline,
    closer: "</function>",
    outer: &["</tool_call>"],
    next: &["<function="],
    newlines: true,
    cdata: false,
    nulls: &["null"],
};

const CALLS: CallFormat = CallFormat {
    sections: &[Section { opener: "<tool_call>", closer: "</tool_call>", empty_is_text: true }],
    openers_count_bare: true,
    ..CallFormat::new(&["<function="], |opened| Box::new(Tagged::new(&TAGS, opened)))
};

/// A value stands on lines of its own.
const GRAMMAR: CallGrammar = CallGrammar {
    call: "<tool_call>\n<function=$NAME>\n$ARGS</function>\n</tool_call>",
    between: Some("\n"),
    trigger: "<tool_call>",
    arguments: Arguments::Parameters(FRAMED),
    ..CallGrammar::JSON
};

const FRAMED: Parameters = Parameters::new(
    "<parameter=$KEY>\n$VALUE\n</parameter>\n",
    &["</parameter>", "\n<parameter=", "\n</function>"],
);

/// What writes values without the newlines around them.
const BARE: Parameters =
    Parameters { each: "<parameter=$KEY>$VALUE</parameter>\n", trims_newlines: true, ..FRAMED };

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Qwen3-Coder, Qwen3.5 and later, Nemotron 3.
pub struct Qwen3Coder;

impl Declared for Qwen3Coder {
    const FAMILY: &'static Family = &Family {
        aliases: &["qwen3_xml", "qwen_xml", "nemotron_nano", "nemotron_v3", "nano_v3"],
        reasoning: &[style::QWEN3, style::NEMOTRON_V3, style::DEEPSEEK_R1],
        calls: Some(&CALLS),
        grammar: Some(GRAMMAR),
        evidence: &[Rule::template(&["<function=", "<parameter="], &["<seed:tool_call>"])],
        ..Family::named(
            "qwen3_coder",
            VERSION,
            "<function=NAME> in <tool_call> tags: Qwen3-Coder, Qwen3.5, Nemotron 3",
        )
    };
}

#[cfg(feature = "qwen3_coder")]
tenon_guest::export_parser!(Qwen3Coder);

/// MiMo. Nothing in its template tells it from Qwen3-Coder's: it is chosen by name.
pub struct Mimo;

impl Declared for Mimo {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::MIMO],
        calls: Some(&CALLS),
        grammar: Some(CallGrammar { arguments: Arguments::Parameters(BARE), ..GRAMMAR }),
        ..Family::named("mimo", VERSION, "<function=NAME> in <tool_call> tags: MiMo")
    };
}

#[cfg(feature = "mimo")]
tenon_guest::export_parser!(Mimo);

/// Step 3.5 and 3.7, whose template writes Python's `None`. Chosen by name, as MiMo.
pub struct Step3p5;

impl Declared for Step3p5 {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::STEP3P5],
        calls: Some(&CallFormat {
            reader: |opened| {
                const STEP: TagRules = TagRules { nulls: &["null", "None"], ..TAGS };
                Box::new(Tagged::new(&STEP, opened))
            },
            ..CALLS
        }),
        grammar: Some(GRAMMAR),
        ..Family::named("step3p5", VERSION, "<function=NAME> in <tool_call> tags: Step 3.5, 3.7")
    };
}

#[cfg(feature = "step3p5")]
tenon_guest::export_parser!(Step3p5);

/// Seed-OSS: markers of its own around the same tags.
pub struct SeedOss;

impl Declared for SeedOss {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::SEED_OSS],
        calls: Some(&CallFormat {
            sections: &[Section {
                opener: "<seed:tool_call>",
                closer: "</seed:tool_call>",
                empty_is_text: true,
            }],
            reader: |opened| {
                const SEED: TagRules = TagRules { outer: &["</seed:tool_call>"], ..TAGS };
                Box::new(Tagged::new(&SEED, opened))
            },
            ..CALLS
        }),
        grammar: Some(CallGrammar {
            call: "<seed:tool_call>\n<function=$NAME>\n$ARGS</function>\n</seed:tool_call>",
            trigger: "<seed:tool_call>",
            arguments: Arguments::Parameters(BARE),
            ..GRAMMAR
        }),
        evidence: &[
            Rule::template(&["<seed:tool_call>"], &[]),
            Rule::vocabulary(&["<seed:tool_call>", "</seed:tool_call>"]),
        ],
        ..Family::named("seed_oss", VERSION, "<function=NAME> in <seed:tool_call> tags: Seed-OSS")
    };
}

#[cfg(feature = "seed_oss")]
tenon_guest::export_parser!(SeedOss);
