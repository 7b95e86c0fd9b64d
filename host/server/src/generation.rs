//! Requests in the engine on behalf of one HTTP request: opened, submitted, followed event by
//! event, and aborted when dropped before their end. Streams and JSON bodies both read from here.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tenon_chat::stream::{Finish, Finished, IndexedEvent, ParserBinding, StreamEvent, StreamSpec};
use tenon_chat::worker::OutputError;
use tenon_engine::{RequestId, SamplingParams};
use tenon_grammar::Grammar;
use tenon_runner::NOTHING_LEFT;
use tenon_runner::handle::GenerateRequest;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::caller::Caller;
use crate::error::ApiError;
use crate::lifecycle::InFlight;
use crate::metrics::Ended;
use crate::state::ServerState;
use crate::wire::sampling::Sampling;

/// Events handed out before the task yields, so that one fast stream cannot hold a thread.
pub(crate) const MAX_EVENTS_PER_POLL: usize = 128;

/// Events of one sequence that are this close together stem from one step: no latency between them.
const SAME_STEP: Duration = Duration::from_micros(50);

/// One prompt, ready for the engine.
pub(crate) struct PromptRequest {
    /// Not empty.
    pub prompt: Arc<[u32]>,
    /// With `max_tokens` bound to the context; 0 asks for nothing to be generated, and without
    /// log-probabilities of the prompt for nothing at all.
    pub params: SamplingParams,
    /// What the output must follow.
    pub grammar: Option<Grammar>,
}

/// An event of one choice of the answer.
#[derive(Debug)]
pub(crate) struct ChoiceEvent {
    /// `prompt * n + i`
    pub choice: u32,
    /// What happened.
    pub event: StreamEvent,
}

/// All engine requests of one HTTP request.
pub(crate) struct Generation {
    streams: Vec<EngineStream>,
    n: u32,
    /// Where the next poll begins: no prompt starves another.
    next: usize,
    _in_flight: InFlight,
}

impl Generation {
    /// Opens and submits every prompt, `n` sequences each. If one is refused, none goes on.
    /// `param` names the field that the prompts came from.
    pub fn start(
        state: &Arc<ServerState>,
        in_flight: InFlight,
        prompts: Vec<PromptRequest>,
        sampling: &Sampling,
        parser: Option<ParserBinding>,
        param: &'static str,
    ) -> Result<Generation, ApiError> {
        let caller = in_flight.caller;
        let mut streams = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            let is_empty = prompt.params.max_tokens == 0 && prompt.params.prompt_logprobs.is_none();
            let stream = if is_empty {
                EngineStream::empty(state, sampling.n)
            } else {
                EngineStream::submit(state, prompt, sampling, parser.clone(), (caller, param))?
            };
            streams.push(stream);
        }
        Ok(Generation { streams, n: sampling.n, next: 0, _in_flight: in_flight })
    }

    /// Number of choices.
    pub fn num_choices(&self) -> usize {
        self.streams.len() * self.n as usize
    }

    /// The next event of any choice; none when all have finished.
    pub async fn next(&mut self) -> Option<ChoiceEvent> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// See [`Generation::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<ChoiceEvent>> {
        let mut is_waiting = false;
        for step in 0..self.streams.len() {
            let at = (self.next + step) % self.streams.len();
            match self.streams[at].poll_next(cx) {
                Poll::Ready(Some(event)) => {
                    // Stay: what one step wrote for a prompt goes out together.
                    self.next = at;
                    let choice = at as u32 * self.n + event.index;
                    return Poll::Ready(Some(ChoiceEvent { choice, event: event.event }));
                }
                Poll::Ready(None) => {}
                Poll::Pending => is_waiting = true,
            }
        }
        if is_waiting { Poll::Pending } else { Poll::Ready(None) }
    }
}

/// When things happened to one sequence.
#[derive(Clone, Copy, Default)]
struct Times {
    first: Option<Instant>,
    last: Option<Instant>,
    is_finished: bool,
}

/// One request in the engine.
struct EngineStream {
    state: Arc<ServerState>,
    /// None: nothing was submitted.
    id: Option<RequestId>,
    events: UnboundedReceiver<IndexedEvent>,
    submitted: Instant,
    /// By sequence.
    times: Vec<Times>,
    num_open: usize,
}

impl EngineStream {
    fn submit(
        state: &Arc<ServerState>,
        prompt: PromptRequest,
        sampling: &Sampling,
        parser: Option<ParserBinding>,
        (caller, param): (Caller, &'static str),
    ) -> Result<EngineStream, ApiError> {
        let id = state.next_request_id();
        let (sender, events) = unbounded_channel();
        let spec = StreamSpec {
            request: id,
            n: sampling.n,
            stop: sampling.stop.clone(),
            min_tokens: prompt.params.min_tokens,
            include_stop: sampling.include_stop,
            skip_special_tokens: sampling.skip_special_tokens,
            wants_token_ids: sampling.return_token_ids,
            parser,
            events: sender,
        };
        let num_prompt = prompt.prompt.len();
        let max_tokens = prompt.params.max_tokens;
        state.workers.open(spec).map_err(from_open)?;
        let request = GenerateRequest {
            n: sampling.n,
            grammar: prompt.grammar,
            cache_salt: sampling.cache_salt.clone(),
            priority: sampling.priority,
            tenant: caller.tenant,
            deadline: caller.deadline,
            ..GenerateRequest::new(id, prompt.prompt, prompt.params)
        };
        if let Err(error) = state.engine.submit(request) {
            state.workers.close(id);
            return Err(ApiError::from_submit(error, param));
        }
        state.metrics.submitted(num_prompt, sampling.n, max_tokens);
        Ok(EngineStream {
            state: state.clone(),
            id: Some(id),
            events,
            submitted: Instant::now(),
            times: vec![Times::default(); sampling.n as usize],
            num_open: sampling.n as usize,
        })
    }

    /// `max_tokens` is 0: each sequence ends at once.
    fn empty(state: &Arc<ServerState>, n: u32) -> EngineStream {
        let (sender, events) = unbounded_channel();
        for index in 0..n {
            let event = StreamEvent::Finished(ended(Finish::Length, None));
            // The receiver is in scope.
            let _ = sender.send(IndexedEvent { index, event });
        }
        EngineStream {
            state: state.clone(),
            id: None,
            events,
            submitted: Instant::now(),
            times: vec![Times::default(); n as usize],
            num_open: n as usize,
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<IndexedEvent>> {
        if self.num_open == 0 {
            return Poll::Ready(None);
        }
        match self.events.poll_recv(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(event)) => {
                self.observe(&event);
                Poll::Ready(Some(event))
            }
            Poll::Ready(None) => {
                // A worker owes each sequence an end. If it is gone, the answer must not hang.
                let open = self.times.iter().position(|times| !times.is_finished);
                let Some(index) = open else { return Poll::Ready(None) };
                let error = "the output worker stopped; try again".to_owned();
                let event = StreamEvent::Finished(ended(Finish::Error, Some(error)));
                let event = IndexedEvent { index: index as u32, event };
                self.observe(&event);
                Poll::Ready(Some(event))
            }
        }
    }

    /// Keeps the books: times, ends, faults.
    fn observe(&mut self, event: &IndexedEvent) {
        if matches!(event.event, StreamEvent::Prompt(_)) {
            return; // nothing was generated yet
        }
        let now = Instant::now();
        let metrics = &self.state.metrics;
        let Some(times) = self.times.get_mut(event.index as usize) else { return };
        match times.last.replace(now) {
            None => {
                times.first = Some(now);
                if self.id.is_some() {
                    metrics.first_event(now - self.submitted);
                }
            }
            Some(last) if now - last >= SAME_STEP => metrics.next_event(now - last),
            Some(_) => {}
        }
        let StreamEvent::Finished(finished) = &event.event else { return };
        if std::mem::replace(&mut times.is_finished, true) {
            return;
        }
        self.num_open -= 1;
        if let Some(fault) = &finished.fault {
            metrics.extension_fault(&fault.extension, fault.kind.as_str());
        }
        let reason = match finished.finish {
            Finish::Stop => Ended::Stop,
            Finish::ToolCalls => Ended::ToolCalls,
            Finish::Length => Ended::Length,
            Finish::Repetition => Ended::Repetition,
            Finish::Abort | Finish::Deadline => Ended::Abort,
            Finish::Error => Ended::Error,
        };
        let decode = times.first.map_or_else(Default::default, |first| now - first);
        metrics.ended(reason, now - self.submitted, decode, finished.num_output_tokens);
    }
}

impl Drop for EngineStream {
    fn drop(&mut self) {
        let Some(id) = self.id.filter(|_| self.num_open > 0) else { return };
        // The worker tells the engine, if that still generates.
        self.state.workers.close(id);
        let whole = self.submitted.elapsed();
        for _ in 0..self.num_open {
            self.state.metrics.ended(Ended::Abort, whole, whole, 0);
        }
    }
}

fn ended(finish: Finish, error: Option<String>) -> Finished {
    Finished {
        finish,
        stop_reason: None,
        num_output_tokens: 0,
        num_reasoning_tokens: 0,
        num_cached_tokens: 0,
        fault: None,
        error,
    }
}

fn from_open(error: OutputError) -> ApiError {
    match error {
        OutputError::Busy { limit } => ApiError::QueueFull { limit, counted: "prompts" },
        OutputError::Sequences { .. } => ApiError::invalid("n", error.to_string()),
        OutputError::Stop(_) => ApiError::invalid("stop", error.to_string()),
        OutputError::ShuttingDown => ApiError::Unavailable(error.to_string()),
        OutputError::Spawn(_) | OutputError::NoWorkers => ApiError::Internal(error.to_string()),
    }
}

/// The error that a sequence's end stands for, if it is one.
pub(crate) fn failure(finished: &Finished) -> Option<ApiError> {
    match finished.finish {
        Finish::Error => {
            let why = finished.error.as_deref().unwrap_or("the sequence failed");
            if why == NOTHING_LEFT {
                let message = "the constraint on the output and the other masks of the request \
                               (`allowed_token_ids`, `bad_words`) leave no token to go on with; \
                               drop one of them";
                return Some(ApiError::Invalid { message: message.into(), param: None });
            }
            Some(ApiError::Internal(format!("generation failed: {why}")))
        }
        Finish::Deadline => Some(ApiError::DeadlineExceeded),
        Finish::Abort => Some(ApiError::Unavailable("the request was aborted".to_owned())),
        Finish::Stop | Finish::Length | Finish::Repetition | Finish::ToolCalls => None,
    }
}
