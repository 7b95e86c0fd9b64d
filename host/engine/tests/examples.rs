//! Single behaviours of scheduler and prefix cache, each by an example.
#![allow(clippy::unwrap_used)]

mod device;

use device::{Bench, config, expected};
use std::sync::Arc;
use tenon_engine::{
    AddError, Engine, EngineConfig, FinishReason, NewRequest, PrefillLimit, RequestId, Sampled,
    SamplingParams, SchedulingPolicy, Tenant,
};

fn request(id: RequestId, prompt: Arc<[u32]>, params: Arc<SamplingParams>) -> NewRequest {
    let tenant = Tenant::default();
    NewRequest { id, prompt, n: 1, params, cache_salt: None, priority: 0, tenant }
}

fn text(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 1 + i * i % 19).collect()
}

#[test]
fn a_repeated_prompt_is_cached_but_for_its_last_block() {
    for (prompt_len, num_cached) in [(4, 0), (5, 4), (8, 4), (9, 8), (12, 8)] {
        let mut bench = Bench::new(config());
        for id in 0..2 {
            bench.add(id, &text(prompt_len), 1, 2, 0);
            bench.run(20);
        }
        assert_eq!(bench.heard(0, 0).num_cached, 0);
        assert_eq!(bench.heard(1, 0).num_cached, num_cached, "prompt of {prompt_len}");
        let stats = bench.engine.stats();
        assert_eq!(stats.prefix_cache_queries, 2 * prompt_len as u64);
        assert_eq!(stats.prefix_cache_hits, u64::from(num_cached));
    }
}

#[test]
fn another_salt_finds_nothing() {
    let mut bench = Bench::new(config());
    for (id, salt) in [(0, 0), (1, 1), (2, 2), (3, 1)] {
        bench.add(id, &text(12), 1, 1, salt);
        bench.run(20);
    }
    let cached: Vec<u32> = (0..4).map(|id| bench.heard(id, 0).num_cached).collect();
    assert_eq!(cached, [0, 0, 0, 8]);
}

#[test]
fn another_tenant_finds_nothing() {
    let mut bench = Bench::new(config());
    for (id, tenant) in [(0, 0), (1, 1), (2, 0), (3, 1)] {
        bench.add_for(id, (&text(12), 1, 1, 7), 0, Tenant { id: tenant, weight: 1 });
        bench.run(20);
    }
    let cached: Vec<u32> = (0..4).map(|id| bench.heard(id, 0).num_cached).collect();
    assert_eq!(cached, [0, 0, 8, 8]);
    for id in 1..4 {
        assert_eq!(bench.heard(id, 0).tokens, bench.heard(0, 0).tokens);
    }
}

/// What is below `max_model_len` and never fits the pool is refused, and holds nobody up.
#[test]
fn a_request_that_can_never_fit_is_refused_at_once() {
    let limits = EngineConfig {
        num_blocks: 64,
        block_size: 16,
        max_step_tokens: 512,
        max_prefill_chunk: 256,
        max_model_len: 4096,
        ..config()
    };
    let mut bench = Bench::new(limits);
    let params = SamplingParams { max_tokens: 10, ..Default::default() };
    let big = NewRequest {
        id: RequestId(9),
        prompt: text(1500).into(),
        n: 1,
        params: Arc::new(params),
        cache_salt: None,
        priority: 0,
        tenant: Tenant::default(),
    };
    let Err(AddError::Invalid(error)) = bench.engine.add(big) else { panic!() };
    assert_eq!(error.param, "prompt");
    assert!(error.message.contains("1510") && error.message.contains("1024"), "{error}");
    for id in 0..5 {
        bench.add(id, &text(100), 1, 10, 0);
    }
    bench.run(60);
    for id in 0..5 {
        assert_eq!(bench.heard(id, 0).tokens, expected(&text(100), 0, 10, 1024));
    }
}

/// Every length around the block's borders, many times over: no block stays behind.
#[test]
fn blocks_come_back_for_every_length() {
    for prefix_caching in [false, true] {
        let limits = EngineConfig {
            num_blocks: 8,
            block_size: 16,
            max_step_tokens: 40,
            max_prefill_chunk: 40,
            max_model_len: 64,
            prefix_caching,
            ..config()
        };
        let mut bench = Bench::new(limits);
        let lengths = [1, 15, 16, 17, 31, 32, 33];
        let pairs = lengths.into_iter().flat_map(|p| [1, 15, 16, 17].map(|m| (p, m)));
        let mut id = 0;
        for (prompt_len, max_tokens) in pairs {
            for _ in 0..40 {
                bench.add(id, &text(prompt_len), 1, max_tokens, 0);
                id += 1;
            }
            bench.run(2000);
            let stats = bench.engine.stats();
            assert_eq!(stats.num_used_blocks, 0);
            assert!(prefix_caching || stats.num_cached_blocks == 0);
        }
    }
}

#[test]
fn output_is_cached_for_the_next_turn() {
    let mut bench = Bench::new(config());
    let prompt = text(6);
    bench.add(0, &prompt, 1, 12, 0);
    bench.run(20);
    let mut next = prompt;
    next.extend(&bench.heard(0, 0).tokens);
    let num_full = (next.len() - 1) / 4 * 4;
    next.extend([1, 2]);
    bench.add(1, &next, 1, 1, 0);
    bench.run(20);
    assert_eq!(bench.heard(1, 0).num_cached as usize, num_full);
}

#[test]
fn the_tail_is_evicted_before_the_head() {
    // The pool is the prompt's four blocks and one more.
    let mut bench = Bench::new(EngineConfig { num_blocks: 5, ..config() });
    bench.add(0, &text(16), 1, 1, 0);
    bench.run(20);
    bench.add(1, &[7, 7, 7, 7, 7, 7, 7], 1, 1, 0);
    bench.run(20);
    bench.add(2, &text(16), 1, 1, 0);
    bench.run(20);
    // Two blocks were taken: the one that was never hashed and the prompt's last.
    assert_eq!(bench.heard(2, 0).num_cached, 12);
}

#[test]
fn siblings_wait_for_the_prompt_and_share_it() {
    let mut bench = Bench::new(config());
    bench.add(0, &text(14), 3, 3, 0);
    // 14 tokens at a budget of 12, eight of them at most in one step: two steps for the leader.
    assert!(bench.step(None));
    assert_eq!(bench.engine.stats().num_requests_deferred, 2);
    assert!(bench.step(None));
    assert_eq!(bench.engine.stats().num_requests_deferred, 0);
    bench.run(20);
    // A sibling computes the last prompt token again and what follows; so does the leader.
    assert!(bench.device.num_tokens[&RequestId(0)] <= 14 + 2 + 3 * 2);
    for index in 0..3 {
        assert_eq!(bench.heard(0, index).tokens, expected(&text(14), index, 3, 40));
    }
}

#[test]
fn siblings_go_on_when_their_leader_fails() {
    let mut bench = Bench::new(config());
    bench.device.failing.push(RequestId(0));
    bench.add(0, &text(14), 2, 3, 0);
    bench.step(None);
    bench.step(None);
    assert_eq!(bench.heard(0, 0).finish, Some(FinishReason::Error));
    bench.device.failing.clear();
    bench.run(20);
    assert_eq!(bench.heard(0, 1).tokens, expected(&text(14), 1, 3, 40));
    // What a failed sequence computed is not offered to others.
    assert_eq!(bench.heard(0, 1).num_cached, 0);
}

#[test]
fn a_long_prompt_does_not_keep_a_short_one_out() {
    let mut bench = Bench::new(EngineConfig { max_prefill_chunk: 4, ..config() });
    bench.add(0, &text(30), 1, 1, 0);
    bench.add(1, &[1, 2], 1, 1, 0);
    bench.step(None);
    assert_eq!(bench.heard(1, 0).tokens.len(), 1);
    assert_eq!(bench.heard(0, 0).tokens.len(), 0);
    // Alone, it takes whole steps: 26 are left, 12 a step.
    bench.run(4);
    assert_eq!(bench.num_steps, 4);
}

#[test]
fn the_youngest_is_preempted() {
    let limits = EngineConfig { num_blocks: 6, max_num_seqs: 3, ..config() };
    let mut bench = Bench::new(limits);
    let (a, b) = (text(11), vec![9; 11]);
    bench.add(0, &a, 1, 12, 1);
    bench.add(1, &b, 1, 12, 2);
    while bench.engine.stats().num_preemptions == 0 {
        assert!(bench.step(None));
    }
    let stats = bench.engine.stats();
    assert_eq!((stats.num_requests_running, stats.num_requests_waiting), (1, 1));
    bench.run(60);
    assert_eq!(bench.heard(0, 0).tokens, expected(&a, 0, 12, 24));
    assert_eq!(bench.heard(1, 0).tokens, expected(&b, 0, 12, 24));
}

#[test]
fn the_queue_is_bounded_by_sequences() {
    let limits = EngineConfig { max_num_seqs: 2, max_waiting: 3, ..config() };
    let mut bench = Bench::new(limits.clone());
    bench.add(0, &[1], 4, 1, 0);
    let request = NewRequest {
        id: RequestId(1),
        prompt: vec![1].into(),
        n: 2,
        params: Arc::new(SamplingParams::default()),
        cache_salt: None,
        priority: 0,
        tenant: Tenant::default(),
    };
    assert_eq!(bench.engine.add(request.clone()), Err(AddError::QueueFull { limit: 5 }));
    bench.run(20);
    assert_eq!(bench.engine.add(request.clone()), Ok(()));
    let too_long = NewRequest { prompt: vec![1; 48].into(), ..request };
    let Err(AddError::Invalid(error)) = bench.engine.add(too_long) else { panic!() };
    assert_eq!(error.param, "prompt");
    assert!(error.message.contains("`48`"), "{error}");
}

#[test]
fn stop_tokens_end_a_sequence_after_min_tokens() {
    let run = |params: SamplingParams| {
        let mut engine = Engine::new(config()).unwrap();
        let id = RequestId(0);
        let prompt = vec![1].into();
        let params = Arc::new(params);
        engine.add(request(id, prompt, params)).unwrap();
        let mut finishes = Vec::new();
        for token in [5, 0, 5, 0, 7] {
            if engine.plan().is_none() {
                break;
            }
            let mut results = vec![Sampled::Token { token, logprobs: None }];
            let mut outputs = Vec::new();
            engine.settle(&mut results, &mut outputs);
            finishes.push(outputs[0].finish);
        }
        (finishes.len(), finishes.pop().unwrap().unwrap())
    };
    let params = SamplingParams { max_tokens: 5, ..Default::default() };
    assert_eq!(run(params.clone()), (2, FinishReason::Stop(0)));
    let stop_5 = SamplingParams { stop_token_ids: vec![5], ..params.clone() };
    assert_eq!(run(stop_5.clone()), (1, FinishReason::Stop(5)));
    assert_eq!(run(SamplingParams { min_tokens: 2, ..stop_5 }), (3, FinishReason::Stop(5)));
    let ignore = SamplingParams { ignore_eos: true, ..params };
    assert_eq!(run(ignore.clone()), (5, FinishReason::Length));
    let stop_7 = SamplingParams { stop_token_ids: vec![7], ..ignore };
    assert_eq!(run(stop_7), (5, FinishReason::Stop(7)));
}

#[test]
fn priority_orders_the_queue_and_chooses_the_victim() {
    let config = EngineConfig { policy: SchedulingPolicy::Priority, max_num_seqs: 1, ..config() };
    let mut bench = Bench::new(config);
    for (id, priority) in [(0, 5), (1, 0), (2, -1), (3, 0)] {
        bench.add_for(id, (&text(5), 1, 2, 0), priority, Tenant::default());
    }
    bench.run(40);
    let order: Vec<u64> = bench.device.admissions.iter().map(|(id, _)| id.0).collect();
    assert_eq!(order, [2, 1, 3, 0]);
}

#[test]
fn tenants_share_tokens_by_weight() {
    let config = EngineConfig {
        policy: SchedulingPolicy::FairShare,
        max_num_seqs: 2,
        prefix_caching: false,
        ..config()
    };
    let mut bench = Bench::new(config);
    // Tenant 1 floods, tenant 2 (three times the weight) asks as much but later.
    for id in 0..40 {
        let tenant = Tenant { id: id / 20, weight: 1 + 2 * (id / 20) as u32 };
        bench.add_for(id, (&text(8 + id as usize % 3), 1, 6, 0), 0, tenant);
    }
    for _ in 0..60 {
        bench.step(None);
    }
    let served = |ids: std::ops::Range<u64>| {
        let num = |id| bench.device.num_tokens.get(&RequestId(id)).copied().unwrap_or(0);
        ids.map(num).sum::<usize>() as f64
    };
    let ratio = served(20..40) / served(0..20);
    assert!((2.3..3.9).contains(&ratio), "{ratio}");
    bench.run(400);
}

#[test]
fn a_short_prompt_does_not_wait_for_the_end_of_a_long_one() {
    let config = EngineConfig {
        num_blocks: 300,
        max_model_len: 1200,
        max_prefill_chunk: 400,
        prefix_caching: false,
        ..config()
    };
    let mut bench = Bench::new(config);
    bench.add(0, &text(4), 1, 300, 0);
    bench.step(None);
    let limit = PrefillLimit { num_tokens: 8, num_long_tokens: 4, long_prompt: 512 };
    bench.limit_prefill(limit);
    bench.add(1, &text(700), 1, 1, 0);
    bench.step(None);
    bench.add(2, &text(6), 1, 1, 0);
    for _ in 0..4 {
        bench.step(None);
    }
    assert!(bench.heard(2, 0).finish.is_some());
    assert_eq!(bench.heard(1, 0).finish, None);
    // The long one got half of each step.
    assert_eq!(bench.device.num_tokens[&RequestId(1)], 5 * 4);
    bench.run(400);
}

/// All that long prompts may take goes to the first one: the others get rows, and no share.
#[test]
fn long_prompts_without_a_share_are_in_nobodys_way() {
    let config = EngineConfig {
        num_blocks: 94,
        max_num_seqs: 32,
        max_step_tokens: 40,
        prefix_caching: false,
        ..config()
    };
    let mut bench = Bench::new(config);
    bench.add(0, &text(4), 1, 36, 0);
    bench.step(None);
    bench.limit_prefill(PrefillLimit { num_tokens: 6, num_long_tokens: 2, long_prompt: 8 });
    bench.add(1, &text(20), 1, 1, 0);
    bench.add(2, &text(21), 1, 1, 0);
    bench.add(3, &text(3), 1, 1, 0);
    bench.step(None);
    bench.step(None);
    assert!(bench.heard(3, 0).finish.is_some());
    assert_eq!(bench.device.num_tokens[&RequestId(1)], 4);
    assert_eq!(bench.device.num_tokens.get(&RequestId(2)), None);
    // A quarter of the pool is not for those that only wait.
    (4..20).for_each(|id| bench.add(id, &text(30), 1, 1, 0));
    bench.step(None);
    let num_used = bench.engine.stats().num_used_blocks;
    assert!((60..72).contains(&num_used), "{num_used}");
    bench.run(700);
    assert_eq!(bench.heard(2, 0).tokens, expected(&text(21), 0, 1, 40));
}

/// While prompts are held up, the only one that decodes needs a block and finds no victim but
/// itself.
#[test]
fn a_prompt_goes_on_when_all_that_decoded_are_preempted() {
    let mut bench = Bench::new(EngineConfig { num_blocks: 10, prefix_caching: false, ..config() });
    bench.add(0, &text(32), 1, 4, 0);
    bench.step(None);
    bench.add(1, &text(8), 1, 4, 0);
    while bench.heard(1, 0).tokens.is_empty() {
        bench.step(None);
    }
    assert!(bench.heard(0, 0).tokens.is_empty());
    bench.limit_prefill(PrefillLimit { num_tokens: 0, num_long_tokens: 0, long_prompt: 8 });
    bench.run(60);
    assert_eq!(bench.engine.stats().num_preemptions, 1);
    assert_eq!(bench.heard(0, 0).tokens, expected(&text(32), 0, 4, 40));
    assert_eq!(bench.heard(1, 0).tokens, expected(&text(8), 0, 4, 40));
}

#[test]
fn a_plan_ahead_is_taken_over_less_what_ended() {
    let mut bench = Bench::new(config());
    bench.device.is_ahead = true;
    bench.add(0, &text(5), 1, 3, 0);
    bench.add(1, &text(6), 1, 9, 0);
    assert!(bench.step(None));
    // Both have a share of the step after; one goes, and the other's is kept.
    bench.abort(0);
    bench.run(20);
    assert_eq!(bench.heard(0, 0).finish, Some(FinishReason::Abort));
    assert_eq!(bench.heard(1, 0).tokens, expected(&text(6), 0, 9, 40));
}

/// `n` costs a copy of the prompt's last block each, with and without the prefix cache.
#[test]
fn siblings_share_the_prompts_blocks() {
    for prefix_caching in [false, true] {
        let mut bench = Bench::new(EngineConfig {
            num_blocks: 200,
            block_size: 16,
            max_num_seqs: 8,
            max_step_tokens: 512,
            max_prefill_chunk: 512,
            max_model_len: 1100,
            prefix_caching,
            ..config()
        });
        let prompt = text(1000);
        bench.add(0, &prompt, 8, 20, 0);
        while bench.engine.stats().num_requests_running < 8 {
            assert!(bench.step(None));
        }
        // 62 full blocks of the prompt, and the one with its last 8 tokens for each.
        assert_eq!(bench.engine.stats().num_used_blocks, 62 + 8);
        assert_eq!(bench.device.num_copies, 7);
        assert_eq!(bench.device.num_tokens[&RequestId(0)], 1000 + 8);
        bench.run(50);
        for index in 0..8 {
            assert_eq!(bench.heard(0, index).tokens, expected(&prompt, index, 20, 1100));
        }
    }
}

/// Shares of those who wait are given up before anybody is preempted.
#[test]
fn waiting_siblings_give_up_their_shares_first() {
    let limits = EngineConfig { num_blocks: 8, max_num_seqs: 1, prefix_caching: false, ..config() };
    let mut bench = Bench::new(limits);
    bench.add(0, &text(10), 3, 20, 0);
    bench.run(200);
    assert_eq!(bench.engine.stats().num_preemptions, 0);
    for index in 0..3 {
        assert_eq!(bench.heard(0, index).tokens, expected(&text(10), index, 20, 32));
    }
}

/// A window of 6 over blocks of 4 keeps three of them, however long the sequence is.
#[test]
fn a_window_gives_back_what_it_has_left() {
    let limits = EngineConfig {
        num_blocks: 20,
        kv_groups: vec![None, Some(6)],
        max_step_tokens: 4,
        ..config()
    };
    let mut bench = Bench::new(limits);
    bench.add(0, &text(30), 1, 8, 0);
    let mut most = 0;
    while bench.step(None) {
        most = most.max(bench.engine.stats().num_used_blocks);
    }
    assert!((10..=10 + 4).contains(&most), "{most} blocks");
    bench.add(1, &text(30), 1, 8, 0);
    bench.run(20);
    assert_eq!(bench.heard(1, 0).num_cached, 28);
}

/// The waste is what the tables have and the tokens do not fill.
#[test]
fn waste_is_room_for_tokens_to_come() {
    let mut bench = Bench::new(EngineConfig { max_prefill_chunk: 12, ..config() });
    assert_eq!(bench.engine.stats().kv_cache_waste, 0.0);
    bench.add(0, &text(9), 1, 10, 0);
    bench.step(None);
    // Three blocks of four hold nine tokens.
    assert_eq!(bench.engine.stats().kv_cache_waste, 0.25);
    bench.step(None);
    assert_eq!(bench.engine.stats().kv_cache_waste, 2.0 / 12.0);
}

/// Gemma 3 270M (18 layers in groups of 3, a window of 512) at 8,192 tokens, in slots of a layer:
/// what its blocks take, with groups and without.
#[test]
fn windows_save_most_of_a_long_contexts_memory() {
    let most = |kv_groups: Vec<Option<u32>>, layers_per_group: u64| {
        let mut engine = Engine::new(EngineConfig {
            num_blocks: 1000,
            block_size: 16,
            max_step_tokens: 512,
            max_prefill_chunk: 512,
            max_model_len: 8192,
            kv_groups,
            ..config()
        })
        .unwrap();
        let request = NewRequest {
            id: RequestId(0),
            prompt: vec![1; 8150].into(),
            n: 1,
            params: Arc::new(SamplingParams { max_tokens: 42, ..Default::default() }),
            cache_salt: None,
            priority: 0,
            tenant: Tenant::default(),
        };
        engine.add(request).unwrap();
        let (mut most, mut last) = (0, 0);
        while let Some(plan) = engine.plan() {
            let wants_token = plan.scheduled[0].wants_logits;
            last = engine.stats().num_used_blocks;
            most = most.max(last);
            let mut results = Vec::new();
            results.extend(wants_token.then_some(Sampled::Token { token: 5, logprobs: None }));
            engine.settle(&mut results, &mut Vec::new());
        }
        (most * 16 * layers_per_group, last * 16 * layers_per_group)
    };
    let uniform = most(vec![None], 18);
    assert_eq!(uniform, (512 * 16 * 18, 512 * 16 * 18));
    let hybrid = most([vec![None], vec![Some(512); 5]].concat(), 3);
    // While the prompt of 510 blocks is computed, then while decoding.
    assert_eq!(hybrid, ((510 + 5 * 65) * 16 * 3, (512 + 5 * 33) * 16 * 3));
}
