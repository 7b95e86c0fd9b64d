//! A JSON object behind markers that only this family has.

use alloc::boxed::Box;

use tenon_guest::{
    CallFormat, CallGrammar, Declared, Envelope, EnvelopeRules, Family, Rule, style,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// InternLM 2 and Intern-S1: two tokens open a call.
pub struct Internlm;

impl Declared for Internlm {
    const FAMILY: &'static Family = &Family {
        aliases: &["internlm2", "interns1"],
        reasoning: &[style::INTERNS1, style::QWEN3],
        inner_tokens: &["<|plugin|>"],
        calls: Some(&CallFormat {
            again: &["{"],
            closers: &["<|action_end|>"],
            separators: ",;]",
            ..CallFormat::new(&["<|action_start|>"], |opened| {
                let rules = EnvelopeRules::behind_marker("<|action_end|>");
                let lead = if opened.marker == "{" { rules.lead } else { "<|plugin|>" };
                Box::new(Envelope::new(EnvelopeRules { lead, ..rules }))
            })
        }),
        grammar: Some(CallGrammar {
            call: "<|action_start|><|plugin|>\n\
                   {\"name\": $QNAME, \"arguments\": $ARGS}<|action_end|>",
            between: Some("\n"),
            trigger: "<|action_start|>",
            ..CallGrammar::JSON
        }),
        evidence: &[Rule::vocabulary(&["<|action_start|>", "<|plugin|>"])],
        ..Family::named(
            "internlm",
            VERSION,
            "a JSON object between action tokens: InternLM 2, Intern-S1",
        )
    };
}

/// GigaChat 3: the header of a message of its own, or one token.
pub struct GigaChat3;

impl Declared for GigaChat3 {
    const FAMILY: &'static Family = &Family {
        inner_tokens: &["<|message_sep|>", "<|role_sep|>"],
        calls: Some(&CallFormat {
            closers: &["<|message_sep|>", "</s>"],
            separators: ",;]",
            ..CallFormat::new(
                &["<|message_sep|>\n\nfunction call<|role_sep|>", "<|function_call|>"],
                |_| Box::new(Envelope::new(EnvelopeRules::behind_marker("<|message_sep|>"))),
            )
        }),
        grammar: Some(CallGrammar {
            call: "<|function_call|>{\"name\": $QNAME, \"arguments\": $ARGS}",
            trigger: "<|function_call|>",
            ..CallGrammar::JSON
        }),
        evidence: &[Rule::template(&["<|message_sep|>", "function call"], &["GCML"])],
        ..Family::named(
            "gigachat3",
            VERSION,
            "a JSON object in a message `function call`: GigaChat 3",
        )
    };
}

/// Granite 20b function calling: no closer.
pub struct Granite20bFc;

impl Declared for Granite20bFc {
    const FAMILY: &'static Family = &Family {
        calls: Some(&CallFormat {
            separators: ",;]",
            ..CallFormat::new(&["<function_call>"], |_| {
                Box::new(Envelope::new(EnvelopeRules::behind_marker("<function_call>")))
            })
        }),
        grammar: Some(CallGrammar {
            call: "<function_call> {\"name\": $QNAME, \"arguments\": $ARGS}",
            between: Some(" "),
            trigger: "<function_call>",
            ..CallGrammar::JSON
        }),
        evidence: &[Rule::template(&["<function_call>"], &[])],
        ..Family::named(
            "granite-20b-fc",
            VERSION,
            "JSON objects behind <function_call>: Granite 20b function calling",
        )
    };
}
