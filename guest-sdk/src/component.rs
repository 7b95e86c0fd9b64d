//! Glue between the traits of this crate and the generated bindings: one type that makes any
//! [`Parser`] an implementation of the world. Only the export macro uses it.

use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::marker::PhantomData;

use crate::bindings::exports::tenon::extension::output_parser as wit;
use crate::parser::{Parser, Session};

/// A parser as the component's exports.
#[derive(Debug)]
pub struct Component<P>(PhantomData<P>);

/// One stream. The component model hands out shared references; calls never overlap.
pub struct Stream<P: Parser>(RefCell<P::Session>);

impl<P: Parser> wit::Guest for Component<P> {
    type Session = Stream<P>;

    fn describe() -> wit::Descriptor {
        P::describe()
    }

    fn constraint(
        model: wit::ModelInfo,
        request: wit::RequestInfo,
    ) -> Result<Option<wit::Grammar>, String> {
        P::constraint(&model, &request)
    }
}

impl<P: Parser> wit::GuestSession for Stream<P> {
    fn new(request: wit::RequestInfo) -> Self {
        Stream(RefCell::new(P::open(request)))
    }

    fn push(&self, text: String, specials: Vec<wit::Special>, skipped: u32) -> wit::Reply {
        self.0.borrow_mut().push(&text, &specials, skipped)
    }

    fn finish(&self, reason: wit::FinishReason) -> wit::Reply {
        self.0.borrow_mut().finish(reason)
    }
}
