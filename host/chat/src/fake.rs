//! A scriptable parser session for the tests of this crate. It follows the contract of `wit/` for
//! a small format and can fail at any call.
//!
//! The format: `<think>`…`</think>` (the opener only at the start or behind a marker),
//! `<call:NAME>`…`</call>`, and `<|x|>`, which counts only as one added token. Blanks in front of a
//! marker belong to it. Every finished marker is told in a note, so that all text of all events,
//! in order, is the text that came in.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::parser::{
    Channel, Descriptor, FaultKind, Grammar, ModelInfo, ParseEvent, ParseFinish, ParserFactory,
    ParserFault, ParserSession, ReasoningStyle, Reply, RequestInfo, Special, ToolChoice, Trigger,
};
use crate::stream::ParserBinding;
use crate::watch::is_blank;

/// What a session does at its `at`-th call (from 0; `finish` counts).
#[derive(Debug, Clone, Copy)]
pub enum Failure {
    /// An error.
    Trap,
    /// A reply that claims more than was given.
    HeldTooMuch,
    /// A reply with arguments of a call that never began.
    NoSuchCall,
    /// A panic of the host's own code.
    Panic,
}

/// Opens [`Fake`] sessions.
pub struct FakeFactory {
    descriptor: Descriptor,
    /// How sessions fail.
    pub failure: Option<(usize, Failure)>,
    /// `open` fails.
    pub is_broken: bool,
    /// Calls of all sessions so far.
    pub calls: Arc<AtomicUsize>,
}

impl FakeFactory {
    /// A factory whose sessions work.
    pub fn new() -> FakeFactory {
        let calls = Arc::new(AtomicUsize::new(0));
        FakeFactory { descriptor: descriptor(), failure: None, is_broken: false, calls }
    }

    /// A binding of it.
    pub fn bind(self, start: Channel, host_watch: bool) -> ParserBinding {
        let info = RequestInfo {
            tools: "[]".into(),
            tool_choice: ToolChoice::Auto,
            parallel: true,
            strict: false,
            reasoning_style: Some("fake".into()),
            start,
            strict_markers: false,
        };
        ParserBinding { factory: Arc::new(self), info, host_watch, fail_on_fault: false }
    }
}

/// The format, described.
pub fn descriptor() -> Descriptor {
    let strings = |texts: &[&str]| texts.iter().map(|t| t.to_string()).collect::<Vec<_>>();
    Descriptor {
        name: "fake".into(),
        version: "0.1.0".into(),
        summary: "calls in angle brackets".into(),
        aliases: vec![],
        tools: true,
        reasoning_styles: vec![ReasoningStyle {
            name: "fake".into(),
            aliases: vec![],
            openers: strings(&["<think>\n"]),
            closers: strings(&["</think>"]),
            ends_at_call: false,
        }],
        added_tokens: strings(&["<|x|>"]),
        openers: strings(&["<call:"]),
        triggers: vec![
            Trigger { channel: Channel::Content, texts: strings(&["<think>", "<call:", "<|x|>"]) },
            Trigger { channel: Channel::Reasoning, texts: strings(&["</think>"]) },
        ],
        evidence: vec![],
    }
}

/// A fault of the fake.
pub fn trap() -> ParserFault {
    ParserFault { extension: "fake".into(), kind: FaultKind::Trap, message: "scripted".into() }
}

impl ParserFactory for FakeFactory {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    fn digest(&self) -> &str {
        "sha256:fake"
    }

    fn open(&self, request: &RequestInfo) -> Result<Box<dyn ParserSession>, ParserFault> {
        if self.is_broken {
            return Err(trap());
        }
        Ok(Box::new(Fake {
            mode: request.start,
            at_boundary: true,
            num_calls: 0,
            buf: String::new(),
            specials: vec![],
            failure: self.failure,
            num_pushes: 0,
            calls: self.calls.clone(),
        }))
    }

    fn constraint(
        &self,
        _: &ModelInfo,
        _: &RequestInfo,
    ) -> Result<Result<Option<Grammar>, String>, ParserFault> {
        Ok(Ok(None))
    }
}

struct Fake {
    mode: Channel,
    at_boundary: bool,
    num_calls: u32,
    buf: String,
    specials: Vec<Special>,
    failure: Option<(usize, Failure)>,
    num_pushes: usize,
    calls: Arc<AtomicUsize>,
}

enum Found {
    /// So many bytes, and the mode behind them.
    Marker(usize, Channel),
    Maybe,
    Text,
}

impl ParserSession for Fake {
    fn push(
        &mut self,
        text: &str,
        specials: &[Special],
        skipped: u32,
    ) -> Result<Reply, ParserFault> {
        assert!(skipped == 0 || self.buf.is_empty(), "skipped what the session holds");
        self.at_boundary &= skipped == 0;
        for special in specials {
            assert!(text.get(special.start as usize..).is_some(), "special out of range");
            let start = special.start + self.buf.len() as u32;
            self.specials.push(Special { start, ..*special });
        }
        self.buf.push_str(text);
        self.answer(false)
    }

    fn finish(&mut self, _: ParseFinish) -> Result<Reply, ParserFault> {
        self.answer(true)
    }
}

impl Fake {
    fn answer(&mut self, is_last: bool) -> Result<Reply, ParserFault> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.num_pushes += 1;
        let failure = self.failure.filter(|(at, _)| at + 1 == self.num_pushes);
        let mut reply = Reply::default();
        match failure {
            Some((_, Failure::Trap)) => return Err(trap()),
            Some((_, Failure::Panic)) => panic!("scripted panic of a session"),
            _ => self.advance(is_last, &mut reply.events),
        }
        reply.held = self.buf.len() as u32;
        match failure {
            Some((_, Failure::HeldTooMuch)) => reply.held = 1 << 20,
            Some((_, Failure::NoSuchCall)) => {
                reply.events.push(ParseEvent::ToolArgs { index: 77, text: "{".into() });
            }
            _ => {}
        }
        // Also when something is held: then the host must not take the offer.
        reply.watch = match self.mode {
            Channel::Tools => None,
            channel => Some(channel),
        };
        Ok(reply)
    }

    fn advance(&mut self, is_last: bool, events: &mut Vec<ParseEvent>) {
        while !self.buf.is_empty() {
            let blanks = match self.mode {
                Channel::Tools => 0,
                _ => self.buf.bytes().take_while(|byte| is_blank(*byte)).count(),
            };
            let Some(first) = self.buf[blanks..].chars().next() else {
                if is_last {
                    self.emit(blanks, events);
                }
                return;
            };
            match self.find(blanks) {
                Found::Maybe if !is_last => return,
                Found::Marker(len, mode) => {
                    let marker = self.take(blanks + len);
                    let name = marker.trim_start().strip_prefix("<call:").map(|m| m.to_owned());
                    events.push(ParseEvent::Note(marker));
                    if let Some(name) = name {
                        let name = name.trim_end_matches('>').to_owned();
                        let index = self.num_calls;
                        events.push(ParseEvent::ToolBegin { index, name, id: None });
                        self.num_calls += 1;
                    } else if self.mode == Channel::Tools {
                        events.push(ParseEvent::ToolEnd { index: self.num_calls - 1 });
                    }
                    self.mode = mode;
                    self.at_boundary = true;
                }
                Found::Maybe | Found::Text => {
                    self.emit(blanks + first.len_utf8(), events);
                    self.at_boundary = false;
                }
            }
        }
    }

    fn find(&self, at: usize) -> Found {
        let rest = &self.buf[at..];
        match self.mode {
            Channel::Reasoning => literal(rest, "</think>", Channel::Content),
            Channel::Tools => literal(rest, "</call>", Channel::Content),
            Channel::Content => {
                if self.at_boundary
                    && !matches!(literal(rest, "<think>", Channel::Reasoning), Found::Text)
                {
                    return literal(rest, "<think>", Channel::Reasoning);
                }
                if let Some(name) = rest.strip_prefix("<call:") {
                    let len = name.bytes().take_while(u8::is_ascii_lowercase).count();
                    return match name.as_bytes().get(len) {
                        None => Found::Maybe,
                        Some(b'>') => Found::Marker("<call:".len() + len + 1, Channel::Tools),
                        Some(_) => Found::Text,
                    };
                }
                let covers = |s: &&Special| s.start as usize == at && s.len == 5 && s.id == 9;
                if rest.starts_with("<|x|>") && self.specials.iter().any(|s| covers(&s)) {
                    return Found::Marker("<|x|>".len(), Channel::Content);
                }
                literal(rest, "<call:", Channel::Tools)
            }
        }
    }

    fn emit(&mut self, len: usize, events: &mut Vec<ParseEvent>) {
        let text = self.take(len);
        events.push(match self.mode {
            Channel::Content => ParseEvent::Content(text),
            Channel::Reasoning => ParseEvent::Reasoning(text),
            Channel::Tools => ParseEvent::ToolArgs { index: self.num_calls - 1, text },
        });
    }

    fn take(&mut self, len: usize) -> String {
        self.specials.retain(|special| special.start as usize >= len);
        self.specials.iter_mut().for_each(|special| special.start -= len as u32);
        self.buf.drain(..len).collect()
    }
}

fn literal(rest: &str, marker: &str, then: Channel) -> Found {
    if rest.starts_with(marker) {
        Found::Marker(marker.len(), then)
    } else if marker.starts_with(rest) {
        Found::Maybe
    } else {
        Found::Text
    }
}
