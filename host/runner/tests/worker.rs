//! The engine thread from outside: every sequence that was taken ends exactly once, whatever
//! happens in there.
#![allow(clippy::unwrap_used)]

mod fake;

use fake::{Bench, FakeBackend, Fault, PATIENCE, config, expected, request, start, start_with};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tenon_engine::{EngineConfig, FinishReason, RequestId, SamplingParams};
use tenon_runner::{GenerateRequest, RunnerHandle, SubmitError, WorkerConfig, WorkerError, spawn};

fn started() -> Bench {
    start(config(), FakeBackend::new(&config()))
}

fn texts(count: u64) -> Vec<Vec<u32>> {
    (0..count)
        .map(|i| (0..3 + i as u32 % 9).map(|t| 1 + (t * 3 + i as u32) % 50).collect())
        .collect()
}

#[test]
fn greedy_output_is_the_models_in_any_company() {
    let bench = started();
    bench.thread.wait_ready().unwrap();
    assert!(bench.handle.is_ready() && bench.handle.is_healthy());
    let prompts = texts(40);
    for (id, prompt) in (0..).zip(&prompts) {
        bench.handle.submit(request(id, prompt, 20)).unwrap();
    }
    for (((id, _), heard), prompt) in bench.hear(40).into_iter().zip(&prompts) {
        assert_eq!(heard.tokens, expected(prompt, 20), "request {id}");
    }
    let stats = bench.handle.stats();
    assert_eq!((stats.num_requests_running, stats.num_requests_waiting), (0, 0));
    assert_eq!(stats.num_used_blocks, 0);
    assert_eq!(stats.prompt_tokens, prompts.iter().map(|p| p.len() as u64).sum::<u64>());
    assert!(stats.num_preemptions > 0, "the pool is too large to prove anything");
    assert!(stats.num_steps > 20 && stats.generation_tokens > 40);
    assert_eq!(stats.step_tokens.iter().sum::<u64>(), stats.num_steps);
    bench.handle.drain();
    bench.thread.join().unwrap();
    assert!(!bench.handle.is_ready() && bench.handle.is_healthy());
}

#[test]
fn many_threads_submit_and_abort() {
    let bench = started();
    let threads: Vec<_> = (0..4_u64)
        .map(|t| {
            let handle = bench.handle.clone();
            std::thread::spawn(move || {
                for (i, prompt) in (0..).zip(texts(15)) {
                    let id = t * 100 + i;
                    handle.submit(request(id, &prompt, 10)).unwrap();
                    if id % 3 == 0 {
                        handle.abort(RequestId(id));
                        handle.abort(RequestId(id));
                    }
                }
            })
        })
        .collect();
    let ended = bench.hear(60);
    for thread in threads {
        thread.join().unwrap();
    }
    let prompts = texts(15);
    for ((id, _), heard) in ended {
        let want = expected(&prompts[id as usize % 100], 10);
        match heard.finish {
            FinishReason::Abort => assert!(id % 3 == 0 && want.starts_with(&heard.tokens)),
            _ => assert_eq!(heard.tokens, want),
        }
    }
}

#[test]
fn n_sequences_differ_by_seed_and_repeat_by_seed() {
    // All logits but the peak are equal: at this temperature the rest is as good as uniform.
    let params =
        SamplingParams { max_tokens: 12, temperature: 50.0, seed: Some(9), ..Default::default() };
    let run = |n, seed| {
        let bench = started();
        let params = SamplingParams { seed: Some(seed), ..params.clone() };
        bench.handle.submit(GenerateRequest { n, params, ..request(1, &[7; 9], 1) }).unwrap();
        bench.hear(n as usize).into_iter().map(|(_, h)| h.tokens).collect::<Vec<_>>()
    };
    let (three, again, second) = (run(3, 9), run(3, 9), run(1, 10));
    assert_eq!(three, again);
    assert_eq!(three[1], second[0], "sequence i samples with seed + i");
    assert!(three[0] != three[1] && three[1] != three[2]);
}

#[test]
fn requests_without_a_seed_differ() {
    let bench = started();
    let params = SamplingParams { max_tokens: 12, temperature: 50.0, ..Default::default() };
    for id in 0..2 {
        let request = request(id, &[7; 9], 1);
        bench.handle.submit(GenerateRequest { params: params.clone(), ..request }).unwrap();
    }
    let heard = bench.hear(2);
    assert_ne!(heard[0].1.tokens, heard[1].1.tokens);
}

#[test]
fn a_bad_request_names_its_field() {
    let bench = started();
    let check = |change: &dyn Fn(&mut GenerateRequest), want: &str| {
        let mut request = request(1, &[1, 2], 4);
        change(&mut request);
        match bench.handle.submit(request) {
            Err(SubmitError::Invalid { param, .. }) => assert_eq!(param, want),
            other => panic!("{want}: {other:?}"),
        }
    };
    check(&|r| r.prompt = Vec::new().into(), "prompt");
    check(&|r| r.prompt = vec![61].into(), "prompt");
    check(&|r| r.prompt = vec![1; 64].into(), "prompt");
    check(&|r| r.n = 0, "n");
    check(&|r| r.params.max_tokens = 0, "max_tokens");
    check(&|r| r.params.top_p = 7.0, "top_p");
    check(&|r| r.params.stop_token_ids = vec![61], "stop_token_ids");
    check(&|r| r.params.allowed_token_ids = Some(vec![61]), "allowed_token_ids");
    let eos = bench.handle.config().eos_token_ids.clone();
    let only_eos = |r: &mut GenerateRequest| {
        r.params.ignore_eos = true;
        r.params.allowed_token_ids = Some(eos.clone());
    };
    check(&only_eos, "allowed_token_ids");
    check(&|r| r.params.bad_words = vec![vec![1, 61]], "bad_words");
    assert_eq!(bench.handle.stats().num_requests_waiting, 0);
}

#[test]
fn max_tokens_is_clamped_to_the_context() {
    let bench = started();
    let params = SamplingParams { ignore_eos: true, temperature: 0.0, ..Default::default() };
    let params = SamplingParams { max_tokens: 1_000_000, ..params };
    bench.handle.submit(GenerateRequest { params, ..request(1, &[1; 60], 1) }).unwrap();
    let heard = &bench.hear(1)[0].1;
    assert_eq!((heard.tokens.len(), heard.finish), (4, FinishReason::Length));
}

#[test]
fn the_queue_is_bounded_and_opens_again() {
    let limits = EngineConfig { max_num_seqs: 1, max_waiting: 2, ..config() };
    let (backend, gate) = FakeBackend::new(&limits).gated();
    let bench = start(limits, backend);
    for id in 0..3 {
        bench.handle.submit(request(id, &[1, 2], 2)).unwrap();
    }
    let full = Err(SubmitError::QueueFull { limit: 3 });
    assert_eq!(bench.handle.submit(request(3, &[1, 2], 2)), full);
    assert_eq!(
        bench.handle.stats().num_requests_waiting + bench.handle.stats().num_requests_running,
        3
    );
    drop(gate);
    bench.hear(1);
    bench.handle.submit(request(4, &[1, 2], 2)).unwrap();
}

#[test]
fn a_drain_finishes_what_was_taken() {
    let (backend, gate) = FakeBackend::new(&config()).gated();
    let bench = start(config(), backend);
    let prompts = texts(12);
    for (id, prompt) in (0..).zip(&prompts) {
        bench.handle.submit(request(id, prompt, 5)).unwrap();
    }
    bench.handle.drain();
    assert!(!bench.handle.is_ready());
    assert_eq!(bench.handle.submit(request(99, &[1], 1)), Err(SubmitError::ShuttingDown));
    drop(gate);
    for ((_, heard), prompt) in bench.hear(12).into_iter().zip(&prompts) {
        assert_eq!(heard.tokens, expected(prompt, 5));
    }
    bench.thread.join().unwrap();
    assert_eq!(bench.handle.submit(request(99, &[1], 1)), Err(SubmitError::ShuttingDown));
}

#[test]
fn a_stop_aborts_what_is_alive() {
    let (backend, gate) = FakeBackend::new(&config()).gated();
    let bench = start(config(), backend);
    for id in 0..20 {
        bench.handle.submit(GenerateRequest { n: 2, ..request(id, &[1; 9], 50) }).unwrap();
    }
    bench.handle.stop();
    drop(gate);
    let ended = bench.hear(40);
    assert!(ended.iter().any(|(_, h)| h.finish == FinishReason::Abort));
    bench.thread.join().unwrap();
    assert!(bench.handle.is_healthy());
    let stats = bench.handle.stats();
    assert_eq!((stats.num_requests_running, stats.num_requests_waiting), (0, 0));
}

#[test]
fn work_is_finished_when_the_handles_are_gone() {
    let Bench { handle, thread, outputs } = started();
    handle.submit(request(1, &[4, 5], 6)).unwrap();
    drop(handle);
    assert_eq!(fake::hear(&outputs, 1)[0].1.tokens, expected(&[4, 5], 6));
    thread.join().unwrap();
}

#[test]
fn a_failing_device_ends_every_request_with_an_error() {
    for fault in [Fault::Error, Fault::Panic, Fault::Width] {
        let bench = start(config(), FakeBackend::new(&config()).failing(3, fault));
        for id in 0..12 {
            // Those that come after the failure are refused.
            let params = SamplingParams { ignore_eos: true, ..request(id, &[1], 40).params };
            let request = GenerateRequest { n: 3, params, ..request(id, &[1; 5], 40) };
            match bench.handle.submit(request) {
                Ok(()) if id == 0 => {}
                Ok(()) | Err(SubmitError::Unhealthy { .. }) => break,
                other => panic!("{other:?}"),
            }
        }
        let ended = bench.hear(3);
        for (_, heard) in &ended {
            assert_eq!(heard.finish, FinishReason::Error, "{fault:?}");
            assert!(heard.error.as_ref().unwrap().contains("the engine stopped"), "{heard:?}");
        }
        let error = bench.thread.join().unwrap_err();
        assert!(matches!(error, WorkerError::Failed { .. }));
        assert!(!bench.handle.is_healthy() && !bench.handle.is_ready());
        let refused = bench.handle.submit(request(50, &[1], 1));
        assert!(matches!(refused, Err(SubmitError::Unhealthy { .. })), "{refused:?}");
        // Nothing to abort and nobody to tell: no panic and no waiting.
        bench.handle.abort(RequestId(0));
        bench.handle.drain();
    }
}

/// What lies in the channel while the last step runs is not forgotten.
#[test]
fn requests_that_arrive_during_the_last_step_end_too() {
    for fault in [Some(Fault::Error), Some(Fault::Panic), None] {
        let backend = FakeBackend::new(&config());
        let backend = fault.map_or(FakeBackend::new(&config()), |f| backend.failing(1, f));
        let (backend, gate) = backend.gated();
        let (backend, entered) = backend.announced();
        let bench = start(config(), backend);
        bench.handle.submit(request(0, &[1, 2], 9)).unwrap();
        entered.recv_timeout(PATIENCE).unwrap();
        for id in 1..5 {
            bench.handle.submit(GenerateRequest { n: 2, ..request(id, &[1, 2], 9) }).unwrap();
        }
        if fault.is_none() {
            bench.handle.stop();
        }
        drop(gate);
        let ended = bench.hear(9);
        let want = fault.map_or(FinishReason::Abort, |_| FinishReason::Error);
        assert!(ended.iter().all(|(_, heard)| heard.finish == want), "{ended:?}");
        assert_eq!(bench.thread.join().is_err(), fault.is_some());
    }
}

#[test]
fn a_sink_that_panics_leaves_nobody_waiting() {
    let (sink, outputs) = fake::panicking_sink();
    let bench = start_with(config(), FakeBackend::new(&config()), sink, outputs);
    bench.handle.submit(request(1, &[1, 2], 9)).unwrap();
    let heard = &bench.hear(1)[0].1;
    assert_eq!(heard.finish, FinishReason::Error);
    assert!(!bench.handle.is_healthy());
}

#[test]
fn logits_that_are_no_numbers_fail_one_sequence_only() {
    // Both are in the same batch at step 2: the first logits row is the older one's.
    let (backend, gate) = FakeBackend::new(&config()).failing(2, Fault::Nan).gated();
    let bench = start(config(), backend);
    bench.thread.wait_ready().unwrap();
    let params = SamplingParams { ignore_eos: true, ..request(0, &[1], 8).params };
    for id in 0..2 {
        let request = request(id, &[1 + id as u32, 2], 8);
        bench.handle.submit(GenerateRequest { params: params.clone(), ..request }).unwrap();
    }
    drop(gate);
    let ended = bench.hear(2);
    let failed: Vec<_> = ended.iter().filter(|(_, h)| h.finish == FinishReason::Error).collect();
    assert_eq!(failed.len(), 1);
    assert!(failed[0].1.error.as_ref().unwrap().contains("not numbers"));
    assert!(ended.iter().any(|(_, h)| h.finish == FinishReason::Length && h.tokens.len() == 8));
    assert!(bench.handle.is_healthy());
}

#[test]
fn a_backend_that_fails_its_warm_up_is_never_ready() {
    for fault in [Fault::Error, Fault::Panic, Fault::Width] {
        let bench = start(config(), FakeBackend::new(&config()).failing(0, fault));
        let error = bench.thread.wait_ready().unwrap_err().to_string();
        let reason = if fault == Fault::Width { "`62` wide, not 61" } else { "planted" };
        assert!(error.contains(reason), "{error}");
        assert!(bench.thread.join().is_err());
        assert!(!bench.handle.is_ready() && !bench.handle.is_healthy());
        assert!(bench.handle.submit(request(1, &[1], 1)).is_err());
    }
}

#[test]
fn limits_that_cannot_work_are_refused() {
    let engine = EngineConfig { max_step_tokens: 1, ..config() };
    let backend = FakeBackend::new(&config());
    let config = WorkerConfig::new(engine, fake::VOCAB);
    let spawned = spawn(config, Box::new(backend), Box::new(|_| {}), Box::new(|_| {}));
    let error = spawned.err().unwrap();
    assert!(error.to_string().contains("max_step_tokens"), "{error}");
}

#[test]
fn one_of_several_sequences_can_be_aborted() {
    let (backend, gate) = FakeBackend::new(&config()).gated();
    let bench = start(config(), backend);
    let params = SamplingParams { ignore_eos: true, ..request(0, &[1], 9).params };
    bench.handle.submit(GenerateRequest { n: 3, params, ..request(7, &[3; 8], 9) }).unwrap();
    bench.handle.abort_sequence(RequestId(7), 1);
    drop(gate);
    let ended = bench.hear(3);
    let finishes: Vec<_> = ended.iter().map(|(_, heard)| heard.finish).collect();
    assert_eq!(finishes, [FinishReason::Length, FinishReason::Abort, FinishReason::Length]);
}

#[test]
fn an_abort_frees_its_blocks_at_once() {
    let (backend, gate) = FakeBackend::new(&config()).gated();
    let bench = start(config(), backend);
    let params = SamplingParams { ignore_eos: true, ..request(0, &[1], 50).params };
    bench.handle.submit(GenerateRequest { params, ..request(7, &[3; 8], 50) }).unwrap();
    gate.send(()).unwrap();
    let first = bench.outputs.recv_timeout(PATIENCE).unwrap();
    assert_eq!(first[0].token, Some(fake::next_token(&[3; 8])));
    assert!(bench.handle.stats().kv_cache_usage > 0.0);
    bench.handle.abort(RequestId(7));
    drop(gate);
    let ended = bench.hear(1);
    assert_eq!(ended[0].1.finish, FinishReason::Abort);
    assert_eq!(bench.handle.stats().num_used_blocks, 0);
}

/// An output worker that is behind ends streams whose sequences the engine has long ended: their
/// aborts add up while the engine waits for that very worker.
#[test]
fn an_abort_never_waits_for_a_sink_that_waits() {
    let (entered, is_in_sink) = std::sync::mpsc::channel();
    let (gate, opened) = std::sync::mpsc::channel::<()>();
    let (sender, outputs) = std::sync::mpsc::channel();
    let sink = Box::new(move |batch: &mut Vec<_>| {
        let _ = entered.send(());
        // Open for good once the other end is gone.
        let _ = opened.recv();
        drop(sender.send(std::mem::take(batch)));
    });
    let bench = start_with(config(), FakeBackend::new(&config()), sink, outputs);
    bench.handle.submit(request(1, &[1, 2], 3)).unwrap();
    is_in_sink.recv_timeout(PATIENCE).unwrap();
    let (said, is_done) = std::sync::mpsc::channel();
    let handle = bench.handle.clone();
    let aborting = std::thread::spawn(move || {
        for id in 0..100 * handle.config().max_live_seqs() as u64 {
            handle.abort(RequestId(1_000 + id));
            handle.abort_sequence(RequestId(1_000 + id), 1);
        }
        said.send(()).unwrap();
    });
    let waited = is_done.recv_timeout(PATIENCE);
    drop(gate);
    aborting.join().unwrap();
    waited.expect("aborts wait for the engine, which waits for who aborts");
    assert_eq!(bench.hear(1).len(), 1);
}

/// On a device that runs elsewhere, each step but the first is planned while the one before runs,
/// and nobody's output changes.
#[test]
fn the_next_step_is_planned_while_one_runs() {
    let handle: Arc<OnceLock<RunnerHandle>> = Arc::default();
    let (sender, seen) = std::sync::mpsc::channel();
    let asked = handle.clone();
    let on_wait = move || {
        if let Some(handle) = asked.get() {
            let stats = handle.stats();
            let _ = sender.send((stats.num_steps, stats.num_steps_ahead));
        }
    };
    let bench = start(config(), FakeBackend::new(&config()).elsewhere(on_wait));
    bench.thread.wait_ready().unwrap();
    let _ = handle.set(bench.handle.clone());
    let prompts = texts(40);
    for (id, prompt) in (0..).zip(&prompts) {
        bench.handle.submit(request(id, prompt, 20)).unwrap();
        if id % 5 == 4 {
            bench.handle.abort(RequestId(id));
        }
    }
    for (((id, _), heard), prompt) in bench.hear(40).into_iter().zip(&prompts) {
        let want = expected(prompt, 20);
        match heard.finish {
            FinishReason::Abort => assert!(id % 5 == 4 && want.starts_with(&heard.tokens)),
            _ => assert_eq!(heard.tokens, want, "request {id}"),
        }
    }
    let stats = bench.handle.stats();
    assert_eq!(stats.num_used_blocks, 0);
    bench.handle.drain();
    bench.thread.join().unwrap();
    // What was seen at a wait is the state after the plan ahead, not yet after the step.
    let seen: Vec<(u64, u64)> = seen.iter().collect();
    let ahead = seen.windows(2).filter(|w| w[1].1 > w[0].1).count();
    assert!(ahead * 10 > seen.len() * 8, "{ahead} of {} steps", seen.len());
}

#[test]
fn a_request_ends_at_its_deadline() {
    let (backend, gate) = FakeBackend::new(&config()).gated();
    let bench = start(config(), backend);
    let endless = SamplingParams { ignore_eos: true, ..request(0, &[1], 50).params };
    let deadline = Some(Instant::now());
    let late = GenerateRequest { params: endless.clone(), deadline, ..request(1, &[3; 8], 50) };
    bench.handle.submit(late).unwrap();
    let deadline = Some(Instant::now() + PATIENCE);
    let timely = GenerateRequest { params: endless, deadline, ..request(2, &[3; 8], 50) };
    bench.handle.submit(timely).unwrap();
    drop(gate);
    let ended = bench.hear(2);
    assert_eq!(ended[0].1.finish, FinishReason::Deadline);
    assert!(ended[0].1.tokens.len() <= 1);
    assert_eq!(ended[1].1.finish, FinishReason::Length);
    assert_eq!(bench.handle.stats().num_used_blocks, 0);
}

#[test]
fn a_step_without_end_makes_the_engine_unhealthy() {
    let (backend, gate) = FakeBackend::new(&config()).gated();
    let (backend, entered) = backend.announced();
    let (sender, outputs) = std::sync::mpsc::channel();
    let sink = Box::new(move |batch: &mut Vec<_>| drop(sender.send(std::mem::take(batch))));
    let (said, stuck) = std::sync::mpsc::channel();
    let on_stuck = Box::new(move |reason: &str| drop(said.send(reason.to_owned())));
    let config = WorkerConfig {
        stall_timeout: Some(Duration::from_millis(40)),
        ..WorkerConfig::new(config(), fake::VOCAB)
    };
    let (handle, thread) = spawn(config, Box::new(backend), sink, on_stuck).unwrap();
    thread.wait_ready().unwrap();
    handle.submit(request(1, &[1, 2], 3)).unwrap();
    let reason = stuck.recv_timeout(PATIENCE).unwrap();
    assert!(reason.starts_with("no progress for 0."), "{reason}");
    assert!(!handle.is_healthy());
    let refused = handle.submit(request(2, &[1], 1)).unwrap_err();
    assert!(matches!(refused, SubmitError::Unhealthy { .. }), "{refused}");
    // Nobody waits for a step without end.
    assert_eq!(entered.try_iter().count(), 1);
    // It moves again: what was taken ends without another step, and the engine stays unhealthy.
    drop(gate);
    let (_, heard) = fake::hear(&outputs, 1).remove(0);
    assert_eq!((heard.tokens, heard.finish), (expected(&[1, 2], 1), FinishReason::Error));
    assert!(heard.error.unwrap().contains(&reason));
    let failed = thread.join_within(PATIENCE).unwrap_err();
    assert!(failed.to_string().contains(&reason), "{failed}");
    assert_eq!(entered.try_iter().count(), 0);
    assert!(!handle.is_healthy());
}

#[test]
fn an_end_is_waited_for_as_long_as_is_said() {
    for stall_timeout in [None, Some(Duration::from_millis(40))] {
        let (backend, gate) = FakeBackend::new(&config()).gated();
        let (said, stuck) = std::sync::mpsc::channel();
        let on_stuck = Box::new(move |reason: &str| drop(said.send(reason.to_owned())));
        let config = WorkerConfig { stall_timeout, ..WorkerConfig::new(config(), fake::VOCAB) };
        let (handle, thread) =
            spawn(config, Box::new(backend), Box::new(|_| {}), on_stuck).unwrap();
        thread.wait_ready().unwrap();
        handle.submit(request(1, &[1, 2], 3)).unwrap();
        if stall_timeout.is_some() {
            stuck.recv_timeout(PATIENCE).unwrap();
        }
        handle.drain();
        let error = thread.join_within(Duration::from_millis(1)).unwrap_err().to_string();
        let says = if stall_timeout.is_some() { "no progress" } else { "did not end within" };
        assert!(error.contains(says), "{error}");
        drop(gate);
    }
    let bench = started();
    bench.handle.drain();
    bench.thread.join_within(PATIENCE).unwrap();
}
