//! The streaming engine behind every declared family: which channel the text is in, which markers
//! count there, and what is held back until it is decided. The same events come out for any cut.
//!
//! Time is linear: text is scanned once per state, a reader keeps its own state between pieces, and
//! a failed attempt is replayed once, from just behind its opener. Memory is what is held: the
//! beginning of a marker, trailing blanks, or a call before its commit (a reader bounds that one).

use alloc::boxed::Box;

use crate::call::Output;
use crate::lanes::{ContentLane, ReasoningLane, split_tail};
use crate::markers::{Found, Kind, Marker, Suffix};
use crate::rules::Rules;
use crate::window::Window;
use crate::{
    AtCall, Call, CallReader, Channel, Family, FinishReason, Place, Reply, RequestInfo, Section,
    Session, Special, Step, is_blank,
};

/// One stream of a declared family.
pub struct Engine {
    rules: Rules,
    window: Window,
    /// A reasoning marker came as a token: its fellows must, too.
    reasoning_is_tokens: bool,
    suffix: Suffix,
    state: State,
    /// The wrapper around calls that is open.
    section: Option<&'static Section>,
    /// Only blanks since a call that stood in no section.
    is_behind_call: bool,
    /// A call stands inside open reasoning, which goes on behind it.
    reasoning_waits: bool,
    /// Only blanks since the message start or since markup.
    at_boundary: bool,
    /// Only blanks since the message start or the end of reasoning.
    at_start: bool,
    /// The blanks that come next belong to the marker in front of them.
    drops_blanks: bool,
    /// The answer's wrapper was opened; it is opened once.
    frame_was_opened: bool,
    /// Trailing bytes in front of `position` that a lane holds.
    num_blanks: usize,
    content: ContentLane,
    reasoning: ReasoningLane,
    out: Output,
}

enum State {
    Content,
    Reasoning,
    /// Behind a section's opener, before the first call in it.
    Opening(Held),
    /// Behind a frame's closer, which is one if nothing but blanks or a call follows.
    FrameEnd(Held),
    Call(Attempt),
    /// Behind a call whose closer, or whose section's closer, has not come.
    BehindCall,
}

/// Markup that becomes text again if what must follow does not.
#[derive(Debug, Clone, Copy)]
struct Held {
    /// Where it begins in the window.
    start: usize,
    /// Bytes that are text for certain if it fails.
    marker_len: usize,
    in_reasoning: bool,
    section: Option<&'static Section>,
}

struct Attempt {
    reader: Box<dyn CallReader>,
    held: Held,
    is_committed: bool,
}

impl Engine {
    /// Opens a stream of `family`.
    pub fn new(family: &'static Family, request: RequestInfo) -> Self {
        let start = request.start;
        let (rules, style) = Rules::new(family, request);
        let mut engine = Engine {
            rules,
            window: Window::default(),
            reasoning_is_tokens: false,
            suffix: if family.suffixed { Suffix::Unknown } else { Suffix::Never },
            state: State::Content,
            section: None,
            is_behind_call: false,
            reasoning_waits: false,
            at_boundary: true,
            at_start: true,
            drops_blanks: false,
            frame_was_opened: false,
            num_blanks: 0,
            content: ContentLane::default(),
            reasoning: ReasoningLane::default(),
            out: Output { id_pattern: family.id_pattern, ..Output::default() },
        };
        if let Some(style) = style.filter(|style| style.is_content) {
            if start == Channel::Reasoning {
                let opener = style.openers.first().copied().unwrap_or_default();
                engine.content.text(opener, &mut engine.out);
            }
        } else if start == Channel::Reasoning && style.is_some() {
            engine.content.markup(); // the opener in the prompt
            engine.at_start = false;
            engine.state = State::Reasoning;
        } else if start == Channel::Tools {
            engine.open_in_prompt();
        }
        engine
    }

    /// The prompt ends with a call's opener, or with that of the wrapper around calls.
    fn open_in_prompt(&mut self) {
        let Some(calls) = self.rules.calls else { return };
        let held = Held { start: 0, marker_len: 0, in_reasoning: false, section: None };
        self.content.markup();
        self.at_start = false;
        if let Some(section) = calls.sections.first() {
            self.state = State::Opening(Held { section: Some(section), ..held });
        } else if let Some(marker) = calls.openers.first()
            && let Some(reader) = self.rules.reader(marker, "", false)
        {
            self.state = State::Call(Attempt { reader, held, is_committed: false });
        }
    }

    fn run(&mut self, end: bool) {
        // Every round but the last consumes text or leaves a state that does.
        while match self.state {
            State::Content => self.read_content(end),
            State::Reasoning => self.read_reasoning(end),
            State::Opening(held) => self.read_opening(held, end),
            State::FrameEnd(held) => self.read_frame_end(held, end),
            State::Call(_) => self.read_call(end),
            State::BehindCall => self.read_behind_call(end),
        } {}
    }

    /// Blanks that belong to the marker in front of them.
    fn drop_blanks(&mut self) {
        if self.drops_blanks {
            self.window.position += first_non_blank(self.window.rest());
            self.drops_blanks = self.window.is_read();
        }
    }

    fn read_content(&mut self, end: bool) -> bool {
        self.drop_blanks();
        let text = self.window.rest();
        let first = first_non_blank(text);
        let is_anywhere = self.rules.place() == Place::Anywhere;
        let set = match self.section {
            Some(_) => &self.rules.in_section,
            None => &self.rules.in_content,
        };
        let found = set.find(text, end, &self.suffix, |at, marker, len| {
            self.is_token_if_needed(at, marker, len)
                && match marker.kind {
                    Kind::SectionOpener | Kind::CallOpener if is_anywhere => true,
                    Kind::FrameCloser | Kind::Control => true,
                    // Outside, it is that of a call whose wrapper was forgotten.
                    Kind::SectionCloser => {
                        self.section.is_some() || self.is_behind_call && at == first
                    }
                    Kind::FrameOpener => !self.frame_was_opened && self.at_boundary && at == first,
                    Kind::ReasoningOpener if self.rules.counts_anywhere(marker.text) => true,
                    Kind::ReasoningOpener if !self.rules.has_phrases => {
                        self.at_boundary && at == first
                    }
                    _ => self.at_start && at == first,
                }
        });
        match found {
            Found::Nothing => self.say_content(self.window.len()),
            Found::Hold(at) => self.say_content(self.window.position + at),
            Found::Marker(at, marker, len) => {
                self.say_content(self.window.position + at);
                self.take(marker, len, false);
                return true;
            }
        }
        false
    }

    fn read_reasoning(&mut self, end: bool) -> bool {
        self.drop_blanks();
        let text = self.window.rest();
        let first = first_non_blank(text);
        let found = self.rules.in_reasoning.find(text, end, &self.suffix, |at, marker, len| {
            self.is_token_if_needed(at, marker, len)
                && (marker.kind != Kind::ReasoningOpener
                    || (self.reasoning.is_fresh() && at == first))
        });
        match found {
            Found::Nothing => self.say_reasoning(self.window.len()),
            Found::Hold(at) => self.say_reasoning(self.window.position + at),
            Found::Marker(at, marker, len) => {
                self.say_reasoning(self.window.position + at);
                self.take(marker, len, true);
                return true;
            }
        }
        false
    }

    /// Behind a section's opener: blanks, and then its first call, or its closer (U5).
    fn read_opening(&mut self, held: Held, end: bool) -> bool {
        self.window.position += first_non_blank(self.window.rest());
        let text = self.window.rest();
        if text.is_empty() && !end {
            return false;
        }
        match self.rules.in_opening.find_here(text, end, &self.suffix, |_, _, _| true) {
            Found::Hold(_) => return false,
            Found::Marker(_, marker, len) if marker.kind == Kind::SectionCloser => {
                let is_own = held.section.is_some_and(|own| own.closer == marker.text);
                let is_text = held.section.is_none_or(|section| section.empty_is_text);
                if !is_own || is_text || held.in_reasoning {
                    self.give_back(held);
                } else {
                    self.suffix.learn(marker.text, text, len);
                    self.window.position += len;
                    self.markup();
                    self.state = State::Content;
                }
            }
            Found::Marker(_, marker, len) => self.try_call(marker, len, held),
            Found::Nothing => self.give_back(held),
        }
        true
    }

    /// Behind the closer of the answer's wrapper (U17).
    fn read_frame_end(&mut self, held: Held, end: bool) -> bool {
        self.window.position += first_non_blank(self.window.rest());
        let text = self.window.rest();
        if text.is_empty() && !end {
            return false;
        }
        let counts = |at, marker, len| self.is_token_if_needed(at, marker, len);
        match self.rules.behind_frame.find_here(text, end, &self.suffix, counts) {
            _ if text.is_empty() => {
                self.markup();
                self.state = State::Content;
            }
            Found::Hold(_) => return false,
            Found::Marker(_, marker, len) if marker.kind == Kind::CallOpener => {
                self.try_call(marker, len, held);
            }
            Found::Marker(_, marker, len) if marker.kind == Kind::SectionOpener => {
                self.window.position += len;
                let section = self.rules.section(marker.text);
                self.state = State::Opening(Held { section, ..held });
            }
            _ => self.give_back(held),
        }
        true
    }

    /// Blanks, separators and the closer behind a call are framing (U23).
    fn read_behind_call(&mut self, end: bool) -> bool {
        let separators = self.rules.calls.map_or("", |calls| calls.separators).as_bytes();
        let text = self.window.rest();
        let is_framing = |byte: &u8| is_blank(*byte) || separators.contains(byte);
        let len = text.bytes().take_while(|byte| is_framing(byte)).count();
        self.window.position += len;
        let text = self.window.rest();
        if text.is_empty() {
            return false;
        }
        let has_bare_openers = self.rules.calls.is_none_or(|calls| calls.has_bare_openers());
        let found = self.rules.behind_call.find_here(text, end, &self.suffix, |at, marker, len| {
            let counts = match marker.kind {
                Kind::CallOpener => has_bare_openers || self.section.is_some(),
                Kind::ReasoningOpener => !self.reasoning_waits,
                _ => true,
            };
            counts && self.is_token_if_needed(at, marker, len)
        });
        match found {
            Found::Hold(_) => return false,
            Found::Marker(_, marker, len) => {
                let in_reasoning = self.reasoning_waits;
                self.take(marker, len, in_reasoning);
            }
            Found::Nothing => self.resume(),
        }
        true
    }

    /// Back to the text that calls stand in.
    fn resume(&mut self) {
        let waits = core::mem::take(&mut self.reasoning_waits);
        self.state = if waits { State::Reasoning } else { State::Content };
    }

    /// Acts on a marker that stands at `position`.
    fn take(&mut self, marker: Marker, len: usize, in_reasoning: bool) {
        let start = self.window.position;
        let held = Held { start, marker_len: len, in_reasoning, section: None };
        match marker.kind {
            Kind::CallOpener | Kind::CallStart => return self.try_call(marker, len, held),
            Kind::SectionOpener => {
                self.window.position += len;
                let section = self.rules.section(marker.text);
                self.state = State::Opening(Held { section, ..held });
                return;
            }
            Kind::FrameCloser => {
                self.window.position += len;
                self.state = State::FrameEnd(held);
                return;
            }
            _ => {}
        }
        if matches!(marker.kind, Kind::ReasoningOpener | Kind::ReasoningCloser)
            && self.window.has_token(start, len)
        {
            self.reasoning_is_tokens = true;
        }
        self.suffix.learn(marker.text, &self.window.text()[start..], len);
        self.window.position += len;
        self.markup();
        match marker.kind {
            Kind::ReasoningOpener => self.state = State::Reasoning,
            Kind::ReasoningCloser | Kind::Control => {
                self.reasoning.close();
                self.at_start = true;
                self.state = State::Content;
            }
            Kind::FrameOpener => {
                self.frame_was_opened |= self.rules.opens_frame(marker.text);
                self.state = State::Content;
            }
            Kind::SectionCloser => {
                self.section = None;
                self.is_behind_call = false;
                self.resume();
            }
            _ if self.section.is_none() => self.resume(),
            _ => self.state = State::BehindCall,
        }
        let is_reasoning = matches!(marker.kind, Kind::ReasoningOpener | Kind::ReasoningCloser);
        self.drops_blanks = is_reasoning && self.rules.has_phrases;
    }

    /// A call's opener stands at `position`; `held` goes back with it if it is none.
    fn try_call(&mut self, marker: Marker, len: usize, held: Held) {
        let in_section = held.section.is_some() || self.section.is_some();
        let text = self.window.rest();
        let mut suffix = self.suffix.clone();
        suffix.learn(marker.text, text, len);
        let Some(reader) = self.rules.reader(marker.text, suffix.text(), in_section) else {
            return self.give_back(held);
        };
        let mut held = held;
        if marker.kind == Kind::CallStart {
            if held.start == self.window.position {
                held.marker_len = first_char_len(marker.text);
            }
        } else {
            self.window.position += len;
        }
        self.state = State::Call(Attempt { reader, held, is_committed: false });
    }

    fn read_call(&mut self, end: bool) -> bool {
        let State::Call(attempt) = &mut self.state else { return false };
        let mark = self.out.mark();
        let text = self.window.rest();
        let step = attempt.reader.read(text, end, &mut Call(&mut self.out, &self.rules.request));
        let text_len = text.len();
        if self.out.num_calls > mark.num_calls && !attempt.is_committed {
            if self.rules.calls.is_none() {
                self.out.undo(mark);
                return self.quote();
            }
            attempt.is_committed = true;
            let held = attempt.held;
            self.commit(held);
        }
        if !self.out.stray.is_empty() {
            let stray = core::mem::take(&mut self.out.stray);
            self.content.text(&stray, &mut self.out);
        }
        self.settle_call(step, text_len, end)
    }

    fn commit(&mut self, held: Held) {
        if held.in_reasoning {
            match self.rules.at_call {
                AtCall::GoesOn => {
                    self.reasoning_waits = true;
                    self.reasoning.markup();
                }
                _ => self.reasoning.close(),
            }
        }
        if let Some(section) = held.section {
            self.section = Some(section);
            let text = &self.window.text()[held.start..];
            self.suffix.learn(section.opener, text, held.marker_len);
        }
        self.markup();
        self.is_behind_call = self.section.is_none();
    }

    /// The call exists, so reasoning ends; what it says is content from its opener on.
    fn quote(&mut self) -> bool {
        if let State::Call(attempt) = core::mem::replace(&mut self.state, State::Content) {
            self.window.position = attempt.held.start;
        }
        self.reasoning.close();
        self.markup();
        true
    }

    fn settle_call(&mut self, step: Step, text_len: usize, end: bool) -> bool {
        let State::Call(attempt) = &self.state else { return false };
        let (is_committed, held) = (attempt.is_committed, attempt.held);
        // Empty framing must be framing of the content, and must not be empty itself.
        let is_framing = |len: usize| !held.in_reasoning && self.window.position + len > held.start;
        match step {
            Step::More(len) if !end => {
                self.window.position += len.min(text_len);
                return false;
            }
            // Nothing follows: a call that exists stays as it is, any other is text.
            Step::More(_) if is_committed => {
                self.window.position += text_len;
                self.state = State::BehindCall;
            }
            Step::Done(len) | Step::Closed(len) if is_committed || is_framing(len) => {
                let is_closed = matches!(step, Step::Closed(_));
                self.window.position += len.min(text_len);
                if !is_committed && held.section.is_some() {
                    self.section = held.section;
                }
                self.markup();
                if is_closed && self.section.is_none() {
                    self.resume();
                } else {
                    self.state = State::BehindCall;
                }
            }
            Step::Fail if is_committed => self.state = State::BehindCall,
            _ => self.give_back(held),
        }
        true
    }

    /// What was held goes back to its channel; scanning goes on behind its marker (U6).
    fn give_back(&mut self, held: Held) {
        self.window.position = held.start;
        let marker_end = held.start + held.marker_len;
        if held.in_reasoning {
            self.reasoning_waits = false;
            self.state = State::Reasoning;
            self.say_reasoning(marker_end);
        } else {
            self.state = State::Content;
            self.say_content(marker_end);
        }
    }

    fn say_content(&mut self, to: usize) {
        let text = &self.window.text()[self.window.position..to];
        self.content.text(text, &mut self.out);
        self.said(to);
    }

    fn say_reasoning(&mut self, to: usize) {
        let text = &self.window.text()[self.window.position..to];
        self.reasoning.text(text, &mut self.out);
        self.said(to);
    }

    fn said(&mut self, to: usize) {
        let (body, tail) = split_tail(&self.window.text()[self.window.position..to]);
        if body.is_empty() {
            self.num_blanks += tail.len();
        } else {
            self.num_blanks = tail.len();
            self.at_boundary = false;
            self.at_start = false;
            self.is_behind_call = false;
        }
        self.window.position = to;
    }

    fn markup(&mut self) {
        self.content.markup();
        self.at_boundary = true;
        self.at_start = false;
        self.num_blanks = 0;
    }

    /// Strict markers (U21): a call's outermost opener counts only as a token, a reasoning marker
    /// too, once one of them came so. `at` is an offset from `position`.
    fn is_token_if_needed(&self, at: usize, marker: Marker, len: usize) -> bool {
        let needs_token = match marker.kind {
            Kind::SectionOpener => true,
            Kind::CallOpener => self.section.is_none(),
            Kind::ReasoningOpener | Kind::ReasoningCloser => self.reasoning_is_tokens,
            _ => false,
        };
        !(self.rules.request.strict_markers && needs_token)
            || self.window.has_token(self.window.position + at, len)
    }

    /// Forgets what is decided and answers.
    fn reply(&mut self) -> Reply {
        let keep_from = match &self.state {
            State::Opening(held) | State::FrameEnd(held) => held.start,
            State::Call(attempt) if !attempt.is_committed => attempt.held.start,
            _ => self.window.position,
        };
        self.window.forget(keep_from);
        if let State::Opening(held) | State::FrameEnd(held) | State::Call(Attempt { held, .. }) =
            &mut self.state
        {
            held.start = 0;
        }
        let held = self.window.len() + self.num_blanks;
        let watch = match self.state {
            _ if held > 0 || self.at_boundary || self.section.is_some() => None,
            State::Content if self.content.is_settled() => Some(Channel::Content),
            State::Reasoning if self.reasoning.is_settled() => Some(Channel::Reasoning),
            _ => None,
        };
        Reply { events: core::mem::take(&mut self.out.events), held: held as u32, watch }
    }
}

impl Session for Engine {
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

fn first_non_blank(text: &str) -> usize {
    text.bytes().take_while(|byte| is_blank(*byte)).count()
}

fn first_char_len(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}
