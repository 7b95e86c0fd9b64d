//! What the host adds to a step: plan, inputs, sampling, settling, over a backend that does
//! nothing. `cargo bench -p tenon-runner --bench host_overhead`.
//!
//! Sequences decode greedily with a vocabulary of 256, so that sampling is its dispatch and no
//! more.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Instant;

use tenon_backend::{Backend, BackendError, StepInputs, Ticket};
use tenon_engine::{
    Engine, EngineConfig, NewRequest, RequestId, SamplingParams, SchedulingPolicy, Tenant,
};
use tenon_runner::batch::InputBatch;
use tenon_runner::rows::Rows;
use tenon_runner::sampler::Sampler;

const VOCAB: usize = 256;
const BLOCK_SIZE: usize = 16;
const NUM_STEPS: usize = 400;

/// Logits that were made before.
struct Idle {
    logits: Vec<f32>,
    len: usize,
}

impl Backend for Idle {
    fn describe(&self) -> String {
        "idle".into()
    }

    fn forward(&mut self, inputs: &StepInputs<'_>) -> Result<Ticket, BackendError> {
        self.len = inputs.logits_rows.len() * VOCAB;
        Ok(Ticket(0))
    }

    fn wait(&mut self, _ticket: Ticket) -> Result<&mut [f32], BackendError> {
        Ok(&mut self.logits[..self.len])
    }

    fn block_bytes(&self) -> usize {
        0
    }

    fn read_block(&mut self, _: u32, _: &mut [u8]) -> Result<(), BackendError> {
        unreachable!("nothing is offloaded")
    }

    fn write_block(&mut self, _: u32, _: &[u8]) -> Result<(), BackendError> {
        unreachable!("nothing is offloaded")
    }
}

/// Microseconds of a step's parts: (plan and inputs, sampling, settling), the best of the steps.
fn time(num_seqs: usize, policy: SchedulingPolicy) -> [f64; 3] {
    let config = EngineConfig {
        num_blocks: num_seqs * 64,
        block_size: BLOCK_SIZE,
        max_num_seqs: num_seqs,
        max_step_tokens: 16 * num_seqs,
        max_prefill_chunk: 256,
        max_prompt_logits_rows: 16,
        policy,
        max_model_len: 1000,
        max_waiting: num_seqs,
        kv_groups: vec![None],
        tier: None,
        prefix_caching: true,
        hash_key: [1; 16],
        eos_token_ids: vec![0],
    };
    let mut engine = Engine::new(config.clone()).unwrap();
    let mut rows = Rows::new(num_seqs, 1, 64, vec![0]);
    let mut batch = InputBatch::new(&config);
    let mut sampler = Sampler::new(VOCAB);
    let logits = (0..num_seqs * VOCAB).map(|i| ((i * 7919) % 1013) as f32 / 100.0).collect();
    let mut backend = Idle { logits, len: 0 };
    let params = SamplingParams {
        max_tokens: 900,
        temperature: 0.0,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let params = Arc::new(params);
    for id in 0..num_seqs as u64 {
        let prompt: Vec<u32> = (0..12).map(|t| 1 + (t * 31 + id as u32 * 7) % 200).collect();
        let tenant = Tenant { id: id % 8, weight: 1 };
        let request = NewRequest {
            id: RequestId(id),
            prompt: prompt.into(),
            n: 1,
            params: params.clone(),
            cache_salt: None,
            priority: (id % 5) as i32,
            tenant,
        };
        engine.add(request).unwrap();
    }
    let (mut results, mut outputs) = (Vec::new(), Vec::new());
    let mut best = [f64::INFINITY; 3];
    for _ in 0..NUM_STEPS {
        let began = Instant::now();
        let plan = engine.plan().unwrap();
        rows.apply(plan);
        let is_whole = plan.scheduled.len() == num_seqs && plan.num_tokens == num_seqs;
        let inputs = batch.build(&rows, plan);
        let planned = Instant::now();
        let ticket = backend.forward(&inputs).unwrap();
        let logits = backend.wait(ticket).unwrap();
        let ran = Instant::now();
        sampler.sample(&mut rows, batch.logits_uses(), logits, &mut results).unwrap();
        let sampled = Instant::now();
        engine.settle(&mut results, &mut outputs);
        let settled = Instant::now();
        outputs.clear();
        let parts = [planned - began, sampled - ran, settled - sampled];
        if is_whole {
            for (best, part) in best.iter_mut().zip(parts) {
                *best = best.min(part.as_secs_f64() * 1e6);
            }
        }
    }
    best
}

fn main() {
    println!(
        "policy      seqs   plan+inputs  sample  settle   total us (best of {NUM_STEPS} steps)"
    );
    for policy in [SchedulingPolicy::Fcfs, SchedulingPolicy::FairShare] {
        for num_seqs in [1, 16, 64, 256] {
            let [plan, sample, settle] = time(num_seqs, policy);
            let total = plan + sample + settle;
            let name = format!("{policy:?}");
            println!(
                "{name:10} {num_seqs:5}  {plan:11.1}  {sample:6.1}  {settle:6.1}  {total:6.1}"
            );
        }
    }
}
