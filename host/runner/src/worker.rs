//! The engine thread: it owns engine, rows, sampler and backend, and runs steps until told to stop.
//!
//! Whatever happens in here, each sequence that was taken gets exactly one last output: a failing
//! device or a panic ends them all with an error and leaves the handle unhealthy.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TryRecvError, channel, sync_channel,
};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tenon_backend::{Backend, BackendError};
use tenon_engine::{
    ConfigError, Engine, EngineConfig, EngineStats, FinishReason, NewRequest, Sampled, StepOutput,
};

use crate::batch::InputBatch;
use crate::handle::{GenerateRequest, Message, RunnerHandle};
use crate::ledger::Ledger;
use crate::pace::Pace;
use crate::rows::Rows;
use crate::sampler::Sampler;
use crate::shared::Shared;
use crate::tier::{KvTier, TierThread};
use crate::watchdog::{self, OnStuck};

/// Where each step's outputs go, all at once, on the engine thread: hand them over and return. It
/// may wait for who takes them, who may meanwhile call the handle.
///
/// It takes the outputs out; the buffer is used again.
pub type OutputSink = Box<dyn FnMut(&mut Vec<StepOutput>) + Send>;

/// What the engine thread is started with.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Limits; `num_blocks` and `block_size` are those that the backend was prepared with.
    pub engine: EngineConfig,
    /// Width of the backend's logits.
    pub vocab_size: u32,
    /// Step time with a prompt's chunk in it over that without, at most; 0: no limit.
    pub prefill_slowdown: f64,
    /// A step that takes longer than this makes the engine unhealthy; none: it may take any time.
    pub stall_timeout: Option<Duration>,
    /// A tier that takes longer than this for one block is done without from then on.
    pub tier_timeout: Duration,
}

/// [`WorkerConfig::tier_timeout`] when nobody says otherwise.
const TIER_TIMEOUT: Duration = Duration::from_secs(10);

impl WorkerConfig {
    /// Running streams may slow down to half their pace, and nothing watches the engine.
    pub fn new(engine: EngineConfig, vocab_size: u32) -> Self {
        WorkerConfig {
            engine,
            vocab_size,
            prefill_slowdown: 2.0,
            stall_timeout: None,
            tier_timeout: TIER_TIMEOUT,
        }
    }
}

/// Why the engine thread does not run.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Limits that cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The operating system refused the thread.
    #[error("the engine thread cannot start: {0}")]
    Thread(#[from] std::io::Error),
    /// It started and failed.
    #[error("the engine stopped: {reason}")]
    Failed {
        /// Why.
        reason: String,
    },
    /// It did not end in time; its step goes on.
    #[error("the engine did not end within {} s", timeout.as_secs())]
    Busy {
        /// How long it had.
        timeout: Duration,
    },
}

/// The running thread. Dropping it detaches the thread.
pub struct WorkerThread {
    thread: JoinHandle<Result<(), String>>,
    shared: Arc<Shared>,
    // Closed when the warm-up is done or has failed.
    warmed_up: Receiver<()>,
    // Closed when the thread has nothing more to do.
    ended: Receiver<()>,
    watchdog: Option<JoinHandle<()>>,
}

impl WorkerThread {
    /// Waits until the warm-up step has run.
    pub fn wait_ready(&self) -> Result<(), WorkerError> {
        // Nothing is ever sent.
        let _ = self.warmed_up.recv();
        match self.shared.failure() {
            None => Ok(()),
            Some(reason) => Err(WorkerError::Failed { reason: reason.to_owned() }),
        }
    }

    /// Waits until the thread ends: drained, stopped, failed, or without handles and work.
    pub fn join(self) -> Result<(), WorkerError> {
        let ended = self.thread.join().unwrap_or_else(|_| Err("its thread panicked".into()));
        if let Some(watchdog) = self.watchdog {
            // The engine thread owned what it waits for.
            let _ = watchdog.join();
        }
        ended.map_err(|reason| WorkerError::Failed { reason })
    }

    /// Like [`WorkerThread::join`], but waits at most so long: a step that is stuck cannot be
    /// interrupted, and the thread is then left alone.
    pub fn join_within(self, timeout: Duration) -> Result<(), WorkerError> {
        // Nothing is ever sent.
        if self.ended.recv_timeout(timeout) == Err(RecvTimeoutError::Disconnected) {
            return self.join();
        }
        Err(match self.shared.failure() {
            None => WorkerError::Busy { timeout },
            Some(reason) => WorkerError::Failed { reason: reason.to_owned() },
        })
    }

    /// Whether [`WorkerThread::join`] would return at once.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Starts the engine thread.
///
/// The thread calls `backend.forward` itself (it is worker 0 of a CPU backend's pool) and parks
/// while nothing is alive. `on_stuck` is called when a step takes longer than
/// [`WorkerConfig::stall_timeout`]; the sink may then be blocked or never called again.
pub fn spawn(
    config: WorkerConfig,
    backend: Box<dyn Backend>,
    outputs: OutputSink,
    on_stuck: OnStuck,
) -> Result<(RunnerHandle, WorkerThread), WorkerError> {
    spawn_with_tier(config, backend, outputs, on_stuck, None)
}

/// [`spawn`] with a place for evicted KV blocks; [`EngineConfig::tier`] says how many.
pub fn spawn_with_tier(
    config: WorkerConfig,
    backend: Box<dyn Backend>,
    outputs: OutputSink,
    on_stuck: OnStuck,
    tier: Option<Box<dyn KvTier>>,
) -> Result<(RunnerHandle, WorkerThread), WorkerError> {
    let engine = Engine::new(config.engine.clone())?;
    let shared = Arc::new(Shared::new(config.engine.clone(), config.vocab_size));
    // Bounded by what is sent: submissions by `max_live`, aborts by what callers have open, each of
    // which is ended once. A full channel would make who aborts wait for this thread, which may
    // wait for who aborts to take its outputs.
    let (sender, receiver) = channel();
    let (warm_sender, warmed_up) = sync_channel(0);
    let worker = Worker {
        rows: Rows::new(
            config.engine.max_num_seqs,
            config.engine.kv_groups.len(),
            config.engine.max_seq_len().div_ceil(config.engine.block_size),
            config.engine.eos_token_ids.clone(),
        ),
        batch: InputBatch::new(&config.engine),
        sampler: Sampler::new(config.vocab_size as usize),
        results: Vec::with_capacity(config.engine.max_num_seqs),
        settled: Vec::with_capacity(config.engine.max_num_seqs),
        pace: Pace::new(config.prefill_slowdown),
        tier: tier.map(|tier| TierThread::spawn(tier, config.tier_timeout)).transpose()?,
        overlaps: backend.is_async(),
        engine,
        backend,
        outputs,
        ledger: Ledger::default(),
        shared: shared.clone(),
        receiver,
    };
    let (watched, unwatched) = sync_channel(0);
    let watchdog = match config.stall_timeout {
        None => None,
        Some(timeout) => Some(watchdog::spawn(shared.clone(), timeout, unwatched, on_stuck)?),
    };
    let (alive, ended) = sync_channel(0);
    let thread = std::thread::Builder::new().name("tenon-engine".into()).spawn(move || {
        let result = worker.run(warm_sender);
        drop((watched, alive));
        result
    })?;
    let handle = RunnerHandle::new(shared.clone(), sender);
    Ok((handle, WorkerThread { thread, shared, warmed_up, ended, watchdog }))
}

/// What a message asks of the loop.
#[derive(PartialEq)]
enum Next {
    GoOn,
    Drain,
    Stop,
}

struct Worker {
    engine: Engine,
    rows: Rows,
    batch: InputBatch,
    sampler: Sampler,
    // Scratch of `step`.
    results: Vec<Sampled>,
    settled: Vec<StepOutput>,
    pace: Pace,
    // Where evicted blocks are kept on.
    tier: Option<TierThread>,
    // The backend runs elsewhere: plan the next step meanwhile.
    overlaps: bool,
    backend: Box<dyn Backend>,
    outputs: OutputSink,
    ledger: Ledger,
    shared: Arc<Shared>,
    receiver: Receiver<Message>,
}

impl Worker {
    fn run(mut self, warmed_up: SyncSender<()>) -> Result<(), String> {
        let mut warmed_up = Some(warmed_up);
        let served = catch_unwind(AssertUnwindSafe(|| self.serve(&mut warmed_up)));
        let failure = match served {
            // The watchdog may have declared one.
            Ok(Ok(())) => self.shared.failure().map(str::to_owned),
            Ok(Err(error)) => Some(error.to_string()),
            Err(panic) => Some(format!("internal error: {}", panic_message(&*panic))),
        };
        if let Some(reason) = &failure {
            tracing::error!(reason, "the engine stopped");
        }
        self.close(failure.as_deref());
        drop(warmed_up);
        failure.map_or(Ok(()), Err)
    }

    fn serve(&mut self, warmed_up: &mut Option<SyncSender<()>>) -> Result<(), BackendError> {
        self.warm_up()?;
        self.shared.begin_serving();
        *warmed_up = None;
        let mut is_draining = false;
        loop {
            match self.receive(is_draining) {
                Next::GoOn => {}
                Next::Drain => is_draining = true,
                Next::Stop => return Ok(()),
            }
            if self.engine.is_idle() && is_draining {
                return Ok(());
            }
            self.shared.begin_round();
            self.end_expired();
            if let Some(tier) = &mut self.tier {
                tier.end(&mut self.engine, &mut *self.backend)?;
            }
            self.step()?;
            self.shared.park();
            if self.shared.failure().is_some() {
                // The watchdog ended every stream: nobody waits for the next step.
                return Ok(());
            }
        }
    }

    /// Takes in all messages; parks for the first one when there is nothing else to do.
    fn receive(&mut self, is_draining: bool) -> Next {
        let mut next = Next::GoOn;
        if self.engine.is_idle() && !is_draining {
            match self.receiver.recv() {
                Ok(message) => next = self.handle(message),
                Err(_) => return Next::Stop,
            }
        }
        // Bounded, so that a flood of messages cannot hold up the step.
        for _ in 0..self.shared.max_live() {
            if next == Next::Stop {
                break;
            }
            match self.receiver.try_recv() {
                Ok(message) => match self.handle(message) {
                    Next::GoOn => {}
                    other => next = other,
                },
                Err(TryRecvError::Empty) => break,
                // The handles are gone: what is alive is finished, as for a drain.
                Err(TryRecvError::Disconnected) => return Next::Drain,
            }
        }
        next
    }

    fn handle(&mut self, message: Message) -> Next {
        match message {
            Message::Submit(request) => self.admit(*request),
            Message::Abort(id) => {
                self.engine.abort(id, FinishReason::Abort, &mut self.settled);
                self.deliver();
            }
            Message::AbortSequence(id, index) => {
                self.engine.abort_sequence(id, index, &mut self.settled);
                self.deliver();
            }
            Message::Drain => return Next::Drain,
            Message::Stop => return Next::Stop,
        }
        Next::GoOn
    }

    fn admit(&mut self, request: GenerateRequest) {
        let (id, n) = (request.id, request.n);
        if !self.ledger.open(id, n, request.deadline) {
            // An answer under this id would end the other request.
            tracing::error!(request_id = id.0, "a request id was used twice");
            self.shared.give_back(n as usize);
            return;
        }
        if let Some(grammar) = request.grammar {
            self.rows.grammars.open(id, grammar, n);
        }
        let added = self.engine.add(NewRequest {
            id,
            prompt: request.prompt,
            n,
            params: Arc::new(request.params),
            cache_salt: request.cache_salt,
            priority: request.priority,
            tenant: request.tenant,
        });
        if let Err(error) = added {
            let message = error.to_string();
            let outputs = (0..n).map(|index| StepOutput {
                request: id,
                index,
                token: None,
                logprobs: None,
                prompt_logprobs: Vec::new(),
                finish: Some(FinishReason::Error),
                error: Some(message.clone()),
                num_cached_tokens: 0,
            });
            self.settled.extend(outputs);
            self.deliver();
        }
    }

    /// Ends the requests whose time is over.
    fn end_expired(&mut self) {
        for request in self.ledger.expired(Instant::now()) {
            self.engine.abort(request, FinishReason::Deadline, &mut self.settled);
        }
        self.deliver();
    }

    /// Plan, forward, sample, settle.
    fn step(&mut self) -> Result<(), BackendError> {
        let Some(plan) = self.engine.plan() else { return self.move_blocks() };
        if let Some(tier) = &mut self.tier {
            tier.note(&plan.transfers);
        }
        self.rows.apply(plan);
        let load = self.rows.load(plan);
        let inputs = self.batch.build(&self.rows, plan);
        if let Some(tier) = &mut self.tier {
            tier.begin(&mut self.engine, &mut *self.backend)?;
        }
        let started = Instant::now();
        let ticket = self.backend.forward(&inputs)?;
        if self.overlaps {
            self.engine.plan_ahead();
            self.shared.publish(&self.engine.stats());
        }
        let logits = self.backend.wait(ticket)?;
        self.pace.observe(load, started.elapsed().as_secs_f64());
        self.sampler.sample(&mut self.rows, self.batch.logits_uses(), logits, &mut self.results)?;
        self.engine.settle(&mut self.results, &mut self.settled);
        // Those that sampled decode in the next step, unless they ended.
        let decodes = |o: &&StepOutput| o.token.is_some() && o.finish.is_none();
        let num_decodes = self.settled.iter().filter(decodes).count();
        self.engine.limit_prefill(self.pace.limit(num_decodes));
        self.deliver();
        Ok(())
    }

    /// Begins what goes to the tier below the pool and comes from it.
    fn move_blocks(&mut self) -> Result<(), BackendError> {
        match &mut self.tier {
            Some(tier) => tier.begin(&mut self.engine, &mut *self.backend),
            None => Ok(()),
        }
    }

    fn warm_up(&mut self) -> Result<(), BackendError> {
        let ticket = self.backend.forward(&self.batch.warm_up())?;
        let width = self.backend.wait(ticket)?.len();
        let vocab_size = self.shared.vocab_size() as usize;
        if width == vocab_size {
            return Ok(());
        }
        Err(BackendError::Failed(format!("logits are `{width}` wide, not {vocab_size}")))
    }

    fn deliver(&mut self) {
        self.shared.publish(&self.engine.stats());
        if self.settled.is_empty() {
            return;
        }
        self.rows.grammars.settle(&self.settled);
        // First, so that who waits for an output finds room for the next request.
        self.shared.give_back(self.ledger.settle(&self.settled));
        (self.outputs)(&mut self.settled);
        self.settled.clear();
    }

    /// Ends all that is alive and all that is still in the channel.
    fn close(mut self, failure: Option<&str>) {
        self.shared.close(failure);
        // The engine may have panicked; its counters are still plain numbers.
        self.shared.publish(&EngineStats {
            num_requests_running: 0,
            num_requests_waiting: 0,
            num_requests_deferred: 0,
            num_used_blocks: 0,
            ..self.engine.stats()
        });
        for message in self.receiver.try_iter() {
            if let Message::Submit(request) = message {
                self.ledger.open(request.id, request.n, None);
            }
        }
        let mut outputs = match failure {
            None => self.ledger.end_all(FinishReason::Abort, None),
            Some(reason) => {
                let error = format!("the engine stopped: {reason}");
                self.ledger.end_all(FinishReason::Error, Some(&error))
            }
        };
        if outputs.is_empty() {
            return;
        }
        self.shared.give_back(outputs.len());
        // The sink may be what panicked before.
        let sent = catch_unwind(AssertUnwindSafe(|| (self.outputs)(&mut outputs)));
        if sent.is_err() {
            tracing::error!("the sink of outputs panicked");
        }
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("panic")
}
