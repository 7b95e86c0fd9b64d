//! The text side of one sequence: detokenizer, stop strings, parser, in this order. Tokens in,
//! events out. A worker owns it; it knows no threads and no other sequence.

use std::sync::Arc;

use tenon_engine::{FinishReason, Logprob, RequestId, StepOutput, TokenLogprobs};
use tenon_text::{Detokenized, Detokenizer, DetokenizerOptions, StopStrings, Tokenizer};

use crate::choose::spellings;
use crate::driver::ParserDriver;
use crate::ids::CallIds;
use crate::parser::{Channel, ParseEvent, ParseFinish, ParserFault, Special};
use crate::stop_cut::StopCut;
use crate::stream::{Finish, Finished, StopReason, StreamEvent, StreamSpec, TokenInfo, TokenText};

/// What all sequences of a worker share.
pub(crate) struct Shared {
    pub tokenizer: Arc<Tokenizer>,
    /// Stop tokens that are the model's own: no `stop_reason`.
    pub eos: Vec<u32>,
    pub ids: CallIds,
}

/// One sequence's text side. After [`TextSide::accept`] has said that it finished, drop it.
pub(crate) struct TextSide {
    request: RequestId,
    detokenizer: Detokenizer,
    piece: Detokenized,
    stop: StopCut,
    parser: Option<ParserDriver>,
    is_fault_fatal: bool,
    is_fault_told: bool,
    events: Vec<ParseEvent>,
    call_ids: Vec<String>,
    min_tokens: u32,
    include_stop: bool,
    wants_token_ids: bool,
    num_output_tokens: u32,
    num_reasoning_tokens: u32,
    num_cached_tokens: u32,
}

/// How a sequence ended: by the engine, or here.
enum End {
    Engine(FinishReason),
    StopString(String),
}

impl TextSide {
    /// Opens the parser's session: call it on the thread that will own it.
    pub fn new(spec: &StreamSpec, stop: &StopStrings, tokenizer: &Arc<Tokenizer>) -> TextSide {
        let keep = match &spec.parser {
            Some(binding) => {
                let wanted = &binding.factory.descriptor().added_tokens;
                let added = tokenizer.added_tokens();
                let spelled = wanted.iter().flat_map(|text| spellings(text, added));
                spelled.filter_map(|text| tokenizer.token_id(text)).collect()
            }
            None => Vec::new(),
        };
        let options = DetokenizerOptions {
            skip_special_tokens: spec.skip_special_tokens,
            keep,
            at_text_start: false,
        };
        TextSide {
            request: spec.request,
            detokenizer: Detokenizer::new(tokenizer.clone(), options),
            piece: Detokenized::default(),
            stop: StopCut::new(stop, spec.include_stop),
            parser: spec.parser.as_ref().map(ParserDriver::new),
            is_fault_fatal: spec.parser.as_ref().is_some_and(|binding| binding.fail_on_fault),
            is_fault_told: false,
            events: Vec::new(),
            call_ids: Vec::new(),
            min_tokens: spec.min_tokens,
            include_stop: spec.include_stop,
            wants_token_ids: spec.wants_token_ids,
            num_output_tokens: 0,
            num_reasoning_tokens: 0,
            num_cached_tokens: 0,
        }
    }

    /// Takes what a step did for this sequence and sends events; a token comes before its text.
    /// True: `Finished` was sent.
    pub fn accept(
        &mut self,
        output: &StepOutput,
        shared: &mut Shared,
        send: &mut dyn FnMut(StreamEvent),
    ) -> bool {
        self.num_cached_tokens = self.num_cached_tokens.max(output.num_cached_tokens);
        if let Some(finished) = self.fatal_fault() {
            send(finished);
            return true;
        }
        if !output.prompt_logprobs.is_empty() {
            let info = |of| token_info(&shared.tokenizer, of);
            send(StreamEvent::Prompt(output.prompt_logprobs.iter().map(info).collect()));
        }
        if let Some(token) = output.token {
            self.num_output_tokens += 1;
            if self.wants_token_ids {
                send(StreamEvent::TokenId(token));
            }
            if let Some(logprobs) = &output.logprobs {
                send(StreamEvent::Token(token_info(&shared.tokenizer, logprobs)));
            }
            // A stop token's own text is no text, unless the client wants it.
            let is_stop_token = output.finish == Some(FinishReason::Stop(token));
            if (!is_stop_token || self.include_stop)
                && let Some(end) = self.take(token, shared, send)
            {
                self.end(end, None, shared, send);
                return true;
            }
            let channel = self.parser.as_ref().map(ParserDriver::channel);
            let is_reasoning = channel == Some(Channel::Reasoning) && !is_stop_token;
            self.num_reasoning_tokens += u32::from(is_reasoning);
            if let Some(finished) = self.fatal_fault() {
                send(finished);
                return true;
            }
        }
        let Some(reason) = output.finish else { return false };
        self.end(End::Engine(reason), output.error.clone(), shared, send);
        true
    }

    /// The end of a sequence that failed here.
    pub fn failed(message: String) -> StreamEvent {
        StreamEvent::Finished(Finished {
            finish: Finish::Error,
            stop_reason: None,
            num_output_tokens: 0,
            num_reasoning_tokens: 0,
            num_cached_tokens: 0,
            fault: None,
            error: Some(message),
        })
    }

    /// The text of a token; the end if a stop string was found in it.
    fn take(
        &mut self,
        token: u32,
        shared: &mut Shared,
        send: &mut dyn FnMut(StreamEvent),
    ) -> Option<End> {
        self.piece.clear();
        if let Err(error) = self.detokenizer.push(token, &mut self.piece) {
            // The engine samples from the model's rows, which may be more than the vocabulary has.
            tracing::debug!(request_id = self.request.0, token, %error, "token without text");
            return None;
        }
        self.advance(shared, send).map(End::StopString)
    }

    /// Passes `piece` on. A stop string that was found is returned; the rest is gone then.
    fn advance(
        &mut self,
        shared: &mut Shared,
        send: &mut dyn FnMut(StreamEvent),
    ) -> Option<String> {
        let TextSide { piece, stop, parser, events, num_output_tokens, min_tokens, .. } = self;
        let is_checked = *num_output_tokens > *min_tokens;
        let found =
            stop.push(piece, is_checked, &mut |text: &str, specials: &[Special]| match parser {
                Some(parser) => parser.push(text, specials, events),
                None => append_content(events, text),
            });
        self.send_events(shared, send);
        found
    }

    fn end(
        &mut self,
        end: End,
        error: Option<String>,
        shared: &mut Shared,
        send: &mut dyn FnMut(StreamEvent),
    ) {
        let end = match end {
            End::Engine(reason) => {
                self.piece.clear();
                self.detokenizer.flush(&mut self.piece);
                // An incomplete character may complete a stop string.
                match self.advance(shared, send) {
                    Some(stop) => End::StopString(stop),
                    None => End::Engine(reason),
                }
            }
            found => found,
        };
        let reason = match &end {
            End::StopString(_) | End::Engine(FinishReason::Stop(_) | FinishReason::Complete) => {
                ParseFinish::Stop
            }
            End::Engine(_) => ParseFinish::Length,
        };
        let TextSide { stop, parser, events, .. } = self;
        stop.flush(&mut |text: &str, specials: &[Special]| match parser {
            Some(parser) => parser.push(text, specials, events),
            None => append_content(events, text),
        });
        if let Some(parser) = parser {
            parser.finish(reason, events);
        }
        self.send_events(shared, send);
        let finished = self.fatal_fault().unwrap_or_else(|| self.finished(end, error, shared));
        send(finished);
    }

    fn finished(&self, end: End, error: Option<String>, shared: &Shared) -> StreamEvent {
        let finish = match &end {
            End::Engine(FinishReason::Length) => Finish::Length,
            End::Engine(FinishReason::Repetition) => Finish::Repetition,
            End::Engine(FinishReason::Abort) => Finish::Abort,
            End::Engine(FinishReason::Deadline) => Finish::Deadline,
            End::Engine(FinishReason::Error) => Finish::Error,
            End::Engine(FinishReason::Stop(_) | FinishReason::Complete) | End::StopString(_) => {
                if self.call_ids.is_empty() {
                    Finish::Stop
                } else {
                    Finish::ToolCalls
                }
            }
        };
        let stop_reason = match end {
            End::StopString(text) => Some(StopReason::Text(text)),
            End::Engine(FinishReason::Stop(token)) if !shared.eos.contains(&token) => {
                Some(StopReason::Token(token))
            }
            End::Engine(_) => None,
        };
        let nothing_said = || "the engine failed and did not say why: see its log".to_owned();
        let error = (finish == Finish::Error).then(|| error.unwrap_or_else(nothing_said));
        self.last_event(finish, stop_reason, error)
    }

    /// The end, if the parser failed and the request cannot go on as raw text.
    fn fatal_fault(&self) -> Option<StreamEvent> {
        let fault = self.fault().filter(|_| self.is_fault_fatal)?;
        let error =
            format!("{fault}; a tool call was required, so raw text is no answer: try again");
        Some(self.last_event(Finish::Error, None, Some(error)))
    }

    fn last_event(
        &self,
        finish: Finish,
        stop_reason: Option<StopReason>,
        error: Option<String>,
    ) -> StreamEvent {
        StreamEvent::Finished(Finished {
            finish,
            stop_reason,
            num_output_tokens: self.num_output_tokens,
            num_reasoning_tokens: self.num_reasoning_tokens,
            num_cached_tokens: self.num_cached_tokens,
            fault: self.fault().cloned(),
            error,
        })
    }

    fn fault(&self) -> Option<&ParserFault> {
        self.parser.as_ref().and_then(ParserDriver::fault)
    }

    /// Sends the parser's events, unless its failure ends the request: then its text is no answer.
    fn send_events(&mut self, shared: &mut Shared, send: &mut dyn FnMut(StreamEvent)) {
        if let Some(fault) = self.fault().filter(|_| !self.is_fault_told) {
            tracing::warn!(
                request_id = self.request.0,
                extension = fault.extension,
                kind = fault.kind.as_str(),
                reason = fault.message,
                "parser failed; the rest of the text is content"
            );
            self.is_fault_told = true;
        }
        if self.is_fault_told && self.is_fault_fatal {
            return self.events.clear();
        }
        for event in self.events.drain(..) {
            send(match event {
                ParseEvent::Content(text) => StreamEvent::Content(text),
                ParseEvent::Reasoning(text) => StreamEvent::Reasoning(text),
                ParseEvent::ToolArgs { index, text } => StreamEvent::ToolArgs { index, text },
                ParseEvent::ToolBegin { index, name, id } => {
                    let made = id.as_deref().and_then(|id| shared.ids.of_pattern(id));
                    let own = made.or(id);
                    let own = own.filter(|id| !id.is_empty() && !self.call_ids.contains(id));
                    let id = own.unwrap_or_else(|| shared.ids.next_id());
                    self.call_ids.push(id.clone());
                    StreamEvent::ToolBegin { index, id, name }
                }
                ParseEvent::ToolEnd { .. } => continue,
                ParseEvent::Note(note) => {
                    tracing::debug!(request_id = self.request.0, note, "parser");
                    continue;
                }
            });
        }
    }
}

fn append_content(events: &mut Vec<ParseEvent>, text: &str) {
    match events.last_mut() {
        Some(ParseEvent::Content(last)) => last.push_str(text),
        _ if text.is_empty() => {}
        _ => events.push(ParseEvent::Content(text.to_owned())),
    }
}

fn token_info(tokenizer: &Tokenizer, logprobs: &TokenLogprobs) -> TokenInfo {
    let text = |of: &Logprob| {
        let bytes = tokenizer.token_bytes(of.token).unwrap_or_default();
        let text = String::from_utf8_lossy(bytes).into_owned();
        TokenText { id: of.token, text, bytes: bytes.to_vec(), logprob: of.logprob, rank: of.rank }
    };
    TokenInfo { chosen: text(&logprobs.chosen), top: logprobs.top.iter().map(text).collect() }
}
