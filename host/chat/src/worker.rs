//! Output workers: threads that own the text side of all streams. The engine thread hands each
//! step over once; the server opens and closes streams. They know no HTTP and no engine, only its
//! outputs.
//!
//! A request's streams live on one worker, picked by its id. A parser that is slow or spins
//! delays the other streams of that worker, up to its deadline and once: its stream is raw text
//! afterwards.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use tenon_engine::{FinishReason, RequestId, StepOutput};
use tenon_text::{StopStrings, TextError, Tokenizer};
use tokio::sync::mpsc::UnboundedSender;

use crate::ids::CallIds;
pub use crate::inbox::MAX_QUEUED_STEPS;
use crate::inbox::{Inbox, Message};
use crate::stream::{IndexedEvent, StreamEvent, StreamSpec};
use crate::text_side::{Shared, TextSide};

/// Most sequences of one request; the server refuses more much earlier.
pub const MAX_SEQUENCES: u32 = 1024;

/// How many workers, and how much they may hold.
#[derive(Debug, Clone)]
pub struct OutputConfig {
    /// Threads, at least 1. With two or more, a spinning parser leaves the others running.
    pub num_workers: usize,
    /// Open requests, over all workers; an idle stream costs about a kilobyte and its session.
    pub max_requests: usize,
}

impl Default for OutputConfig {
    /// A quarter of the cores, from 2 to 8, and 4096 requests.
    fn default() -> OutputConfig {
        let num_cores = thread::available_parallelism().map_or(2, usize::from);
        OutputConfig { num_workers: (num_cores / 4).clamp(2, 8), max_requests: 4096 }
    }
}

/// Why a stream did not open, or the workers did not start.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// A thread did not start.
    #[error("output worker did not start: {0}; lower `--output-workers` or raise the thread limit")]
    Spawn(#[from] std::io::Error),
    /// No workers were asked for.
    #[error("`0` output workers cannot serve anyone; use at least 1")]
    NoWorkers,
    /// 429.
    #[error("`{limit}` requests are open; try again later")]
    Busy {
        /// [`OutputConfig::max_requests`].
        limit: usize,
    },
    /// 400.
    #[error("`{n}` sequences for one request; from 1 to {MAX_SEQUENCES} are possible")]
    Sequences {
        /// As asked.
        n: u32,
    },
    /// 400.
    #[error(transparent)]
    Stop(#[from] TextError),
    /// 503.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// What nobody reads any more, for the engine to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abort {
    /// All of a request.
    Request(RequestId),
    /// One of its sequences: a stop string ended it while others go on.
    Sequence(RequestId, u32),
}

/// Tells the engine what nobody reads any more. It may not know the request (it was never
/// submitted, or has just ended).
pub type OnAbort = Arc<dyn Fn(Abort) + Send + Sync>;

/// The workers. Dropping them, or [`OutputWorkers::shutdown`], ends all streams and joins threads.
pub struct OutputWorkers {
    inboxes: Vec<Arc<Inbox>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    num_open: Arc<AtomicUsize>,
    max_requests: usize,
}

impl OutputWorkers {
    /// Starts the threads. `eos`: the model's own end tokens, which give no `stop_reason`.
    /// `on_abort` is called on a worker, so it must not wait for one.
    pub fn spawn(
        config: OutputConfig,
        tokenizer: Arc<Tokenizer>,
        eos: Vec<u32>,
        on_abort: OnAbort,
    ) -> Result<OutputWorkers, OutputError> {
        if config.num_workers == 0 {
            return Err(OutputError::NoWorkers);
        }
        let workers = OutputWorkers {
            inboxes: (0..config.num_workers).map(|_| Arc::default()).collect(),
            threads: Mutex::default(),
            num_open: Arc::default(),
            max_requests: config.max_requests,
        };
        for (index, inbox) in workers.inboxes.iter().enumerate() {
            let worker = Worker {
                inbox: inbox.clone(),
                shared: Shared {
                    tokenizer: tokenizer.clone(),
                    eos: eos.clone(),
                    ids: CallIds::default(),
                },
                streams: HashMap::new(),
                on_abort: on_abort.clone(),
                num_open: workers.num_open.clone(),
            };
            let builder = thread::Builder::new().name(format!("tenon-output-{index}"));
            // On an error, dropping `workers` joins those that run.
            let thread = builder.spawn(move || worker.run())?;
            workers.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(workers)
    }

    /// Opens a request's streams. Call it before the request is submitted; never waits. If the
    /// engine then refuses the request, [`OutputWorkers::close`] it.
    pub fn open(&self, spec: StreamSpec) -> Result<(), OutputError> {
        if spec.n == 0 || spec.n > MAX_SEQUENCES {
            return Err(OutputError::Sequences { n: spec.n });
        }
        let stop = StopStrings::new(&spec.stop)?;
        if self.num_open.fetch_add(1, Ordering::Relaxed) >= self.max_requests {
            self.num_open.fetch_sub(1, Ordering::Relaxed);
            return Err(OutputError::Busy { limit: self.max_requests });
        }
        let inbox = &self.inboxes[self.worker_of(spec.request)];
        inbox.push(Message::Open(Box::new(spec), stop)).map_err(|_| {
            self.num_open.fetch_sub(1, Ordering::Relaxed);
            OutputError::ShuttingDown
        })
    }

    /// The client left: its streams end without further events, and the engine is told if it still
    /// generates. Unknown and finished requests are ignored. Never waits.
    pub fn close(&self, request: RequestId) {
        // An error means that the workers are going: they end all streams.
        let _ = self.inboxes[self.worker_of(request)].push(Message::Close(request));
    }

    /// Hands over what a step did. Outputs of requests that are not open are ignored.
    ///
    /// Costs one lock per worker, and waits only for a worker that is
    /// [`MAX_QUEUED_STEPS`] steps behind, until it takes the next ones:
    /// that is bounded by the deadlines of the sessions that it owns, each of which can spend its
    /// own once.
    pub fn deliver(&self, outputs: &mut Vec<StepOutput>) {
        for (index, inbox) in self.inboxes.iter().enumerate() {
            let is_its = |output: &StepOutput| self.worker_of(output.request) == index;
            if outputs.iter().any(is_its) {
                // Errors: the worker is going, nobody reads.
                let _ = inbox.push_step(outputs.extract_if(.., |output| is_its(output)));
            }
        }
    }

    /// The engine will say nothing more: ends all streams with this error behind what was
    /// delivered.
    pub fn fail_all(&self, error: &str) {
        for inbox in &self.inboxes {
            let _ = inbox.push(Message::FailAll(error.to_owned()));
        }
    }

    /// Requests that are open.
    pub fn num_open(&self) -> usize {
        self.num_open.load(Ordering::Relaxed)
    }

    /// Ends all streams with [`Finish::Abort`](crate::stream::Finish::Abort) behind what was
    /// delivered, and joins the threads. A second call does nothing.
    pub fn shutdown(&self) {
        self.inboxes.iter().for_each(|inbox| inbox.close());
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // The last owner may be a worker's own `on_abort`.
            if thread.thread().id() != thread::current().id() {
                // A worker that panicked has said so; there is nothing left to do here.
                let _ = thread.join();
            }
        }
    }

    fn worker_of(&self, request: RequestId) -> usize {
        // Fibonacci hashing: ids are given in a row, and every second one may be of one kind.
        let hash = request.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        hash as usize % self.inboxes.len()
    }
}

impl Drop for OutputWorkers {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// One thread's state.
struct Worker {
    inbox: Arc<Inbox>,
    shared: Shared,
    streams: HashMap<RequestId, Request>,
    on_abort: OnAbort,
    num_open: Arc<AtomicUsize>,
}

/// One request's streams.
struct Request {
    events: UnboundedSender<IndexedEvent>,
    sequences: Vec<Sequence>,
}

struct Sequence {
    /// None: its last event was sent.
    side: Option<Side>,
    is_engine_done: bool,
}

enum Side {
    Open(Box<TextSide>),
    /// Opening it panicked: an error, when the engine begins.
    Broken,
}

const PANIC: &str = "the server failed on this sequence's text: see its log";

impl Worker {
    fn run(mut self) {
        let mut messages = Vec::new();
        while self.inbox.take(&mut messages) {
            for message in messages.drain(..) {
                match message {
                    Message::Open(spec, stop) => self.open(*spec, &stop),
                    Message::Close(request) => self.remove(request),
                    Message::Output(output) => self.accept(&output),
                    Message::FailAll(error) => self.end_all(FinishReason::Error, Some(&error)),
                }
            }
        }
        self.end_all(FinishReason::Abort, None);
    }

    fn open(&mut self, spec: StreamSpec, stop: &StopStrings) {
        let open = || TextSide::new(&spec, stop, &self.shared.tokenizer);
        let open = || {
            catch_unwind(AssertUnwindSafe(open))
                .map_or(Side::Broken, |side| Side::Open(Box::new(side)))
        };
        let sequence = || Sequence { side: Some(open()), is_engine_done: false };
        let sequences = (0..spec.n).map(|_| sequence()).collect();
        let request = Request { events: spec.events.clone(), sequences };
        if self.streams.insert(spec.request, request).is_some() {
            tracing::error!(request_id = spec.request.0, "request opened twice");
            self.num_open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn accept(&mut self, output: &StepOutput) {
        let Some(request) = self.streams.get_mut(&output.request) else { return };
        let Some(sequence) = request.sequences.get_mut(output.index as usize) else { return };
        sequence.is_engine_done |= output.finish.is_some();
        let was_ended = sequence.side.is_none();
        let mut is_client_gone = false;
        let events = &request.events;
        let mut send = |event| {
            is_client_gone |= events.send(IndexedEvent { index: output.index, event }).is_err();
        };
        match sequence.accept(output, &mut self.shared, &mut send) {
            Some(true) => sequence.drop_side(),
            Some(false) => {}
            None => {
                send(TextSide::failed(PANIC.to_owned()));
                sequence.drop_side();
            }
        }
        let is_ended_now = !was_ended && sequence.side.is_none() && !sequence.is_engine_done;
        let is_over = request.sequences.iter().all(|sequence| sequence.side.is_none());
        if is_over || is_client_gone {
            self.remove(output.request);
        } else if is_ended_now {
            (self.on_abort)(Abort::Sequence(output.request, output.index));
        }
    }

    /// Forgets a request. The engine is told if it still generates.
    fn remove(&mut self, id: RequestId) {
        let Some(mut request) = self.streams.remove(&id) else { return };
        self.num_open.fetch_sub(1, Ordering::Relaxed);
        request.sequences.iter_mut().for_each(Sequence::drop_side);
        if request.sequences.iter().any(|sequence| !sequence.is_engine_done) {
            (self.on_abort)(Abort::Request(id));
        }
    }

    fn end_all(&mut self, finish: FinishReason, error: Option<&str>) {
        let ids: Vec<_> = self.streams.keys().copied().collect();
        for request in ids {
            let num = self.streams.get(&request).map_or(0, |request| request.sequences.len());
            for index in 0..num as u32 {
                self.accept(&StepOutput {
                    request,
                    index,
                    token: None,
                    logprobs: None,
                    prompt_logprobs: Vec::new(),
                    finish: Some(finish),
                    error: error.map(str::to_owned),
                    num_cached_tokens: 0,
                });
            }
        }
    }
}

impl Sequence {
    /// True: it finished. None: it panicked and can only be dropped.
    fn accept(
        &mut self,
        output: &StepOutput,
        shared: &mut Shared,
        send: &mut dyn FnMut(StreamEvent),
    ) -> Option<bool> {
        match &mut self.side {
            // A stop string ended it here; what the engine had under way is dropped.
            None => Some(false),
            Some(Side::Broken) => None,
            Some(Side::Open(side)) => {
                catch_unwind(AssertUnwindSafe(|| side.accept(output, shared, send))).ok()
            }
        }
    }

    /// Ends the session. One that panics even here has said so on the log.
    fn drop_side(&mut self) {
        let side = self.side.take();
        let _ = catch_unwind(AssertUnwindSafe(move || drop(side)));
    }
}

#[cfg(test)]
mod tests;
