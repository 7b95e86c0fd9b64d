//! `<tool_call>` around a JSON object, as Hermes writes it, with other rules around it.

use alloc::boxed::Box;

use tenon_guest::{
    CallFormat, CallGrammar, Declared, Envelope, EnvelopeRules, Family, Frame, Rule, style,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

const TAGS: CallFormat = CallFormat {
    again: &["{"],
    closers: &["</tool_call>"],
    separators: ",;]",
    ..CallFormat::new(&["<tool_call>"], |_| {
        Box::new(Envelope::new(EnvelopeRules::behind_marker("</tool_call>")))
    })
};

const GRAMMAR: CallGrammar = CallGrammar {
    call: "<tool_call>\n{\"name\": $QNAME, \"arguments\": $ARGS}\n</tool_call>",
    between: Some("\n"),
    trigger: "<tool_call>",
    ..CallGrammar::JSON
};

/// Granite 4.
pub struct Granite4;

impl Declared for Granite4 {
    const FAMILY: &'static Family = &Family {
        calls: Some(&TAGS),
        grammar: Some(GRAMMAR),
        evidence: &[Rule::template(&["<tool_call>", "<|start_of_role|>"], &["<|tool_call|>"])],
        ..Family::named("granite4", VERSION, "JSON objects in <tool_call> tags: Granite 4")
    };
}

/// ERNIE 4.5: the answer may stand in a frame.
pub struct Ernie45;

impl Declared for Ernie45 {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::ERNIE45],
        frames: &[Frame { opener: "<response>", closer: "</response>", is_control: false }],
        calls: Some(&TAGS),
        grammar: Some(GRAMMAR),
        evidence: &[
            Rule::template(&["<tool_call>", "<global_setting>"], &[]),
            Rule::vocabulary(&["<response>", "</response>", "<tool_call>", "</tool_call>"]),
        ],
        ..Family::named(
            "ernie45",
            VERSION,
            "JSON objects in <tool_call> tags, the answer in <response>: ERNIE 4.5",
        )
    };
}

/// Trinity: calls stand inside of open reasoning, too.
pub struct Trinity;

impl Declared for Trinity {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::TRINITY],
        calls: Some(&TAGS),
        grammar: Some(GRAMMAR),
        // Its template shows nothing that Hermes' do not.
        evidence: &[],
        ..Family::named(
            "trinity",
            VERSION,
            "JSON objects in <tool_call> tags, inside of reasoning too: Trinity",
        )
    };
}
