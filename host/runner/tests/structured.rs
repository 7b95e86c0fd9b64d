//! Structured output on real arithmetic: whatever a model says under a schema validates, what has
//! an end ends with `stop`, and a grammar is as deterministic as everything else.
#![allow(clippy::unwrap_used)]

mod fake;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;

use fake::{Ended, Heard, hear};
use serde_json::{Value, json};
use tenon_backend::{Backend, KvDType, PrepareOptions, WeightMode};
use tenon_cpu::CpuBackend;
use tenon_engine::{EngineConfig, FinishReason, SamplingParams};
use tenon_grammar::{Compiler, Grammar, GrammarSpec, Limits, Starts, Trigger};
use tenon_model::{TinyArch, TinyModel};
use tenon_runner::load::{LoadOptions, LoadedModel, load_model};
use tenon_runner::{GenerateRequest, WorkerConfig, spawn};
use tenon_text::{Bos, Specials, Tokenizer};

const CORPUS: &str = include_str!("../../../tests/cases/schemas.jsonl");
const DEMO: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

struct Model {
    loaded: LoadedModel,
    tokenizer: Arc<Tokenizer>,
    compiler: Compiler,
}

impl Model {
    fn new(mut loaded: LoadedModel) -> Model {
        let blank = Tokenizer::byte_level_for_scripts(&[]);
        let tokenizer = Arc::new(std::mem::replace(&mut loaded.tokenizer, blank));
        let eos = loaded.eos_token_ids.clone();
        let compiler = Compiler::new(tokenizer.clone(), eos, Limits::default());
        Model { loaded, tokenizer, compiler }
    }

    fn tiny(seed: u64) -> Model {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        std::fs::write(&path, TinyModel::new(TinyArch::Llama, seed).gguf()).unwrap();
        Model::new(load_model(&path, &LoadOptions::default()).unwrap())
    }

    fn grammar(&self, spec: &GrammarSpec) -> Grammar {
        self.compiler.compile(spec, &Starts::AtOnce).unwrap()
    }

    fn request(&self, id: u64, prompt: &str, grammar: Option<Grammar>) -> GenerateRequest {
        let prompt = self.tokenizer.encode(prompt, Specials::Parse, Bos::Skip).unwrap();
        GenerateRequest { grammar, ..fake::request(id, &prompt, 1) }
    }

    fn config(&self) -> EngineConfig {
        EngineConfig {
            num_blocks: 1024,
            block_size: 16,
            max_num_seqs: 32,
            max_step_tokens: 256,
            max_prefill_chunk: 256,
            max_prompt_logits_rows: 16,
            policy: Default::default(),
            max_model_len: self.loaded.max_model_len.min(2048),
            max_waiting: 4096,
            kv_groups: vec![None],
            tier: None,
            prefix_caching: true,
            hash_key: [3; 16],
            eos_token_ids: self.loaded.eos_token_ids.clone(),
        }
    }

    /// Runs all of them together, and says how many preemptions it took.
    fn run(&self, config: EngineConfig, requests: &[GenerateRequest]) -> (Vec<Ended>, u64) {
        let options = PrepareOptions {
            weights: WeightMode::Native,
            kv_dtype: KvDType::BF16,
            hybrid_kv: false,
            num_blocks: config.num_blocks,
            block_size: config.block_size,
            max_step_tokens: config.max_step_tokens,
            max_logits_rows: config.max_logits_rows(),
            num_threads: 2,
        };
        let program = self.loaded.program.clone();
        let vocab_size = program.vocab_size() as u32;
        let backend: Box<dyn Backend> = Box::new(CpuBackend::prepare(program, &options).unwrap());
        let (sender, outputs) = channel();
        let sink = Box::new(move |batch: &mut Vec<_>| drop(sender.send(std::mem::take(batch))));
        let config = WorkerConfig::new(config, vocab_size);
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

    /// The text, without a token that ended it.
    fn text(&self, heard: &Heard) -> String {
        let tokens = match heard.finish {
            FinishReason::Stop(_) => &heard.tokens[..heard.tokens.len() - 1],
            _ => &heard.tokens[..],
        };
        self.tokenizer.decode(tokens, false).unwrap()
    }
}

struct Case {
    name: String,
    schema: Value,
    is_bounded: bool,
}

fn corpus() -> Vec<Case> {
    let case = |line: &str| {
        let case: Value = serde_json::from_str(line).unwrap();
        Case {
            name: case["name"].as_str().unwrap().into(),
            schema: case["schema"].clone(),
            is_bounded: case["bounded"].as_bool().unwrap(),
        }
    };
    CORPUS.lines().map(case).collect()
}

/// Ended outputs validate; cut ones are counted.
fn check(model: &Model, case: &Case, heard: &Heard) -> bool {
    let (name, text) = (&case.name, model.text(heard));
    match heard.finish {
        FinishReason::Stop(_) | FinishReason::Complete => {}
        FinishReason::Length => return false,
        other => panic!("{name} ended with {other:?} {:?}: {text}", heard.error),
    }
    let value: Value = match serde_json::from_str(&text) {
        Ok(value) => value,
        // Where a schema says nothing, JSON's numbers have any exponent.
        Err(error) if !case.is_bounded && error.to_string().contains("out of range") => {
            return true;
        }
        Err(error) => panic!("{name}: {error}: {text}"),
    };
    let validator = jsonschema::options().should_validate_formats(true).build(&case.schema);
    let errors: Vec<_> = validator.unwrap().iter_errors(&value).map(|e| e.to_string()).collect();
    assert!(errors.is_empty(), "{name}: {text}: {errors:?}");
    true
}

fn params(temperature: f32, seed: u64, max_tokens: u32) -> SamplingParams {
    SamplingParams { temperature, seed: Some(seed), max_tokens, ..Default::default() }
}

#[test]
fn random_models_say_what_validates() {
    let (mut num_ended, mut num_cut) = (0, 0);
    let cases = corpus();
    for model_seed in 0..3 {
        let model = Model::tiny(model_seed);
        let max_tokens = model.config().max_model_len as u32 - 16;
        let mut requests = Vec::new();
        for case in &cases {
            let grammar = model.grammar(&GrammarSpec::JsonSchema(case.schema.clone()));
            for (temperature, seed) in [(0.0, 0), (1.0, 1), (1.0, 2)] {
                // What may go on for ever need not do so for long.
                let limit = if case.is_bounded { max_tokens } else { 200.min(max_tokens) };
                requests.push(GenerateRequest {
                    params: params(temperature, seed, limit),
                    ..model.request(requests.len() as u64, "say", Some(grammar.clone()))
                });
            }
        }
        let (heard, _) = model.run(model.config(), &requests);
        for ((id, _), heard) in heard.iter().map(|(key, heard)| (*key, heard)) {
            let case = &cases[id as usize / 3];
            let is_ended = check(&model, case, heard);
            let text = || model.text(heard);
            assert!(is_ended || !case.is_bounded, "{} has no end: {}", case.name, text());
            num_ended += u32::from(is_ended);
            num_cut += u32::from(!is_ended);
        }
    }
    println!("{num_ended} outputs validated, {num_cut} of unbounded schemas were cut");
    assert!(num_ended > num_cut);
}

#[test]
fn the_demo_model_says_what_validates() {
    let dir = std::env::var_os("TENON_MODEL_DIR").map(PathBuf::from).unwrap_or_else(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache");
        cache.unwrap_or_else(home).join("tenon/models")
    });
    let path = dir.join(DEMO);
    if !path.exists() {
        println!("skipped: {} is missing (`cargo xtask fetch-models`)", path.display());
        return;
    }
    let model = Model::new(load_model(&path, &LoadOptions::default()).unwrap());
    let cases = corpus();
    let requests = cases.iter().enumerate().map(|(id, case)| {
        let grammar = model.grammar(&GrammarSpec::JsonSchema(case.schema.clone()));
        let prompt = format!(
            "<|im_start|>user\nAnswer in JSON: {}<|im_end|>\n<|im_start|>assistant\n",
            case.name
        );
        let temperature = if id % 2 == 0 { 0.0 } else { 0.7 };
        GenerateRequest {
            params: params(temperature, id as u64, 160),
            ..model.request(id as u64, &prompt, Some(grammar))
        }
    });
    let requests: Vec<_> = requests.collect();
    let (heard, _) = model.run(model.config(), &requests);
    let mut num_ended = 0;
    for ((id, _), heard) in &heard {
        num_ended += usize::from(check(&model, &cases[*id as usize], heard));
    }
    println!("{num_ended} of {} outputs ended within 160 tokens and validated", heard.len());
    assert!(num_ended * 10 >= heard.len() * 8);
}

/// With and without grammars, greedy and sampled, one of several choices, one behind a trigger.
fn mixed(model: &Model) -> Vec<GenerateRequest> {
    let object = json!({"type": "object", "properties": {
        "a": {"type": "array", "items": {"enum": ["x", "yy", "zzz"]}, "minItems": 2, "maxItems": 4},
        "b": {"type": "string", "maxLength": 12}}, "required": ["a", "b"],
        "additionalProperties": false});
    let specs = [
        GrammarSpec::JsonSchema(object),
        GrammarSpec::Regex("(ab|cd|the ){4,9}".into()),
        GrammarSpec::Choice(vec!["one".into(), "two".into(), "three".into()]),
    ];
    let after = Starts::After { triggers: vec![Trigger::text("e")], never: vec![], must: true };
    (0..12_u64)
        .map(|id| {
            let spec = &specs[id as usize % 3];
            let starts = if id == 7 { &after } else { &Starts::AtOnce };
            let grammar = (id % 4 != 3).then(|| model.compiler.compile(spec, starts).unwrap());
            let n = if id % 5 == 0 { 3 } else { 1 };
            let temperature = if id % 2 == 0 { 0.9 } else { 0.0 };
            GenerateRequest {
                n,
                params: params(temperature, id, 40),
                ..model.request(id, &"the rain in the plain ".repeat(1 + id as usize % 3), grammar)
            }
        })
        .collect()
}

/// en-009, of structured output.
#[test]
fn company_and_preemption_change_nothing() {
    let model = Model::tiny(5);
    let requests = mixed(&model);
    let alone: Vec<_> = requests
        .iter()
        .flat_map(|r| model.run(model.config(), std::slice::from_ref(r)).0)
        .collect();
    let mut num_preemptions = 0;
    for config in [
        model.config(),
        EngineConfig { num_blocks: 40, block_size: 4, ..model.config() },
        EngineConfig { num_blocks: 24, block_size: 4, max_step_tokens: 32, ..model.config() },
    ] {
        let (heard, preempted) = model.run(config, &requests);
        num_preemptions += preempted;
        for (got, want) in heard.iter().zip(&alone) {
            assert_eq!(got, want);
        }
    }
    assert!(num_preemptions > 0, "nothing was preempted");
    // Siblings draw apart, and each follows its own way through the grammar.
    let siblings: Vec<_> = alone.iter().filter(|((id, _), _)| *id == 0).collect();
    assert!(siblings[1..].iter().any(|(_, heard)| heard.tokens != siblings[0].1.tokens));
    // Without a grammar nothing is different.
    let free: Vec<_> = requests
        .iter()
        .map(|r| GenerateRequest { grammar: None, ..r.clone() })
        .filter(|r| r.id.0 % 4 == 3)
        .collect();
    let (free, _) = model.run(model.config(), &free);
    for (key, heard) in &free {
        assert_eq!(alone.iter().find(|(other, _)| other == key).unwrap().1, *heard);
    }
}

#[test]
fn outputs_end_with_their_grammar() {
    let model = Model::tiny(1);
    let choice = || Some(model.grammar(&GrammarSpec::Choice(vec!["the".into()])));
    let limits = |id, params| GenerateRequest { params, ..model.request(id, "x", choice()) };
    let greedy = params(0.0, 0, 50);
    let first = model.tokenizer.token_id("t").unwrap();
    let requests = [
        limits(0, greedy.clone()),
        // Fields that forbid an end do not outlive the grammar.
        limits(1, SamplingParams { ignore_eos: true, ..greedy.clone() }),
        limits(2, SamplingParams { min_tokens: 40, ..greedy.clone() }),
        // The grammar and another mask leave nothing behind the first: this one fails, alone.
        limits(3, SamplingParams { allowed_token_ids: Some(vec![first]), ..greedy.clone() }),
        GenerateRequest { params: greedy, ..model.request(4, "x", None) },
    ];
    let (heard, _) = model.run(model.config(), &requests);
    for ((id, _), heard) in &heard[..3] {
        assert_eq!(
            (model.text(heard).as_str(), heard.finish),
            ("the", FinishReason::Complete),
            "{id}"
        );
    }
    assert_eq!(heard[3].1.finish, FinishReason::Error);
    let error = heard[3].1.error.as_deref().unwrap();
    assert!(error.contains("every one is masked"), "{error}");
    assert_ne!(heard[4].1.finish, FinishReason::Error);
}
