//! Inkling: typed messages, `<|message_model|>` HEADER TYPE BODY `<|end_message|>`. The body of a
//! call is a JSON object with its name and `args`; its header repeats the name.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;
use alloc::string::String;

use tenon_guest::{
    CallGrammar, Descriptor, Envelope, EnvelopeRules, Family, Framed, Grammar, Header, List,
    Messages, ModelInfo, Parser, RequestInfo, Route, Rule, ToolChoice, export_parser, style,
};

const CALL: &str = "<|content_invoke_tool_json|>";
const THINKING: &str = "<|content_thinking|>";
const TEXT: &str = "<|content_text|>";

const MESSAGES: Messages = Messages {
    starts: &["<|message_model|>"],
    in_prompt: &[THINKING, TEXT, CALL],
    bodies: &[THINKING, TEXT, CALL],
    ends: &["<|end_message|>"],
    between: &["<|content_model_end_sampling|>"],
    starts_end_bodies: false,
    route,
};

const RULES: EnvelopeRules = EnvelopeRules {
    argument_keys: &["args", "arguments", "parameters"],
    list: List::No,
    ..EnvelopeRules::behind_marker("<|end_message|>")
};

const FAMILY: Family = Family {
    reasoning: &[style::INKLING],
    evidence: &[
        Rule::template(&["<|message_model|>", CALL], &[]),
        Rule::vocabulary(&["<|message_model|>", CALL]),
    ],
    ..Family::named("inkling", env!("CARGO_PKG_VERSION"), "typed messages: Inkling")
};

const GRAMMAR: CallGrammar = CallGrammar {
    call: "<|message_model|>$NAME<|content_invoke_tool_json|>\
           {\"name\":$QNAME,\"args\":$ARGS}<|end_message|>",
    between: Some(""),
    ..CallGrammar::JSON
};

/// The format.
pub struct Inkling;

impl Parser for Inkling {
    type Session = Framed;

    fn describe() -> Descriptor {
        Framed::describe(&FAMILY, &MESSAGES)
    }

    fn constraint(model: &ModelInfo, request: &RequestInfo) -> Result<Option<Grammar>, String> {
        if request.tool_choice == ToolChoice::Auto {
            // Answers and thoughts begin with the same token.
            return Ok(None);
        }
        Ok(GRAMMAR.build(model, request))
    }

    fn open(request: RequestInfo) -> Framed {
        Framed::new(&FAMILY, &MESSAGES, request)
    }
}

fn route(header: &Header<'_>) -> Route {
    match header.body {
        THINKING => Route::Reasoning,
        CALL => Route::Call(Box::new(Envelope::new(RULES))),
        _ => Route::Content,
    }
}

export_parser!(Inkling);
