//! Any schedule, any batch mix, any limits: nothing leaks, everything ends, and greedy output is
//! what the model says when it is asked alone.
#![allow(clippy::unwrap_used)]

mod device;

use device::{Bench, config, expected, scores};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use tenon_engine::{
    EngineConfig, FinishReason, PrefillLimit, RequestId, SamplingParams, SchedulingPolicy, Tenant,
    TierConfig, TierPolicy,
};

#[derive(Debug, Clone)]
struct Ask {
    prompt: Vec<u32>,
    n: u32,
    max_tokens: u32,
    salt: u32,
    /// Log-probabilities of the prompt; with them `max_tokens` may be 0.
    wants_scores: bool,
    priority: i32,
    tenant: u64,
}

#[derive(Debug, Clone)]
enum Action {
    Limit(PrefillLimit),
    Add(Ask),
    Abort(u8),
    AbortSequence(u8, u32),
    AbortInFlight(u8),
    Fail(u8),
    Step,
}

/// Prompts that share prefixes: a cut of one of two long texts, then a few tokens of its own.
fn prompt() -> impl Strategy<Value = Vec<u32>> {
    (any::<bool>(), 0_usize..30, prop::collection::vec(1_u32..5, 1..8)).prop_map(
        |(which, cut, tail)| {
            let shared = (0..30).map(|i| 1 + (i * 7 + u32::from(which)) % 20);
            shared.take(cut).chain(tail).collect()
        },
    )
}

fn ask() -> impl Strategy<Value = Ask> {
    let scored = prop_oneof![
        3 => (1_u32..20).prop_map(|max_tokens| (max_tokens, false)),
        1 => (0_u32..10).prop_map(|max_tokens| (max_tokens, true)),
    ];
    let n = prop_oneof![3 => Just(1_u32), 1 => 2_u32..5];
    (prompt(), n, scored, 0_u32..3, -2_i32..3, 0_u64..3).prop_map(
        |(prompt, n, (max_tokens, wants_scores), salt, priority, tenant)| Ask {
            prompt,
            n,
            max_tokens,
            salt,
            wants_scores,
            priority,
            tenant,
        },
    )
}

/// 0 tokens are none in steps in which somebody decodes.
fn limit() -> impl Strategy<Value = PrefillLimit> {
    (0_usize..12, 0_usize..12, 0_usize..40).prop_map(|(num_tokens, num_long, long_prompt)| {
        PrefillLimit { num_tokens, num_long_tokens: num_long.min(num_tokens), long_prompt }
    })
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => ask().prop_map(Action::Add),
        1 => any::<u8>().prop_map(Action::Abort),
        1 => (any::<u8>(), 0_u32..3).prop_map(|(at, index)| Action::AbortSequence(at, index)),
        1 => any::<u8>().prop_map(Action::AbortInFlight),
        1 => any::<u8>().prop_map(Action::Fail),
        1 => limit().prop_map(Action::Limit),
        8 => Just(Action::Step),
    ]
}

fn groups() -> impl Strategy<Value = Vec<Option<u32>>> {
    prop_oneof![
        3 => Just(vec![None]),
        2 => (1_u32..12).prop_map(|w| vec![None, Some(w)]),
        1 => (1_u32..12).prop_map(|w| vec![Some(w), None, Some(w)]),
        1 => (1_u32..12, 1_u32..12).prop_map(|(a, b)| vec![Some(a), Some(b)]),
    ]
}

fn limits() -> impl Strategy<Value = EngineConfig> {
    let policy = prop_oneof![
        2 => Just(SchedulingPolicy::Fcfs),
        1 => Just(SchedulingPolicy::Priority),
        1 => Just(SchedulingPolicy::FairShare),
    ];
    let sizes = (1_usize..6, 4_usize..24, groups(), 1_usize..6, 0_usize..20, 1_usize..20);
    let tier =
        prop::option::of((1_usize..30, prop_oneof![Just(TierPolicy::Lru), Just(TierPolicy::Arc)]));
    (sizes, 1_usize..9, any::<bool>(), policy, tier).prop_map(
        |(
            (block_size, num_blocks, kv_groups, max_num_seqs, spare, chunk),
            rows,
            prefix_caching,
            policy,
            tier,
        )| {
            let tier = tier.filter(|_| kv_groups.len() == 1);
            let config = EngineConfig {
                tier: tier.map(|(num_blocks, policy)| TierConfig { num_blocks, policy }),
                policy,
                block_size,
                num_blocks: num_blocks * kv_groups.len(),
                kv_groups,
                max_prompt_logits_rows: rows,
                max_num_seqs,
                max_step_tokens: max_num_seqs + spare,
                max_prefill_chunk: chunk,
                prefix_caching,
                ..config()
            };
            // Always room for a prompt of 37 and a token.
            EngineConfig { num_blocks: config.num_blocks.max(config.blocks_for(39)), ..config }
        },
    )
}

struct Run {
    bench: Bench,
    asks: Vec<Ask>,
    touched: Vec<RequestId>,
    singled_out: Vec<(RequestId, u32)>,
    least_long_prompt: usize,
}

fn play(config: EngineConfig, actions: &[Action], is_ahead: bool, tier_fault: usize) -> Run {
    let mut run = Run {
        bench: Bench::new(config),
        asks: Vec::new(),
        touched: Vec::new(),
        singled_out: Vec::new(),
        least_long_prompt: usize::MAX,
    };
    run.bench.device.is_ahead = is_ahead;
    run.bench.device.tier_fault = tier_fault;
    for action in actions {
        let pick = |at: u8| match run.asks.len() {
            0 => None,
            len => Some(at as u64 % len as u64),
        };
        match action {
            Action::Add(ask) => {
                let id = run.asks.len() as u64;
                let params = SamplingParams {
                    max_tokens: ask.max_tokens,
                    prompt_logprobs: ask.wants_scores.then_some(0),
                    ..Default::default()
                };
                params.validate(device::VOCAB).unwrap();
                let what = (&ask.prompt[..], ask.n, params, ask.salt);
                let tenant = Tenant { id: ask.tenant, weight: 1 + ask.tenant as u32 };
                run.bench.add_with(id, what, ask.priority, tenant);
                run.asks.push(ask.clone());
            }
            Action::Abort(at) => {
                if let Some(id) = pick(*at) {
                    run.touched.push(RequestId(id));
                    run.bench.abort(id);
                }
            }
            Action::AbortSequence(at, index) => {
                if let Some(id) = pick(*at) {
                    run.singled_out.push((RequestId(id), *index));
                    run.bench.abort_sequence(id, *index);
                }
            }
            Action::AbortInFlight(at) => {
                let id = pick(*at);
                run.touched.extend(id.map(RequestId));
                run.bench.step(id);
            }
            Action::Fail(at) => {
                let id = pick(*at).map(RequestId);
                run.touched.extend(id);
                run.bench.device.failing.extend(id);
            }
            Action::Limit(limit) => {
                run.least_long_prompt = run.least_long_prompt.min(limit.long_prompt);
                run.bench.limit_prefill(*limit);
            }
            Action::Step => {
                run.bench.step(None);
            }
        }
    }
    // Each step computes something of the oldest running sequence, which is never preempted.
    let work = |a: &Ask| (a.prompt.len() + a.max_tokens as usize + 1) * a.n as usize;
    let bound = 100 + 4 * run.asks.iter().map(work).sum::<usize>();
    run.bench.run(bound);
    run
}

fn check(run: &Run) -> Result<(), TestCaseError> {
    let config = run.bench.engine.config();
    for (id, ask) in run.asks.iter().enumerate() {
        for index in 0..ask.n {
            let heard = run.bench.heard(id as u64, index);
            let want = expected(&ask.prompt, index, ask.max_tokens, config.max_seq_len());
            let request = RequestId(id as u64);
            let is_touched =
                run.touched.contains(&request) || run.singled_out.contains(&(request, index));
            match heard.finish {
                Some(FinishReason::Stop(0)) => {
                    prop_assert_eq!(&heard.tokens, &want);
                    prop_assert_eq!(want.last(), Some(&0));
                }
                Some(FinishReason::Length) => {
                    prop_assert_eq!(&heard.tokens, &want);
                    prop_assert_ne!(want.last(), Some(&0));
                }
                Some(FinishReason::Abort | FinishReason::Error) => {
                    prop_assert!(is_touched);
                    prop_assert!(want.starts_with(&heard.tokens));
                }
                other => prop_assert!(false, "ended with {:?}", other),
            }
            // Each position once, in order, of the first sequence only: all of them before a token.
            let all = if ask.wants_scores && index == 0 { scores(&ask.prompt) } else { vec![] };
            if heard.tokens.is_empty() && is_touched {
                prop_assert!(all.starts_with(&heard.prompt));
            } else {
                prop_assert_eq!(&heard.prompt, &all);
            }
            prop_assert!(!ask.wants_scores || index > 0 || heard.num_cached == 0);
            let num_cached = heard.num_cached as usize;
            prop_assert!(num_cached < ask.prompt.len());
            prop_assert_eq!(num_cached % config.block_size, 0);
            prop_assert!(config.prefix_caching || num_cached == 0);
        }
    }
    // First come, first served; but who waits for a tier is overtaken, and long prompts are.
    let is_short = |id: &RequestId| run.asks[id.0 as usize].prompt.len() <= run.least_long_prompt;
    let admitted = run.bench.device.admissions.iter();
    let admitted = admitted.filter(|(request, index)| *index == 0 && is_short(request));
    if config.policy == SchedulingPolicy::Fcfs && config.tier.is_none() {
        prop_assert!(admitted.is_sorted_by_key(|(request, _)| request));
    }
    let stats = run.bench.engine.stats();
    prop_assert!(stats.prefix_cache_hits <= stats.prefix_cache_queries);
    prop_assert_eq!(stats.num_used_blocks, 0);
    let tokens: usize = run.bench.heard.values().map(|h| h.tokens.len()).sum();
    prop_assert!(stats.generation_tokens as usize >= tokens);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, max_shrink_iters: 2000, ..Default::default() })]
    #[test]
    fn every_schedule_gives_what_the_model_says(
        limits in limits(),
        actions in prop::collection::vec(action(), 0..60),
        is_ahead in any::<bool>(),
        tier_fault in 0_usize..4,
    ) {
        check(&play(limits, &actions, is_ahead, tier_fault))?;
    }
}

/// Limits under which much is evicted and comes again.
fn tight_limits() -> impl Strategy<Value = EngineConfig> {
    (limits(), 4_usize..40, any::<bool>()).prop_map(|(config, num_blocks, is_lru)| {
        let policy = if is_lru { TierPolicy::Lru } else { TierPolicy::Arc };
        let config = EngineConfig {
            kv_groups: vec![None],
            prefix_caching: true,
            tier: Some(TierConfig { num_blocks, policy }),
            ..config
        };
        EngineConfig { num_blocks: config.blocks_for(39) + 2, ..config }
    })
}

/// Long prompts of a few kinds, under one salt.
fn recurring() -> impl Strategy<Value = Action> {
    let ask =
        (0_u32..6, 20_usize..36, 1_u32..6, 1_u32..3).prop_map(|(kind, len, max_tokens, n)| {
            let prompt = (0..len as u32).map(|i| 1 + (i * 7 + kind * 3) % 20).collect();
            Ask { prompt, n, max_tokens, wants_scores: false, salt: 0, priority: 0, tenant: 0 }
        });
    prop_oneof![
        4 => ask.prop_map(Action::Add),
        1 => any::<u8>().prop_map(Action::Abort),
        1 => any::<u8>().prop_map(Action::AbortInFlight),
        2 => any::<u8>().prop_map(|at| Action::AbortSequence(at, 0)),
        12 => Just(Action::Step),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 2000, ..Default::default() })]
    #[test]
    fn blocks_of_a_tier_hold_what_they_held(
        limits in tight_limits(),
        actions in prop::collection::vec(recurring(), 20..90),
        is_ahead in any::<bool>(),
        tier_fault in 0_usize..6,
    ) {
        check(&play(limits, &actions, is_ahead, tier_fault))?;
    }
}

/// The properties above would hold trivially if nothing ever was preempted, shared or cut.
#[test]
fn the_schedules_reach_what_they_are_about() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut preempted, mut hits, mut siblings, mut scored, mut copies) = (0, 0, 0, 0, 0);
    for _ in 0..100 {
        let strategy = (limits(), prop::collection::vec(action(), 30..60));
        let (limits, actions) = strategy.new_tree(&mut runner).unwrap().current();
        let run = play(limits, &actions, false, 0);
        let stats = run.bench.engine.stats();
        preempted += usize::from(stats.num_preemptions > 0);
        hits += usize::from(stats.prefix_cache_hits > 0);
        scored += run.asks.iter().filter(|a| a.wants_scores && a.prompt.len() > 9).count();
        copies += run.bench.device.num_copies;
        siblings += run.asks.iter().filter(|a| a.n > 1).count();
    }
    assert!(preempted > 10 && hits > 20, "{preempted} {hits}");
    assert!(siblings > 50 && copies > 50 && scored > 50, "{siblings} {copies} {scored}");
    let (mut loads, mut failures) = (0, 0);
    for _ in 0..50 {
        let strategy = (tight_limits(), prop::collection::vec(recurring(), 60..90));
        let (limits, actions) = strategy.new_tree(&mut runner).unwrap().current();
        let stats = play(limits, &actions, false, 5).bench.engine.stats();
        loads += stats.num_tier_loads;
        failures += stats.num_tier_failures;
    }
    assert!(loads > 50 && failures > 50, "{loads} {failures}");
}
