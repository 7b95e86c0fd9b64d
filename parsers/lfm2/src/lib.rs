//! LFM2 and LFM2.5: a list between `<|tool_call_start|>` and `<|tool_call_end|>`, of Python calls
//! whose strings are not escaped, or of JSON objects.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    Call, CallFormat, CallGrammar, CallReader, Declared, Envelope, EnvelopeRules, Family, Python,
    PythonRules, Rule, Step, export_parser, is_blank, style,
};

const OPENER: &str = "<|tool_call_start|>";
const CLOSER: &str = "<|tool_call_end|>";

/// The format.
pub struct Lfm2;

impl Declared for Lfm2 {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::QWEN3, style::DEEPSEEK_R1],
        calls: Some(&CallFormat {
            again: &["{"],
            closers: &[CLOSER],
            separators: ",;]",
            ..CallFormat::new(&[OPENER], |opened| match opened.marker {
                OPENER => Box::new(Either::default()),
                _ => Box::new(json()),
            })
        }),
        grammar: Some(CallGrammar {
            opener: "<|tool_call_start|>[",
            call: "{\"name\": $QNAME, \"arguments\": $ARGS}",
            between: Some(", "),
            closer: "]<|tool_call_end|>",
            trigger: "<|tool_call_start|>",
            ..CallGrammar::JSON
        }),
        evidence: &[Rule::template(&[OPENER], &[]), Rule::vocabulary(&[OPENER, CLOSER])],
        ..Family::named(
            "lfm2",
            env!("CARGO_PKG_VERSION"),
            "a list of Python calls or JSON objects in <|tool_call_start|>: LFM2",
        )
    };
}

fn json() -> Envelope {
    Envelope::new(EnvelopeRules::behind_marker(CLOSER))
}

/// What comes first in the list decides which form it is.
#[derive(Default)]
struct Either {
    has_list: bool,
    reader: Option<Box<dyn CallReader>>,
}

impl CallReader for Either {
    fn read(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Step {
        let mut at = 0;
        while self.reader.is_none() {
            match text.as_bytes().get(at) {
                None => return Step::More(at),
                Some(byte) if is_blank(*byte) => {}
                Some(b'[') if !self.has_list => self.has_list = true,
                Some(b']') if self.has_list => return Step::Done(at + 1),
                Some(b'{') => self.reader = Some(Box::new(json())),
                Some(_) => {
                    let rules =
                        PythonRules { needs_list: false, closer: CLOSER, is_unescaped: true };
                    self.reader = Some(Box::new(Python::new(rules)));
                }
            }
            at += usize::from(self.reader.is_none());
        }
        let Some(reader) = &mut self.reader else { return Step::Fail };
        match reader.read(&text[at..], end, call) {
            Step::More(len) => Step::More(at + len),
            Step::Done(len) => Step::Done(at + len),
            Step::Closed(len) => Step::Closed(at + len),
            Step::Fail => Step::Fail,
        }
    }
}

export_parser!(Lfm2);
