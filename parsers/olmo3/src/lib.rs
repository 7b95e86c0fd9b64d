//! Olmo 3: `<function_calls>` around calls as Python writes them, one a line; a list is read, too.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    Arguments, CallFormat, CallGrammar, Declared, Family, Python, PythonRules, Rule, export_parser,
    style,
};

const CLOSER: &str = "</function_calls>";

/// The format.
pub struct Olmo3;

impl Declared for Olmo3 {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::OLMO3, style::QWEN3],
        calls: Some(&CallFormat {
            closers: &[CLOSER],
            separators: ",;]",
            ..CallFormat::new(&["<function_calls>"], |_| {
                Box::new(Python::new(PythonRules {
                    needs_list: false,
                    closer: CLOSER,
                    is_unescaped: false,
                }))
            })
        }),
        grammar: Some(CallGrammar {
            opener: "<function_calls>\n",
            call: "$NAME($ARGS)",
            between: Some("\n"),
            closer: "\n</function_calls>",
            trigger: "<function_calls>",
            arguments: Arguments::Keywords,
            ..CallGrammar::JSON
        }),
        evidence: &[Rule::template(&["<function_calls>"], &["<invoke name="])],
        ..Family::named(
            "olmo3",
            env!("CARGO_PKG_VERSION"),
            "Python calls, one a line, in <function_calls> tags: Olmo 3",
        )
    };
}

export_parser!(Olmo3);
