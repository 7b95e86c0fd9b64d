//! From flags to a running engine: load the model (or a script), size the KV cache, prepare the
//! backend, start the engine thread. Shared by `serve`, `run` and `bench`.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use tenon_backend::{Backend, KvDType, PrepareOptions, WeightMode};
use tenon_chat::template::{ChatTemplate, TemplateTokens};
use tenon_chat::worker::{Abort, OutputConfig, OutputWorkers};
use tenon_engine::config::{blocks_for, pool_blocks_for};
use tenon_engine::{EngineConfig, SchedulingPolicy, StepOutput, TierConfig, TierPolicy};
use tenon_model::ArchChoice;
use tenon_runner::handle::RunnerHandle;
use tenon_runner::load::{LoadOptions, LoadedModel, load_model};
use tenon_runner::tier::{DiskTier, KvTier, MemoryTier};
use tenon_runner::worker::{OutputSink, WorkerConfig, WorkerThread, spawn, spawn_with_tier};
use tenon_scripted::ScriptedBackend;
use tenon_text::Tokenizer;

use crate::args::{BackendArg, DTypeArg, KvDTypeArg, ModelArgs, OffloadPolicyArg, PolicyArg};
use crate::doctor::memory_available;
use crate::script::ScriptFile;

/// Longest sequence when no flag says so: longer ones cost memory that few need.
const DEFAULT_MAX_MODEL_LEN: usize = 8192;

/// Sequences of the longest length that the KV cache holds when no flag says so.
const DEFAULT_FULL_SEQUENCES: usize = 4;

/// Share of the free memory that the KV cache takes at most when no flag says so.
const MAX_MEMORY_SHARE: usize = 4;

/// Prompt tokens of one sequence in a step while others run.
const PREFILL_CHUNK: usize = 256;

/// Memory of a step's logits for log-probabilities of prompts.
const PROMPT_LOGITS_BYTES: usize = 16 << 20;

/// Requests that may wait in `run`, which sends one at a time.
const MAX_WAITING: usize = 4;

/// What an engine that works gets for its last step.
pub const MIN_END_TIMEOUT: Duration = Duration::from_secs(5);

/// A running engine with its text side.
pub struct Launched {
    /// Takes requests.
    pub runner: RunnerHandle,
    /// To be joined at the end.
    pub thread: WorkerThread,
    /// The text side of all streams.
    pub workers: Arc<OutputWorkers>,
    /// The vocabulary.
    pub tokenizer: Arc<Tokenizer>,
    /// None for a base model.
    pub template: Option<Arc<ChatTemplate>>,
    /// The file's name.
    pub name: String,
    /// For the start-up text: model, backend, cache.
    pub lines: Vec<String>,
}

/// What there is to run.
struct Source {
    tokenizer: Tokenizer,
    template: Option<String>,
    eos: Vec<u32>,
    name: String,
    max_position: usize,
    summary: String,
    run: Run,
}

enum Run {
    Model(Box<tenon_backend::Program>),
    Script(tenon_scripted::Script),
}

/// A running engine alone: token ids in, token ids out.
pub struct LaunchedEngine {
    /// Takes requests.
    pub runner: RunnerHandle,
    /// To be joined at the end.
    pub thread: WorkerThread,
    /// The file's name.
    pub name: String,
    /// Model, backend, cache.
    pub lines: Vec<String>,
}

/// Starts everything; returns once the warm-up step has run.
pub fn launch(
    args: &ModelArgs,
    scripted: Option<&Path>,
    output_workers: usize,
    max_waiting: Option<usize>,
) -> Result<Launched> {
    let spinner = spinner("loading");
    let source = match scripted {
        Some(script) => scripted_source(args, script)?,
        None => model_source(args)?,
    };
    spinner.set_message(format!("preparing {}", source.name));
    let max_waiting = max_waiting.unwrap_or(MAX_WAITING);
    let (prepared, text) = prepare_source(args, source, DEFAULT_FULL_SEQUENCES, max_waiting)?;
    let Prepared { config, backend, name, lines } = prepared;
    let template = text.template.as_deref().map(|source| template(source, &text.tokenizer));
    let template = template.transpose()?.map(Arc::new);
    let tokenizer = Arc::new(text.tokenizer);
    let started = start(config, backend, &tokenizer, text.eos, (output_workers, tier(args)?))?;
    started.thread.wait_ready()?;
    spinner.finish_and_clear();
    let Started { runner, thread, workers } = started;
    Ok(Launched { runner, thread, workers, tokenizer, template, name, lines })
}

/// Ends the engine when its requests have ended. It gets `timeout` for that, or nothing once it
/// has failed: a step that is stuck is left to the end of the process, and the error says so.
pub fn end(runner: &RunnerHandle, thread: WorkerThread, timeout: Duration) -> Result<()> {
    runner.drain();
    let timeout = if runner.is_healthy() { timeout.max(MIN_END_TIMEOUT) } else { Duration::ZERO };
    Ok(thread.join_within(timeout)?)
}

/// Starts the engine without its text side, with room in the KV cache for `num_sequences` of the
/// longest length; `outputs` gets what each step generated. Returns once the warm-up step has run.
pub fn launch_engine(
    args: &ModelArgs,
    num_sequences: usize,
    outputs: OutputSink,
) -> Result<LaunchedEngine> {
    let spinner = spinner("loading");
    let source = model_source(args)?;
    spinner.set_message(format!("preparing {}", source.name));
    let (prepared, _) = prepare_source(args, source, num_sequences, num_sequences)?;
    let Prepared { config, backend, name, lines } = prepared;
    let (runner, thread) = spawn(config, backend, outputs, Box::new(|_| {}))?;
    thread.wait_ready()?;
    spinner.finish_and_clear();
    Ok(LaunchedEngine { runner, thread, name, lines })
}

/// What an engine thread starts with.
struct Prepared {
    config: WorkerConfig,
    backend: Box<dyn Backend>,
    name: String,
    lines: Vec<String>,
}

/// What the text side starts with.
struct TextSide {
    tokenizer: Tokenizer,
    template: Option<String>,
    eos: Vec<u32>,
}

fn prepare_source(
    args: &ModelArgs,
    source: Source,
    full_sequences: usize,
    max_waiting: usize,
) -> Result<(Prepared, TextSide)> {
    let sizes = Sizes::new(args, &source, full_sequences)?;
    let vocab_size = match &source.run {
        Run::Model(program) => program.vocab_size(),
        Run::Script(script) => script.token_bytes.len(),
    };
    let backend = prepare(args, source.run, &sizes)?;
    let mut lines = vec![source.summary, backend.describe()];
    lines.push(sizes.describe(args.block_size));
    let mut hash_key = [0u8; 16];
    getrandom::fill(&mut hash_key).map_err(|error| anyhow::anyhow!("no randomness: {error}"))?;
    let engine = EngineConfig {
        num_blocks: sizes.num_blocks,
        block_size: args.block_size,
        max_num_seqs: args.max_num_seqs,
        max_step_tokens: args.max_num_batched_tokens,
        max_prefill_chunk: PREFILL_CHUNK.min(args.max_num_batched_tokens),
        max_prompt_logits_rows: max_prompt_logits_rows(vocab_size),
        policy: match args.scheduling_policy {
            PolicyArg::Fcfs => SchedulingPolicy::Fcfs,
            PolicyArg::Priority => SchedulingPolicy::Priority,
            PolicyArg::Fair => SchedulingPolicy::FairShare,
        },
        max_model_len: sizes.max_model_len,
        max_waiting,
        kv_groups: sizes.kv_groups.clone(),
        tier: sizes.tier,
        prefix_caching: !args.no_enable_prefix_caching,
        hash_key,
        eos_token_ids: source.eos.clone(),
    };
    let config = WorkerConfig {
        prefill_slowdown: args.prefill_slowdown,
        stall_timeout: (args.stall_timeout > 0).then(|| Duration::from_secs(args.stall_timeout)),
        ..WorkerConfig::new(engine, vocab_size as u32)
    };
    let text = TextSide { tokenizer: source.tokenizer, template: source.template, eos: source.eos };
    Ok((Prepared { config, backend, name: source.name, lines }, text))
}

/// Logits rows of a step for log-probabilities of prompts: what fits into the budget, within
/// reason.
fn max_prompt_logits_rows(vocab_size: usize) -> usize {
    (PROMPT_LOGITS_BYTES / (size_of::<f32>() * vocab_size.max(1))).clamp(8, 256)
}

struct Started {
    runner: RunnerHandle,
    thread: WorkerThread,
    workers: Arc<OutputWorkers>,
}

/// The engine thread and the output workers know each other: outputs one way, aborts the other.
fn start(
    config: WorkerConfig,
    backend: Box<dyn Backend>,
    tokenizer: &Arc<Tokenizer>,
    eos: Vec<u32>,
    (output_workers, tier): (usize, Option<Box<dyn KvTier>>),
) -> Result<Started> {
    let runner_slot: Arc<OnceLock<RunnerHandle>> = Arc::default();
    let for_aborts = runner_slot.clone();
    let on_abort = Arc::new(move |abort| match (for_aborts.get(), abort) {
        (Some(runner), Abort::Request(id)) => RunnerHandle::abort(runner, id),
        (Some(runner), Abort::Sequence(id, index)) => runner.abort_sequence(id, index),
        (None, _) => {}
    });
    let output = OutputConfig { num_workers: output_workers, ..OutputConfig::default() };
    let workers = OutputWorkers::spawn(output, tokenizer.clone(), eos, on_abort)?;
    let workers = Arc::new(workers);
    let sink = workers.clone();
    let outputs = Box::new(move |batch: &mut Vec<StepOutput>| sink.deliver(batch));
    let failing = workers.clone();
    let on_stuck = Box::new(move |reason: &str| {
        failing.fail_all(&format!("the engine stopped: {reason}"));
    });
    let (runner, thread) = spawn_with_tier(config, backend, outputs, on_stuck, tier)?;
    let _ = runner_slot.set(runner.clone());
    Ok(Started { runner, thread, workers })
}

fn model_source(args: &ModelArgs) -> Result<Source> {
    let path = args.model.as_deref().context("no MODEL given: a GGUF file or a directory")?;
    let LoadedModel {
        program,
        tokenizer,
        chat_template,
        eos_token_ids,
        name,
        max_model_len,
        summary,
        ..
    } = load(args, path)?;
    Ok(Source {
        tokenizer,
        template: chat_template,
        eos: eos_token_ids,
        name,
        max_position: max_model_len,
        summary,
        run: Run::Model(Box::new(program)),
    })
}

fn load(args: &ModelArgs, path: &Path) -> Result<LoadedModel> {
    let arch_override = args.arch_spec.clone().map(ArchChoice::File);
    let options = LoadOptions { arch_override, chat_template_path: args.chat_template.clone() };
    load_model(path, &options).with_context(|| format!("cannot load `{}`", path.display()))
}

/// A script brings its own vocabulary, or uses that of MODEL.
fn scripted_source(args: &ModelArgs, path: &Path) -> Result<Source> {
    let file = ScriptFile::read(path)?;
    let (tokenizer, template, ends) = match &args.model {
        Some(model) => {
            let loaded = load(args, model)?;
            (loaded.tokenizer, loaded.chat_template, loaded.eos_token_ids)
        }
        None => {
            let tokenizer = file.tokenizer()?;
            let eos = tokenizer.token_id(&file.header.eos).context("`eos` is no token")?;
            if let Some(spec) = &args.arch_spec {
                bail!("--arch-spec is `{}`, but no MODEL is given; leave it out", spec.display());
            }
            let template = match &args.chat_template {
                Some(path) => std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read the template `{}`", path.display()))?,
                None => file.header.chat_template.clone(),
            };
            (tokenizer, Some(template), vec![eos])
        }
    };
    let eos = *ends.first().context("the vocabulary has no end-of-sequence token")?;
    let script = file.script(&tokenizer, eos)?;
    let summary = format!("scripted: {} replies from {}", script.replies.len(), path.display());
    Ok(Source {
        tokenizer,
        template,
        eos: ends,
        name: "scripted".into(),
        max_position: file.header.max_model_len as usize,
        summary,
        run: Run::Script(script),
    })
}

/// How long sequences may be and how many blocks there are.
struct Sizes {
    max_model_len: usize,
    num_blocks: usize,
    kv_dtype: KvDType,
    weights: WeightMode,
    // [num_groups] windows
    kv_groups: Vec<Option<u32>>,
    tier: Option<TierConfig>,
}

impl Sizes {
    fn describe(&self, block_size: usize) -> String {
        let Sizes { num_blocks, max_model_len, .. } = self;
        match self.kv_groups.len() {
            1 => format!(
                "{num_blocks} KV blocks of {block_size} tokens: {} tokens in all, {max_model_len} \
                 per sequence",
                num_blocks * block_size,
            ),
            groups => format!(
                "{num_blocks} KV blocks of {block_size} tokens for {groups} groups of layers, \
                 {max_model_len} tokens per sequence",
            ),
        }
    }

    fn new(args: &ModelArgs, source: &Source, full_sequences: usize) -> Result<Sizes> {
        let asked = args.max_model_len.map(|len| len as usize);
        let max_model_len = asked.unwrap_or(source.max_position.min(DEFAULT_MAX_MODEL_LEN));
        if max_model_len > source.max_position {
            bail!(
                "--max-model-len is `{max_model_len}`, but the model was made for {} tokens",
                source.max_position
            );
        }
        let weights = match args.dtype {
            DTypeArg::Auto => WeightMode::Native,
            DTypeArg::Float32 => WeightMode::Float32,
        };
        let kv_dtype = match (args.kv_cache_dtype, weights) {
            (KvDTypeArg::Auto, WeightMode::Float32) | (KvDTypeArg::Float32, _) => KvDType::F32,
            (KvDTypeArg::Auto | KvDTypeArg::Bfloat16, _) => KvDType::BF16,
            (KvDTypeArg::Float16, _) => KvDType::F16,
            (KvDTypeArg::Int8, _) => KvDType::Int8,
        };
        let (per_token, kv_groups) = match &source.run {
            Run::Model(program) => {
                let layout = program.kv_layout(is_hybrid(args));
                let windows = layout.groups.iter().map(|g| g.window).collect();
                (program.kv_bytes_per_slot(kv_dtype, &layout), windows)
            }
            Run::Script(_) => (size_of::<Option<u32>>(), vec![None]),
        };
        let per_block = per_token * args.block_size;
        let max_step_tokens = args.max_num_batched_tokens;
        let per_sequence = blocks_for(&kv_groups, max_model_len, args.block_size, max_step_tokens);
        let num_blocks = match args.kv_cache_memory_bytes {
            Some(bytes) => {
                let free = memory_available()?;
                ensure!(
                    bytes <= free,
                    "--kv-cache-memory-bytes is `{bytes}`, but {free} bytes are free; lower it"
                );
                bytes / per_block
            }
            None => {
                let most = memory_available()? / MAX_MEMORY_SHARE / per_block;
                pool_blocks_for(full_sequences, per_sequence).min(most)
            }
        };
        if num_blocks < per_sequence {
            bail!(
                "one sequence of {max_model_len} tokens needs {:.1} MB of KV cache, there is room \
                 for {:.1} MB; use --max-model-len {}, or raise --kv-cache-memory-bytes",
                (per_sequence * per_block) as f64 / 1e6,
                (num_blocks * per_block) as f64 / 1e6,
                longest(&kv_groups, num_blocks, args, max_model_len),
            );
        }
        let free = memory_available()?.saturating_sub(num_blocks * per_block);
        let tier = tier_config(args, per_block, free)?;
        Ok(Sizes { max_model_len, num_blocks, kv_dtype, weights, kv_groups, tier })
    }
}

/// How many blocks are kept on, where `free` bytes of memory are free beside the KV cache.
fn tier_config(args: &ModelArgs, per_block: usize, free: usize) -> Result<Option<TierConfig>> {
    let Some(gib) = args.kv_offloading_size else { return Ok(None) };
    // As a float it saturates.
    let bytes = (gib * f64::from(1 << 30)) as usize;
    ensure!(
        args.kv_offload_dir.is_some() || bytes <= free,
        "--kv-offloading-size is `{gib}`, but {:.1} GiB of memory are free beside the KV cache; \
         lower it, or give --kv-offload-dir",
        free as f64 / f64::from(1 << 30),
    );
    let policy = match args.kv_offload_policy {
        OffloadPolicyArg::Lru => TierPolicy::Lru,
        OffloadPolicyArg::Arc => TierPolicy::Arc,
    };
    Ok(Some(TierConfig { num_blocks: (bytes / per_block).max(1), policy }))
}

/// The longest sequence, below `too_long`, that so many blocks hold.
fn longest(groups: &[Option<u32>], num_blocks: usize, args: &ModelArgs, too_long: usize) -> usize {
    let fits = |len: usize| {
        blocks_for(groups, len, args.block_size, args.max_num_batched_tokens) <= num_blocks
    };
    let (mut low, mut high) = (0, too_long);
    while high - low > 1 {
        let len = low.midpoint(high);
        if fits(len) { low = len } else { high = len }
    }
    low
}

/// Windowed layers get block tables of their own. Blocks that go to a tier and come back are those
/// of one table.
fn is_hybrid(args: &ModelArgs) -> bool {
    !args.disable_hybrid_kv_cache_manager && args.kv_offloading_size.is_none()
}

/// Where evicted blocks are kept on.
fn tier(args: &ModelArgs) -> Result<Option<Box<dyn KvTier>>> {
    if args.kv_offloading_size.is_none() {
        return Ok(None);
    }
    Ok(Some(match &args.kv_offload_dir {
        None => Box::new(MemoryTier::default()),
        Some(dir) => Box::new(
            DiskTier::open(dir).with_context(|| format!("--kv-offload-dir `{}`", dir.display()))?,
        ),
    }))
}

fn prepare(args: &ModelArgs, run: Run, sizes: &Sizes) -> Result<Box<dyn Backend>> {
    let program = match run {
        Run::Script(script) => {
            let backend = ScriptedBackend::new(script, sizes.num_blocks, args.block_size);
            return Ok(Box::new(backend));
        }
        Run::Model(program) => *program,
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let options = PrepareOptions {
        weights: sizes.weights,
        kv_dtype: sizes.kv_dtype,
        hybrid_kv: is_hybrid(args),
        num_blocks: sizes.num_blocks,
        block_size: args.block_size,
        max_step_tokens: args.max_num_batched_tokens,
        max_logits_rows: args.max_num_seqs + max_prompt_logits_rows(program.vocab_size()),
        num_threads: args.threads.unwrap_or(cores),
    };
    Ok(match args.backend {
        BackendArg::Cpu => Box::new(tenon_cpu::CpuBackend::prepare(program, &options)?),
        BackendArg::Reference => {
            Box::new(tenon_reference::ReferenceBackend::prepare(program, &options)?)
        }
    })
}

fn template(source: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
    let text = |id: Option<u32>| {
        let bytes = tokenizer.token_bytes(id?)?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    let tokens = TemplateTokens {
        bos: text(tokenizer.bos()),
        eos: text(tokenizer.eos()),
        unk: text(tokenizer.unk()),
        pad: text(tokenizer.pad()),
        others: Vec::new(),
    };
    ChatTemplate::new(source, tokens).context("the chat template is broken (--chat-template)")
}

fn spinner(message: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}")
        .expect("the template is a constant");
    let spinner = ProgressBar::new_spinner().with_style(style).with_message(message.to_owned());
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Args {
        #[command(flatten)]
        model: ModelArgs,
    }

    #[test]
    fn a_tier_in_memory_is_within_what_is_free() {
        let check = |flags: &[&str], free: usize| {
            let args = Args::try_parse_from([&["tenon", "m"], flags].concat()).unwrap();
            let tier = tier_config(&args.model, 1 << 20, free);
            tier.map(|tier| tier.map(|t| t.num_blocks)).map_err(|error| error.to_string())
        };
        assert_eq!(check(&[], 0), Ok(None));
        assert_eq!(check(&["--kv-offloading-size", "2"], 2 << 30), Ok(Some(2048)));
        let error = check(&["--kv-offloading-size", "2"], (2 << 30) - 1).unwrap_err();
        assert!(error.contains("--kv-offloading-size is `2`"), "{error}");
        let on_disk = ["--kv-offloading-size", "65536", "--kv-offload-dir", "d"];
        assert_eq!(check(&on_disk, 0), Ok(Some(1024 * 65_536)));
    }
}
