//! `tenon bench offline`: the engine alone, in this process.
//!
//! Each run has two phases. *Prefill*: new random prompts, one output token each. *Decode*: the
//! same prompts again; their keys and values are in the prefix cache by then, so that decoding is
//! measured without prefill between the steps.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use tenon_engine::config::pool_blocks_for;
use tenon_engine::{FinishReason, RequestId, SamplingParams, StepOutput};
use tenon_runner::handle::{GenerateRequest, RunnerHandle};

use super::args::OfflineArgs;
use super::prompts::Rng;
use super::summary::{median, percentile, sorted};
use super::{machine, print_row};
use crate::args::{BackendArg, DTypeArg, KvDTypeArg, ModelArgs, OffloadPolicyArg, PolicyArg};
use crate::launch::{LaunchedEngine, launch_engine};

/// Longest wait for a step; a slower one is taken for a hang.
const STEP_TIMEOUT: Duration = Duration::from_secs(600);

/// Steps whose outputs may wait to be looked at.
const MAX_WAITING_STEPS: usize = 1024;

/// KV slots in a block, as `serve` has it by default.
const BLOCK_SIZE: usize = 16;

/// Most prompt and output tokens of the run that is not measured.
const WARM_UP: (usize, usize) = (64, 8);

/// What a step gave, and when.
struct Step {
    at: Instant,
    outputs: Vec<StepOutput>,
}

/// One run's figures.
struct Run {
    prefill_tok_per_s: f64,
    decode_tok_per_s: f64,
    ttft_ms: f64,
    itl_ms_p50: f64,
    itl_ms_p99: f64,
}

/// Loads, measures, prints.
pub fn run(args: &OfflineArgs) -> Result<()> {
    ensure!(
        args.batch <= args.max_num_batched_tokens,
        "--batch is `{}`, more than --max-num-batched-tokens `{}`; each sequence needs a token in \
         a step",
        args.batch,
        args.max_num_batched_tokens
    );
    let (sender, steps) = sync_channel(MAX_WAITING_STEPS);
    let outputs = Box::new(move |outputs: &mut Vec<StepOutput>| {
        // Nobody listens: the bench gave up, and drops the engine next.
        let outputs = std::mem::take(outputs);
        let _ = sender.send(Step { at: Instant::now(), outputs });
    });
    let start = Instant::now();
    let engine =
        launch_engine(&model_args(args), args.batch, outputs).with_context(|| cannot_run(args))?;
    let load_s = start.elapsed().as_secs_f64();
    check_room(args, &engine.runner)?;
    let mut bench = Bench { runner: &engine.runner, steps, next_id: 1, rng: Rng::new(args.seed) };
    let (prompt_len, output_len) = WARM_UP;
    bench.run(args.batch, args.prompt_len.min(prompt_len), args.output_len.min(output_len))?;
    let mut runs = Vec::with_capacity(args.runs);
    for _ in 0..args.runs {
        runs.push(bench.run(args.batch, args.prompt_len, args.output_len)?);
    }
    engine.runner.drain();
    let result = result(args, &engine, load_s, &runs)?;
    engine.thread.join()?;
    if args.json {
        println!("{}", Value::Object(result));
    } else {
        print(&result, &engine.lines);
    }
    Ok(())
}

fn cannot_run(args: &OfflineArgs) -> String {
    let OfflineArgs { batch, prompt_len, output_len, .. } = args;
    format!("cannot run --batch {batch} of --prompt-len {prompt_len} and --output-len {output_len}")
}

fn model_args(args: &OfflineArgs) -> ModelArgs {
    ModelArgs {
        model: Some(args.model.clone()),
        chat_template: None,
        arch_spec: None,
        backend: BackendArg::Cpu,
        dtype: args.dtype,
        kv_cache_dtype: args.kv_cache_dtype,
        max_model_len: u32::try_from(args.prompt_len + args.output_len).ok(),
        threads: args.threads,
        block_size: BLOCK_SIZE,
        kv_cache_memory_bytes: None,
        disable_hybrid_kv_cache_manager: false,
        kv_offloading_size: None,
        kv_offload_dir: None,
        kv_offload_policy: OffloadPolicyArg::Lru,
        max_num_seqs: args.batch,
        max_num_batched_tokens: args.max_num_batched_tokens,
        no_enable_prefix_caching: false,
        scheduling_policy: PolicyArg::Fcfs,
        // A prompt goes as fast as it can: that is what is measured.
        prefill_slowdown: 0.0,
        stall_timeout: 0,
    }
}

/// With fewer blocks sequences would wait or be preempted, and something else measured.
fn check_room(args: &OfflineArgs, runner: &RunnerHandle) -> Result<()> {
    let one = runner.config().blocks_for(args.prompt_len + args.output_len);
    let needed = pool_blocks_for(args.batch, one);
    let num_blocks = runner.config().num_blocks;
    ensure!(
        needed <= num_blocks,
        "{}: that needs {needed} KV blocks, a quarter of the free memory holds {num_blocks}; \
         lower --batch",
        cannot_run(args)
    );
    Ok(())
}

struct Bench<'a> {
    runner: &'a RunnerHandle,
    steps: Receiver<Step>,
    next_id: u64,
    rng: Rng,
}

impl Bench<'_> {
    fn run(&mut self, batch: usize, prompt_len: usize, output_len: usize) -> Result<Run> {
        let vocab_size = self.runner.vocab_size();
        let prompts: Vec<_> = (0..batch).map(|_| self.rng.tokens(prompt_len, vocab_size)).collect();
        let prefill = self.generate(&prompts, 1)?;
        ensure!(
            prefill.num_cached_tokens == 0 || prompt_len < BLOCK_SIZE,
            "the prompts are not distinct: the vocabulary of {vocab_size} is too small for a bench"
        );
        let seconds = prefill.last_first().duration_since(prefill.start).as_secs_f64();
        let first_ms = |times: &Vec<Instant>| ms(times[0] - prefill.start);
        let ttft_ms = median(prefill.times.values().map(first_ms).collect());
        let decode = self.generate(&prompts, output_len as u32)?;
        // From here on every sequence decodes.
        let begin = decode.last_first();
        let mut gaps_ms = Vec::new();
        let mut num_tokens = 0;
        let mut end = begin;
        for times in decode.times.values() {
            let later = times.partition_point(|&at| at <= begin);
            // Or fewer sequences than were asked for would be measured.
            ensure!(
                later < times.len(),
                "--output-len `{output_len}` is over before the last of `{batch}` sequences has \
                 begun; raise it"
            );
            num_tokens += times.len() - later;
            end = end.max(times[times.len() - 1]);
            gaps_ms.extend(times[later - 1..].windows(2).map(|pair| ms(pair[1] - pair[0])));
        }
        let gaps_ms = sorted(gaps_ms);
        let gap = |p| percentile(&gaps_ms, p).context("no gap between two tokens was seen");
        Ok(Run {
            prefill_tok_per_s: (batch * prompt_len) as f64 / seconds,
            decode_tok_per_s: num_tokens as f64 / (end - begin).as_secs_f64(),
            ttft_ms: ttft_ms.context("no sequence has begun")?,
            itl_ms_p50: gap(0.5)?,
            itl_ms_p99: gap(0.99)?,
        })
    }

    /// All prompts at once, to exactly `max_tokens` each.
    fn generate(&mut self, prompts: &[Vec<u32>], max_tokens: u32) -> Result<Generated> {
        let params = SamplingParams {
            max_tokens,
            temperature: 0.0,
            ignore_eos: true,
            ..SamplingParams::default()
        };
        let start = Instant::now();
        let mut generated = Generated { start, times: HashMap::new(), num_cached_tokens: 0 };
        for prompt in prompts {
            let id = RequestId(self.next_id);
            self.next_id += 1;
            generated.times.insert(id, Vec::with_capacity(max_tokens as usize));
            let prompt = prompt.as_slice().into();
            let params = params.clone();
            self.runner.submit(GenerateRequest::new(id, prompt, params))?;
        }
        let mut num_running = prompts.len();
        while num_running > 0 {
            let step = self.steps.recv_timeout(STEP_TIMEOUT).map_err(|error| match error {
                RecvTimeoutError::Timeout => anyhow::anyhow!("no step within {STEP_TIMEOUT:?}"),
                RecvTimeoutError::Disconnected => anyhow::anyhow!("the engine stopped"),
            })?;
            for output in &step.outputs {
                num_running -= usize::from(generated.take(output, step.at)?);
            }
        }
        let complete = |times: &Vec<Instant>| times.len() == max_tokens as usize;
        ensure!(generated.times.values().all(complete), "a sequence ended early");
        Ok(generated)
    }
}

/// When each token of each sequence came.
struct Generated {
    start: Instant,
    times: HashMap<RequestId, Vec<Instant>>,
    num_cached_tokens: u32,
}

impl Generated {
    /// Whether that was the sequence's last one.
    fn take(&mut self, output: &StepOutput, at: Instant) -> Result<bool> {
        let times = self.times.get_mut(&output.request).context("a token of no request")?;
        if output.token.is_some() {
            times.push(at);
        }
        self.num_cached_tokens = self.num_cached_tokens.max(output.num_cached_tokens);
        match output.finish {
            None => Ok(false),
            Some(FinishReason::Length) => Ok(true),
            Some(_) => {
                bail!("a sequence failed: {}", output.error.as_deref().unwrap_or("ended early"))
            }
        }
    }

    /// When the last sequence had its first token.
    fn last_first(&self) -> Instant {
        self.times.values().map(|times| times[0]).max().unwrap_or(self.start)
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn result(
    args: &OfflineArgs,
    engine: &LaunchedEngine,
    load_s: f64,
    runs: &[Run],
) -> Result<Map<String, Value>> {
    let of = |value: fn(&Run) -> f64| median(runs.iter().map(value).collect());
    let dtype = match args.dtype {
        DTypeArg::Auto => "auto",
        DTypeArg::Float32 => "float32",
    };
    let kv_cache_dtype = match args.kv_cache_dtype {
        KvDTypeArg::Auto => "auto",
        KvDTypeArg::Float32 => "float32",
        KvDTypeArg::Bfloat16 => "bfloat16",
        KvDTypeArg::Float16 => "float16",
        KvDTypeArg::Int8 => "int8",
    };
    let result = json!({
        "kind": "offline",
        "version": env!("CARGO_PKG_VERSION"),
        "config": {
            "model": engine.name,
            "prompt_len": args.prompt_len,
            "output_len": args.output_len,
            "batch": args.batch,
            "runs": args.runs,
            "dtype": dtype,
            "kv_cache_dtype": kv_cache_dtype,
            "threads": args.threads,
            "max_num_batched_tokens": args.max_num_batched_tokens,
            "seed": args.seed,
        },
        "machine": machine::describe(),
        "prefill_tok_per_s": of(|run| run.prefill_tok_per_s),
        "decode_tok_per_s": of(|run| run.decode_tok_per_s),
        "ttft_ms": of(|run| run.ttft_ms),
        "itl_ms_p50": of(|run| run.itl_ms_p50),
        "itl_ms_p99": of(|run| run.itl_ms_p99),
        "peak_rss_mb": machine::peak_rss_mb().context("/proc/self/status has no VmHWM")?,
        "load_s": load_s,
    });
    match result {
        Value::Object(result) => Ok(result),
        _ => bail!("the result is no object"),
    }
}

fn print(result: &Map<String, Value>, lines: &[String]) {
    for line in lines {
        println!("{line}");
    }
    let machine = &result["machine"];
    println!("{}, {} cores", machine["cpu"].as_str().unwrap_or("?"), machine["cores"]);
    println!();
    for (name, value) in result.iter().filter_map(|(name, v)| Some((name, v.as_f64()?))) {
        print_row(name, value);
    }
}
