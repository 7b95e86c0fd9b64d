//! One stream's parser: an instance of its own, its budget and its books.

use std::sync::Arc;
use std::time::Duration;

use tenon_chat::parser::{
    FaultKind, ParseFinish, ParserFault, ParserSession, Reply, RequestInfo, Special,
};

use crate::check::Books;
use crate::engine::TickGuard;
use crate::limits::RunLimits;
use crate::parser::Inner;
use crate::store::Fault;
use crate::v0_1::Instance;

/// A longer push goes to the guest in pieces: the deadline of a call is about this much text.
const MAX_PUSH_BYTES: usize = 16 << 10;

/// See [`ParserSession`]. A trap or a leak ends with the stream.
pub(crate) struct Session {
    parser: Arc<Inner>,
    instance: Instance,
    books: Books,
    /// Charged to this stream so far.
    cpu: Duration,
    num_calls: u64,
    has_failed: bool,
    /// Before the instance in no order: dropping runs no guest code.
    _tick: TickGuard,
}

impl Session {
    /// A fresh instance with a session for `request`.
    pub(crate) fn open(parser: &Arc<Inner>, request: &RequestInfo) -> Result<Self, ParserFault> {
        let shared = &parser.shared;
        let tick = shared.ticker.enter();
        let run = &shared.limits.run;
        let opened = parser.template.instantiate(&shared.engine, run).and_then(|mut instance| {
            let charged = instance.open(request, run)?;
            Ok((instance, charged))
        });
        let (instance, charged) = opened.map_err(|fault| parser.fault(fault))?;
        parser.stats.count_session();
        Ok(Session {
            parser: parser.clone(),
            instance,
            books: Books::new(),
            cpu: charged,
            num_calls: 1,
            has_failed: false,
            _tick: tick,
        })
    }

    fn call(
        &mut self,
        is_last: bool,
        call: impl FnOnce(&mut Instance, Duration) -> (Result<Reply, Fault>, Duration),
    ) -> Result<Reply, Fault> {
        let run = &self.parser.shared.limits.run;
        let limit = call_limit(run, self.books.bytes_in(), self.cpu)?;
        // What a reply is about may come back whole, beside the usual.
        let bytes = run.hostcall_bytes.saturating_add(2 * self.books.held());
        self.instance.guest.set_hostcall_bytes(bytes);
        let (reply, charged) = call(&mut self.instance, limit);
        self.num_calls += 1;
        self.cpu += charged;
        let mut reply = reply?;
        self.books.enter(&mut reply, is_last, run)?;
        Ok(reply)
    }

    fn push_piece(
        &mut self,
        text: &str,
        specials: &[Special],
        skipped: u32,
    ) -> Result<Reply, Fault> {
        self.books.give(text, skipped);
        self.call(false, |instance, cpu| instance.push(text, specials, skipped, cpu))
    }

    fn push_pieces(
        &mut self,
        text: &str,
        specials: &[Special],
        skipped: u32,
    ) -> Result<Reply, Fault> {
        if text.len() <= MAX_PUSH_BYTES {
            return self.push_piece(text, specials, skipped);
        }
        let mut whole = Reply::default();
        let mut start = 0;
        while start < text.len() {
            let end = piece_end(text, specials, start);
            let inside = specials_within(specials, start, end);
            let skipped = if start == 0 { skipped } else { 0 };
            let piece = self.push_piece(&text[start..end], &inside, skipped)?;
            whole.events.extend(piece.events);
            whole.held = piece.held;
            whole.watch = piece.watch;
            start = end;
        }
        Ok(whole)
    }

    fn settle(&mut self, reply: Result<Reply, Fault>) -> Result<Reply, ParserFault> {
        reply.map_err(|fault| {
            self.has_failed = true;
            self.parser.fault(fault)
        })
    }

    fn check_alive(&self) -> Result<(), ParserFault> {
        if !self.has_failed {
            return Ok(());
        }
        Err(ParserFault {
            extension: self.parser.descriptor.name.clone(),
            kind: FaultKind::Trap,
            message: "called again after a fault".into(),
        })
    }
}

impl ParserSession for Session {
    fn push(
        &mut self,
        text: &str,
        specials: &[Special],
        skipped: u32,
    ) -> Result<Reply, ParserFault> {
        self.check_alive()?;
        let reply = self.push_pieces(text, specials, skipped);
        self.settle(reply)
    }

    fn finish(&mut self, reason: ParseFinish) -> Result<Reply, ParserFault> {
        self.check_alive()?;
        let reply = self.call(true, |instance, cpu| instance.finish(reason, cpu));
        self.settle(reply)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.parser.stats.count_calls(self.num_calls, self.cpu);
    }
}

/// The CPU of the next call: a call's limit, or what is left of the stream's.
fn call_limit(run: &RunLimits, bytes_in: u64, used: Duration) -> Result<Duration, Fault> {
    let bytes = u32::try_from(bytes_in).unwrap_or(u32::MAX);
    let total = run.stream_cpu.saturating_add(run.cpu_per_byte.saturating_mul(bytes));
    match total.checked_sub(used) {
        Some(left) if !left.is_zero() => Ok(left.min(run.call_cpu)),
        _ => Err(Fault::new(
            FaultKind::Timeout,
            format!(
                "{} ms of CPU for {bytes_in} bytes of text, over the stream's limit of {} ms",
                used.as_millis(),
                total.as_millis()
            ),
        )),
    }
}

/// The end of the piece that begins at `start`: no character and no added token is cut, unless a
/// token is longer than a piece.
fn piece_end(text: &str, specials: &[Special], start: usize) -> usize {
    let mut end = (start + MAX_PUSH_BYTES).min(text.len());
    let cut = specials.iter().find(|special| {
        let from = special.start as usize;
        from < end && end < from + special.len as usize
    });
    if let Some(special) = cut
        && special.start as usize > start
    {
        end = special.start as usize;
    }
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    end
}

/// Those of `specials` that lie within, counted from `start`.
fn specials_within(specials: &[Special], start: usize, end: usize) -> Vec<Special> {
    specials
        .iter()
        .filter(|special| {
            let from = special.start as usize;
            from >= start && from + special.len as usize <= end
        })
        .map(|special| Special { start: special.start - start as u32, ..*special })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_stream_has_a_budget_beside_its_calls() {
        let run = RunLimits::default();
        let ms = Duration::from_millis;
        assert_eq!(call_limit(&run, 0, ms(0)).unwrap(), ms(5));
        assert_eq!(call_limit(&run, 0, ms(247)).unwrap(), ms(3));
        assert_eq!(call_limit(&run, 0, ms(250)).unwrap_err().kind, FaultKind::Timeout);
        assert_eq!(call_limit(&run, 100_000, ms(700)).unwrap(), ms(5), "long texts take longer");
        assert_eq!(call_limit(&run, 100_000, ms(751)).unwrap_err().kind, FaultKind::Timeout);
        call_limit(&run, u64::MAX, ms(1)).unwrap();
    }

    #[test]
    fn pieces_cut_neither_characters_nor_tokens() {
        let text = "é".repeat(3 * MAX_PUSH_BYTES);
        let special = Special { start: MAX_PUSH_BYTES as u32 - 4, len: 10, id: 7 };
        let mut start = 0;
        let mut num_found = 0;
        let mut joined = String::new();
        while start < text.len() {
            let end = piece_end(&text, &[special], start);
            assert!(end > start && end - start <= MAX_PUSH_BYTES);
            for found in specials_within(&[special], start, end) {
                assert_eq!((start + found.start as usize, found.len, found.id), {
                    (special.start as usize, special.len, special.id)
                });
                num_found += 1;
            }
            joined.push_str(&text[start..end]);
            start = end;
        }
        assert_eq!((joined == text, num_found), (true, 1));
    }
}
