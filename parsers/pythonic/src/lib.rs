//! Llama 3.2, Llama 4, ToolACE, Gemma 3: a Python list of calls at the message start, between
//! `<|python_start|>` and `<|python_end|>` or not. A list of anything else is the answer.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    Arguments, CallFormat, CallGrammar, Declared, Family, Place, Python, PythonRules, Rule,
    export_parser, style,
};

const OPENER: &str = "<|python_start|>";
const CLOSER: &str = "<|python_end|>";

/// The format.
pub struct Pythonic;

impl Declared for Pythonic {
    const FAMILY: &'static Family = &Family {
        aliases: &["llama4_pythonic", "gemma3_pythonic"],
        reasoning: &[style::QWEN3, style::DEEPSEEK_R1],
        calls: Some(&CallFormat {
            place: Place::MessageStart,
            bare: &["["],
            closers: &[CLOSER],
            separators: ",;]",
            ..CallFormat::new(&[OPENER], |opened| {
                let closer = if opened.marker == OPENER { CLOSER } else { "" };
                Box::new(Python::new(PythonRules { needs_list: true, closer, is_unescaped: false }))
            })
        }),
        grammar: Some(CallGrammar {
            opener: "[",
            call: "$NAME($ARGS)",
            between: Some(", "),
            closer: "]",
            arguments: Arguments::Keywords,
            ..CallGrammar::JSON
        }),
        evidence: &[
            Rule::template(&["[func_name1(params_name1="], &["<tool_call>", "<TOOLCALL>"]),
            Rule::template(&["<|python_start|>["], &[]),
        ],
        ..Family::named(
            "pythonic",
            env!("CARGO_PKG_VERSION"),
            "a Python list of calls: Llama 3.2 and 4, ToolACE, Gemma 3",
        )
    };
}

export_parser!(Pythonic);
