//! A device whose KV cache holds token ids: its logits peak at a hash of the context that it reads
//! back through the block tables. Failures can be planted at a given step.
#![allow(dead_code)] // each test crate uses its part

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenon_backend::{Backend, BackendError, StepInputs, Ticket};
use tenon_engine::{
    EngineConfig, FinishReason, RequestId, SamplingParams, SchedulingPolicy, StepOutput,
    TokenLogprobs,
};
use tenon_runner::{GenerateRequest, OutputSink, RunnerHandle, WorkerConfig, WorkerThread, spawn};

pub const VOCAB: u32 = 61;
/// Nothing in these tests takes as long.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn config() -> EngineConfig {
    EngineConfig {
        num_blocks: 32,
        block_size: 4,
        max_num_seqs: 8,
        max_step_tokens: 32,
        max_prefill_chunk: 16,
        max_prompt_logits_rows: 12,
        policy: SchedulingPolicy::Fcfs,
        max_model_len: 64,
        max_waiting: 100,
        kv_groups: vec![None],
        tier: None,
        prefix_caching: true,
        hash_key: [5; 16],
        eos_token_ids: vec![0],
    }
}

/// The model: the next token after `context`.
pub fn next_token(context: &[u32]) -> u32 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &token in context {
        hash = (hash ^ u64::from(token)).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^= hash >> 29;
    }
    (hash >> 7) as u32 % VOCAB
}

/// What the model says without any engine.
pub fn expected(prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    while tokens.len() - prompt.len() < max_tokens {
        let token = next_token(&tokens);
        tokens.push(token);
        if token == 0 {
            break;
        }
    }
    tokens.split_off(prompt.len())
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    Error,
    Panic,
    Nan,
    Width,
}

pub struct FakeBackend {
    block_size: usize,
    slots: Vec<Option<u32>>,
    logits: Vec<f32>,
    num_steps: usize,
    /// At this step (the warm-up is 0).
    fault: Option<(usize, Fault)>,
    /// Each step after the warm-up waits for a message; a closed channel means no more waiting.
    gate: Option<Receiver<()>>,
    /// Told when a step begins to wait for the gate.
    entered: Option<Sender<()>>,
    /// It runs elsewhere: asked at each wait.
    on_wait: Option<Box<dyn FnMut() + Send>>,
}

impl FakeBackend {
    pub fn new(config: &EngineConfig) -> Self {
        FakeBackend {
            block_size: config.block_size,
            slots: vec![None; config.num_blocks * config.block_size],
            logits: Vec::new(),
            num_steps: 0,
            fault: None,
            gate: None,
            entered: None,
            on_wait: None,
        }
    }

    pub fn failing(self, step: usize, fault: Fault) -> Self {
        FakeBackend { fault: Some((step, fault)), ..self }
    }

    pub fn gated(self) -> (Self, Sender<()>) {
        let (sender, gate) = channel();
        (FakeBackend { gate: Some(gate), ..self }, sender)
    }

    /// Steps run elsewhere; `on_wait` is called when somebody waits for one.
    pub fn elsewhere(self, on_wait: impl FnMut() + Send + 'static) -> Self {
        FakeBackend { on_wait: Some(Box::new(on_wait)), ..self }
    }

    pub fn announced(self) -> (Self, Receiver<()>) {
        let (sender, entered) = channel();
        (FakeBackend { entered: Some(sender), ..self }, entered)
    }
}

impl Backend for FakeBackend {
    fn describe(&self) -> String {
        "token ids in KV slots".into()
    }

    fn forward(&mut self, inputs: &StepInputs<'_>) -> Result<Ticket, BackendError> {
        let fault = self.fault.filter(|(step, _)| *step == self.num_steps).map(|(_, f)| f);
        if let Some(gate) = self.gate.as_ref().filter(|_| self.num_steps > 0) {
            if let Some(entered) = &self.entered {
                let _ = entered.send(());
            }
            let _ = gate.recv();
        }
        self.num_steps += 1;
        match fault {
            Some(Fault::Error) => return Err(BackendError::Failed("planted".into())),
            Some(Fault::Panic) => panic!("planted"),
            _ => {}
        }
        for copy in inputs.block_copies {
            let from = copy.from as usize * self.block_size;
            let to = copy.to as usize * self.block_size;
            self.slots.copy_within(from..from + self.block_size, to);
        }
        for (&slot, &token) in inputs.slot_mapping.iter().zip(inputs.token_ids) {
            self.slots[slot as usize] = Some(token);
        }
        self.logits.clear();
        for &at in inputs.logits_rows {
            let seq = inputs.seqs.iter().rfind(|s| s.token_start <= at).unwrap();
            let table = &inputs.block_tables[seq.table_start as usize..][..seq.table_len as usize];
            assert_eq!(
                seq.table_len as usize,
                (seq.context_len as usize).div_ceil(self.block_size)
            );
            let context: Vec<u32> = (0..=inputs.positions[at as usize] as usize)
                .map(|p| {
                    let block = table[p / self.block_size] as usize;
                    self.slots[block * self.block_size + p % self.block_size].unwrap()
                })
                .collect();
            let start = self.logits.len();
            self.logits.resize(start + VOCAB as usize, 0.0);
            self.logits[start + next_token(&context) as usize] = 40.0;
        }
        match fault {
            Some(Fault::Nan) => self.logits[3] = f32::NAN,
            Some(Fault::Width) => self.logits.push(0.0),
            _ => {}
        }
        Ok(Ticket(self.num_steps as u64))
    }

    fn wait(&mut self, _ticket: Ticket) -> Result<&mut [f32], BackendError> {
        if let Some(on_wait) = &mut self.on_wait {
            on_wait();
        }
        Ok(&mut self.logits)
    }

    fn is_async(&self) -> bool {
        self.on_wait.is_some()
    }

    fn block_bytes(&self) -> usize {
        self.block_size * 8
    }

    fn read_block(&mut self, block: u32, bytes: &mut [u8]) -> Result<(), BackendError> {
        let slots = &self.slots[block as usize * self.block_size..][..self.block_size];
        for (slot, bytes) in slots.iter().zip(bytes.chunks_exact_mut(8)) {
            let value = slot.map_or(u64::MAX, u64::from);
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }

    fn write_block(&mut self, block: u32, bytes: &[u8]) -> Result<(), BackendError> {
        let slots = &mut self.slots[block as usize * self.block_size..][..self.block_size];
        for (slot, bytes) in slots.iter_mut().zip(bytes.chunks_exact(8)) {
            let bytes = bytes.try_into().expect("the chunks have this length");
            *slot = u32::try_from(u64::from_le_bytes(bytes)).ok();
        }
        Ok(())
    }
}

/// A running engine thread and its outputs.
pub struct Bench {
    pub handle: RunnerHandle,
    pub thread: WorkerThread,
    pub outputs: Receiver<Vec<StepOutput>>,
}

pub fn start(config: EngineConfig, backend: FakeBackend) -> Bench {
    let (sender, outputs) = channel();
    start_with(
        config,
        backend,
        Box::new(move |batch| drop(sender.send(std::mem::take(batch)))),
        outputs,
    )
}

pub fn start_with(
    config: EngineConfig,
    backend: FakeBackend,
    sink: OutputSink,
    outputs: Receiver<Vec<StepOutput>>,
) -> Bench {
    let config = WorkerConfig::new(config, VOCAB);
    let (handle, thread) = spawn(config, Box::new(backend), sink, Box::new(|_| {})).unwrap();
    Bench { handle, thread, outputs }
}

pub fn request(id: u64, prompt: &[u32], max_tokens: u32) -> GenerateRequest {
    let params = SamplingParams { max_tokens, temperature: 0.0, ..Default::default() };
    GenerateRequest::new(RequestId(id), prompt.into(), params)
}

/// A sequence, by request and index, and what it said.
pub type Ended = ((u64, u32), Heard);

/// Everything one sequence said.
#[derive(Debug, Clone, PartialEq)]
pub struct Heard {
    pub tokens: Vec<u32>,
    pub logprobs: Vec<TokenLogprobs>,
    pub prompt_logprobs: Vec<TokenLogprobs>,
    pub finish: FinishReason,
    pub error: Option<String>,
}

impl Bench {
    /// Collects until `count` sequences have ended; by (request, index).
    pub fn hear(&self, count: usize) -> Vec<Ended> {
        hear(&self.outputs, count)
    }
}

pub fn hear(outputs: &Receiver<Vec<StepOutput>>, count: usize) -> Vec<Ended> {
    let mut open: HashMap<(u64, u32), Heard> = HashMap::new();
    let mut ended: Vec<Ended> = Vec::new();
    while ended.len() < count {
        let batch = outputs.recv_timeout(PATIENCE).expect("an output in time");
        assert!(!batch.is_empty(), "an empty batch");
        for output in batch {
            let key = (output.request.0, output.index);
            assert!(ended.iter().all(|(k, _)| *k != key), "{key:?} speaks after its end");
            let heard = open.entry(key).or_insert_with(|| Heard {
                tokens: Vec::new(),
                logprobs: Vec::new(),
                prompt_logprobs: Vec::new(),
                finish: FinishReason::Length,
                error: None,
            });
            heard.tokens.extend(output.token);
            heard.logprobs.extend(output.logprobs.map(|l| *l));
            heard.prompt_logprobs.extend(output.prompt_logprobs);
            if let Some(finish) = output.finish {
                ended.push((key, Heard { finish, error: output.error, ..heard.clone() }));
            }
        }
    }
    ended.sort_by_key(|(key, _)| *key);
    ended
}

/// A sink that panics at its first batch and then collects.
pub fn panicking_sink() -> (OutputSink, Receiver<Vec<StepOutput>>) {
    let (sender, outputs) = channel();
    let has_panicked = Arc::new(Mutex::new(false));
    let sink: OutputSink = Box::new(move |batch| {
        let mut has_panicked = has_panicked.lock().unwrap_or_else(|e| e.into_inner());
        if !std::mem::replace(&mut *has_panicked, true) {
            panic!("planted in the sink");
        }
        let _ = sender.send(std::mem::take(batch));
    });
    (sink, outputs)
}
