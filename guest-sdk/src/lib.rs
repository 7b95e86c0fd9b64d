//! What an extension author depends on: bindings, streaming parser engine, native test harness.
//!
//! Declare a [`Family`] (markers, reasoning styles, how a call is read), implement [`Declared`] for
//! a type, end the crate with [`export_parser!`], and test it natively with [`harness`]. A format
//! that the engine cannot express implements [`Parser`] and [`Session`] itself.
//! The crate knows nothing of the host; a component built on it imports nothing.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

mod balance;
#[cfg(all(feature = "bare", target_arch = "wasm32"))]
mod bare;
mod bare_keys;
pub mod bindings;
mod body;
mod by_first;
mod call;
pub mod component;
pub mod document;
mod engine;
mod envelope;
mod family;
mod fixed;
mod framed;
mod grammar;
#[cfg(not(target_arch = "wasm32"))]
pub mod harness;
mod headed;
pub mod json;
mod lanes;
mod literals;
mod markers;
mod parser;
mod python;
mod quoted;
mod rules;
pub mod schema;
pub mod style;
mod tagged;
mod tags;
mod tree;
mod typing;
mod window;
mod words;
pub mod writer;

pub use bare_keys::{BareKeys, BareKeysRules};
pub use body::Body;
pub use by_first::ByFirst;
pub use call::{Call, CallReader, Opened, Step};
pub use engine::Engine;
pub use envelope::{Envelope, EnvelopeRules, List, MissingArguments};
pub use family::{CallFormat, Family, Frame, Place, Rule, Section};
pub use framed::{Framed, Header, Messages, Route};
pub use grammar::{Arguments, CallGrammar, Parameters};
pub use headed::{Headed, HeadedRules, Part};
pub use parser::{Declared, Parser, Session};
pub use python::{Python, PythonRules};
pub use style::{AtCall, Style};
pub use tagged::{Closing, Keys, Naming, TagRules, Tagged};
pub use tree::{Tree, TreeRules};

pub use bindings::exports::tenon::extension::output_parser::{
    Channel, Descriptor, Event, Evidence, FinishReason, Grammar, ModelInfo, ReasoningStyle, Reply,
    RequestInfo, Special, Starts, ToolArgs, ToolBegin, ToolChoice, Trigger,
};

/// Is it what the policy calls blank: space, tab, CR or LF?
pub fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

/// `text` without the blanks around it.
pub(crate) fn trimmed(text: &str) -> &str {
    let bytes = text.as_bytes();
    let Some(start) = bytes.iter().position(|byte| !is_blank(*byte)) else { return "" };
    let end = bytes.iter().rposition(|byte| !is_blank(*byte)).map_or(start, |last| last + 1);
    &text[start..end] // blanks are ASCII
}

/// Exports a [`Parser`] as the component's `parser` world. Natively it expands to nothing, so that
/// the crate links as an ordinary library and tests run without a sandbox.
///
/// ```
/// # use tenon_guest::{Declared, Family};
/// struct Nothing;
/// impl Declared for Nothing {
///     const FAMILY: &'static Family = &Family::named("nothing", "0.1.0", "finds nothing");
/// }
/// tenon_guest::export_parser!(Nothing);
/// ```
#[macro_export]
macro_rules! export_parser {
    ($parser:ty) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code)]
        const _: () = {
            type Exported = $crate::component::Component<$parser>;
    $crate::bindings::export_output_parser!(Exported with_types_in $crate::bindings);
        };
    };
}
