//! Kimi K3: everything stands between `<|open|>TAG<|sep|>` and `<|close|>TAG<|sep|>`. A call is a
//! `call` in `tools`, each argument an element that says its own type, or all of them one `json`.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

mod xtml;

use tenon_guest::{
    Arguments, AtCall, CallFormat, CallGrammar, Declared, Family, Frame, Parameters, Rule, Section,
    Style, export_parser,
};
use xtml::Xtml;

/// The channel `think`.
const KIMI_K3: Style = Style {
    aliases: &["kimi-k3"],
    anywhere: &["<|open|>think<|sep|>"],
    ..Style::tags("kimi_k3", &[], &["<|close|>think<|sep|>"], AtCall::Ends)
};

/// The format.
pub struct KimiK3;

impl Declared for KimiK3 {
    const FAMILY: &'static Family = &Family {
        aliases: &["kimi-k3"],
        reasoning: &[KIMI_K3],
        frames: &[
            Frame {
                opener: "<|open|>response<|sep|>",
                closer: "<|close|>response<|sep|>",
                is_control: true,
            },
            Frame {
                opener: "<|open|>message role=\"assistant\"<|sep|>",
                closer: "<|close|>message<|sep|>",
                is_control: true,
            },
        ],
        calls: Some(&CallFormat {
            sections: &[Section {
                opener: "<|open|>tools<|sep|>",
                closer: "<|close|>tools<|sep|>",
                empty_is_text: false,
            }],
            ..CallFormat::new(&["<|open|>call"], |_| Box::new(Xtml::default()))
        }),
        inner_tokens: &["<|open|>", "<|close|>", "<|sep|>"],
        grammar: Some(CallGrammar {
            opener: "<|open|>tools<|sep|>",
            call: "<|open|>call tool=\"$NAME\" index=\"$N\"<|sep|>$ARGS<|close|>call<|sep|>",
            between: Some(""),
            closer: "<|close|>tools<|sep|>",
            trigger: "<|open|>tools<|sep|>",
            arguments: Arguments::Parameters(Parameters::new(
                "<|open|>argument key=\"$KEY\" type=\"$TYPE\"<|sep|>$VALUE\
                            <|close|>argument<|sep|>",
                &["<|close|>argument<|sep|>"],
            )),
            ..CallGrammar::JSON
        }),
        evidence: &[
            Rule::template(&["<|open|>", "<|close|>", "<|sep|>"], &[]),
            Rule::vocabulary(&["<|open|>", "<|close|>", "<|sep|>"]),
        ],
        ..Family::named(
            "kimi_k3",
            env!("CARGO_PKG_VERSION"),
            "typed arguments between <|open|> and <|close|>: Kimi K3",
        )
    };
}

export_parser!(KimiK3);
