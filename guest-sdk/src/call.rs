//! How one call is read: the trait of a call reader and the sink that it writes to.
//!
//! The engine finds an opener and asks the family for a reader. The reader is fed the text behind
//! the opener, piece by piece, until it says that the call is over or that there is none. What it
//! has read before [`Call::begin`] is held by the engine and becomes text again if it fails.

use alloc::string::String;
use alloc::vec::Vec;

use crate::{Event, RequestInfo, ToolArgs, ToolBegin};

/// A reader's verdict. Byte counts are of the `text` that it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// So many bytes are read; the rest comes again, with more behind it.
    More(usize),
    /// The call ends behind so many bytes; a closer may follow. Without a call begun: empty
    /// framing, dropped.
    Done(usize),
    /// The call and its closer end behind so many bytes.
    Closed(usize),
    /// This is no call: all of it is text. Only before [`Call::begin`].
    Fail,
}

/// Reads one call.
pub trait CallReader {
    /// `text` begins where the last read stopped. `end`: nothing will follow, so nothing may be
    /// held back. Must take time linear in the bytes that it reads.
    fn read(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Step;
}

/// What a reader may know of its opener.
#[derive(Debug)]
pub struct Opened<'a> {
    /// The marker that was found. One of [`bare`](crate::CallFormat::bare) or
    /// [`again`](crate::CallFormat::again) is still in front of the reader, an opener is behind it.
    pub marker: &'static str,
    /// The request.
    pub request: &'a RequestInfo,
    /// What all markers of this stream carry in front of their `>`, such as `:opensource`; empty:
    /// nothing. Only where the family is [`suffixed`](crate::Family::suffixed).
    pub suffix: &'a str,
    /// It stands inside of a section.
    pub in_section: bool,
}

/// Where a reader puts what it finds.
#[derive(Debug)]
pub struct Call<'a>(pub(crate) &'a mut Output, pub(crate) &'a RequestInfo);

impl<'a> Call<'a> {
    /// The request's tools, OpenAI's list as JSON.
    pub fn tools(&self) -> &'a str {
        &self.1.tools
    }

    /// Commits: the call exists and is never taken back. `id`: from the model's text, where the
    /// format has ids.
    pub fn begin(&mut self, name: &str, id: Option<&str>) {
        let index = self.0.num_calls;
        self.0.num_calls += 1;
        self.0.is_open = true;
        let id = id.or(Some(self.0.id_pattern)).filter(|id| !id.is_empty()).map(Into::into);
        let begin = ToolBegin { index, name: name.into(), id };
        self.0.events.push(Event::ToolBegin(begin));
    }

    /// The next piece of the arguments, JSON text.
    pub fn args(&mut self, text: &str) {
        if text.is_empty() || !self.0.is_open {
            return;
        }
        let index = self.0.num_calls - 1;
        if let Some(Event::ToolArgs(last)) = self.0.events.last_mut()
            && last.index == index
        {
            last.text.push_str(text);
            return;
        }
        self.0.events.push(Event::ToolArgs(ToolArgs { index, text: text.into() }));
    }

    /// Text that stands inside the call's markup and is none of it: content.
    pub fn stray(&mut self, text: &str) {
        self.0.stray.push_str(text);
    }

    /// Did the stream end at a limit, so that what is missing was not left out by the model?
    pub fn is_cut(&self) -> bool {
        self.0.is_cut
    }

    /// Is a call begun and not ended?
    pub fn is_open(&self) -> bool {
        self.0.is_open
    }

    /// The call is whole.
    pub fn end(&mut self) {
        if self.0.is_open {
            self.0.is_open = false;
            self.0.events.push(Event::ToolEnd(self.0.num_calls - 1));
        }
    }
}

/// The events of the running push, and how many calls there were.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub events: Vec<Event>,
    pub num_calls: u32,
    pub is_open: bool,
    /// The stream ended at a limit.
    pub is_cut: bool,
    /// For calls without an id of their own.
    pub id_pattern: &'static str,
    /// What readers found that is content; the engine takes it behind each read.
    pub stray: String,
}

/// A state of [`Output`] to go back to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    num_events: usize,
    pub num_calls: u32,
}

impl Output {
    pub fn mark(&self) -> Mark {
        Mark { num_events: self.events.len(), num_calls: self.num_calls }
    }

    /// Takes back the calls since `mark`, which began behind it.
    pub fn undo(&mut self, mark: Mark) {
        self.events.truncate(mark.num_events);
        self.num_calls = mark.num_calls;
        self.is_open = false;
    }

    pub fn content(&mut self, text: &str) {
        match self.events.last_mut() {
            Some(Event::Content(last)) => last.push_str(text),
            _ => self.events.push(Event::Content(text.into())),
        }
    }

    pub fn reasoning(&mut self, text: &str) {
        match self.events.last_mut() {
            Some(Event::Reasoning(last)) => last.push_str(text),
            _ => self.events.push(Event::Reasoning(text.into())),
        }
    }
}
