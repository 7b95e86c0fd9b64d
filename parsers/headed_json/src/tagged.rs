//! Kimi K2: a section of calls, each with an id that the next prompt repeats. Functionary 3.1: the
//! name stands in the tag around the arguments.

use alloc::boxed::Box;

use tenon_guest::{
    CallFormat, CallGrammar, Declared, Family, Headed, HeadedRules, Part, Rule, Section, style,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

const KIMI: HeadedRules = HeadedRules {
    may_be_empty: true,
    ..HeadedRules::new(
        &[
            Part::Blanks,
            Part::NameInId,
            Part::Blanks,
            Part::Text("<|tool_call_argument_begin|>"),
            Part::Blanks,
        ],
        &["<|tool_call_end|>"],
    )
};

/// Kimi K2, K2 Thinking and K2.5.
pub struct KimiK2;

impl Declared for KimiK2 {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::KIMI_K2, style::KIMI],
        inner_tokens: &["<|tool_call_argument_begin|>"],
        calls: Some(&CallFormat {
            sections: &[
                Section {
                    opener: "<|tool_calls_section_begin|>",
                    closer: "<|tool_calls_section_end|>",
                    empty_is_text: false,
                },
                Section {
                    opener: "<|tool_call_section_begin|>",
                    closer: "<|tool_call_section_end|>",
                    empty_is_text: false,
                },
            ],
            closers: &["<|tool_call_end|>"],
            separators: ",;]",
            ..CallFormat::new(&["<|tool_call_begin|>"], |_| Box::new(Headed::new(&KIMI)))
        }),
        grammar: Some(CallGrammar {
            opener: "<|tool_calls_section_begin|>",
            call: "<|tool_call_begin|>functions.$NAME:$N\
                   <|tool_call_argument_begin|>$ARGS<|tool_call_end|>",
            between: Some(""),
            closer: "<|tool_calls_section_end|>",
            trigger: "<|tool_calls_section_begin|>",
            ..CallGrammar::JSON
        }),
        evidence: &[
            Rule::template(&["<|tool_calls_section_begin|>"], &[]),
            Rule::vocabulary(&["<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"]),
        ],
        ..Family::named("kimi_k2", VERSION, "ids, names and JSON objects between tokens: Kimi K2")
    };
}

const FUNCTION: HeadedRules =
    HeadedRules::new(&[Part::Name, Part::Text(">"), Part::Blanks], &["</function>"]);

/// Functionary 3.1.
pub struct FunctionaryV31;

impl Declared for FunctionaryV31 {
    const FAMILY: &'static Family = &Family {
        aliases: &["functionary_v3_1"],
        calls: Some(&CallFormat {
            closers: &["</function>"],
            separators: ",;]",
            ..CallFormat::new(&["<function="], |_| Box::new(Headed::new(&FUNCTION)))
        }),
        grammar: Some(CallGrammar {
            call: "<function=$NAME>$ARGS</function>",
            between: Some(""),
            trigger: "<function=",
            ..CallGrammar::JSON
        }),
        evidence: &[Rule::template(&["<function=", "<|python_tag|>"], &["<tool_call>"])],
        ..Family::named(
            "functionary_v31",
            VERSION,
            "a JSON object in <function=NAME>: Functionary 3.1",
        )
    };
}
