//! Finds where a watched channel's triggers may begin. Used by the driver to deliver plain text
//! without asking the parser; it knows nothing of sessions or events.
//!
//! A search automaton says where a trigger *is*; here it also matters where one *may be beginning*
//! at the end of the text, which a table of first bytes and a few comparisons answer in a
//! nanosecond per byte.

use crate::parser::{Channel, Descriptor};

/// Space, tab, carriage return, line feed: what the policy calls blank.
pub(crate) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

/// What a scan of undelivered text found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Bytes from the front that can be delivered: they end with a non-blank, before any trigger.
    pub deliver: usize,
    /// Bytes from the front at which no trigger begins, whatever follows. At least `deliver`.
    pub decided: usize,
    /// A whole trigger begins at `decided`.
    pub is_trigger: bool,
}

const BLANK: u8 = 1;
const FIRST: u8 = 2;

/// The triggers of one channel.
#[derive(Clone)]
pub(crate) struct Watch {
    channel: Channel,
    /// Per byte: is it blank, does it begin a trigger?
    class: [u8; 256],
}

impl Watch {
    /// The triggers of `channel` in `descriptor`; empty ones are ignored.
    pub fn new(descriptor: &Descriptor, channel: Channel) -> Watch {
        let mut class = [0; 256];
        for blank in b" \t\r\n" {
            class[usize::from(*blank)] |= BLANK;
        }
        for text in texts(descriptor, channel) {
            class[usize::from(text.as_bytes()[0])] |= FIRST;
        }
        Watch { channel, class }
    }

    /// Scans `text` from byte `from`, where an earlier scan of the same text had `decided` all
    /// before it and found nothing to deliver. Linear: a byte is compared with the triggers at
    /// most once per push that leaves it undecided, which is fewer than a trigger's length.
    pub fn scan(&self, descriptor: &Descriptor, text: &str, from: usize) -> Scan {
        let bytes = text.as_bytes();
        let mut deliver = 0;
        for (at, &byte) in bytes.iter().enumerate().skip(from) {
            let class = self.class[usize::from(byte)];
            if class & FIRST != 0 {
                let rest = &bytes[at..];
                let mut is_begun = false;
                for trigger in texts(descriptor, self.channel) {
                    let trigger = trigger.as_bytes();
                    if rest.starts_with(trigger) {
                        return Scan { deliver, decided: at, is_trigger: true };
                    }
                    is_begun |= trigger.starts_with(rest);
                }
                if is_begun {
                    return Scan { deliver, decided: at, is_trigger: false };
                }
            }
            if class & BLANK == 0 {
                deliver = at + 1;
            }
        }
        Scan { deliver, decided: bytes.len(), is_trigger: false }
    }
}

fn texts(descriptor: &Descriptor, channel: Channel) -> impl Iterator<Item = &str> {
    let of_channel = move |trigger: &&crate::parser::Trigger| trigger.channel == channel;
    let texts = descriptor.triggers.iter().filter(of_channel).flat_map(|t| &t.texts);
    texts.map(String::as_str).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fake::descriptor;
    use crate::parser::Trigger;

    fn scan(triggers: &[&str], text: &str) -> (usize, usize, bool) {
        let mut of = descriptor();
        let texts = triggers.iter().map(|t| t.to_string()).collect();
        of.triggers = vec![Trigger { channel: Channel::Content, texts }];
        let found = Watch::new(&of, Channel::Content).scan(&of, text, 0);
        (found.deliver, found.decided, found.is_trigger)
    }

    #[test]
    fn finds_where_a_trigger_may_begin() {
        let tags = ["<tool_call>", "[CALLS]"];
        assert_eq!(scan(&tags, "plain"), (5, 5, false));
        assert_eq!(scan(&tags, "a < b"), (5, 5, false));
        assert_eq!(scan(&tags, "blanks \n\t"), (6, 9, false));
        assert_eq!(scan(&tags, "open  <tool"), (4, 6, false));
        assert_eq!(scan(&tags, "open  <tool_call>{"), (4, 6, true));
        assert_eq!(scan(&tags, "a<<tool_call>"), (2, 2, true));
        assert_eq!(scan(&tags, "é["), (2, 2, false));
        assert_eq!(scan(&["abcd", "bc"], "abcx"), (1, 1, true));
        assert_eq!(scan(&["", "x"], "ax"), (1, 1, true));
        assert_eq!(scan(&[], "<tool_call> "), (11, 12, false));
    }
}
