//! The life of one request's text side: what opens it and the events that come out.
//!
//! `server` opens a stream, then submits the request; the output worker sends events until each of
//! the request's sequences has sent its [`StreamEvent::Finished`]. SSE and JSON answers fold the
//! same events.

use std::sync::Arc;

use tenon_engine::RequestId;

use crate::parser::{ParserFactory, ParserFault, RequestInfo};

/// The parser of one stream.
#[derive(Clone)]
pub struct ParserBinding {
    /// Opens the session. Held until the stream ends: a rebinding does not touch it.
    pub factory: Arc<dyn ParserFactory>,
    /// What the session is told.
    pub info: RequestInfo,
    /// Deliver watched channels on the host. Off only in tests and the playground.
    pub host_watch: bool,
    /// A fault ends the request with an error (a call was required) instead of raw text.
    pub fail_on_fault: bool,
}

/// What opens a stream.
#[derive(Clone)]
pub struct StreamSpec {
    /// The request that will be submitted.
    pub request: RequestId,
    /// Its sequences.
    pub n: u32,
    /// Stop strings; they cut the raw text, before the parser sees it.
    pub stop: Vec<String>,
    /// Stop strings count in the text behind so many tokens.
    pub min_tokens: u32,
    /// The stop string stays in the text, and so does the text of a stop token.
    pub include_stop: bool,
    /// Text of special tokens is dropped, except the parser's added tokens.
    pub skip_special_tokens: bool,
    /// Send [`StreamEvent::TokenId`].
    pub wants_token_ids: bool,
    /// None: all text is content.
    pub parser: Option<ParserBinding>,
    /// Where the events go. At most `max_tokens * n` tokens' worth can ever queue up.
    pub events: tokio::sync::mpsc::UnboundedSender<IndexedEvent>,
}

/// An event of one of the request's sequences.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexedEvent {
    /// Which of the `n`.
    pub index: u32,
    /// What.
    pub event: StreamEvent,
}

/// What happened to one sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// More of the answer.
    Content(String),
    /// More of the reasoning.
    Reasoning(String),
    /// A call began; ids are made here where the format has none.
    ToolBegin {
        /// Order in this message.
        index: u32,
        /// `call_…`, or the format's own.
        id: String,
        /// Function name.
        name: String,
    },
    /// More of a call's arguments.
    ToolArgs {
        /// Which call.
        index: u32,
        /// Appended.
        text: String,
    },
    /// One token was generated, in this order relative to the text. Always sent when the request
    /// asks for log-probabilities, else not at all.
    Token(TokenInfo),
    /// More of the prompt's tokens, in order, all but the first of them; only for the first of the
    /// request's sequences, and before the first token of any. When the request asks for them.
    Prompt(Vec<TokenInfo>),
    /// The id of a token that was generated, before its text. Only on demand.
    TokenId(u32),
    /// The last event of this sequence.
    Finished(Finished),
}

/// A token for `logprobs`.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenInfo {
    /// The chosen one.
    pub chosen: TokenText,
    /// Best first.
    pub top: Vec<TokenText>,
}

/// A token as text and bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenText {
    /// Id.
    pub id: u32,
    /// Lossy UTF-8.
    pub text: String,
    /// Exact bytes.
    pub bytes: Vec<u8>,
    /// ln p.
    pub logprob: f32,
    /// 1 is the most likely of the vocabulary.
    pub rank: u32,
}

/// OpenAI's finish reasons, and our own for failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// Stop token or stop string.
    Stop,
    /// Token limit.
    Length,
    /// The output ended in a repeated pattern; vLLM's word.
    Repetition,
    /// At least one call, not cut by the limit.
    ToolCalls,
    /// Aborted by the client's leaving or by the server.
    Abort,
    /// The request's time was over.
    Deadline,
    /// `Finished::error` says why.
    Error,
}

/// What matched, in vLLM's `stop_reason`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// A stop string.
    Text(String),
    /// A stop token other than the model's own end of sequence.
    Token(u32),
}

/// The end of one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Why.
    pub finish: Finish,
    /// What matched.
    pub stop_reason: Option<StopReason>,
    /// Tokens generated, the stop token included.
    pub num_output_tokens: u32,
    /// Of these, in reasoning.
    pub num_reasoning_tokens: u32,
    /// Prompt tokens from the prefix cache.
    pub num_cached_tokens: u32,
    /// The parser failed here; the rest of the text is content.
    pub fault: Option<ParserFault>,
    /// With [`Finish::Error`].
    pub error: Option<String>,
}
