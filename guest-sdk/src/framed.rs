//! Formats whose output is a row of messages, each with a header that says where its body goes
//! (Harmony and its kin). The counterpart of the [`Engine`](crate::Engine) for them: a [`Messages`]
//! value says what the markers are, and its `route` reads a header. The same events for any cut.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::call::Output;
use crate::lanes::{ContentLane, ReasoningLane, split_tail};
use crate::rules::has_tools;
use crate::style::owned;
use crate::window::Window;
use crate::{
    Call, CallReader, Channel, Descriptor, Family, FinishReason, Reply, RequestInfo, Session,
    Special, Step, Trigger, is_blank,
};

/// Longest header; more is text.
const MAX_HEADER_BYTES: usize = 512;

/// How messages are written.
#[derive(Debug, Clone, Copy)]
pub struct Messages {
    /// Begin a header.
    pub starts: &'static [&'static str],
    /// What a header may begin with whose start the prompt holds, blanks aside; empty: the prompt
    /// holds none.
    pub in_prompt: &'static [&'static str],
    /// End a header and begin a body.
    pub bodies: &'static [&'static str],
    /// End a body.
    pub ends: &'static [&'static str],
    /// Dropped between messages.
    pub between: &'static [&'static str],
    /// Does a whole header end the body of a text that stands in front of it?
    pub starts_end_bodies: bool,
    /// Where a message goes: the header between its start and its body, and the body's marker.
    pub route: fn(&Header<'_>) -> Route,
}

/// A header that is to be read.
#[derive(Debug)]
pub struct Header<'a> {
    /// What stands between the start and the body's marker.
    pub text: &'a str,
    /// The marker.
    pub body: &'static str,
    /// The request.
    pub request: &'a RequestInfo,
}

/// Where a message goes.
pub enum Route {
    /// To the user.
    Content,
    /// What the model thinks.
    Reasoning,
    /// A call; the reader gets the body.
    Call(Box<dyn CallReader>),
    /// This is no header but text.
    Text,
}

/// One stream of a framed family.
pub struct Framed {
    rules: &'static Messages,
    request: RequestInfo,
    has_tools: bool,
    has_reasoning: bool,
    /// What ends text between messages, and in a message.
    in_gap: Vec<&'static str>,
    in_text: Vec<&'static str>,
    window: Window,
    state: State,
    num_blanks: usize,
    content: ContentLane,
    reasoning: ReasoningLane,
    out: Output,
}

enum State {
    /// At the beginning: a header whose start the prompt may hold.
    First,
    /// Between messages.
    Gap,
    /// In a header that began at `start`.
    Header {
        start: usize,
        marker_len: usize,
        back_to: Lane,
    },
    Text(Lane),
    Body(Attempt),
    /// Behind a call, up to the end of its message.
    BehindCall,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    Gap,
    Content,
    Reasoning,
}

struct Attempt {
    reader: Box<dyn CallReader>,
    start: usize,
    marker_len: usize,
    is_committed: bool,
}

/// What stands at a place.
enum Seen {
    Marker(&'static str),
    /// It may become one.
    Begins,
    Nothing,
}

impl Framed {
    /// What the host is told of `family`, whose messages are `rules`.
    pub fn describe(family: &'static Family, rules: &'static Messages) -> Descriptor {
        let mut added_tokens = Vec::new();
        for markers in [rules.starts, rules.bodies, rules.ends, rules.between, family.inner_tokens]
        {
            added_tokens.extend(owned(markers));
        }
        let mut in_content = owned(rules.ends);
        if rules.starts_end_bodies {
            in_content.extend(owned(rules.starts));
        }
        let triggers = vec![
            Trigger { channel: Channel::Reasoning, texts: in_content.clone() },
            Trigger { channel: Channel::Content, texts: in_content },
        ];
        let openers = owned(rules.bodies);
        Descriptor { added_tokens, openers, tools: true, triggers, ..family.descriptor() }
    }

    /// Opens a stream of `family`, whose messages are `rules`.
    pub fn new(family: &'static Family, rules: &'static Messages, request: RequestInfo) -> Self {
        let wanted = request.reasoning_style.as_deref();
        let starts = if rules.starts_end_bodies { rules.starts } else { &[] };
        let mut stream = Framed {
            rules,
            has_tools: has_tools(&request),
            has_reasoning: wanted
                .is_some_and(|name| family.reasoning.iter().any(|style| style.is_called(name))),
            in_gap: [rules.starts, rules.between].concat(),
            in_text: [starts, rules.ends].concat(),
            window: Window::default(),
            state: if rules.in_prompt.is_empty() { State::Gap } else { State::First },
            num_blanks: 0,
            content: ContentLane::default(),
            reasoning: ReasoningLane::default(),
            out: Output::default(),
            request,
        };
        if stream.request.start == Channel::Reasoning && stream.has_reasoning {
            stream.content.markup();
            stream.state = State::Text(Lane::Reasoning);
        }
        stream
    }

    fn run(&mut self, end: bool) {
        while match &self.state {
            State::First => self.read_first(end),
            State::Gap => self.read_gap(end),
            State::Header { start, marker_len, back_to } => {
                let (start, marker_len, back_to) = (*start, *marker_len, *back_to);
                self.read_header(start, marker_len, back_to, end)
            }
            State::Text(lane) => {
                let lane = *lane;
                self.read_text(lane, end)
            }
            State::Body(_) => self.read_body(end),
            State::BehindCall => self.read_behind_call(end),
        } {}
    }

    /// Which of `markers` stands `at` bytes behind the position.
    fn seen(&self, at: usize, markers: &[&'static str], end: bool) -> Seen {
        let rest = &self.window.rest().as_bytes()[at..];
        let mut begins = false;
        for marker in markers {
            let text = marker.as_bytes();
            if rest.starts_with(text) && self.counts(at, text.len()) {
                return Seen::Marker(marker);
            }
            begins |= !end && text.len() > rest.len() && text.starts_with(rest);
        }
        if begins { Seen::Begins } else { Seen::Nothing }
    }

    /// Strict markers count as tokens only (U21).
    fn counts(&self, at: usize, len: usize) -> bool {
        !self.request.strict_markers || self.window.has_token(self.window.position + at, len)
    }

    /// The first place behind the position where one of `markers` stands or may begin.
    fn find(&self, markers: &[&'static str], end: bool) -> Option<(usize, Option<&'static str>)> {
        let text = self.window.rest().as_bytes();
        let is_first = |byte: u8| markers.iter().any(|marker| marker.as_bytes()[0] == byte);
        let places = text.iter().enumerate().filter(|(_, byte)| is_first(**byte));
        for (at, _) in places {
            match self.seen(at, markers, end) {
                Seen::Marker(marker) => return Some((at, Some(marker))),
                Seen::Begins => return Some((at, None)),
                Seen::Nothing => {}
            }
        }
        None
    }

    fn num_leading_blanks(&self) -> usize {
        self.window.rest().bytes().take_while(|byte| is_blank(*byte)).count()
    }

    /// Blanks between messages wait in the lane, so that they are read once.
    fn put_blanks_aside(&mut self) {
        let len = self.num_leading_blanks();
        if len > 0 {
            self.say(Lane::Gap, self.window.position + len);
        }
    }

    fn read_first(&mut self, end: bool) -> bool {
        self.put_blanks_aside();
        if self.window.is_read() && !end {
            return false;
        }
        match self.seen(0, self.rules.starts, end) {
            Seen::Begins => return false,
            Seen::Marker(_) => self.state = State::Gap,
            Seen::Nothing => match self.begins_header(end) {
                None => return false,
                Some(true) => {
                    let start = self.window.position;
                    self.state = State::Header { start, marker_len: 0, back_to: Lane::Gap };
                }
                Some(false) => self.state = State::Gap,
            },
        }
        true
    }

    /// None: more text must show it.
    fn begins_header(&self, end: bool) -> Option<bool> {
        let rest = self.window.rest();
        if self.rules.in_prompt.iter().any(|begin| rest.starts_with(begin)) {
            return Some(!rest.is_empty());
        }
        let may_be = self.rules.in_prompt.iter().any(|begin| begin.starts_with(rest));
        if may_be && !end { None } else { Some(false) }
    }

    fn read_gap(&mut self, end: bool) -> bool {
        self.put_blanks_aside();
        if self.window.is_read() {
            return false;
        }
        match self.seen(0, self.rules.between, end) {
            Seen::Begins => return false,
            Seen::Marker(marker) => {
                self.window.position += marker.len();
                self.markup();
                return true;
            }
            Seen::Nothing => {}
        }
        match self.seen(0, self.rules.starts, end) {
            Seen::Begins => false,
            Seen::Marker(marker) => {
                self.content.part();
                let start = self.window.position;
                let marker_len = marker.len();
                self.window.position += marker_len;
                self.state = State::Header { start, marker_len, back_to: Lane::Gap };
                true
            }
            Seen::Nothing => {
                self.content.part();
                self.state = State::Text(Lane::Gap);
                true
            }
        }
    }

    fn read_header(&mut self, start: usize, marker_len: usize, back_to: Lane, end: bool) -> bool {
        let header_start = start + marker_len;
        // What was searched before is searched again: a header is short.
        self.window.position = header_start;
        let found = self.find(self.rules.bodies, end);
        let ends_before = self.find(self.rules.ends, end);
        let limit = found.map_or(self.window.len() - header_start, |(at, _)| at);
        let is_over =
            limit > MAX_HEADER_BYTES || matches!(ends_before, Some((at, Some(_))) if at < limit);
        match found {
            Some((at, Some(body))) if !is_over => {
                let text = &self.window.text()[header_start..header_start + at];
                let header = Header { text, body, request: &self.request };
                let route = self.allowed((self.rules.route)(&header));
                self.window.position = header_start + at + body.len();
                self.begin_body(route, start, marker_len, back_to);
                true
            }
            _ if is_over || end => {
                self.give_back(start, marker_len, back_to);
                true
            }
            _ => {
                self.window.position = self.window.len();
                false
            }
        }
    }

    /// Calls without tools, and reasoning that nobody asked to have read, are text (U18).
    fn allowed(&self, route: Route) -> Route {
        match route {
            Route::Call(_) if !self.has_tools => Route::Text,
            Route::Reasoning if !self.has_reasoning => Route::Text,
            route => route,
        }
    }

    fn begin_body(&mut self, route: Route, start: usize, marker_len: usize, back_to: Lane) {
        match route {
            Route::Text => self.give_back(start, marker_len, back_to),
            Route::Call(reader) => {
                let attempt = Attempt { reader, start, marker_len, is_committed: false };
                self.state = State::Body(attempt);
            }
            Route::Content => {
                self.markup();
                self.content.part();
                self.state = State::Text(Lane::Content);
            }
            Route::Reasoning => {
                self.markup();
                self.state = State::Text(Lane::Reasoning);
            }
        }
    }

    fn markup(&mut self) {
        self.content.markup();
        self.num_blanks = 0;
    }

    fn read_text(&mut self, lane: Lane, end: bool) -> bool {
        let markers = if lane == Lane::Gap { &self.in_gap } else { &self.in_text };
        match self.find(markers, end) {
            None => {
                self.say(lane, self.window.len());
                false
            }
            Some((at, None)) => {
                self.say(lane, self.window.position + at);
                false
            }
            Some((at, Some(marker))) => {
                self.say(lane, self.window.position + at);
                let start = self.window.position;
                self.window.position += marker.len();
                if self.rules.starts.contains(&marker) {
                    let marker_len = marker.len();
                    self.state = State::Header { start, marker_len, back_to: lane };
                } else {
                    self.end_message();
                }
                true
            }
        }
    }

    fn end_message(&mut self) {
        self.reasoning.close();
        self.markup();
        self.state = State::Gap;
    }

    fn read_body(&mut self, end: bool) -> bool {
        let State::Body(attempt) = &mut self.state else { return false };
        let mark = self.out.mark();
        let text = self.window.rest();
        let text_len = text.len();
        let step = attempt.reader.read(text, end, &mut Call(&mut self.out, &self.request));
        if self.out.num_calls > mark.num_calls && !attempt.is_committed {
            attempt.is_committed = true;
            self.content.markup();
            self.reasoning.close();
            self.num_blanks = 0;
        }
        if !self.out.stray.is_empty() {
            let stray = core::mem::take(&mut self.out.stray);
            self.content.text(&stray, &mut self.out);
        }
        let State::Body(attempt) = &self.state else { return false };
        let (start, marker_len) = (attempt.start, attempt.marker_len);
        match step {
            Step::More(len) if !end => {
                self.window.position += len.min(text_len);
                return false;
            }
            Step::More(_) if attempt.is_committed => {
                self.window.position += text_len;
                self.state = State::BehindCall;
            }
            Step::Done(len) | Step::Closed(len) if attempt.is_committed => {
                self.window.position += len.min(text_len);
                self.state = State::BehindCall;
            }
            Step::Fail if attempt.is_committed => self.state = State::BehindCall,
            _ => self.give_back(start, marker_len, Lane::Gap),
        }
        true
    }

    /// Blanks and the end of the message are framing; then comes the next one.
    fn read_behind_call(&mut self, end: bool) -> bool {
        self.window.position += self.num_leading_blanks();
        if self.window.is_read() {
            return false;
        }
        match self.seen(0, self.rules.ends, end) {
            Seen::Begins => return false,
            Seen::Marker(marker) => {
                self.window.position += marker.len();
                self.end_message();
            }
            Seen::Nothing => self.end_message(),
        }
        true
    }

    /// What was held is text, its marker for certain; scanning goes on behind that.
    fn give_back(&mut self, start: usize, marker_len: usize, back_to: Lane) {
        self.window.position = start;
        self.state = State::Text(back_to);
        self.say(back_to, start + marker_len);
    }

    fn say(&mut self, lane: Lane, to: usize) {
        let text = &self.window.text()[self.window.position..to];
        match lane {
            Lane::Reasoning => self.reasoning.text(text, &mut self.out),
            Lane::Gap | Lane::Content => self.content.text(text, &mut self.out),
        }
        let (body, tail) = split_tail(text);
        self.num_blanks = if body.is_empty() { self.num_blanks } else { 0 } + tail.len();
        self.window.position = to;
    }

    fn reply(&mut self) -> Reply {
        let keep_from = match &self.state {
            State::Header { start, .. } => *start,
            State::Body(attempt) if !attempt.is_committed => attempt.start,
            _ => self.window.position,
        };
        self.window.forget(keep_from);
        if let State::Header { start, .. } | State::Body(Attempt { start, .. }) = &mut self.state {
            *start = 0;
        }
        let held = self.window.len() + self.num_blanks;
        let watch = match self.state {
            _ if held > 0 => None,
            State::Text(Lane::Content) if self.content.is_settled() => Some(Channel::Content),
            State::Text(Lane::Reasoning) if self.reasoning.is_settled() => Some(Channel::Reasoning),
            _ => None,
        };
        Reply { events: core::mem::take(&mut self.out.events), held: held as u32, watch }
    }
}

impl Session for Framed {
    fn push(&mut self, text: &str, specials: &[Special], skipped: u32) -> Reply {
        self.window.push(text, specials, skipped);
        self.run(false);
        self.reply()
    }

    fn finish(&mut self, reason: FinishReason) -> Reply {
        self.out.is_cut = reason == FinishReason::Length;
        self.run(true);
        self.reasoning.finish(&mut self.out);
        self.content.finish(&mut self.out);
        self.num_blanks = 0;
        Reply { watch: None, ..self.reply() }
    }
}
