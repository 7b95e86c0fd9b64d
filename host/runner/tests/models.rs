//! The promise on real arithmetic: what a sequence says is the same, token for token and to the
//! last bit of its log-probabilities, alone or in any batch, whatever the limits: chunks, cache,
//! preemption, order.
#![allow(clippy::unwrap_used)]

mod fake;

use fake::{Ended, hear};
use std::collections::HashSet;
use std::sync::mpsc::channel;
use tenon_backend::{Backend, KvDType, PrepareOptions, WeightMode};
use tenon_cpu::CpuBackend;
use tenon_engine::{EngineConfig, FinishReason, SamplingParams, TierConfig, TierPolicy};
use tenon_model::{TinyArch, TinyModel};
use tenon_reference::ReferenceBackend;
use tenon_runner::tier::{DiskTier, KvTier, MemoryTier};
use tenon_runner::{GenerateRequest, WorkerConfig, spawn, spawn_with_tier};

#[derive(Debug, Clone, Copy)]
enum Kind {
    Reference,
    Cpu,
}

fn backend(kind: Kind, model: &TinyModel, config: &EngineConfig) -> Box<dyn Backend> {
    let options = PrepareOptions {
        weights: WeightMode::Native,
        kv_dtype: KvDType::BF16,
        hybrid_kv: config.kv_groups.len() > 1,
        num_blocks: config.num_blocks,
        block_size: config.block_size,
        max_step_tokens: config.max_step_tokens,
        max_logits_rows: config.max_logits_rows(),
        num_threads: 2,
    };
    match kind {
        Kind::Reference => Box::new(ReferenceBackend::prepare(model.program(), &options).unwrap()),
        Kind::Cpu => Box::new(CpuBackend::prepare(model.program(), &options).unwrap()),
    }
}

fn requests() -> Vec<GenerateRequest> {
    let shared: Vec<u32> = (0..19).map(|i| 40 + i * 11 % 90).collect();
    let request = |id: u64, prompt: Vec<u32>, params| GenerateRequest {
        n: if id % 4 == 3 { 3 } else { 1 },
        params,
        ..fake::request(id, &prompt, 1)
    };
    (0..8_u64)
        .map(|id| {
            let mut prompt = shared[..(id as usize * 5) % 19].to_vec();
            prompt.extend((0..1 + id as u32 % 3).map(|i| 60 + i + id as u32));
            let params = SamplingParams {
                max_tokens: 6 + id as u32 * 2,
                temperature: if id % 2 == 0 { 0.0 } else { 0.8 },
                top_p: if id % 3 == 0 { 0.9 } else { 1.0 },
                seed: Some(id),
                logprobs: Some(3),
                prompt_logprobs: (id % 3 == 1).then_some(2),
                repetition_penalty: if id == 4 { 1.2 } else { 1.0 },
                ..Default::default()
            };
            request(id, prompt, params)
        })
        .collect()
}

fn run(
    kind: Kind,
    model: &TinyModel,
    config: EngineConfig,
    requests: &[GenerateRequest],
) -> (Vec<Ended>, u64) {
    let backend = backend(kind, model, &config);
    let (sender, outputs) = channel();
    let config = WorkerConfig::new(config, TinyModel::VOCAB as u32);
    let sink = Box::new(move |batch: &mut Vec<_>| drop(sender.send(std::mem::take(batch))));
    let (handle, thread) = spawn(config, backend, sink, Box::new(|_| {})).unwrap();
    for request in requests {
        handle.submit(request.clone()).unwrap();
    }
    let heard = hear(&outputs, requests.iter().map(|r| r.n as usize).sum());
    let num_preemptions = handle.stats().num_preemptions;
    handle.drain();
    thread.join().unwrap();
    (heard, num_preemptions)
}

fn roomy() -> EngineConfig {
    EngineConfig {
        num_blocks: 64,
        block_size: 8,
        max_num_seqs: 16,
        max_step_tokens: 64,
        max_prefill_chunk: 64,
        max_prompt_logits_rows: 24,
        policy: Default::default(),
        max_model_len: 128,
        max_waiting: 100,
        kv_groups: vec![None],
        tier: None,
        prefix_caching: false,
        hash_key: [1; 16],
        eos_token_ids: vec![TinyModel::EOS],
    }
}

fn check(kind: Kind, arch: TinyArch) {
    let model = TinyModel::new(arch, 11);
    let requests = requests();
    let alone: Vec<_> = requests
        .iter()
        .flat_map(|r| run(kind, &model, roomy(), std::slice::from_ref(r)).0)
        .collect();
    assert!(alone.iter().all(|(_, heard)| heard.finish != FinishReason::Error), "{alone:?}");
    let logprobs = alone.iter().flat_map(|(_, heard)| &heard.logprobs);
    let distinct: HashSet<u32> = logprobs.map(|l| l.top[2].logprob.to_bits()).collect();
    assert!(distinct.len() > 50, "a model that always says the same proves nothing");
    let limits = [
        roomy(),
        EngineConfig { prefix_caching: true, max_prefill_chunk: 3, ..roomy() },
        EngineConfig { prefix_caching: true, max_prompt_logits_rows: 2, ..roomy() },
        EngineConfig { prefix_caching: true, num_blocks: 9, max_num_seqs: 5, ..roomy() },
        EngineConfig { num_blocks: 20, block_size: 3, max_step_tokens: 16, ..roomy() },
        EngineConfig { max_num_seqs: 1, max_step_tokens: 1, ..roomy() },
    ];
    check_prompts(kind, &model, &requests, &alone);
    // Block tables of their own for windowed layers: the same, in room for less.
    let kv_groups = model.program().kv_layout(true).groups.iter().map(|g| g.window).collect();
    let hybrid = EngineConfig { kv_groups, ..roomy() };
    let hybrids = [
        EngineConfig { num_blocks: 128, ..hybrid.clone() },
        EngineConfig { prefix_caching: true, num_blocks: 27, max_prefill_chunk: 3, ..hybrid },
    ];
    let is_hybrid = hybrids[0].kv_groups.len() > 1;
    assert_eq!(is_hybrid, arch == TinyArch::Gemma3);
    let hybrids = hybrids.into_iter().filter(|_| is_hybrid);
    let mut num_preemptions = 0;
    for limits in limits.into_iter().chain(hybrids) {
        let (heard, preempted) = run(kind, &model, limits.clone(), &requests);
        num_preemptions += preempted;
        for (got, want) in heard.iter().zip(&alone) {
            assert_eq!(got, want, "{arch:?} on {kind:?} with {limits:?}");
        }
    }
    assert!(num_preemptions > 0);
}

/// The log-probabilities of a prompt are those that its tokens had when they were generated.
fn check_prompts(kind: Kind, model: &TinyModel, requests: &[GenerateRequest], said: &[Ended]) {
    for request in requests {
        let (_, heard) = said.iter().find(|(key, _)| *key == (request.id.0, 0)).unwrap();
        let num_scored = heard.prompt_logprobs.len();
        let is_asked = request.params.prompt_logprobs.is_some();
        assert_eq!(num_scored, if is_asked { request.prompt.len() - 1 } else { 0 });
        let mut whole = request.prompt.to_vec();
        whole.extend(&heard.tokens);
        let params =
            SamplingParams { max_tokens: 0, prompt_logprobs: Some(3), ..Default::default() };
        let again = GenerateRequest { n: 1, params, ..fake::request(1, &whole, 1) };
        let (ended, _) = run(kind, model, roomy(), &[again]);
        let scores = &ended[0].1.prompt_logprobs;
        assert_eq!((ended[0].1.finish, ended[0].1.tokens.len()), (FinishReason::Length, 0));
        assert_eq!(scores[request.prompt.len() - 1..], heard.logprobs);
    }
}

#[test]
fn reference_llama() {
    check(Kind::Reference, TinyArch::Llama);
}

#[test]
fn reference_gemma3_with_windows() {
    check(Kind::Reference, TinyArch::Gemma3);
}

#[test]
fn cpu_llama() {
    check(Kind::Cpu, TinyArch::Llama);
}

#[test]
fn cpu_qwen3() {
    check(Kind::Cpu, TinyArch::Qwen3);
}

#[test]
fn cpu_gemma3_with_windows() {
    check(Kind::Cpu, TinyArch::Gemma3);
}

/// en-009: the younger of two sequences is preempted at its 1st, 2nd, … 20th output token, as the
/// elder's prompt leaves ever more room; all that depends on its history goes on as if nothing had
/// been.
#[test]
fn a_preemption_at_any_step_changes_nothing() {
    const NUM_SLOTS: usize = 60;
    let model = TinyModel::new(TinyArch::Llama, 11);
    let prompt = [41, 52, 63, 74, 85, 96, 107, 118];
    let params = SamplingParams {
        max_tokens: 24,
        temperature: 0.0,
        presence_penalty: 0.7,
        repetition_penalty: 1.2,
        logprobs: Some(2),
        prompt_logprobs: Some(1),
        ignore_eos: true,
        ..Default::default()
    };
    let younger = GenerateRequest { params, ..fake::request(1, &prompt, 1) };
    let want = run(Kind::Cpu, &model, roomy(), std::slice::from_ref(&younger)).0;
    let mut num_preempted = 0;
    for step in 1..=20 {
        let elder_len = NUM_SLOTS - prompt.len() - 2 * step;
        let elder: Vec<u32> = (0..elder_len as u32).map(|i| 40 + i * 11 % 90).collect();
        let params = SamplingParams { max_tokens: 60, ignore_eos: true, ..Default::default() };
        let elder = GenerateRequest { params, ..fake::request(0, &elder, 1) };
        let limits = EngineConfig {
            num_blocks: NUM_SLOTS,
            block_size: 1,
            prefix_caching: step % 2 == 0,
            ..roomy()
        };
        let (heard, num_preemptions) = run(Kind::Cpu, &model, limits, &[elder, younger.clone()]);
        num_preempted += u32::from(num_preemptions > 0);
        assert_eq!(heard[1..], want, "preempted at step {step}");
    }
    // Where the younger one came too late it waited instead.
    assert!(num_preempted > 12, "{num_preempted} of 20");
}

/// One after the other, on one engine.
fn run_in_turn(
    kind: Kind,
    model: &TinyModel,
    config: EngineConfig,
    requests: &[GenerateRequest],
) -> Vec<Ended> {
    let backend = backend(kind, model, &config);
    let (sender, outputs) = channel();
    let config = WorkerConfig::new(config, TinyModel::VOCAB as u32);
    let sink = Box::new(move |batch: &mut Vec<_>| drop(sender.send(std::mem::take(batch))));
    let (handle, thread) = spawn(config, backend, sink, Box::new(|_| {})).unwrap();
    let mut heard = Vec::new();
    for request in requests {
        handle.submit(request.clone()).unwrap();
        heard.extend(hear(&outputs, 1));
    }
    handle.drain();
    thread.join().unwrap();
    heard
}

/// The same tokens and the same bits of their log-probabilities without the cache, with a cold and
/// a warm one, after an eviction, and behind a prefix that another prompt left.
fn check_cache_modes(kind: Kind, arch: TinyArch) {
    let model = TinyModel::new(arch, 5);
    let kv_groups = model.program().kv_layout(true).groups.iter().map(|g| g.window).collect();
    let warm =
        EngineConfig { num_blocks: 24, block_size: 16, kv_groups, prefix_caching: true, ..roomy() };
    let cold = EngineConfig { prefix_caching: false, ..warm.clone() };
    let text = |len: usize, salt: u32| -> Vec<u32> {
        (0..len as u32).map(|i| 40 + (i * i + 3 * i * salt) % 80).collect()
    };
    let ask = |id: u64, prompt: Vec<u32>| GenerateRequest {
        params: SamplingParams {
            max_tokens: 16,
            temperature: 0.0,
            logprobs: Some(2),
            ignore_eos: true,
            ..Default::default()
        },
        ..fake::request(id, &prompt, 1)
    };
    for len in [16, 31, 32, 33, 48, 64, 65] {
        let prompt = text(len, 0);
        let want = run_in_turn(kind, &model, cold.clone(), &[ask(0, prompt.clone())]).remove(0).1;
        let mut other = prompt[..len - 5].to_vec();
        other.extend([41, 42, 43]);
        // Cold, warm, warm, evicted (the pool is small), and shared with `other`.
        let mut asks = vec![other, prompt.clone(), prompt.clone(), prompt.clone()];
        asks.extend((1..6).map(|salt| text(90, salt)));
        asks.push(prompt.clone());
        let asks: Vec<_> = (0..).zip(asks).map(|(id, p)| ask(id, p)).collect();
        let heard = run_in_turn(kind, &model, warm.clone(), &asks);
        for ((_, got), asked) in heard.iter().zip(&asks) {
            if *asked.prompt == *prompt {
                assert_eq!(got, &want, "{arch:?} on {kind:?}, prompt of {len}");
            }
        }
    }
}

#[test]
fn cpu_llama_in_every_state_of_the_cache() {
    check_cache_modes(Kind::Cpu, TinyArch::Llama);
}

#[test]
fn cpu_gemma3_in_every_state_of_the_cache() {
    check_cache_modes(Kind::Cpu, TinyArch::Gemma3);
}

/// Prompts that come again after their blocks were evicted are brought back from the tier, and say
/// what they said before; so they do when the tier loses and damages blocks.
#[test]
fn evicted_blocks_come_back_from_a_tier() {
    let model = TinyModel::new(TinyArch::Llama, 11);
    let folder = tempfile::tempdir().unwrap();
    let tiers: [Box<dyn KvTier>; 3] = [
        Box::new(MemoryTier::default()),
        Box::new(DiskTier::open(&folder.path().join("kv")).unwrap()),
        Box::new(Lossy { tier: MemoryTier::default(), num_calls: 0 }),
    ];
    let prompt =
        |id: u64| -> Vec<u32> { (0..40).map(|i| 40 + (i * 11 + id as u32) % 90).collect() };
    let request = |id: u64| {
        let params = SamplingParams {
            max_tokens: 6,
            temperature: 0.0,
            logprobs: Some(2),
            ignore_eos: true,
            ..Default::default()
        };
        GenerateRequest { params, ..fake::request(id, &prompt(id % 5), 1) }
    };
    let alone: Vec<_> =
        (0..5).map(|id| run(Kind::Cpu, &model, roomy(), &[request(id)]).0.remove(0).1).collect();
    for (kind, tier) in tiers.into_iter().enumerate() {
        // The pool holds two of the five prompts.
        let config = EngineConfig {
            num_blocks: 14,
            prefix_caching: true,
            tier: Some(TierConfig { num_blocks: 100, policy: TierPolicy::Arc }),
            ..roomy()
        };
        let backend = backend(Kind::Cpu, &model, &config);
        let (sender, outputs) = channel();
        let sink = Box::new(move |batch: &mut Vec<_>| drop(sender.send(std::mem::take(batch))));
        let config = WorkerConfig::new(config, TinyModel::VOCAB as u32);
        let (handle, thread) =
            spawn_with_tier(config, backend, sink, Box::new(|_| {}), Some(tier)).unwrap();
        for id in 0..15 {
            handle.submit(request(id)).unwrap();
            let heard = hear(&outputs, 1).remove(0).1;
            assert_eq!(heard, alone[id as usize % 5], "request {id} with tier {kind}");
        }
        let stats = handle.stats();
        assert!(stats.num_tier_stores > 10 && stats.num_tier_loads > 10, "{stats:?}");
        assert_eq!(stats.num_tier_failures > 0, kind == 2, "{stats:?}");
        assert!(kind == 2 || stats.prefix_cache_hits >= 10 * 32, "{stats:?}");
        handle.drain();
        thread.join().unwrap();
    }
    // A tier leaves nothing behind.
    assert_eq!(std::fs::read_dir(folder.path().join("kv")).unwrap().count(), 0);
}

/// Every fifth call fails.
struct Lossy {
    tier: MemoryTier,
    num_calls: usize,
}

impl KvTier for Lossy {
    fn store(&mut self, key: u128, bytes: &[u8]) -> std::io::Result<()> {
        self.num_calls += 1;
        match self.num_calls % 5 {
            0 => Err(std::io::Error::other("planted")),
            _ => self.tier.store(key, bytes),
        }
    }

    fn load(&mut self, key: u128, bytes: &mut [u8]) -> std::io::Result<()> {
        self.num_calls += 1;
        self.tier.load(key, bytes)?;
        match self.num_calls % 5 {
            0 => Err(std::io::Error::other("planted")),
            _ => Ok(()),
        }
    }

    fn remove(&mut self, key: u128) {
        self.tier.remove(key);
    }
}
