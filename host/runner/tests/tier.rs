//! The engine thread over a tier that does not answer, answers late, or dies.
#![allow(clippy::unwrap_used)]

mod fake;

use fake::{Bench, FakeBackend, PATIENCE, VOCAB, config, expected, request};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tenon_engine::{EngineConfig, EngineStats, TierConfig, TierPolicy};
use tenon_runner::tier::{KvTier, MemoryTier};
use tenon_runner::{WorkerConfig, spawn_with_tier};

/// What a call of the tier waits for, when it does.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    StoresHang,
    LoadsHang,
    LoadsPanic,
}

struct Faulty {
    tier: MemoryTier,
    fault: Fault,
    // A closed one lets everything pass.
    gate: Receiver<()>,
    // Told after a load that had to wait.
    late: Sender<()>,
}

impl KvTier for Faulty {
    fn store(&mut self, key: u128, bytes: &[u8]) -> io::Result<()> {
        if self.fault == Fault::StoresHang {
            let _ = self.gate.recv();
        }
        self.tier.store(key, bytes)
    }

    fn load(&mut self, key: u128, bytes: &mut [u8]) -> io::Result<()> {
        match self.fault {
            Fault::LoadsPanic => panic!("planted"),
            Fault::LoadsHang => {
                let _ = self.gate.recv();
                // What comes too late must not be seen by anybody.
                bytes.fill(1);
                let _ = self.late.send(());
                Ok(())
            }
            Fault::StoresHang => self.tier.load(key, bytes),
        }
    }

    fn remove(&mut self, key: u128) {
        self.tier.remove(key);
    }
}

struct Started {
    bench: Bench,
    gate: Sender<()>,
    late: Receiver<()>,
}

fn start(fault: Fault, tier_timeout: Duration) -> Started {
    let engine = EngineConfig {
        tier: Some(TierConfig { num_blocks: 200, policy: TierPolicy::Lru }),
        ..config()
    };
    let backend = Box::new(FakeBackend::new(&engine));
    let ((gate, gated), (told, late), (sender, outputs)) = (channel(), channel(), channel());
    let tier = Faulty { tier: MemoryTier::default(), fault, gate: gated, late: told };
    let sink = Box::new(move |batch: &mut Vec<_>| drop(sender.send(std::mem::take(batch))));
    let config = WorkerConfig { tier_timeout, ..WorkerConfig::new(engine, VOCAB) };
    let on_stuck = Box::new(|_: &str| {});
    let (handle, thread) =
        spawn_with_tier(config, backend, sink, on_stuck, Some(Box::new(tier))).unwrap();
    Started { bench: Bench { handle, thread, outputs }, gate, late }
}

/// Two of them fit into the pool.
fn prompt(kind: u32) -> Vec<u32> {
    (0..58).map(|i| 1 + (i * 7 + kind) % 50).collect()
}

/// Sends prompts one after the other; none is answered wrongly.
fn ask(bench: &Bench, ids: std::ops::Range<u64>) -> EngineStats {
    for id in ids {
        let prompt = prompt(id as u32 % 4);
        bench.handle.submit(request(id, &prompt, 5)).unwrap();
        assert_eq!(bench.hear(1).remove(0).1.tokens, expected(&prompt, 5), "request {id}");
    }
    bench.handle.stats()
}

/// It ends, in time, though the tier does not.
fn stop(bench: Bench) {
    let started = Instant::now();
    bench.handle.drain();
    bench.thread.join().unwrap();
    assert!(started.elapsed() < PATIENCE);
}

#[test]
fn a_tier_that_hangs_is_given_up() {
    let Started { bench, gate, late } = start(Fault::LoadsHang, Duration::from_secs(1));
    let before = ask(&bench, 0..4);
    assert!(before.num_tier_stores > 10 && before.num_tier_failures == 0, "{before:?}");
    // The first one waits for its loads to time out, all others do without.
    let after = ask(&bench, 4..12);
    assert!(after.num_tier_failures >= before.num_tier_blocks, "{after:?}");
    assert_eq!(after.num_tier_blocks, 0);
    // The load comes to its end after all: nobody is told, and it writes nothing.
    gate.send(()).unwrap();
    late.recv_timeout(PATIENCE).unwrap();
    let last = ask(&bench, 12..20);
    let moved = |stats: EngineStats| (stats.num_tier_loads, stats.num_tier_stores);
    assert_eq!(moved(last), moved(after));
    assert_eq!(last.num_used_blocks, 0);
    stop(bench);
}

/// Its thread is left behind in the call that hangs.
#[test]
fn a_tier_that_hangs_does_not_keep_the_engine_from_ending() {
    for fault in [Fault::LoadsHang, Fault::StoresHang] {
        let Started { bench, gate, .. } = start(fault, Duration::from_millis(200));
        ask(&bench, 0..6);
        stop(bench);
        drop(gate);
    }
}

#[test]
fn a_tier_that_panics_is_done_without() {
    let Started { bench, .. } = start(Fault::LoadsPanic, PATIENCE);
    let stats = ask(&bench, 0..12);
    assert!(stats.num_tier_failures > 0, "{stats:?}");
    assert_eq!(stats.num_tier_blocks, 0);
    stop(bench);
}

/// What is on its way to a slow place is brought back from there.
#[test]
fn blocks_that_wait_to_be_stored_are_found() {
    let Started { bench, gate, .. } = start(Fault::StoresHang, PATIENCE);
    // A block of the first prompt is being stored; those of the second wait.
    let stats = ask(&bench, 3..7);
    assert!(stats.num_tier_stores > 20, "{stats:?}");
    // The pool has two of its blocks.
    let stats = ask(&bench, 8..9);
    assert_eq!((stats.num_tier_loads, stats.num_tier_failures), (12, 0));
    drop(gate);
    stop(bench);
}
