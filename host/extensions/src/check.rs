//! The books of one stream: a reply that a well-behaved parser could not give ends the stream's
//! parser, before anything of it reaches a client.

use tenon_chat::parser::{ParseEvent, Reply};

use crate::limits::RunLimits;
use crate::store::Fault;

/// Events of one reply, beyond four for each byte that it can be about.
const BASE_EVENTS: usize = 64;

/// Notes kept of one stream, and the bytes of each.
const MAX_NOTES: usize = 16;
const MAX_NOTE_BYTES: usize = 256;

/// What a stream has said so far.
pub(crate) struct Books {
    bytes_in: u64,
    bytes_out: u64,
    num_notes: usize,
    /// Arguments' bytes of each call; none: it ended.
    calls: Vec<Option<usize>>,
    /// The last bytes given, `held` of them still due. Older ones are dropped now and then.
    recent: String,
    held: usize,
}

impl Books {
    pub(crate) fn new() -> Self {
        Books {
            bytes_in: 0,
            bytes_out: 0,
            num_notes: 0,
            calls: Vec::new(),
            recent: String::new(),
            held: 0,
        }
    }

    /// Bytes given so far.
    pub(crate) fn bytes_in(&self) -> u64 {
        self.bytes_in
    }

    /// Bytes that the parser still owes.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// The parser is about to see `text`; `skipped` bytes went past it.
    pub(crate) fn give(&mut self, text: &str, skipped: u32) {
        if skipped > 0 {
            // What the host delivered stands between: nothing older can be held any more.
            self.recent.clear();
            self.held = 0;
        }
        let done = self.recent.len() - self.held;
        if done > self.held + text.len() {
            self.recent.drain(..done);
        }
        self.recent.push_str(text);
        self.held += text.len();
        self.bytes_in += text.len() as u64;
    }

    /// Enters a reply and cuts its notes to size.
    ///
    /// # Errors
    /// `bad_output` for the impossible, `limit` for too much.
    pub(crate) fn enter(
        &mut self,
        reply: &mut Reply,
        is_last: bool,
        limits: &RunLimits,
    ) -> Result<(), Fault> {
        let max_events = BASE_EVENTS + 4 * self.held;
        if reply.events.len() > max_events {
            return Err(Fault::limit(format!(
                "`{}` events in one reply, at most {max_events} can be meant",
                reply.events.len()
            )));
        }
        for event in &mut reply.events {
            self.bytes_out += self.event(event, limits)? as u64;
        }
        let max_out = limits.output_bytes + limits.output_ratio * self.bytes_in;
        if self.bytes_out > max_out {
            return Err(Fault::limit(format!(
                "`{}` bytes out for {} bytes in, over the limit of {max_out}",
                self.bytes_out, self.bytes_in
            )));
        }
        self.hold(reply.held, is_last, limits)
    }

    fn hold(&mut self, held: u32, is_last: bool, limits: &RunLimits) -> Result<(), Fault> {
        let num_held = held as usize;
        if num_held > self.held {
            return Err(Fault::bad_output(format!(
                "`held` is `{held}`, but only {} bytes can be outstanding",
                self.held
            )));
        }
        if !self.recent.is_char_boundary(self.recent.len() - num_held) {
            return Err(Fault::bad_output(format!("`held` is `{held}`, inside a character")));
        }
        if is_last && held > 0 {
            return Err(Fault::bad_output(format!("`held` is `{held}` after the end")));
        }
        if held > limits.held_bytes {
            return Err(Fault::limit(format!(
                "`{held}` bytes held back, over the limit of {}",
                limits.held_bytes
            )));
        }
        self.held = num_held;
        Ok(())
    }

    /// Checks one event; returns its bytes.
    fn event(&mut self, event: &mut ParseEvent, limits: &RunLimits) -> Result<usize, Fault> {
        match event {
            ParseEvent::Content(text) | ParseEvent::Reasoning(text) => Ok(text.len()),
            ParseEvent::ToolBegin { index, name, id } => {
                self.begin(*index, name, id.as_deref(), limits)
            }
            ParseEvent::ToolArgs { index, text } => {
                let Some(num_bytes) = self.open_call(*index)? else {
                    return Err(Fault::bad_output(format!("arguments for ended call `{index}`")));
                };
                *num_bytes += text.len();
                if *num_bytes > limits.args_bytes {
                    return Err(Fault::limit(format!(
                        "`{num_bytes}` bytes of arguments, over the limit of {}",
                        limits.args_bytes
                    )));
                }
                Ok(text.len())
            }
            ParseEvent::ToolEnd { index } => {
                let call = self.open_call(*index)?;
                if call.take().is_none() {
                    return Err(Fault::bad_output(format!("call `{index}` ended twice")));
                }
                Ok(0)
            }
            ParseEvent::Note(text) => {
                self.num_notes += 1;
                let max = if self.num_notes > MAX_NOTES { 0 } else { MAX_NOTE_BYTES };
                let cut = (0..=text.len().min(max)).rev().find(|&i| text.is_char_boundary(i));
                text.truncate(cut.unwrap_or(0));
                Ok(0)
            }
        }
    }

    fn begin(
        &mut self,
        index: u32,
        name: &str,
        id: Option<&str>,
        limits: &RunLimits,
    ) -> Result<usize, Fault> {
        let next = self.calls.len();
        if index as usize != next {
            return Err(Fault::bad_output(format!("call `{index}` began, the next is {next}")));
        }
        if next >= limits.num_calls {
            return Err(Fault::limit(format!("more than {} calls", limits.num_calls)));
        }
        for (what, text) in [("name", Some(name)), ("id", id)] {
            let Some(text) = text else { continue };
            let is_good = !text.is_empty()
                && text.len() <= limits.name_bytes
                && !text.chars().any(char::is_control);
            if !is_good {
                return Err(Fault::bad_output(format!(
                    "a call's {what} of `{}` bytes is empty, too long or has control characters",
                    text.len()
                )));
            }
        }
        self.calls.push(Some(0));
        Ok(name.len() + id.map_or(0, str::len))
    }

    fn open_call(&mut self, index: u32) -> Result<&mut Option<usize>, Fault> {
        let num = self.calls.len();
        let no_call = || Fault::bad_output(format!("call `{index}` of {num} never began"));
        self.calls.get_mut(index as usize).ok_or_else(no_call)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use tenon_chat::parser::FaultKind;

    use super::*;

    fn reply(events: Vec<ParseEvent>, held: u32) -> Reply {
        Reply { events, held, watch: None }
    }

    fn begin(index: u32) -> ParseEvent {
        ParseEvent::ToolBegin { index, name: "f".into(), id: None }
    }

    fn args(index: u32, text: &str) -> ParseEvent {
        ParseEvent::ToolArgs { index, text: text.into() }
    }

    fn enter(books: &mut Books, events: Vec<ParseEvent>, held: u32) -> Result<(), FaultKind> {
        let mut reply = reply(events, held);
        books.enter(&mut reply, false, &RunLimits::default()).map_err(|fault| fault.kind)
    }

    fn given(text: &str) -> Books {
        let mut books = Books::new();
        books.give(text, 0);
        books
    }

    #[test]
    fn calls_begin_in_order_and_end_once() {
        let mut books = given("0123456789");
        enter(&mut books, vec![begin(0), args(0, "{"), begin(1), args(0, "}")], 0).unwrap();
        let end = || ParseEvent::ToolEnd { index: 0 };
        enter(&mut books, vec![end()], 0).unwrap();
        for wrong in [begin(1), begin(3), args(0, "x"), args(2, "x"), end()] {
            assert_eq!(enter(&mut books, vec![wrong], 0), Err(FaultKind::BadOutput));
        }
    }

    #[test]
    fn names_have_a_size_and_no_control_characters() {
        for name in ["", "a\nb", &"x".repeat(257)] {
            let event = ParseEvent::ToolBegin { index: 0, name: name.into(), id: None };
            assert_eq!(enter(&mut given("x"), vec![event], 0), Err(FaultKind::BadOutput));
        }
        let dotted = ParseEvent::ToolBegin { index: 0, name: "größe.mm".into(), id: None };
        enter(&mut given("x"), vec![dotted], 0).unwrap();
    }

    #[test]
    fn held_fits_what_was_given_and_characters() {
        assert_eq!(enter(&mut given("abc"), vec![], 4), Err(FaultKind::BadOutput));
        assert_eq!(enter(&mut given("aé"), vec![], 1), Err(FaultKind::BadOutput));
        let mut books = given("aé");
        enter(&mut books, vec![], 2).unwrap();
        books.give("b", 0);
        assert_eq!(enter(&mut books, vec![], 4), Err(FaultKind::BadOutput), "`a` is out already");
        let mut skipping = given("held");
        enter(&mut skipping, vec![], 4).unwrap();
        skipping.give("x", 3);
        assert_eq!(enter(&mut skipping, vec![], 2), Err(FaultKind::BadOutput));
    }

    #[test]
    fn nothing_is_held_after_the_end() {
        let mut books = given("abc");
        let fault = books.enter(&mut reply(vec![], 1), true, &RunLimits::default()).unwrap_err();
        assert_eq!(fault.kind, FaultKind::BadOutput);
    }

    #[test]
    fn output_is_bounded_by_input() {
        let flood = |len: usize| vec![ParseEvent::Content("x".repeat(len))];
        enter(&mut given("ab"), flood((64 << 10) + 32), 0).unwrap();
        assert_eq!(enter(&mut given("ab"), flood((64 << 10) + 33), 0), Err(FaultKind::Limit));
        let many = vec![ParseEvent::Content(String::new()); 73];
        assert_eq!(enter(&mut given("ab"), many, 0), Err(FaultKind::Limit));
        let calls = (0..129).map(begin).collect();
        assert_eq!(enter(&mut given(&"x".repeat(999)), calls, 0), Err(FaultKind::Limit));
    }

    #[test]
    fn notes_are_cut_not_refused() {
        let mut books = given(&"x".repeat(99));
        let mut long = reply(vec![ParseEvent::Note("é".repeat(300)); 20], 0);
        books.enter(&mut long, false, &RunLimits::default()).unwrap();
        let sizes: Vec<usize> = long
            .events
            .iter()
            .map(|event| if let ParseEvent::Note(text) = event { text.len() } else { 0 })
            .collect();
        assert_eq!(sizes[..16], [256; 16]);
        assert_eq!(sizes[16..], [0; 4]);
    }

    proptest! {
        /// Whatever is pushed and held: the books know exactly what is outstanding.
        #[test]
        fn outstanding_bytes_are_exact(
            pushes in prop::collection::vec(("\\PC{0,8}", 0..12_u32), 0..40)
        ) {
            let mut books = Books::new();
            let mut outstanding = String::new();
            for (text, held) in pushes {
                books.give(&text, 0);
                outstanding.push_str(&text);
                let is_possible = (held as usize) <= outstanding.len()
                    && outstanding.is_char_boundary(outstanding.len() - held as usize);
                let got = books.enter(&mut reply(vec![], held), false, &RunLimits::default());
                prop_assert_eq!(got.is_ok(), is_possible);
                if !is_possible { break; }
                outstanding.drain(..outstanding.len() - held as usize);
                prop_assert_eq!(books.held(), outstanding.len());
            }
        }
    }
}
