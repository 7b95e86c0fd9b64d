//! Functionary v3.2: `RECIPIENT` NEWLINE BODY, the next one behind `>>>`, of which the prompt holds
//! the first. The recipient `all` is the user, any other is a declared tool (U9: the marker is
//! ordinary text).

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;
use alloc::string::String;

use tenon_guest::document::Document;
use tenon_guest::{
    Body, CallGrammar, Descriptor, Family, Framed, Grammar, Header, Messages, ModelInfo, Parser,
    RequestInfo, Route, Rule, ToolChoice, export_parser,
};

const MESSAGES: Messages = Messages {
    starts: &[">>>"],
    in_prompt: &[""],
    bodies: &["\n"],
    ends: &[],
    between: &[],
    starts_end_bodies: true,
    route,
};

const FAMILY: Family = Family {
    aliases: &["functionary", "functionary_v3.2"],
    evidence: &[Rule::template(&[">>>all"], &[])],
    ..Family::named(
        "functionary_v3",
        env!("CARGO_PKG_VERSION"),
        "recipients and bodies: Functionary v3.2",
    )
};

const GRAMMAR: CallGrammar =
    CallGrammar { call: "$NAME\n$ARGS", between: Some(">>>"), ..CallGrammar::JSON };

/// The format.
pub struct FunctionaryV3;

impl Parser for FunctionaryV3 {
    type Session = Framed;

    fn describe() -> Descriptor {
        Framed::describe(&FAMILY, &MESSAGES)
    }

    fn constraint(model: &ModelInfo, request: &RequestInfo) -> Result<Option<Grammar>, String> {
        if request.tool_choice == ToolChoice::Auto {
            // Nothing but its name says that a message is a call.
            return Ok(None);
        }
        Ok(GRAMMAR.build(model, request))
    }

    fn open(request: RequestInfo) -> Framed {
        Framed::new(&FAMILY, &MESSAGES, request)
    }
}

fn route(header: &Header<'_>) -> Route {
    match header.text {
        "all" => Route::Content,
        name if is_declared(name, &header.request.tools) => {
            Route::Call(Box::new(Body::new(name, &[], true)))
        }
        _ => Route::Text,
    }
}

fn is_declared(name: &str, tools: &str) -> bool {
    let names = |tool: Document<'_>| {
        let function = tool.get("function").unwrap_or(tool);
        function.get("name").is_some_and(|declared| declared.is_string(name))
    };
    Document::of(tools).is_some_and(|tools| tools.items().any(names))
}

export_parser!(FunctionaryV3);
