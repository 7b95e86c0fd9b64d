//! Real models against outputs that another engine recorded (`cases/reference`).
//!
//! Teacher-forced: the recorded tokens are fed, so that one near-tie does not change what follows,
//! and every step's log-probabilities are compared. Models come from the cache folder; one that is
//! not there is skipped with a line that says so, except the demo model, which tests always have.
#![allow(clippy::unwrap_used)]

mod perplexity;

use std::path::PathBuf;

use serde_json::Value;
use tenon_backend::{Backend, KvDType, PrepareOptions, SeqSpan, StepInputs, WeightMode};
use tenon_cpu::CpuBackend;
use tenon_reference::ReferenceBackend;
use tenon_runner::load::{LoadOptions, LoadedModel, load_model};
use tenon_text::{Bos, Specials};

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";
const QWEN: &str = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";

const BLOCK_SIZE: usize = 16;
const NUM_BLOCKS: usize = 32;
/// A chunk that takes every prompt at once.
const WHOLE: usize = 256;

/// How far apart two engines may be.
struct Tolerance {
    /// Tokens must agree where the recorded first and second are further apart than this.
    margin: f32,
    /// Largest difference of the first step's best five log-probabilities.
    logprob: f32,
    /// Largest difference of the best log-probability at any step.
    step_logprob: f32,
}

/// Every product and sum in f32 on both sides. The other engine looks Gemma's activation up in a
/// table of halves, which alone moves later steps by 0.009.
const EXACT: Tolerance = Tolerance { margin: 0.05, logprob: 0.01, step_logprob: 0.02 };
/// Quantized activations on both sides, rounded in different ways.
const NATIVE: Tolerance = Tolerance { margin: 0.5, logprob: 0.4, step_logprob: 0.6 };

fn model_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("TENON_MODEL_DIR") {
        return dir.into();
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache");
    cache.unwrap_or_else(home).join("tenon/models")
}

/// Loads a model of the cache; `None`, with a line, when it is not there.
fn load(file: &str) -> Option<LoadedModel> {
    let path = model_dir().join(file);
    if !path.exists() {
        assert_ne!(file, SMOLLM2, "{} is missing; run `cargo xtask fetch-models`", path.display());
        println!("skipped: {} is missing (`cargo xtask fetch-models`)", path.display());
        return None;
    }
    Some(load_model(&path, &LoadOptions::default()).unwrap())
}

fn cases(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn options(weights: WeightMode, kv_dtype: KvDType) -> PrepareOptions {
    PrepareOptions {
        weights,
        kv_dtype,
        hybrid_kv: false,
        num_blocks: NUM_BLOCKS,
        block_size: BLOCK_SIZE,
        max_step_tokens: 256,
        max_logits_rows: 128,
        num_threads: 2,
    }
}

/// Log-probabilities after each token from `first` on.
fn logprobs(
    backend: &mut dyn Backend,
    tokens: &[u32],
    first: usize,
    chunk: usize,
) -> Vec<Vec<f32>> {
    let mut out = Vec::new();
    run(backend, tokens, first, chunk, |logits| out.push(log_softmax(logits)));
    out
}

/// Runs `tokens` in chunks of at most `chunk`; `row` gets the logits after each from `first` on.
fn run(
    backend: &mut dyn Backend,
    tokens: &[u32],
    first: usize,
    chunk: usize,
    mut row: impl FnMut(&[f32]),
) {
    // Blocks in descending order: the block table must be followed.
    let num_blocks = tokens.len().div_ceil(BLOCK_SIZE) as u32;
    let blocks: Vec<u32> = (0..num_blocks).rev().collect();
    let slot = |p: u32| blocks[p as usize / BLOCK_SIZE] * BLOCK_SIZE as u32 + p % BLOCK_SIZE as u32;
    for start in (0..tokens.len()).step_by(chunk) {
        let end = tokens.len().min(start + chunk);
        let positions: Vec<u32> = (start as u32..end as u32).collect();
        let slots: Vec<u32> = positions.iter().map(|&p| slot(p)).collect();
        let rows: Vec<u32> = (first.max(start)..end).map(|p| (p - start) as u32).collect();
        let table_len = end.div_ceil(BLOCK_SIZE);
        let span = SeqSpan {
            row: 0,
            token_start: 0,
            num_tokens: (end - start) as u32,
            context_len: end as u32,
            prompt_len: tokens.len() as u32,
            table_start: 0,
            table_len: table_len as u32,
        };
        let inputs = StepInputs {
            token_ids: &tokens[start..end],
            positions: &positions,
            slot_mapping: &slots,
            seqs: &[span],
            block_tables: &blocks[..table_len],
            logits_rows: &rows,
            block_copies: &[],
        };
        let ticket = backend.forward(&inputs).unwrap();
        let logits = backend.wait(ticket).unwrap();
        if !rows.is_empty() {
            logits.chunks_exact(logits.len() / rows.len()).for_each(&mut row);
        }
    }
}

fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    let log_sum = max + sum.ln() as f32;
    logits.iter().map(|&l| l - log_sum).collect()
}

fn argmax(values: &[f32]) -> u32 {
    let best = (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b]));
    best.unwrap() as u32
}

/// Compares one recorded prompt over its first `num_steps` steps; returns the largest difference.
fn check_prompt(
    backend: &mut dyn Backend,
    prompt: &Value,
    num_steps: usize,
    chunk: usize,
    tolerance: &Tolerance,
) -> f32 {
    let (mut tokens, generated) = (ids(&prompt["prompt_ids"]), ids(&prompt["generated_ids"]));
    let first = tokens.len() - 1;
    tokens.extend(&generated[..num_steps - 1]);
    let found = logprobs(backend, &tokens, first, chunk);
    assert_eq!(found.len(), num_steps);
    let text = prompt["text"].as_str().unwrap();
    for entry in prompt["first_step_top5"].as_array().unwrap() {
        let (id, wanted) = (entry["id"].as_u64().unwrap(), entry["logprob"].as_f64().unwrap());
        let difference = (found[0][id as usize] - wanted as f32).abs();
        assert!(difference <= tolerance.logprob, "{text:?}, first step, {id}: off by {difference}");
    }
    let mut largest = 0f32;
    for (step, (found, top2)) in
        found.iter().zip(prompt["steps_top2"].as_array().unwrap()).enumerate()
    {
        let id = top2[0].as_u64().unwrap();
        let best = top2[1].as_f64().unwrap() as f32;
        let margin = best - top2[3].as_f64().unwrap() as f32;
        if margin > tolerance.margin {
            assert_eq!(u64::from(argmax(found)), id, "{text:?}, step {step}, margin {margin}");
        }
        largest = largest.max((found[id as usize] - best).abs());
    }
    assert!(largest <= tolerance.step_logprob, "{text:?}: off by {largest}");
    largest
}

/// All prompts of a file, each in one chunk.
fn check_file(backend: &mut dyn Backend, file: &Value, num_steps: usize, tolerance: &Tolerance) {
    for prompt in file["prompts"].as_array().unwrap() {
        let largest = check_prompt(backend, prompt, num_steps, WHOLE, tolerance);
        println!("{}: largest difference {largest:.5}", prompt["text"]);
    }
}

#[test]
fn oracle_agrees_with_the_exact_demo_model() {
    let Some(model) = load(SMOLLM2) else { return };
    let file = cases(include_str!("../../cases/reference/smollm2_f32deq.json"));
    let options = options(WeightMode::Float32, KvDType::F32);
    let mut backend = ReferenceBackend::prepare(model.program, &options).unwrap();
    let prompt = &file["prompts"][0];
    check_prompt(&mut backend, prompt, 12, WHOLE, &EXACT);
}

fn cpu_exact(model: &str, file: &str) {
    let Some(model) = load(model) else { return };
    let options = options(WeightMode::Float32, KvDType::F32);
    let mut backend = CpuBackend::prepare(model.program, &options).unwrap();
    check_file(&mut backend, &cases(file), 64, &EXACT);
}

/// Keys and values rounded to 16 bits or 8, all else exact.
const ROUNDED_KV: Tolerance = Tolerance { margin: 0.3, logprob: 0.2, step_logprob: 0.2 };

fn cpu_rounded_kv(model: &str, file: &str, kv_dtypes: &[KvDType]) {
    for &kv_dtype in kv_dtypes {
        let Some(model) = load(model) else { return };
        let options = options(WeightMode::Float32, kv_dtype);
        let mut backend = CpuBackend::prepare(model.program, &options).unwrap();
        println!("{kv_dtype:?} KV");
        check_file(&mut backend, &cases(file), 64, &ROUNDED_KV);
    }
}

fn cpu_native(model: &str, file: &str) {
    let Some(model) = load(model) else { return };
    let options = options(WeightMode::Native, KvDType::F16);
    let mut backend = CpuBackend::prepare(model.program, &options).unwrap();
    let file = cases(file);
    check_file(&mut backend, &file, 64, &NATIVE);
    // One token at a time, as in decoding, and in chunks that cut across blocks.
    for chunk in [1, 7] {
        check_prompt(&mut backend, &file["prompts"][1], 24, chunk, &NATIVE);
    }
}

#[test]
fn cpu_in_f32_agrees_with_exact_smollm2() {
    cpu_exact(SMOLLM2, include_str!("../../cases/reference/smollm2_f32deq.json"));
}

#[test]
fn cpu_in_f32_agrees_with_exact_gemma3() {
    cpu_exact(GEMMA3, include_str!("../../cases/reference/gemma3_270m_f32deq.json"));
}

#[test]
fn cpu_in_f32_agrees_with_exact_qwen2() {
    cpu_exact(QWEN, include_str!("../../cases/reference/qwen25coder_0.5b_f32deq.json"));
}

#[test]
fn cpu_with_rounded_kv_stays_near_exact_smollm2() {
    let file = include_str!("../../cases/reference/smollm2_f32deq.json");
    cpu_rounded_kv(SMOLLM2, file, &[KvDType::BF16, KvDType::F16, KvDType::Int8]);
}

#[test]
fn cpu_with_rounded_kv_stays_near_exact_gemma3() {
    let file = include_str!("../../cases/reference/gemma3_270m_f32deq.json");
    cpu_rounded_kv(GEMMA3, file, &[KvDType::BF16, KvDType::F16, KvDType::Int8]);
}

#[test]
fn cpu_with_rounded_kv_stays_near_exact_qwen2() {
    // A few dims of its keys are very large: 8 bits move log-probabilities by 0.5.
    let file = include_str!("../../cases/reference/qwen25coder_0.5b_f32deq.json");
    cpu_rounded_kv(QWEN, file, &[KvDType::BF16, KvDType::F16]);
}

#[test]
fn cpu_native_agrees_with_native_smollm2() {
    cpu_native(SMOLLM2, include_str!("../../cases/reference/smollm2.json"));
}

#[test]
fn cpu_native_agrees_with_native_gemma3() {
    cpu_native(GEMMA3, include_str!("../../cases/reference/gemma3_270m.json"));
}

#[test]
fn cpu_native_agrees_with_native_qwen2() {
    cpu_native(QWEN, include_str!("../../cases/reference/qwen25coder_0.5b.json"));
}

/// Prompts and hard texts (scripts, blanks, digits, specials) as the other engine tokenized them.
fn check_tokenizer(model: &str, file: &str) {
    let Some(model) = load(model) else { return };
    let file = cases(file);
    let tokenizer = &model.tokenizer;
    for case in file["tokenizer_cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let plain = tokenizer.encode(text, Specials::AsText, Bos::Skip).unwrap();
        assert_eq!(plain, ids(&case["ids_plain"]), "{text:?}");
        let special = tokenizer.encode(text, Specials::Parse, Bos::Default).unwrap();
        assert_eq!(special, ids(&case["ids_special"]), "{text:?}");
    }
    for prompt in file["prompts"].as_array().unwrap() {
        let text = prompt["text"].as_str().unwrap();
        let found = tokenizer.encode(text, Specials::Parse, Bos::Default).unwrap();
        assert_eq!(found, ids(&prompt["prompt_ids"]), "{text:?}");
        let generated = tokenizer.decode(&ids(&prompt["generated_ids"]), false).unwrap();
        assert_eq!(generated, prompt["text_out"].as_str().unwrap(), "{text:?}");
    }
}

#[test]
fn tokenizer_of_smollm2_is_exact() {
    check_tokenizer(SMOLLM2, include_str!("../../cases/reference/smollm2_f32deq.json"));
}

#[test]
fn tokenizer_of_gemma3_is_exact() {
    check_tokenizer(GEMMA3, include_str!("../../cases/reference/gemma3_270m_f32deq.json"));
}

#[test]
fn tokenizer_of_qwen2_is_exact() {
    check_tokenizer(QWEN, include_str!("../../cases/reference/qwen25coder_0.5b_f32deq.json"));
}

#[test]
fn demo_model_ends_at_its_own_tokens() {
    let Some(model) = load(SMOLLM2) else { return };
    assert!(model.eos_token_ids.starts_with(&[2]), "{:?}", model.eos_token_ids);
    assert!(model.chat_template.is_some_and(|t| t.contains("<|im_start|>")));
    assert_eq!(model.max_model_len, 8192);
    assert_eq!(model.name, "SmolLM2-135M-Instruct.Q4_1");
}
