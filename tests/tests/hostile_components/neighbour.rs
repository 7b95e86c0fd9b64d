//! A stream beside spinning parsers: what a hostile component costs the others.
//!
//! The engine thread, two output workers and the sandbox are real; the tokens are scripted, one
//! each `STEP`. Measured are the times between the neighbour's tokens, alone and under attack, in
//! one run.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tenon_chat::parser::{FaultKind, ParserFactory};
use tenon_chat::stream::{Finished, ParserBinding, StreamEvent, StreamSpec};
use tenon_chat::worker::{Abort, OutputConfig, OutputWorkers};
use tenon_engine::{EngineConfig, RequestId, SamplingParams};
use tenon_runner::handle::{GenerateRequest, RunnerHandle};
use tenon_runner::worker::{WorkerConfig, WorkerThread, spawn};
use tenon_scripted::{Reply, Script, ScriptedBackend};
use tenon_text::Tokenizer;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::hostile_guest::{Guest, host, module, request};

/// One token each.
const STEP: Duration = Duration::from_millis(10);

const NUM_TOKENS: usize = 300;
const BLOCK_SIZE: usize = 16;
const NUM_BLOCKS: usize = 256;

/// Different components, since three faults put one into quarantine.
const NUM_HOSTILE: usize = 12;

/// Hostile streams that run at any time.
const NUM_ATTACKERS: usize = 4;

/// Runs that may fail before the machine is no excuse.
const NUM_TRIES: usize = 3;

struct Server {
    runner: RunnerHandle,
    thread: WorkerThread,
    workers: Arc<OutputWorkers>,
    next_id: u64,
}

impl Server {
    fn start() -> Server {
        let tokenizer = Tokenizer::byte_level_for_scripts(&["<eos>".into()]);
        let eos = tokenizer.eos().unwrap();
        let token_bytes: Vec<Vec<u8>> = (0..tokenizer.vocab_size() as u32)
            .map(|id| tokenizer.token_bytes(id).unwrap_or_default().to_vec())
            .collect();
        let vocab_size = token_bytes.len() as u32;
        let tokens = vec![u32::from(b'x'); NUM_TOKENS];
        let script = Script {
            token_bytes,
            eos,
            replies: vec![Reply { when: None, tokens }],
            step_time: STEP,
        };
        let backend = Box::new(ScriptedBackend::new(script, NUM_BLOCKS, BLOCK_SIZE));
        let slot: Arc<OnceLock<RunnerHandle>> = Arc::default();
        let for_aborts = slot.clone();
        let on_abort = Arc::new(move |abort| match (for_aborts.get(), abort) {
            (Some(runner), Abort::Request(id)) => RunnerHandle::abort(runner, id),
            (Some(runner), Abort::Sequence(id, index)) => runner.abort_sequence(id, index),
            (None, _) => {}
        });
        let config = OutputConfig { num_workers: 2, ..OutputConfig::default() };
        let workers =
            OutputWorkers::spawn(config, Arc::new(tokenizer), vec![eos], on_abort).unwrap();
        let workers = Arc::new(workers);
        let engine = EngineConfig {
            num_blocks: NUM_BLOCKS,
            block_size: BLOCK_SIZE,
            max_num_seqs: 16,
            max_step_tokens: 64,
            max_prefill_chunk: 64,
            max_prompt_logits_rows: 16,
            policy: Default::default(),
            max_model_len: NUM_TOKENS + 64,
            max_waiting: 16,
            kv_groups: vec![None],
            tier: None,
            prefix_caching: true,
            hash_key: [7; 16],
            eos_token_ids: vec![eos],
        };
        let sink = workers.clone();
        let config = WorkerConfig::new(engine, vocab_size);
        let outputs = Box::new(move |batch: &mut Vec<_>| sink.deliver(batch));
        let (runner, thread) = spawn(config, backend, outputs, Box::new(|_| {})).unwrap();
        thread.wait_ready().unwrap();
        let _ = slot.set(runner.clone());
        Server { runner, thread, workers, next_id: 1 }
    }

    fn open(
        &mut self,
        parser: Option<Arc<dyn ParserFactory>>,
        max_tokens: usize,
    ) -> UnboundedReceiver<tenon_chat::stream::IndexedEvent> {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let (events, received) = unbounded_channel();
        let parser = parser.map(|factory| ParserBinding {
            factory,
            info: request(),
            host_watch: true,
            fail_on_fault: false,
        });
        self.workers
            .open(StreamSpec {
                request: id,
                n: 1,
                stop: Vec::new(),
                min_tokens: 0,
                include_stop: false,
                skip_special_tokens: true,
                wants_token_ids: false,
                parser,
                events,
            })
            .unwrap();
        let params = SamplingParams {
            temperature: 0.0,
            max_tokens: max_tokens as u32,
            ..SamplingParams::default()
        };
        let prompt: Arc<[u32]> = Arc::from([1u32, 2, 3].as_slice());
        let request = GenerateRequest::new(id, prompt, params);
        self.runner.submit(request).unwrap();
        received
    }

    fn stop(self) {
        self.runner.drain();
        self.thread.join().unwrap();
    }
}

/// Times between the neighbour's tokens, sorted; the others are restarted as they end.
fn measure(
    server: &mut Server,
    others: &[Arc<dyn ParserFactory>],
) -> (Vec<Duration>, Vec<Finished>) {
    let mut neighbour = server.open(None, NUM_TOKENS);
    let mut attackers: Vec<_> =
        (0..NUM_ATTACKERS).map(|i| server.open(others.get(i).cloned(), 4)).collect();
    let mut next = NUM_ATTACKERS;
    let mut ended = Vec::new();
    let (mut gaps, mut last) = (Vec::new(), None);
    while let Some(event) = neighbour.blocking_recv() {
        match event.event {
            StreamEvent::Content(_) => {
                let now = Instant::now();
                if let Some(last) = last.replace(now) {
                    gaps.push(now - last);
                }
            }
            StreamEvent::Finished(_) => break,
            _ => {}
        }
        for attacker in &mut attackers {
            while let Ok(event) = attacker.try_recv() {
                if let StreamEvent::Finished(finished) = event.event {
                    ended.push(finished);
                    let parser = others.get(next % NUM_HOSTILE).cloned();
                    *attacker = server.open(parser, 4);
                    next += 1;
                    break;
                }
            }
        }
    }
    gaps.sort();
    (gaps, ended)
}

fn p99(sorted: &[Duration]) -> Duration {
    sorted[sorted.len() * 99 / 100]
}

#[test]
fn spinning_parsers_leave_a_neighbour_its_pace() {
    let (host, _dir) = host();
    // Equal attacks in different components: the first memory's size tells them apart.
    let hostile: Vec<Arc<dyn ParserFactory>> = (0..NUM_HOSTILE)
        .map(|i| {
            let pages = (16 + i).to_string();
            let guest = Guest { push: "(call $spin)", pages: &pages, ..Guest::default() };
            host.admit(&module(&guest)).unwrap() as Arc<dyn ParserFactory>
        })
        .collect();
    let mut server = Server::start();
    let mut ratios = Vec::new();
    for _ in 0..NUM_TRIES {
        let (alone, _) = measure(&mut server, &[]);
        let (attacked, ended) = measure(&mut server, &hostile);
        assert!(alone.len() > NUM_TOKENS / 2 && attacked.len() > NUM_TOKENS / 2);
        let faults = ended.iter().filter_map(|f| f.fault.as_ref());
        let num_spins = faults.filter(|f| f.kind == FaultKind::Timeout).count();
        let ratio = p99(&attacked).as_secs_f64() / p99(&alone).as_secs_f64();
        println!(
            "{num_spins} spinning streams: neighbour's inter-token p99 {:.1} ms, alone {:.1} ms, \
             ratio {ratio:.2}",
            p99(&attacked).as_secs_f64() * 1e3,
            p99(&alone).as_secs_f64() * 1e3,
        );
        if ratios.is_empty() {
            assert!(num_spins >= NUM_HOSTILE, "the attack did not happen: {num_spins} spins");
        }
        ratios.push(ratio);
        if ratio <= 2.0 {
            return server.stop();
        }
    }
    panic!("the neighbour slows down by {ratios:?}");
}
