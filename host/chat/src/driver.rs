//! One stream's parser and the host's side of the parser contract: native delivery of watched
//! channels, checks of what a guest answers, and raw text when it fails. Output workers and the
//! playground drive it; it has no threads, clocks or queues.
//!
//! The contract's central sum: at any time the text given so far is what is in events and finished
//! markers, plus `held`, the bytes that nobody accounts for yet. A fault emits exactly those.

use std::sync::Arc;

use crate::parser::{
    Channel, FaultKind, ParseEvent, ParseFinish, ParserFactory, ParserFault, ParserSession, Reply,
    Special,
};
use crate::stream::ParserBinding;
use crate::watch::{Scan, Watch};

/// Most calls in one message; a guest that announces more has failed.
pub const MAX_CALLS: u32 = 1024;

/// A stream's parser. After a fault, or without a session, all text is content.
pub struct ParserDriver {
    factory: Arc<dyn ParserFactory>,
    session: Option<Box<dyn ParserSession>>,
    fault: Option<ParserFault>,
    /// Where the last text went.
    channel: Channel,
    host_watch: bool,
    /// Set while the host delivers a channel itself.
    watching: Option<Channel>,
    /// Of content and reasoning; built when first watched.
    watches: [Option<Box<Watch>>; 2],
    /// Bytes delivered natively since the last call.
    skipped: u32,
    held: Held,
    /// Of `held`, while watching: no trigger begins in the first so many bytes.
    decided: usize,
    /// Of `held`, while watching (the guest has seen the specials of what it holds itself).
    specials: Vec<Special>,
    calls: Calls,
}

impl ParserDriver {
    /// Opens the session. A parser that cannot open is a fault: the stream is raw text.
    pub fn new(binding: &ParserBinding) -> ParserDriver {
        let (session, fault) = match binding.factory.open(&binding.info) {
            Ok(session) => (Some(session), None),
            Err(fault) => (None, Some(fault)),
        };
        ParserDriver {
            factory: binding.factory.clone(),
            channel: if session.is_some() { binding.info.start } else { Channel::Content },
            session,
            fault,
            host_watch: binding.host_watch,
            watching: None,
            watches: [None, None],
            skipped: 0,
            held: Held::default(),
            decided: 0,
            specials: Vec::new(),
            calls: Calls::default(),
        }
    }

    /// More text. `specials` are ranges of `text`, ascending. Events are appended to `out`, joined
    /// with its last one where both say the same.
    pub fn push(&mut self, text: &str, specials: &[Special], out: &mut Vec<ParseEvent>) {
        if text.is_empty() {
            return;
        }
        let Some(session) = &mut self.session else {
            self.channel = Channel::Content;
            return append_text(out, Channel::Content, text);
        };
        if let Some(channel) = self.watching {
            return self.push_watched(channel, text, specials, out);
        }
        let result = session.push(text, specials, 0);
        self.held.push(text);
        self.settle(result, out);
    }

    /// The stream ended. Everything held comes out; call nothing but the accessors afterwards.
    pub fn finish(&mut self, reason: ParseFinish, out: &mut Vec<ParseEvent>) {
        if self.watching.is_some() && (self.skipped > 0 || !self.held.is_empty()) {
            self.hand_over(out);
        }
        self.watching = None;
        let Some(mut session) = self.session.take() else { return };
        let result = session.finish(reason);
        self.settle(result, out);
        self.session = None;
        if !self.held.is_empty() && self.fault.is_none() {
            let message = format!("`finish` left {} bytes in no event", self.held.text().len());
            self.fail(self.bad_output(message), out);
        }
    }

    /// The failure after which all text is content.
    pub fn fault(&self) -> Option<&ParserFault> {
        self.fault.as_ref()
    }

    /// Where the last text went, or where a watched stream stands.
    pub fn channel(&self) -> Channel {
        self.channel
    }

    fn push_watched(
        &mut self,
        channel: Channel,
        text: &str,
        specials: &[Special],
        out: &mut Vec<ParseEvent>,
    ) {
        let descriptor = self.factory.descriptor();
        let watch = &mut self.watches[usize::from(channel == Channel::Reasoning)];
        let watch = watch.get_or_insert_with(|| Box::new(Watch::new(descriptor, channel)));
        let found: Scan;
        if self.held.is_empty() {
            found = watch.scan(descriptor, text, 0);
            append_text(out, channel, &text[..found.deliver]);
            self.held.push(&text[found.deliver..]);
            self.specials.extend(rebased(specials, 0, found.deliver));
        } else {
            let offset = self.held.text().len();
            self.held.push(text);
            self.specials.extend(rebased(specials, offset, 0));
            found = watch.scan(descriptor, self.held.text(), self.decided);
            append_text(out, channel, &self.held.text()[..found.deliver]);
            self.held.drop_front(found.deliver);
            if found.deliver > 0 {
                self.specials = rebased(&self.specials, 0, found.deliver).collect();
            }
        }
        self.decided = found.decided - found.deliver;
        let delivered = u32::try_from(found.deliver).unwrap_or(u32::MAX);
        self.skipped = self.skipped.saturating_add(delivered);
        if found.is_trigger {
            self.hand_over(out);
        }
    }

    /// Gives the guest what the host held while it watched.
    fn hand_over(&mut self, out: &mut Vec<ParseEvent>) {
        let Some(session) = &mut self.session else { return };
        let result = session.push(self.held.text(), &self.specials, self.skipped);
        self.skipped = 0;
        self.specials.clear();
        self.settle(result, out);
    }

    /// Takes a reply to all of `held`: its events and what stays held, or nothing of it at all.
    fn settle(&mut self, result: Result<Reply, ParserFault>, out: &mut Vec<ParseEvent>) {
        self.watching = None;
        self.decided = 0;
        let reply = match result {
            Ok(reply) => reply,
            Err(fault) => return self.fail(fault, out),
        };
        let held = reply.held as usize;
        let calls = self.held.check_last(held).and_then(|()| self.calls.after(&reply.events));
        match calls {
            Ok(calls) => self.calls = calls,
            Err(message) => return self.fail(self.bad_output(message), out),
        }
        self.held.keep_last(held);
        for event in reply.events {
            match &event {
                ParseEvent::Content(_) => self.channel = Channel::Content,
                ParseEvent::Reasoning(_) => self.channel = Channel::Reasoning,
                ParseEvent::Note(_) => {}
                _ => self.channel = Channel::Tools,
            }
            append(out, event);
        }
        // What the guest holds itself comes before anything new, so there is nothing to deliver
        // natively yet; and a call's arguments are never plain text.
        if let Some(channel @ (Channel::Content | Channel::Reasoning)) = reply.watch {
            self.channel = channel;
            self.watching = (self.host_watch && held == 0).then_some(channel);
        }
    }

    fn fail(&mut self, fault: ParserFault, out: &mut Vec<ParseEvent>) {
        self.session = None;
        self.fault = Some(fault);
        self.channel = Channel::Content;
        append_text(out, Channel::Content, self.held.text());
        self.held = Held::default();
    }

    fn bad_output(&self, message: String) -> ParserFault {
        let extension = self.factory.descriptor().name.clone();
        ParserFault { extension, kind: FaultKind::BadOutput, message }
    }
}

/// The last bytes of the text, which are in no event and no finished marker.
#[derive(Default)]
struct Held {
    buf: String,
    /// Bytes of `buf` that are accounted for; cut off when they are most of it.
    start: usize,
}

impl Held {
    fn text(&self) -> &str {
        &self.buf[self.start..]
    }

    fn is_empty(&self) -> bool {
        self.start == self.buf.len()
    }

    fn push(&mut self, text: &str) {
        self.buf.push_str(text);
    }

    fn check_last(&self, len: usize) -> Result<(), String> {
        let text = self.text();
        match text.len().checked_sub(len) {
            Some(at) if text.is_char_boundary(at) => Ok(()),
            Some(_) => Err(format!("`held` = {len} cuts a character")),
            None => Err(format!("`held` = {len}, but only {} bytes are open", text.len())),
        }
    }

    fn keep_last(&mut self, len: usize) {
        self.drop_front(self.text().len() - len);
    }

    fn drop_front(&mut self, len: usize) {
        self.start += len;
        if self.is_empty() {
            self.buf.clear();
            self.start = 0;
        } else if self.start > self.buf.len() / 2 {
            self.buf.drain(..self.start);
            self.start = 0;
        }
    }
}

/// Which calls have begun, to check the order of events.
#[derive(Debug, Clone, Copy, Default)]
struct Calls {
    num_begun: u32,
    open: Option<u32>,
}

impl Calls {
    /// Checks the events of one reply; the error is for the extension's author.
    fn after(mut self, events: &[ParseEvent]) -> Result<Calls, String> {
        for event in events {
            match event {
                ParseEvent::ToolBegin { index, .. } => {
                    if *index != self.num_begun {
                        let next = self.num_begun;
                        return Err(format!("call {index} began where call {next} is next"));
                    }
                    if *index >= MAX_CALLS {
                        return Err(format!("more than {MAX_CALLS} calls in one message"));
                    }
                    self = Calls { num_begun: index + 1, open: Some(*index) };
                }
                ParseEvent::ToolArgs { index, .. } if self.open != Some(*index) => {
                    return Err(format!("arguments of call {index}, which is not open"));
                }
                ParseEvent::ToolEnd { index } if self.open != Some(*index) => {
                    return Err(format!("end of call {index}, which is not open"));
                }
                ParseEvent::ToolEnd { .. } => self.open = None,
                _ => {}
            }
        }
        Ok(self)
    }
}

/// The ranges of a text that lie behind its first `cut` bytes, in a text with `offset` more bytes
/// in front. One that is cut in two is no longer a whole token and drops out.
fn rebased(specials: &[Special], offset: usize, cut: usize) -> impl Iterator<Item = Special> + '_ {
    let whole = specials.iter().filter(move |special| special.start as usize >= cut);
    whole.map(move |special| {
        let start = special.start as usize - cut + offset;
        Special { start: u32::try_from(start).unwrap_or(u32::MAX), ..*special }
    })
}

fn append_text(out: &mut Vec<ParseEvent>, channel: Channel, text: &str) {
    match (out.last_mut(), channel) {
        _ if text.is_empty() => {}
        (Some(ParseEvent::Content(last)), Channel::Content)
        | (Some(ParseEvent::Reasoning(last)), Channel::Reasoning) => last.push_str(text),
        (_, Channel::Reasoning) => out.push(ParseEvent::Reasoning(text.to_owned())),
        _ => out.push(ParseEvent::Content(text.to_owned())),
    }
}

fn append(out: &mut Vec<ParseEvent>, event: ParseEvent) {
    match (out.last_mut(), event) {
        (Some(ParseEvent::Content(last)), ParseEvent::Content(text))
        | (Some(ParseEvent::Reasoning(last)), ParseEvent::Reasoning(text)) => last.push_str(&text),
        (
            Some(ParseEvent::ToolArgs { index, text: last }),
            ParseEvent::ToolArgs { index: of, text },
        ) if *index == of => {
            last.push_str(&text);
        }
        (_, ParseEvent::Content(text) | ParseEvent::Reasoning(text)) if text.is_empty() => {}
        (_, ParseEvent::ToolArgs { text, .. }) if text.is_empty() => {}
        (_, event) => out.push(event),
    }
}

#[cfg(test)]
mod tests;
