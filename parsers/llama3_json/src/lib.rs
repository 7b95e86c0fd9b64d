//! Llama 3 and 4: a bare JSON object at the message start, `<|python_tag|>` in front of it or not.
//! Behind a call there may be more of them, with `;` or nothing between. Behind the tag Meta's
//! built-in tools are written `NAME.call(KEY="…")`. Anything else is the answer.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

mod builtin;

use builtin::Builtin;
use tenon_guest::{
    Call, CallFormat, CallGrammar, CallReader, Declared, Envelope, EnvelopeRules, Family, Place,
    Rule, Step, export_parser, is_blank,
};

const TAG: &str = "<|python_tag|>";

/// The format.
pub struct Llama3Json;

impl Declared for Llama3Json {
    const FAMILY: &'static Family = &Family {
        aliases: &["llama4_json", "llama3"],
        calls: Some(&CallFormat {
            place: Place::MessageStart,
            bare: &["{"],
            again: &["{"],
            separators: ",;]",
            ..CallFormat::new(&[TAG], |opened| match opened.marker {
                TAG => Box::new(Tagged(None)),
                _ => Box::new(Envelope::new(EnvelopeRules::bare())),
            })
        }),
        grammar: Some(CallGrammar {
            call: "{\"name\": $QNAME, \"parameters\": $ARGS}",
            between: Some("; "),
            ..CallGrammar::JSON
        }),
        evidence: &[
            Rule::template(&[TAG], &["<tool_call>", "<function="]),
            Rule { template_lacks: &["<tool_call>", "<function="], ..Rule::vocabulary(&[TAG]) },
        ],
        ..Family::named(
            "llama3_json",
            env!("CARGO_PKG_VERSION"),
            "bare JSON objects with name and parameters: Llama 3 and 4",
        )
    };
}

/// Behind the tag: what comes first decides which form it is.
struct Tagged(Option<Box<dyn CallReader>>);

impl CallReader for Tagged {
    fn read(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Step {
        if let Some(reader) = &mut self.0 {
            return reader.read(text, end, call);
        }
        let num_blanks = text.bytes().take_while(|byte| is_blank(*byte)).count();
        let mut reader: Box<dyn CallReader> = match text.as_bytes().get(num_blanks) {
            None => return Step::More(num_blanks),
            Some(b'{') => Box::new(Envelope::new(EnvelopeRules::bare())),
            Some(byte) if num_blanks == 0 && byte.is_ascii_alphabetic() => {
                Box::new(Builtin::default())
            }
            Some(_) => return Step::Fail,
        };
        let step = reader.read(&text[num_blanks..], end, call);
        self.0 = Some(reader);
        match step {
            Step::More(len) => Step::More(num_blanks + len),
            Step::Done(len) => Step::Done(num_blanks + len),
            Step::Closed(len) => Step::Closed(num_blanks + len),
            Step::Fail => Step::Fail,
        }
    }
}

export_parser!(Llama3Json);
