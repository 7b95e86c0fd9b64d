//! The streaming engine behind every declared family: which channel the text is in, which markers
//! count there, and what is held back until it is decided. The same events come out for any cut.
//!
//! Time is linear: text is scanned once per state, a reader keeps its own state between pieces, and
//! a failed attempt is replayed once, from just behind its opener. Memory is what is held: the
//! beginning of a marker, trailing blanks, or a call before its commit (a reader bounds that one).

use std::collections::VecDeque;

use crate::call::Output;
use crate::lanes::{ContentLane, ReasoningLane, split_tail};
use crate::markers::{Found, Kind, Marker, MarkerSet};
use crate::{
    Call, CallFormat, CallReader, Channel, Family, FinishReason, Opened, Place, Reply, RequestInfo,
    Session, Special, Step, Style, ToolChoice, is_blank,
};

/// One stream of a declared family.
pub struct Engine {
    rules: Rules,
    /// Text that is not decided: bytes before `position` are, unless a call is being tried.
    buffer: String,
    position: usize,
    /// Bytes of the stream in front of `buffer`.
    base: u64,
    /// Tokens of the buffer: (offset in the stream, length).
    tokens: VecDeque<(u64, u32)>,
    /// A reasoning marker came as a token: its fellows must, too.
    reasoning_is_tokens: bool,
    state: State,
    /// Only blanks since the message start or since markup.
    at_boundary: bool,
    /// Only blanks since the message start.
    at_start: bool,
    /// Trailing bytes in front of `position` that a lane holds.
    num_blanks: usize,
    content: ContentLane,
    reasoning: ReasoningLane,
    out: Output,
}

/// What counts in this stream; fixed when it opens.
struct Rules {
    request: RequestInfo,
    calls: Option<&'static CallFormat>,
    /// Calls that end reasoning and are content.
    quoted: Option<&'static CallFormat>,
    in_content: MarkerSet,
    in_reasoning: MarkerSet,
    behind_call: MarkerSet,
}

enum State {
    Content,
    Reasoning,
    Call(Attempt),
    /// Behind a call whose closer has not come.
    BehindCall,
}

struct Attempt {
    reader: Box<dyn CallReader>,
    /// Where its opener begins in the buffer.
    start: usize,
    /// Bytes that are text for certain if it fails.
    opener_len: usize,
    in_reasoning: bool,
    is_committed: bool,
}

impl Rules {
    fn new(family: &'static Family, request: RequestInfo) -> (Self, Option<&'static Style>) {
        let has_tools = request.tool_choice != ToolChoice::None && !is_empty_list(&request.tools);
        let calls = family.calls.filter(|_| has_tools);
        let quoted = family.quoted_calls.filter(|_| has_tools);
        let wanted = request.reasoning_style.as_deref();
        let style =
            wanted.and_then(|name| family.reasoning.iter().find(|style| style.is_called(name)));
        let openers = calls.map_or(&[][..], |calls| calls.openers);
        let begin = style.map_or(&[][..], |style| style.openers);
        let end = style.map_or(&[][..], |style| style.closers);
        let ends_at_call = style.is_some_and(|style| style.ends_at_call);
        let ending = calls.or(quoted).filter(|_| ends_at_call);
        let rules = Rules {
            in_content: MarkerSet::new(&[
                (Kind::CallOpener, openers),
                (Kind::CallStart, calls.map_or(&[], |calls| calls.bare)),
                (Kind::ReasoningOpener, begin),
                (Kind::ReasoningCloser, end),
            ]),
            in_reasoning: MarkerSet::new(&[
                (Kind::CallOpener, ending.map_or(&[], |calls| calls.openers)),
                (Kind::ReasoningOpener, begin),
                (Kind::ReasoningCloser, end),
            ]),
            behind_call: MarkerSet::new(&[
                (Kind::CallCloser, calls.map_or(&[], |calls| calls.closers)),
                (Kind::CallOpener, openers),
                (Kind::CallStart, calls.map_or(&[], |calls| calls.again)),
                (Kind::ReasoningOpener, begin),
            ]),
            request,
            calls,
            quoted,
        };
        (rules, style)
    }

    fn place(&self) -> Place {
        self.calls.map_or(Place::Anywhere, |calls| calls.place)
    }

    fn reader(&self, marker: &'static str) -> Option<Box<dyn CallReader>> {
        let calls = self.calls.or(self.quoted)?;
        Some((calls.reader)(&Opened { marker, request: &self.request }))
    }
}

impl Engine {
    /// Opens a stream of `family`.
    pub fn new(family: &'static Family, request: RequestInfo) -> Self {
        let start = request.start;
        let (rules, style) = Rules::new(family, request);
        let mut engine = Engine {
            rules,
            buffer: String::new(),
            position: 0,
            base: 0,
            tokens: VecDeque::new(),
            reasoning_is_tokens: false,
            state: State::Content,
            at_boundary: true,
            at_start: true,
            num_blanks: 0,
            content: ContentLane::default(),
            reasoning: ReasoningLane::default(),
            out: Output::default(),
        };
        if start == Channel::Reasoning && style.is_some() {
            engine.content.markup(); // the opener in the prompt
            engine.at_start = false;
            engine.state = State::Reasoning;
        } else if start == Channel::Tools {
            engine.open_in_prompt();
        }
        engine
    }

    /// The prompt ends with a call's opener.
    fn open_in_prompt(&mut self) {
        let marker = self.rules.calls.and_then(|calls| calls.openers.first()).copied();
        if let Some(reader) = marker.and_then(|marker| self.rules.reader(marker)) {
            self.content.markup();
            self.at_start = false;
            self.state = State::Call(Attempt {
                reader,
                start: 0,
                opener_len: 0,
                in_reasoning: false,
                is_committed: false,
            });
        }
    }

    fn run(&mut self, end: bool) {
        // Every round but the last consumes text or leaves a state that does.
        while match self.state {
            State::Content => self.read_content(end),
            State::Reasoning => self.read_reasoning(end),
            State::Call(_) => self.read_call(end),
            State::BehindCall => self.read_behind_call(end),
        } {}
    }

    fn read_content(&mut self, end: bool) -> bool {
        let text = &self.buffer[self.position..];
        let first = first_non_blank(text);
        let is_anywhere = self.rules.place() == Place::Anywhere;
        let found = self.rules.in_content.find(text, end, |at, marker| {
            self.is_token_if_needed(at, marker)
                && match marker.kind {
                    Kind::CallOpener if is_anywhere => true,
                    Kind::ReasoningOpener => self.at_boundary && at == first,
                    _ => self.at_start && at == first,
                }
        });
        match found {
            Found::Nothing => self.say_content(self.buffer.len()),
            Found::Hold(at) => self.say_content(self.position + at),
            Found::Marker(at, marker) => {
                self.say_content(self.position + at);
                self.take(marker, false);
                return true;
            }
        }
        false
    }

    fn read_reasoning(&mut self, end: bool) -> bool {
        let text = &self.buffer[self.position..];
        let first = first_non_blank(text);
        let found = self.rules.in_reasoning.find(text, end, |at, marker| {
            self.is_token_if_needed(at, marker)
                && (marker.kind != Kind::ReasoningOpener
                    || (self.reasoning.is_fresh() && at == first))
        });
        match found {
            Found::Nothing => self.say_reasoning(self.buffer.len()),
            Found::Hold(at) => self.say_reasoning(self.position + at),
            Found::Marker(at, marker) => {
                self.say_reasoning(self.position + at);
                self.take(marker, true);
                return true;
            }
        }
        false
    }

    /// Blanks, separators and the closer behind a call are framing (U23).
    fn read_behind_call(&mut self, end: bool) -> bool {
        let separators = self.rules.calls.map_or("", |calls| calls.separators).as_bytes();
        let text = &self.buffer[self.position..];
        let is_framing = |byte: &u8| is_blank(*byte) || separators.contains(byte);
        let len = text.bytes().take_while(|byte| is_framing(byte)).count();
        self.position += len;
        let text = &self.buffer[self.position..];
        if text.is_empty() {
            return false;
        }
        let counts = |at, marker| self.is_token_if_needed(at, marker);
        match self.rules.behind_call.find_here(text, end, counts) {
            Found::Hold(_) => return false,
            Found::Marker(_, marker) => self.take(marker, false),
            Found::Nothing => self.state = State::Content,
        }
        true
    }

    /// Acts on a marker that stands at `position`.
    fn take(&mut self, marker: Marker, in_reasoning: bool) {
        let start = self.position;
        let len = marker.text.len();
        if matches!(marker.kind, Kind::CallOpener | Kind::CallStart) {
            let Some(reader) = self.rules.reader(marker.text) else { return };
            let is_opener = marker.kind == Kind::CallOpener;
            self.position += if is_opener { len } else { 0 };
            self.state = State::Call(Attempt {
                reader,
                start,
                opener_len: if is_opener { len } else { first_char_len(marker.text) },
                in_reasoning,
                is_committed: false,
            });
            return;
        }
        if marker.kind != Kind::CallCloser && self.has_token(start, len) {
            self.reasoning_is_tokens = true;
        }
        self.position += len;
        self.markup();
        self.state = match marker.kind {
            Kind::ReasoningOpener => State::Reasoning,
            Kind::ReasoningCloser => {
                self.reasoning.close();
                State::Content
            }
            _ => State::Content,
        };
    }

    fn read_call(&mut self, end: bool) -> bool {
        let State::Call(attempt) = &mut self.state else { return false };
        let mark = self.out.mark();
        let text = &self.buffer[self.position..];
        let step = attempt.reader.read(text, end, &mut Call(&mut self.out));
        let text_len = text.len();
        if self.out.num_calls > mark.num_calls && !attempt.is_committed {
            if self.rules.calls.is_none() {
                self.out.undo(mark);
                return self.quote();
            }
            attempt.is_committed = true;
            if attempt.in_reasoning {
                self.reasoning.close();
            }
            self.markup();
        }
        self.settle_call(step, text_len, end)
    }

    /// The call exists, so reasoning ends; what it says is content from its opener on.
    fn quote(&mut self) -> bool {
        if let State::Call(attempt) = std::mem::replace(&mut self.state, State::Content) {
            self.position = attempt.start;
        }
        self.reasoning.close();
        self.markup();
        true
    }

    fn settle_call(&mut self, step: Step, text_len: usize, end: bool) -> bool {
        let State::Call(attempt) = &self.state else { return false };
        let is_committed = attempt.is_committed;
        // Empty framing must be framing of the content, and must not be empty itself.
        let is_framing = |len: usize| !attempt.in_reasoning && self.position + len > attempt.start;
        match step {
            Step::More(len) if !end => {
                self.position += len.min(text_len);
                return false;
            }
            // Nothing follows: a call that exists stays as it is, any other is text.
            Step::More(_) if is_committed => {
                self.position += text_len;
                self.state = State::BehindCall;
            }
            Step::Done(len) | Step::Closed(len) if is_committed || is_framing(len) => {
                let is_closed = matches!(step, Step::Closed(_));
                self.position += len.min(text_len);
                self.markup();
                self.state = if is_closed { State::Content } else { State::BehindCall };
            }
            Step::Fail if is_committed => self.state = State::BehindCall,
            _ => self.fail(),
        }
        true
    }

    /// What was held goes back to its channel; scanning goes on behind the opener (U6).
    fn fail(&mut self) {
        let State::Call(attempt) = std::mem::replace(&mut self.state, State::Content) else {
            return;
        };
        self.position = attempt.start;
        let opener_end = attempt.start + attempt.opener_len;
        if attempt.in_reasoning {
            self.state = State::Reasoning;
            self.say_reasoning(opener_end);
        } else {
            self.say_content(opener_end);
        }
    }

    fn say_content(&mut self, to: usize) {
        let text = &self.buffer[self.position..to];
        self.content.text(text, &mut self.out);
        self.said(to);
    }

    fn say_reasoning(&mut self, to: usize) {
        let text = &self.buffer[self.position..to];
        self.reasoning.text(text, &mut self.out);
        self.said(to);
    }

    fn said(&mut self, to: usize) {
        let (body, tail) = split_tail(&self.buffer[self.position..to]);
        if body.is_empty() {
            self.num_blanks += tail.len();
        } else {
            self.num_blanks = tail.len();
            self.at_boundary = false;
            self.at_start = false;
        }
        self.position = to;
    }

    fn markup(&mut self) {
        self.content.markup();
        self.at_boundary = true;
        self.at_start = false;
        self.num_blanks = 0;
    }

    /// Strict markers (U21): a call's opener counts only as a token, a reasoning marker too, once
    /// one of them came so. `at` is an offset from `position`.
    fn is_token_if_needed(&self, at: usize, marker: Marker) -> bool {
        let needs_token = match marker.kind {
            Kind::CallOpener => true,
            Kind::ReasoningOpener | Kind::ReasoningCloser => self.reasoning_is_tokens,
            Kind::CallStart | Kind::CallCloser => false,
        };
        !(self.rules.request.strict_markers && needs_token)
            || self.has_token(self.position + at, marker.text.len())
    }

    fn has_token(&self, start: usize, len: usize) -> bool {
        let start = self.base + start as u64;
        let found = self.tokens.binary_search_by_key(&start, |(start, _)| *start);
        found.is_ok_and(|index| self.tokens[index].1 as usize == len)
    }

    /// Forgets what is decided and answers.
    fn reply(&mut self) -> Reply {
        let keep_from = match &self.state {
            State::Call(attempt) if !attempt.is_committed => attempt.start,
            _ => self.position,
        };
        self.buffer.drain(..keep_from);
        self.position -= keep_from;
        self.base += keep_from as u64;
        if let State::Call(attempt) = &mut self.state {
            attempt.start = 0;
        }
        while self.tokens.front().is_some_and(|(start, _)| *start < self.base) {
            self.tokens.pop_front();
        }
        let held = self.buffer.len() + self.num_blanks;
        let watch = match self.state {
            _ if held > 0 || self.at_boundary => None,
            State::Content if self.content.is_settled() => Some(Channel::Content),
            State::Reasoning if self.reasoning.is_settled() => Some(Channel::Reasoning),
            _ => None,
        };
        Reply { events: std::mem::take(&mut self.out.events), held: held as u32, watch }
    }
}

impl Session for Engine {
    fn push(&mut self, text: &str, specials: &[Special], skipped: u32) -> Reply {
        self.base += u64::from(skipped); // only where nothing was held: offsets stay true
        let start = self.base + self.buffer.len() as u64;
        for special in specials {
            self.tokens.push_back((start + u64::from(special.start), special.len));
        }
        self.buffer.push_str(text);
        self.run(false);
        self.reply()
    }

    fn finish(&mut self, _: FinishReason) -> Reply {
        self.run(true);
        self.reasoning.finish(&mut self.out);
        self.content.finish(&mut self.out);
        self.num_blanks = 0;
        Reply { watch: None, ..self.reply() }
    }
}

fn first_non_blank(text: &str) -> usize {
    text.bytes().take_while(|byte| is_blank(*byte)).count()
}

fn first_char_len(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

/// Is it `[]`, blanks aside, or nothing at all?
fn is_empty_list(tools: &str) -> bool {
    tools.bytes().filter(|byte| !is_blank(*byte)).all(|byte| matches!(byte, b'[' | b']'))
}
