//! Runs a parser natively, as the host would, and checks the contract on the way: every byte is
//! accounted for once, arguments only grow, indices come in order, `finish` leaves nothing.
//!
//! [`cases`] reads case files and runs each case over many cuts of its text.

pub mod cases;
mod cuts;
mod host;

use std::fmt;

pub use cuts::{chars, random, two_ways};
pub use host::{Delivery, Stream, run};

use crate::{Event, FinishReason, Parser, RequestInfo};

/// Random cuts per stream.
const NUM_RANDOM_CUTS: usize = 200;

/// A broken promise of the parser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

/// Runs a stream whole, one character at a time, in every two and at random, pushed and watched:
/// the folded events must be the same, and are returned.
///
/// # Errors
/// The first difference or broken promise, with the cut that shows it.
pub fn any_cut<P: Parser>(
    request: &RequestInfo,
    stream: &Stream,
    reason: FinishReason,
) -> Result<Folded, Violation> {
    let text = stream.text.as_str();
    let whole = run::<P>(request, stream, &[], reason, Delivery::Pushed)?;
    let mut cuts = vec![Vec::new(), chars(text)];
    cuts.extend(two_ways(text));
    cuts.extend(random(text, NUM_RANDOM_CUTS, text.len() as u64));
    for cuts in cuts {
        for delivery in [Delivery::Pushed, Delivery::Watched] {
            let place = || format!("{delivery:?}, cut at {:?}", &cuts[..cuts.len().min(8)]);
            match run::<P>(request, stream, &cuts, reason, delivery) {
                Ok(folded) if folded == whole => {}
                Ok(folded) => return broken(format!("{}: {folded:?}, not {whole:?}", place())),
                Err(Violation(what)) => return broken(format!("{}: {what}", place())),
            }
        }
    }
    Ok(whole)
}

/// A stream's events, put together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Folded {
    /// None: never said.
    pub reasoning: Option<String>,
    /// None: never said.
    pub content: Option<String>,
    /// In order of commit.
    pub calls: Vec<FoldedCall>,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FoldedCall {
    /// Function name.
    pub name: String,
    /// From the model's text.
    pub id: Option<String>,
    /// JSON text, as far as it came.
    pub arguments: String,
    /// The parser said that it is whole.
    pub is_ended: bool,
}

impl Folded {
    /// The finish reason that a client sees (policy U22).
    pub fn finish(&self, reason: FinishReason) -> &'static str {
        match reason {
            FinishReason::Length => "length",
            FinishReason::Stop if self.calls.is_empty() => "stop",
            FinishReason::Stop => "tool_calls",
        }
    }

    /// Adds one event.
    ///
    /// # Errors
    /// An event that the contract forbids.
    pub fn add(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Content(text) => say(&mut self.content, &text),
            Event::Reasoning(text) => say(&mut self.reasoning, &text),
            Event::ToolBegin(begin) => {
                if begin.index as usize != self.calls.len() || begin.name.is_empty() {
                    return broken(format!("begin of call {} `{}`", begin.index, begin.name));
                }
                let call = FoldedCall { name: begin.name, id: begin.id, ..FoldedCall::default() };
                self.calls.push(call);
                Ok(())
            }
            Event::ToolArgs(args) => match self.open(args.index) {
                Some(call) if !args.text.is_empty() => {
                    call.arguments.push_str(&args.text);
                    Ok(())
                }
                _ => broken(format!("arguments `{}` for call {}", args.text, args.index)),
            },
            Event::ToolEnd(index) => match self.open(index) {
                Some(call) => {
                    call.is_ended = true;
                    Ok(())
                }
                None => broken(format!("end of call {index}")),
            },
            Event::Note(_) => Ok(()),
        }
    }

    /// The call of that index, if it is the last one and not ended.
    fn open(&mut self, index: u32) -> Option<&mut FoldedCall> {
        let is_last = index as usize + 1 == self.calls.len();
        self.calls.last_mut().filter(|call| is_last && !call.is_ended)
    }
}

fn say(channel: &mut Option<String>, text: &str) -> Result<(), Violation> {
    if text.is_empty() {
        return broken("empty text".into());
    }
    channel.get_or_insert_default().push_str(text);
    Ok(())
}

pub(crate) fn broken<T>(what: String) -> Result<T, Violation> {
    Err(Violation(what))
}
