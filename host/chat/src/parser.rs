//! The trait of a parser session: what the host asks of a tool-call or reasoning parser.
//!
//! The types mirror `wit/v0.1/parser.wit`, in the host's words; `extensions` implements the traits
//! over components. Nothing here knows WebAssembly.

use serde::{Deserialize, Serialize};

/// Where text goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Channel {
    /// The answer.
    Content,
    /// What the model thinks.
    Reasoning,
    /// Calls.
    Tools,
}

/// Why the engine stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ParseFinish {
    /// A stop token or stop string.
    Stop,
    /// The token limit.
    Length,
}

/// OpenAI's `tool_choice`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum ToolChoice {
    /// Markers are text.
    None,
    /// The model decides.
    #[default]
    Auto,
    /// At least one call.
    Required,
    /// A call of this function.
    Named(String),
}

/// Bytes of a push's text that came from one added token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Special {
    /// First byte in the pushed text.
    pub start: u32,
    /// Length in bytes.
    pub len: u32,
    /// Token id.
    pub id: u32,
}

/// One piece of parsed output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ParseEvent {
    /// More of the answer.
    Content(String),
    /// More of the reasoning.
    Reasoning(String),
    /// A call began, and the one before it gets no more events.
    ToolBegin {
        /// Order of commit in this message, from 0 without gaps.
        index: u32,
        /// Function name.
        name: String,
        /// From the model's text, where the format has ids.
        id: Option<String>,
    },
    /// More of a call's arguments (JSON text).
    ToolArgs {
        /// Which call.
        index: u32,
        /// Appended.
        text: String,
    },
    /// The call is whole.
    ToolEnd {
        /// Which call.
        index: u32,
    },
    /// For the log.
    Note(String),
}

/// Answer to one push.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reply {
    /// In order.
    pub events: Vec<ParseEvent>,
    /// How many of the last bytes given so far are in no event and no finished marker.
    pub held: u32,
    /// The host may deliver this channel itself, byte for byte, until one of its triggers shows.
    /// It keeps back trailing blanks and what may begin a trigger; the next push brings them, so
    /// skipped text always ends with a non-blank. Counts only for content and reasoning, and
    /// only while nothing is held.
    pub watch: Option<Channel>,
}

/// In `channel`, the host hands over as soon as one of `texts` may have begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct Trigger {
    /// Where it counts.
    pub channel: Channel,
    /// What opens something there.
    pub texts: Vec<String>,
}

/// One way of marking reasoning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasoningStyle {
    /// `qwen3`, `deepseek_r1`, …
    pub name: String,
    /// Names in other engines.
    pub aliases: Vec<String>,
    /// A rendered prompt that ends so (blanks aside) starts the stream in reasoning.
    pub openers: Vec<String>,
    /// Ends reasoning.
    pub closers: Vec<String>,
    /// A call that reaches its commit ends open reasoning.
    pub ends_at_call: bool,
}

/// What shows that a model writes this format; all of it must hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Evidence {
    /// Substrings of the chat template.
    pub template_has: Vec<String>,
    /// Substrings that must be absent from it.
    pub template_lacks: Vec<String>,
    /// Whole tokens of the vocabulary.
    pub vocabulary_has: Vec<String>,
}

/// What a parser says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// Canonical name.
    pub name: String,
    /// Its own version.
    pub version: String,
    /// One line.
    pub summary: String,
    /// Other names.
    pub aliases: Vec<String>,
    /// Does it find tool calls?
    pub tools: bool,
    /// Default first; empty: no reasoning.
    pub reasoning_styles: Vec<ReasoningStyle>,
    /// Added tokens whose text must reach it.
    pub added_tokens: Vec<String>,
    /// Markers that open a call.
    pub openers: Vec<String>,
    /// For host-side delivery.
    pub triggers: Vec<Trigger>,
    /// Any one suffices; empty: never chosen by `auto`.
    pub evidence: Vec<Evidence>,
}

/// The model, as far as a parser may know it.
#[derive(Debug, Clone, Default)]
pub struct ModelInfo {
    /// Served name.
    pub name: String,
    /// Chat template source.
    pub template: Option<String>,
    /// Those of the descriptor's `added_tokens` that the vocabulary has.
    pub added_tokens: Vec<String>,
}

/// One request, as far as a parser may know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestInfo {
    /// OpenAI's `tools`, a JSON array; `[]` when there are none.
    pub tools: String,
    /// OpenAI's `tool_choice`.
    pub tool_choice: ToolChoice,
    /// May one message hold several calls?
    pub parallel: bool,
    /// Must arguments follow their schema?
    pub strict: bool,
    /// One of the descriptor's styles; none: reasoning is not parsed.
    pub reasoning_style: Option<String>,
    /// Where the stream starts.
    pub start: Channel,
    /// A marker counts only if it came as one added token.
    pub strict_markers: bool,
}

/// When a grammar starts to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Starts {
    /// With the first token.
    AtOnce,
    /// Behind any of these texts.
    After(Vec<String>),
}

/// A format's own grammar for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grammar {
    /// `llguidance-lark/1`
    pub dialect: String,
    /// The grammar.
    pub lark: String,
    /// From where on.
    pub starts: Starts,
}

/// What went wrong inside a parser. The stream goes on as raw text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Over its CPU deadline.
    Timeout,
    /// Over its memory.
    Memory,
    /// Call stack exhausted.
    Stack,
    /// Any other trap.
    Trap,
    /// Ill-formed or impossible answer.
    BadOutput,
    /// Over another limit (output bytes, handles, calls).
    Limit,
}

impl FaultKind {
    /// The label in metrics and headers.
    pub fn as_str(self) -> &'static str {
        match self {
            FaultKind::Timeout => "timeout",
            FaultKind::Memory => "memory",
            FaultKind::Stack => "stack",
            FaultKind::Trap => "trap",
            FaultKind::BadOutput => "bad_output",
            FaultKind::Limit => "limit",
        }
    }
}

/// A parser's failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("extension `{extension}` failed ({}): {message}", kind.as_str())]
pub struct ParserFault {
    /// Its name.
    pub extension: String,
    /// What kind.
    pub kind: FaultKind,
    /// Details for the log.
    pub message: String,
}

/// One stream's parser state. After an error the session is not called again.
pub trait ParserSession: Send {
    /// More text. `skipped`: bytes that the host delivered itself since the last call.
    fn push(
        &mut self,
        text: &str,
        specials: &[Special],
        skipped: u32,
    ) -> Result<Reply, ParserFault>;

    /// The stream ended.
    fn finish(&mut self, reason: ParseFinish) -> Result<Reply, ParserFault>;
}

/// A parser that was admitted and can open sessions.
pub trait ParserFactory: Send + Sync {
    /// What it says of itself.
    fn descriptor(&self) -> &Descriptor;

    /// `sha256:…` of its bytes.
    fn digest(&self) -> &str;

    /// Opens one stream. Called on the thread that then owns the session.
    fn open(&self, request: &RequestInfo) -> Result<Box<dyn ParserSession>, ParserFault>;

    /// The grammar of this format for a request; the inner error is a 400 in its words.
    fn constraint(
        &self,
        model: &ModelInfo,
        request: &RequestInfo,
    ) -> Result<Result<Option<Grammar>, String>, ParserFault>;
}
