//! Reads a call whose name is known before its text begins: what comes is the arguments, up to the
//! end of the object or a closer. For messages whose header names the call.

use alloc::string::String;

use crate::balance::{Balance, Passed};
use crate::{Call, CallReader, Step, is_blank};

/// A [`CallReader`] for arguments alone.
#[derive(Debug)]
pub struct Body {
    name: String,
    closers: &'static [&'static str],
    needs_object: bool,
    at: At,
    balance: Balance,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Start,
    Object,
    /// No object: all of it up to a closer.
    Raw,
}

impl Body {
    /// `needs_object`: without an object there is no call. If not, the call exists at once, an
    /// empty body is `{}`, and anything else passes as it is up to one of `closers`.
    pub fn new(name: &str, closers: &'static [&'static str], needs_object: bool) -> Self {
        Body {
            name: name.into(),
            closers,
            needs_object,
            at: At::Start,
            balance: Balance::default(),
        }
    }

    fn start(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Step {
        let num_blanks = text.bytes().take_while(|byte| is_blank(*byte)).count();
        let rest = &text[num_blanks..];
        if self.needs_object {
            if rest.is_empty() {
                return Step::More(num_blanks);
            }
            if !rest.starts_with('{') {
                return Step::Fail;
            }
        }
        if !call.is_open() {
            call.begin(&self.name, None);
        }
        if rest.starts_with('{') {
            self.at = At::Object;
            return self.object(text, num_blanks, end, call);
        }
        let is_left_out = rest.is_empty() && end && !call.is_cut();
        if self.closers.iter().any(|closer| rest.starts_with(closer)) || is_left_out {
            call.args("{}");
            call.end();
            return Step::Done(num_blanks);
        }
        if self.closers.iter().any(|closer| closer.starts_with(rest)) && !end {
            return Step::More(num_blanks);
        }
        self.at = At::Raw;
        self.raw(text, num_blanks, end, call)
    }

    fn object(&mut self, text: &str, from: usize, end: bool, call: &mut Call<'_>) -> Step {
        let rest = &text[from..];
        let (len, is_over) = match self.balance.feed(rest, end, self.closers) {
            Passed::More(len) => (len, false),
            Passed::Whole(len) => {
                call.args(&rest[..len]);
                call.end();
                return Step::Done(from + len);
            }
            Passed::Cut(len) => (len, true),
        };
        call.args(&rest[..len]);
        if is_over {
            call.end();
            return Step::Done(from + len);
        }
        Step::More(from + len)
    }

    fn raw(&mut self, text: &str, from: usize, end: bool, call: &mut Call<'_>) -> Step {
        let rest = &text[from..];
        let begins = |at: &usize| {
            rest.is_char_boundary(*at)
                && self.closers.iter().any(|closer| {
                    let rest = &rest[*at..];
                    rest.starts_with(closer) || !end && closer.starts_with(rest)
                })
        };
        let stop = (0..rest.len()).find(begins).unwrap_or(rest.len());
        call.args(&rest[..stop]);
        if self.closers.iter().any(|closer| rest[stop..].starts_with(closer)) {
            call.end();
            return Step::Done(from + stop);
        }
        Step::More(from + stop)
    }
}

impl CallReader for Body {
    fn read(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Step {
        match self.at {
            At::Start => self.start(text, end, call),
            At::Object => self.object(text, 0, end, call),
            At::Raw => self.raw(text, 0, end, call),
        }
    }
}
