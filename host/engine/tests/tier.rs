//! What a tier below the pool keeps, and what comes back from it.

#![allow(clippy::unwrap_used)]

mod device;

use device::{Bench, config, expected};
use proptest::prelude::*;
use tenon_engine::{EngineConfig, TierConfig, TierPolicy};

/// Longest sequence, and the pool: one such sequence takes all of it.
const MAX_LEN: usize = 40;

fn limits(num_blocks: usize, policy: TierPolicy) -> EngineConfig {
    EngineConfig {
        num_blocks: 12,
        max_model_len: MAX_LEN,
        tier: Some(TierConfig { num_blocks, policy }),
        ..config()
    }
}

/// Prompts of different kinds have no block in common.
fn prompt(kind: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 1 + (i * 7 + kind) % 20).collect()
}

fn ask(bench: &mut Bench, id: u64, prompt: &[u32]) -> u32 {
    bench.add(id, prompt, 1, 1, 0);
    bench.run(500);
    let heard = bench.heard(id, 0);
    assert_eq!(heard.tokens, expected(prompt, 0, 1, MAX_LEN));
    heard.num_cached
}

fn policies() -> impl Strategy<Value = TierPolicy> {
    prop_oneof![Just(TierPolicy::Lru), Just(TierPolicy::Arc)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..Default::default() })]
    /// Whatever the tier's size: what is begun to be loaded is there.
    #[test]
    fn nothing_is_loaded_that_has_gone(
        num_blocks in 1_usize..30,
        policy in policies(),
        asks in prop::collection::vec((0_u32..5, 5_usize..38), 1..40),
    ) {
        let mut bench = Bench::new(limits(num_blocks, policy));
        for (id, (kind, len)) in asks.into_iter().enumerate() {
            ask(&mut bench, id as u64, &prompt(kind, len));
        }
        prop_assert_eq!(bench.engine.stats().num_tier_failures, 0);
    }

    /// A block is of use with all before it only: of each prompt the tier loses the tail first.
    #[test]
    fn heads_outlive_tails(
        num_blocks in 1_usize..30,
        asks in prop::collection::vec((0_u32..5, 5_usize..38), 1..40),
    ) {
        let mut bench = Bench::new(limits(num_blocks, TierPolicy::Lru));
        for (id, (kind, len)) in asks.into_iter().enumerate() {
            ask(&mut bench, id as u64, &prompt(kind, len));
        }
        // All that the pool has goes there.
        ask(&mut bench, 1000, &prompt(15, MAX_LEN - 1));
        ask(&mut bench, 1001, &prompt(16, MAX_LEN - 1));
        for kind in 0..5 {
            let (_, num_useless) = bench.device.tier_prefix(&prompt(kind, MAX_LEN));
            prop_assert_eq!(num_useless, 0, "prompt {}", kind);
        }
    }
}

/// Loading evicts as much as it loads; a full tier takes that in without losing what is loaded.
#[test]
fn a_prefix_comes_back_from_a_full_tier() {
    for policy in [TierPolicy::Lru, TierPolicy::Arc] {
        let mut bench = Bench::new(limits(5, policy));
        for id in 1..4 {
            ask(&mut bench, id, &prompt(id as u32, 37));
        }
        assert_eq!(bench.engine.stats().num_tier_blocks, 5);
        // The pool has two blocks of it and gives up five of ten for those behind them.
        assert_eq!(ask(&mut bench, 4, &prompt(2, 37)), 28, "{policy:?}");
        let stats = bench.engine.stats();
        assert_eq!((stats.num_tier_loads, stats.num_tier_failures), (5, 0));
    }
}

/// Requests for one prefix that come while it is loaded wait for that instead of loading it again.
#[test]
fn a_prefix_is_loaded_once_for_all() {
    let mut bench = Bench::new(EngineConfig { num_blocks: 24, ..limits(100, TierPolicy::Lru) });
    let wanted = prompt(0, 33);
    ask(&mut bench, 0, &wanted);
    for id in 1..5 {
        ask(&mut bench, id, &prompt(id as u32, 37));
    }
    assert_eq!(bench.device.tier_prefix(&wanted), (8, 0));
    for id in 10..18 {
        bench.add(id, &wanted, 1, 3, 0);
    }
    assert_eq!(bench.engine.stats().num_requests_deferred, 8);
    // One that leads and one that follows end before the loads do.
    bench.abort(10);
    bench.abort(13);
    bench.run(500);
    for id in [11, 12, 14, 15, 16, 17] {
        assert_eq!(bench.heard(id, 0).tokens, expected(&wanted, 0, 3, MAX_LEN));
        assert_eq!(bench.heard(id, 0).num_cached, 32, "request {id}");
    }
    assert_eq!(bench.engine.stats().num_tier_loads, 8);
}

/// Those that wait go on when the tier fails, and nobody turns to it again.
#[test]
fn a_tier_that_fails_is_done_without() {
    let mut bench = Bench::new(limits(100, TierPolicy::Lru));
    for id in 0..3 {
        ask(&mut bench, id, &prompt(id as u32, 37));
    }
    let before = bench.engine.stats();
    assert!(before.num_tier_blocks > 8, "{before:?}");
    for id in 3..5 {
        bench.add(id, &prompt(0, 37), 1, 1, 0);
    }
    assert!(!bench.step(None) || !bench.device.loads.is_empty());
    let num_begun = bench.device.loads.len() as u64;
    assert!(num_begun > 2);
    let num_held = bench.engine.stats().num_tier_blocks;
    bench.engine.tier_failed();
    while let Some((block, hash, _)) = bench.device.loads.pop_front() {
        bench.engine.loaded(block, hash, false);
        bench.engine.check();
    }
    bench.run(100);
    for id in 3..5 {
        assert_eq!(bench.heard(id, 0).tokens, expected(&prompt(0, 37), 0, 1, MAX_LEN));
    }
    for id in 5..8 {
        assert_eq!(ask(&mut bench, id, &prompt(id as u32, 37)), 0);
    }
    let after = bench.engine.stats();
    assert_eq!((after.num_tier_blocks, after.num_tier_loads), (0, before.num_tier_loads));
    assert_eq!(after.num_tier_failures, num_held + num_begun);
    assert!(bench.device.loads.is_empty());
}
