//! The traits behind a component: [`Parser`] answers for the format, [`Session`] reads a stream.
//! Most formats need neither: a [`Declared`] family gets both from the engine.

use alloc::string::String;

use crate::engine::Engine;
use crate::family::Family;
use crate::{Descriptor, FinishReason, Grammar, ModelInfo, Reply, RequestInfo, Special};

/// A format: what it is called and how a stream of it is read.
pub trait Parser: 'static {
    /// The state of one stream.
    type Session: Session;

    /// Names, markers and triggers. Constant: the host asks once, when it admits the component.
    fn describe() -> Descriptor;

    /// The format's own grammar for this request. `Ok(None)`, which is the default, says that the
    /// format enforces nothing by itself (yet); `Err` refuses the request with a 400 in its words.
    fn constraint(_: &ModelInfo, _: &RequestInfo) -> Result<Option<Grammar>, String> {
        Ok(None)
    }

    /// Opens one stream.
    fn open(request: RequestInfo) -> Self::Session;
}

/// One stream's state. Both functions are total: any text in any pieces has an answer.
pub trait Session: 'static {
    /// More text. `specials`: bytes of it that came from one added token each, in order.
    /// `skipped`: bytes that the host delivered by itself since the last call.
    fn push(&mut self, text: &str, specials: &[Special], skipped: u32) -> Reply;

    /// The stream ended; everything held comes out. Called once, last.
    fn finish(&mut self, reason: FinishReason) -> Reply;
}

/// A parser that is nothing but a declaration for the engine.
pub trait Declared: 'static {
    /// The declaration.
    const FAMILY: &'static Family;
}

impl<T: Declared> Parser for T {
    type Session = Engine;

    fn describe() -> Descriptor {
        T::FAMILY.descriptor()
    }

    fn constraint(model: &ModelInfo, request: &RequestInfo) -> Result<Option<Grammar>, String> {
        let suffix = T::FAMILY.suffix_in(&model.added_tokens);
        Ok(T::FAMILY.grammar.and_then(|grammar| grammar.build_suffixed(suffix, model, request)))
    }

    fn open(request: RequestInfo) -> Engine {
        Engine::new(T::FAMILY, request)
    }
}
