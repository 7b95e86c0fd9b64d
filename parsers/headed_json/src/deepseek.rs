//! DeepSeek R1, V3 and V3.1: a section of calls, each between tokens of its own. V3 names a type
//! and puts a fence around the arguments; the fence may be missing.

use alloc::boxed::Box;

use tenon_guest::{
    CallFormat, CallGrammar, Declared, Family, Headed, HeadedRules, Part, Rule, Section, style,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const OPENER: &str = "<｜tool▁call▁begin｜>";
const CLOSER: &str = "<｜tool▁call▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";

const CALLS: CallFormat = CallFormat {
    sections: &[Section {
        opener: "<｜tool▁calls▁begin｜>",
        closer: "<｜tool▁calls▁end｜>",
        empty_is_text: false,
    }],
    closers: &[CLOSER],
    separators: ",;]",
    ..CallFormat::new(&[OPENER], |_| Box::new(Headed::new(&V31)))
};

const V3: HeadedRules = HeadedRules {
    fence: "```",
    ..HeadedRules::new(
        &[
            Part::Blanks,
            Part::Text("function"),
            Part::Text(SEPARATOR),
            Part::Blanks,
            Part::Name,
            Part::Blanks,
            Part::Maybe("```json", 0),
            Part::Maybe("```", 0),
            Part::Blanks,
        ],
        &["```", CLOSER],
    )
};

const V31: HeadedRules = HeadedRules::new(
    &[Part::Blanks, Part::Name, Part::Blanks, Part::Text(SEPARATOR), Part::Blanks],
    &[CLOSER],
);

/// DeepSeek R1 and V3.
pub struct DeepSeekV3;

impl Declared for DeepSeekV3 {
    const FAMILY: &'static Family = &Family {
        aliases: &["deepseekv3"],
        reasoning: &[style::DEEPSEEK_R1, style::DEEPSEEK_V3],
        inner_tokens: &[SEPARATOR],
        calls: Some(&CallFormat { reader: |_| Box::new(Headed::new(&V3)), ..CALLS }),
        grammar: Some(CallGrammar {
            opener: "<｜tool▁calls▁begin｜>",
            call: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>$NAME\n\
                   ```json\n$ARGS\n```<｜tool▁call▁end｜>",
            between: Some("\n"),
            closer: "<｜tool▁calls▁end｜>",
            trigger: "<｜tool▁calls▁begin｜>",
            ..CallGrammar::JSON
        }),
        evidence: &[Rule::template(&["<｜tool▁calls▁begin｜>", "```json"], &[])],
        ..Family::named(
            "deepseek_v3",
            VERSION,
            "type, name and a fenced JSON object between tokens: DeepSeek R1 and V3",
        )
    };
}

/// DeepSeek V3.1.
pub struct DeepSeekV31;

impl Declared for DeepSeekV31 {
    const FAMILY: &'static Family = &Family {
        aliases: &["deepseekv31", "deepseek_v3_1"],
        reasoning: &[style::DEEPSEEK_V3, style::DEEPSEEK_R1],
        inner_tokens: &[SEPARATOR],
        calls: Some(&CALLS),
        grammar: Some(CallGrammar {
            opener: "<｜tool▁calls▁begin｜>",
            call: "<｜tool▁call▁begin｜>$NAME<｜tool▁sep｜>$ARGS<｜tool▁call▁end｜>",
            between: Some(""),
            closer: "<｜tool▁calls▁end｜>",
            trigger: "<｜tool▁calls▁begin｜>",
            ..CallGrammar::JSON
        }),
        evidence: &[Rule::template(&["<｜tool▁calls▁begin｜>", SEPARATOR], &["```json"])],
        ..Family::named(
            "deepseek_v31",
            VERSION,
            "name and a JSON object between tokens: DeepSeek V3.1",
        )
    };
}
