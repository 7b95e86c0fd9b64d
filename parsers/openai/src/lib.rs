//! Harmony, the format of gpt-oss: messages with a channel and a recipient in their header.
//! `analysis` is reasoning, any other channel is for the user, a recipient makes it a call. The
//! prompt ends inside of a header.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;
use alloc::string::String;

use tenon_guest::{
    Body, CallGrammar, Descriptor, Family, Framed, Grammar, Header, Messages, ModelInfo, Parser,
    RequestInfo, Route, Rule, export_parser, style,
};

const ENDS: &[&str] = &["<|end|>", "<|call|>", "<|return|>"];

const MESSAGES: Messages = Messages {
    starts: &["<|start|>"],
    in_prompt: &["<|channel|>", "to=", "<|constrain|>", "<|message|>"],
    bodies: &["<|message|>"],
    ends: ENDS,
    between: &[],
    starts_end_bodies: false,
    route,
};

const FAMILY: Family = Family {
    aliases: &["gpt-oss", "gpt_oss", "harmony"],
    reasoning: &[style::OPENAI_GPTOSS],
    inner_tokens: &["<|channel|>", "<|constrain|>"],
    evidence: &[
        Rule::template(&["<|channel|>", "<|message|>"], &["<|content_text|>"]),
        Rule::vocabulary(&["<|channel|>", "<|message|>", "<|constrain|>"]),
    ],
    ..Family::named("openai", env!("CARGO_PKG_VERSION"), "Harmony messages and channels: gpt-oss")
};

/// `<|call|>` ends the turn: one call.
const GRAMMAR: CallGrammar = CallGrammar {
    call: "<|channel|>commentary to=functions.$NAME <|constrain|>json<|message|>$ARGS",
    trigger: "<|channel|>commentary to=functions.",
    lead: Some(["<|channel|>analysis<|message|>", "<|end|><|start|>assistant"]),
    ..CallGrammar::JSON
};

/// The format.
pub struct OpenAi;

impl Parser for OpenAi {
    type Session = Framed;

    fn describe() -> Descriptor {
        Framed::describe(&FAMILY, &MESSAGES)
    }

    fn constraint(model: &ModelInfo, request: &RequestInfo) -> Result<Option<Grammar>, String> {
        Ok(GRAMMAR.build(model, request))
    }

    fn open(request: RequestInfo) -> Framed {
        Framed::new(&FAMILY, &MESSAGES, request)
    }
}

/// `[assistant] [to=R] [<|channel|>CH [to=R]] [<|constrain|>TYPE]`
fn route(header: &Header<'_>) -> Route {
    let text = header.text.split("<|constrain|>").next().unwrap_or_default();
    let (role, channel) = text.split_once("<|channel|>").unwrap_or((text, ""));
    let mut role_words = role.split_whitespace();
    let is_role = |word: &str| word == "assistant" || word.starts_with("to=");
    if channel.contains("<|") || !role_words.all(is_role) {
        return Route::Text;
    }
    let words = role.split_whitespace().chain(channel.split_whitespace());
    let recipient = words.filter_map(|word| word.strip_prefix("to=")).next();
    match recipient {
        Some("user" | "assistant" | "all") => {}
        Some(recipient) => {
            let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
            if name.is_empty() {
                return Route::Text;
            }
            return Route::Call(Box::new(Body::new(name, ENDS, false)));
        }
        None => {}
    }
    match channel.split_whitespace().next() {
        Some("analysis") => Route::Reasoning,
        _ => Route::Content,
    }
}

export_parser!(OpenAi);
