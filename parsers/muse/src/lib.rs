//! Muse Glimmer: messages whose recipient is the channel, as in Harmony. `self` is reasoning,
//! `user` the answer, anything else a tool, whose message holds a block of calls in tags.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;
use alloc::string::String;

use tenon_guest::{
    Arguments, AtCall, Call, CallGrammar, CallReader, Closing, Descriptor, Family, Framed, Grammar,
    Header, Keys, Messages, ModelInfo, Naming, Opened, Parameters, Parser, RequestInfo, Route,
    Rule, Step, Style, TagRules, Tagged, ToolChoice, export_parser, is_blank,
};

const ENDS: &[&str] = &["<|eom|>", "<|eot|>", "<|end_of_text|>"];
const BLOCK: &str = "<atem:function_calls>";
const BLOCK_END: &str = "</atem:function_calls>";
const INVOKE: &str = "<atem:invoke name=";

const MESSAGES: Messages = Messages {
    starts: &["<|start|>"],
    in_prompt: &["to=", "<|message|>"],
    bodies: &["<|message|>"],
    ends: ENDS,
    between: &[],
    starts_end_bodies: false,
    route,
};

const RULES: TagRules = TagRules {
    naming: Naming::Proved(&[]),
    parameter: "<atem:parameter name=",
    keys: Keys::Attribute,
    value_closer: "</atem:parameter>",
    closing: Closing::Anchored,
    closer: "</atem:invoke>",
    outer: &[BLOCK_END],
    next: &[INVOKE],
    newlines: false,
    cdata: false,
    nulls: &["null"],
};

/// Messages to itself.
const STYLE: Style = Style::tags("muse", &["to=self<|message|>"], &["<|eom|>"], AtCall::Quoted);

const FAMILY: Family = Family {
    aliases: &["muse_glimmer"],
    reasoning: &[STYLE],
    inner_tokens: &["<|start|>", "<|message|>"],
    evidence: &[Rule::template(&["<atem:function_calls>"], &[])],
    ..Family::named("muse", env!("CARGO_PKG_VERSION"), "messages with recipients: Muse Glimmer")
};

const GRAMMAR: CallGrammar = CallGrammar {
    opener: " to=tools<|message|><atem:function_calls>\n",
    call: "<atem:invoke name=\"$NAME\">\n$ARGS</atem:invoke>\n",
    between: Some(""),
    closer: "</atem:function_calls>",
    lead: Some([" to=self<|message|>", "<|eom|><|start|>assistant"]),
    arguments: Arguments::Parameters(Parameters::new(
        "<atem:parameter name=\"$KEY\">$VALUE</atem:parameter>\n",
        &["</atem:parameter>"],
    )),
    ..CallGrammar::JSON
};

/// The format.
pub struct Muse;

impl Parser for Muse {
    type Session = Framed;

    fn describe() -> Descriptor {
        Framed::describe(&FAMILY, &MESSAGES)
    }

    fn constraint(model: &ModelInfo, request: &RequestInfo) -> Result<Option<Grammar>, String> {
        if request.tool_choice == ToolChoice::Auto {
            let block =
                CallGrammar { opener: "<atem:function_calls>\n", trigger: BLOCK, ..GRAMMAR };
            return Ok(block.build(model, request));
        }
        Ok(GRAMMAR.build(model, request))
    }

    fn open(request: RequestInfo) -> Framed {
        Framed::new(&FAMILY, &MESSAGES, request)
    }
}

/// `[assistant] [to=R]`
fn route(header: &Header<'_>) -> Route {
    let mut recipient = "user";
    for word in header.text.split_whitespace() {
        match word.strip_prefix("to=") {
            Some(name) => recipient = name,
            None if word == "assistant" => {}
            None => return Route::Text,
        }
    }
    match recipient {
        "user" => Route::Content,
        "self" => Route::Reasoning,
        _ => Route::Call(Box::new(Block::new(header.request))),
    }
}

/// A block of calls: each has its own reader.
struct Block {
    request: RequestInfo,
    at: At,
}

enum At {
    Start,
    /// Inside the block, before a call or its end.
    Gap,
    Call(Box<Tagged>),
}

impl Block {
    fn new(request: &RequestInfo) -> Self {
        Block { request: request.clone(), at: At::Start }
    }

    /// At a fixed text: how long it is, or whether more must come.
    fn fixed(text: &str, wanted: &str, end: bool) -> Result<usize, bool> {
        if text.starts_with(wanted) {
            return Ok(wanted.len());
        }
        Err(!end && wanted.starts_with(text))
    }
}

impl CallReader for Block {
    fn read(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Step {
        let mut used = 0;
        loop {
            let rest = &text[used..];
            if let At::Call(reader) = &mut self.at {
                match reader.read(rest, end, call) {
                    Step::More(len) => return Step::More(used + len),
                    Step::Done(len) | Step::Closed(len) => {
                        used += len;
                        self.at = At::Gap;
                        continue;
                    }
                    Step::Fail => return Step::Fail,
                }
            }
            let num_blanks = rest.bytes().take_while(|byte| is_blank(*byte)).count();
            used += num_blanks;
            let rest = &text[used..];
            if rest.is_empty() {
                return Step::More(used);
            }
            let is_start = matches!(self.at, At::Start);
            match Self::fixed(rest, if is_start { BLOCK } else { INVOKE }, end) {
                Ok(len) if is_start => {
                    used += len;
                    self.at = At::Gap;
                }
                Ok(len) => {
                    used += len;
                    let request = &self.request;
                    let opened = Opened { marker: INVOKE, request, suffix: "", in_section: true };
                    self.at = At::Call(Box::new(Tagged::new(&RULES, &opened)));
                }
                Err(true) => return Step::More(used),
                Err(false) => {
                    return match Self::fixed(rest, BLOCK_END, end) {
                        Ok(len) => Step::Closed(used + len),
                        Err(true) => Step::More(used),
                        Err(false) => Step::Done(used),
                    };
                }
            }
        }
    }
}

export_parser!(Muse);
