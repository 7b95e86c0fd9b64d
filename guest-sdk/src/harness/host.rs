//! The host's side of a stream: hands over pieces, delivers watched text by itself, checks each
//! reply. What the real host does with an answer beyond that is none of a parser's business.

use super::{Folded, Violation, broken};
use crate::lanes::split_tail;
use crate::{Channel, Event, FinishReason, Parser, Reply, RequestInfo, Session, Special};

/// How text reaches the parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// All of it is pushed.
    Pushed,
    /// What the parser asks to have watched is delivered without it.
    Watched,
}

/// A model's output: its text, and which bytes of it came from one added token each.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    /// All of it.
    pub text: String,
    /// In order; offsets are of `text`. A cut inside one is moved behind it.
    pub tokens: Vec<Special>,
}

impl Stream {
    /// A text without added tokens.
    pub fn of(text: &str) -> Self {
        Stream { text: text.into(), tokens: Vec::new() }
    }

    /// A text where each of `markers` came as one added token wherever it stands.
    pub fn with_tokens(text: &str, markers: &[&str]) -> Self {
        let mut tokens = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let rest = &text[at..];
            match markers.iter().position(|marker| rest.starts_with(marker)) {
                Some(id) => {
                    let len = markers[id].len();
                    tokens.push(Special { start: at as u32, len: len as u32, id: id as u32 });
                    at += len;
                }
                None => at += rest.chars().next().map_or(1, char::len_utf8),
            }
        }
        Stream { text: text.into(), tokens }
    }
}

/// One stream of `P`, cut at `cuts` (byte offsets, ascending).
///
/// # Errors
/// A broken promise of the parser.
pub fn run<P: Parser>(
    request: &RequestInfo,
    stream: &Stream,
    cuts: &[usize],
    reason: FinishReason,
    delivery: Delivery,
) -> Result<Folded, Violation> {
    let mut host = Host::<P> {
        session: P::open(request.clone()),
        triggers: P::describe().triggers.into_iter().map(|t| (t.channel, t.texts)).collect(),
        watch: None,
        kept: 0,
        position: 0,
        num_skipped: 0,
        accounted: 0,
        folded: Folded::default(),
    };
    let ends = cuts.iter().copied().chain([stream.text.len()]);
    let mut done = 0;
    for end in ends {
        let inside = |t: &&Special| (t.start as usize) < end && end < (t.start + t.len) as usize;
        let end = stream.tokens.iter().find(inside).map_or(end, |t| (t.start + t.len) as usize);
        if end > done {
            host.piece(stream, done, end, delivery)?;
            done = end;
        }
    }
    host.finish(stream, reason)
}

struct Host<P: Parser> {
    session: P::Session,
    triggers: Vec<(Channel, Vec<String>)>,
    watch: Option<Channel>,
    /// Bytes in front of `position` that the host holds: neither pushed nor delivered.
    kept: usize,
    position: usize,
    num_skipped: u32,
    /// Bytes that the parser has accounted for.
    accounted: usize,
    folded: Folded,
}

impl<P: Parser> Host<P> {
    fn piece(
        &mut self,
        stream: &Stream,
        from: usize,
        to: usize,
        delivery: Delivery,
    ) -> Result<(), Violation> {
        debug_assert_eq!(from, self.position);
        let start = from - self.kept;
        self.position = to;
        let Some(channel) = self.watch.filter(|_| delivery == Delivery::Watched) else {
            return self.push(stream, start, to);
        };
        let text = &stream.text[start..to];
        let triggers = self.triggers.iter().filter(|(of, _)| *of == channel);
        let texts: Vec<&str> = triggers.flat_map(|(_, texts)| texts).map(String::as_str).collect();
        let hit = texts.iter().filter_map(|trigger| text.find(trigger)).min();
        let begun = (0..text.len()).find(|at| {
            text.is_char_boundary(*at) && texts.iter().any(|t| t.starts_with(&text[*at..]))
        });
        let stop = hit.or(begun).unwrap_or(text.len());
        let said = split_tail(&text[..stop]).0;
        if !said.is_empty() {
            self.num_skipped += said.len() as u32;
            self.accounted += said.len();
            self.folded.add(match channel {
                Channel::Reasoning => Event::Reasoning(said.into()),
                _ => Event::Content(said.into()),
            })?;
        }
        self.kept = text.len() - said.len();
        if hit.is_some() { self.push(stream, start + said.len(), to) } else { Ok(()) }
    }

    fn push(&mut self, stream: &Stream, from: usize, to: usize) -> Result<(), Violation> {
        let inside = |t: &&Special| t.start as usize >= from && (t.start as usize) < to;
        let shift = |t: &Special| Special { start: t.start - from as u32, ..*t };
        let tokens: Vec<Special> = stream.tokens.iter().filter(inside).map(shift).collect();
        self.kept = 0;
        let skipped = std::mem::take(&mut self.num_skipped);
        let reply = self.session.push(&stream.text[from..to], &tokens, skipped);
        self.settle(reply, to)
    }

    fn settle(&mut self, reply: Reply, given: usize) -> Result<(), Violation> {
        let held = reply.held as usize;
        if held > given || given - held < self.accounted {
            return broken(format!("held {held} of {given}, {} accounted for", self.accounted));
        }
        if held > 0 && reply.watch.is_some() {
            return broken(format!("asks to be watched while it holds {held} bytes"));
        }
        self.accounted = given - held;
        self.watch = reply.watch;
        reply.events.into_iter().try_for_each(|event| self.folded.add(event))
    }

    fn finish(mut self, stream: &Stream, reason: FinishReason) -> Result<Folded, Violation> {
        let end = self.position;
        if self.kept > 0 {
            self.push(stream, end - self.kept, end)?;
        }
        let reply = self.session.finish(reason);
        if reply.held > 0 || reply.watch.is_some() {
            return broken(format!("holds {} bytes after the end", reply.held));
        }
        self.settle(reply, end)?;
        Ok(self.folded)
    }
}
