//! Lists between two markers: with nothing in them the markers are framing (policy U5).

use alloc::boxed::Box;

use tenon_guest::{
    AtCall, CallFormat, CallGrammar, Declared, Envelope, EnvelopeRules, Family, Frame, Rule, Style,
    style,
};

use crate::lists;

const VERSION: &str = env!("CARGO_PKG_VERSION");

const TOOL_CALLS: CallFormat = lists(&["<tool_calls>"], &["</tool_calls>"], |_| {
    Box::new(Envelope::new(EnvelopeRules::in_section("</tool_calls>")))
});

/// The calls of a list.
const LIST: CallGrammar = CallGrammar {
    call: "{\"name\": $QNAME, \"arguments\": $ARGS}",
    between: Some(", "),
    ..CallGrammar::JSON
};

const LIST_OF_LINES: CallGrammar = CallGrammar {
    opener: "<tool_calls>[\n",
    closer: "\n]</tool_calls>",
    trigger: "<tool_calls>",
    ..LIST
};

/// Jamba.
pub struct Jamba;

impl Declared for Jamba {
    const FAMILY: &'static Family = &Family {
        calls: Some(&TOOL_CALLS),
        grammar: Some(LIST_OF_LINES),
        evidence: &[Rule::template(&["<tool_calls>", "<|bom|>"], &[])],
        ..Family::named("jamba", VERSION, "JSON lists in <tool_calls>: Jamba")
    };
}

/// MiniMax M1: a JSON object a line.
pub struct Minimax;

impl Declared for Minimax {
    const FAMILY: &'static Family = &Family {
        aliases: &["minimax_m1"],
        reasoning: &[style::MINIMAX_M2],
        calls: Some(&TOOL_CALLS),
        grammar: Some(CallGrammar {
            opener: "<tool_calls>\n",
            between: Some("\n"),
            closer: "\n</tool_calls>",
            ..LIST_OF_LINES
        }),
        evidence: &[Rule::template(&["<tool_calls>", "<beginning_of_sentence>"], &[])],
        ..Family::named("minimax", VERSION, "JSON lines in <tool_calls>: MiniMax M1")
    };
}

/// Hunyuan A13B.
pub struct HunyuanA13b;

impl Declared for HunyuanA13b {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::HUNYUAN_A13B],
        frames: &[
            Frame { opener: "<answer>", closer: "</answer>", is_control: false },
            Frame { opener: "助手：", closer: "", is_control: false },
        ],
        calls: Some(&TOOL_CALLS),
        grammar: Some(LIST_OF_LINES),
        evidence: &[Rule::template(&["<tool_calls>", "<|extra_0|>"], &[])],
        ..Family::named(
            "hunyuan_a13b",
            VERSION,
            "JSON lists in <tool_calls>, the answer in <answer>: Hunyuan A13B",
        )
    };
}

/// Apriel 1.5 thinks in tags, 1.6 from the prompt's last line up to a phrase.
const APRIEL: Style = Style::tags(
    "apriel",
    &["<thinking>", "Here are my reasoning steps:"],
    &["</thinking>", "[BEGIN FINAL RESPONSE]"],
    AtCall::Quoted,
);

/// Apriel 1.5 and 1.6.
pub struct Apriel;

impl Declared for Apriel {
    const FAMILY: &'static Family = &Family {
        reasoning: &[APRIEL],
        calls: Some(&TOOL_CALLS),
        grammar: Some(CallGrammar {
            opener: "<tool_calls>[",
            closer: "]</tool_calls>",
            trigger: "<tool_calls>",
            ..LIST
        }),
        evidence: &[Rule::template(&["<tool_calls>[", "<available_tools>"], &[])],
        ..Family::named("apriel", VERSION, "JSON lists in <tool_calls>: Apriel 1.5 and 1.6")
    };
}

/// Nemotron nano v2 and deci.
pub struct NemotronDeci;

impl Declared for NemotronDeci {
    const FAMILY: &'static Family = &Family {
        aliases: &["nemotron_v2", "default"],
        reasoning: &[style::NEMOTRON_DECI],
        calls: Some(&lists(&["<TOOLCALL>"], &["</TOOLCALL>"], |_| {
            Box::new(Envelope::new(EnvelopeRules::in_section("</TOOLCALL>")))
        })),
        grammar: Some(CallGrammar {
            opener: "<TOOLCALL>[",
            closer: "]</TOOLCALL>",
            trigger: "<TOOLCALL>",
            ..LIST
        }),
        evidence: &[Rule::template(&["<TOOLCALL>"], &[])],
        ..Family::named(
            "nemotron_deci",
            VERSION,
            "JSON lists in <TOOLCALL>: Nemotron nano v2 and deci",
        )
    };
}

/// Apertus: a call's key is its name; calls stand inside of reasoning, too.
pub struct Apertus;

impl Declared for Apertus {
    const FAMILY: &'static Family = &Family {
        aliases: &["apertus2509"],
        reasoning: &[style::APERTUS],
        calls: Some(&lists(&["<|tools_prefix|>"], &["<|tools_suffix|>"], |_| {
            Box::new(Envelope::new(EnvelopeRules {
                key_is_name: true,
                ..EnvelopeRules::in_section("<|tools_suffix|>")
            }))
        })),
        grammar: Some(CallGrammar {
            opener: "<|tools_prefix|>[",
            call: "{$QNAME: $ARGS}",
            closer: "]<|tools_suffix|>",
            trigger: "<|tools_prefix|>",
            ..LIST
        }),
        evidence: &[
            Rule::template(&["<|tools_prefix|>"], &[]),
            Rule::vocabulary(&["<|tools_prefix|>", "<|tools_suffix|>"]),
        ],
        ..Family::named("apertus", VERSION, "lists of {NAME: ARGUMENTS} between tokens: Apertus")
    };
}

const COHERE: EnvelopeRules = EnvelopeRules {
    name_keys: &["tool_name"],
    argument_keys: &["parameters"],
    ..EnvelopeRules::in_section("<|END_ACTION|>")
};

const ACTIONS: CallGrammar = CallGrammar {
    opener: "<|START_ACTION|>[\n    ",
    call: "{\"tool_call_id\": \"$N\", \"tool_name\": $QNAME, \"parameters\": $ARGS}",
    between: Some(",\n    "),
    closer: "\n]<|END_ACTION|>",
    trigger: "<|START_ACTION|>",
    ..CallGrammar::JSON
};

/// Cohere Command R7B and A.
pub struct CohereCommand3;

impl Declared for CohereCommand3 {
    const FAMILY: &'static Family = &Family {
        aliases: &["cohere_cmd"],
        reasoning: &[style::COHERE_COMMAND3],
        frames: &[Frame {
            opener: "<|START_RESPONSE|>",
            closer: "<|END_RESPONSE|>",
            is_control: true,
        }],
        calls: Some(&lists(&["<|START_ACTION|>"], &["<|END_ACTION|>"], |_| {
            Box::new(Envelope::new(COHERE))
        })),
        grammar: Some(ACTIONS),
        evidence: &[Rule::template(&["<|START_ACTION|>", "<|START_RESPONSE|>"], &[])],
        ..Family::named(
            "cohere_command3",
            VERSION,
            "JSON lists between action tokens: Cohere Command R7B and A",
        )
    };
}

/// Cohere Command A+ and 4.
pub struct CohereCommand4;

impl Declared for CohereCommand4 {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::COHERE_COMMAND4],
        frames: &[Frame { opener: "<|START_TEXT|>", closer: "<|END_TEXT|>", is_control: true }],
        calls: Some(&lists(&["<|START_ACTION|>"], &["<|END_ACTION|>"], |_| {
            Box::new(Envelope::new(COHERE))
        })),
        grammar: Some(ACTIONS),
        evidence: &[Rule::template(&["<|START_ACTION|>", "<|START_TEXT|>"], &[])],
        ..Family::named(
            "cohere_command4",
            VERSION,
            "JSON lists between action tokens: Cohere Command A+ and 4",
        )
    };
}
