//! The command line: one tree of flags. Names follow vLLM where the meaning is the same; each flag
//! of `serve` that takes a value has an environment variable `TENON_…`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::builder::{NonEmptyStringValueParser, RangedU64ValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};

use crate::bench::BenchCommand;

/// Serve language models; tool-call and reasoning parsers are sandboxed components.
#[derive(Debug, Parser)]
#[command(name = "tenon", version, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model behind the OpenAI API
    Serve(Box<ServeArgs>),
    /// Chat with a model in the terminal
    Run(Box<RunArgs>),
    /// Build, test, upload and list extensions
    #[command(subcommand)]
    Extension(ExtensionCommand),
    /// Check this machine and say what Tenon would use
    Doctor(DoctorArgs),
    /// Measure a model or a server; compare results
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Compile one component: standard input to standard output (internal)
    #[command(name = "__compile", hide = true)]
    Compile,
}

/// How weights are computed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DTypeArg {
    /// As stored, with int8 or bf16 activations where that is faster
    Auto,
    /// Weights dequantized to f32, every product and sum in f32
    Float32,
}

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvDTypeArg {
    /// bf16; f32 with `--dtype float32`
    Auto,
    /// f32
    Float32,
    /// bf16
    Bfloat16,
    /// f16
    Float16,
    /// 8-bit integers with a scale per token and head
    Int8,
}

/// Which implementation computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendArg {
    /// AVX-512, AVX2 or portable kernels, chosen at start
    Cpu,
    /// The scalar oracle: slow, for comparison
    Reference,
}

/// Who comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PolicyArg {
    /// By arrival
    Fcfs,
    /// By the requests' `priority`, lower first
    Priority,
    /// The API key that was served least, by `--tenant-weights`
    Fair,
}

/// Which evicted blocks a full tier gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OffloadPolicyArg {
    /// The least recently used
    Lru,
    /// Recency and frequency, balanced by what is missed
    Arc,
}

/// The model and how it runs.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// A GGUF file or a directory of safetensors
    #[arg(value_name = "MODEL", env = "TENON_MODEL")]
    pub model: Option<PathBuf>,
    /// Jinja file that replaces the model's chat template
    #[arg(long, value_name = "FILE", env = "TENON_CHAT_TEMPLATE")]
    pub chat_template: Option<PathBuf>,
    /// ArchSpec TOML for an architecture that is not built in
    #[arg(long, value_name = "FILE", env = "TENON_ARCH_SPEC")]
    pub arch_spec: Option<PathBuf>,
    /// Which implementation computes
    #[arg(long, value_enum, default_value = "cpu", env = "TENON_BACKEND")]
    pub backend: BackendArg,
    /// How weights are computed with
    #[arg(long, value_enum, default_value = "auto", env = "TENON_DTYPE")]
    pub dtype: DTypeArg,
    /// How keys and values are kept
    #[arg(long, value_enum, default_value = "auto", env = "TENON_KV_CACHE_DTYPE")]
    pub kv_cache_dtype: KvDTypeArg,
    /// Longest sequence, prompt and output together [default: the model's own, at most 8192]
    #[arg(long, value_name = "TOKENS", env = "TENON_MAX_MODEL_LEN")]
    #[arg(value_parser = value_parser!(u32).range(1..))]
    pub max_model_len: Option<u32>,
    /// Worker threads [default: the cores that this process may use]
    #[arg(long, value_name = "N", env = "TENON_THREADS", value_parser = between(1, 1024))]
    pub threads: Option<usize>,
    /// KV slots in a block
    #[arg(long, value_name = "N", default_value_t = 16, env = "TENON_BLOCK_SIZE")]
    #[arg(value_parser = between(1, 4096))]
    pub block_size: usize,
    /// Memory for keys and values [default: room for 4 sequences of the longest length, at most
    /// a quarter of the free memory]
    #[arg(long, value_name = "BYTES", env = "TENON_KV_CACHE_MEMORY_BYTES")]
    pub kv_cache_memory_bytes: Option<usize>,
    /// Keep all keys and values of layers with a sliding window, not just what it still sees
    #[arg(long)]
    pub disable_hybrid_kv_cache_manager: bool,
    /// Most sequences that run at once
    #[arg(long, value_name = "N", default_value_t = 64, env = "TENON_MAX_NUM_SEQS")]
    #[arg(value_parser = between(1, 1 << 16))]
    pub max_num_seqs: usize,
    /// Most tokens in one step, prefill and decode together
    #[arg(long, value_name = "N", default_value_t = 512, env = "TENON_MAX_NUM_BATCHED_TOKENS")]
    #[arg(value_parser = between(1, 1 << 20))]
    pub max_num_batched_tokens: usize,
    /// Who comes first
    #[arg(long, value_enum, default_value = "fcfs", env = "TENON_SCHEDULING_POLICY")]
    pub scheduling_policy: PolicyArg,
    /// How many times as long the next token of a running stream may take while a prompt is being
    /// computed; 0: any
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0, env = "TENON_PREFILL_SLOWDOWN")]
    #[arg(value_parser = slowdown)]
    pub prefill_slowdown: f64,
    /// Seconds after which a step that does not end makes the server unhealthy; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 120, env = "TENON_STALL_TIMEOUT")]
    pub stall_timeout: u64,
    /// Keep evicted KV blocks on, up to this size in GiB; in memory, or in `--kv-offload-dir`
    #[arg(long, value_name = "GIB", env = "TENON_KV_OFFLOADING_SIZE", value_parser = gibibytes)]
    pub kv_offloading_size: Option<f64>,
    /// Directory of its own for evicted KV blocks: locked while in use, its blocks removed after
    #[arg(long, value_name = "DIR", env = "TENON_KV_OFFLOAD_DIR", requires = "kv_offloading_size")]
    pub kv_offload_dir: Option<PathBuf>,
    /// Which evicted blocks go when that is full
    #[arg(long, value_enum, default_value = "lru", env = "TENON_KV_OFFLOAD_POLICY")]
    pub kv_offload_policy: OffloadPolicyArg,
    /// Do not reuse the keys and values of equal prompt beginnings
    #[arg(long)]
    pub no_enable_prefix_caching: bool,
}

/// `tenon serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// The model and how it runs.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Replay the token sequences of FILE instead of running a model (MODEL then only gives the
    /// tokenizer and the chat template, and may be left out)
    #[arg(long, value_name = "FILE", env = "TENON_SCRIPTED")]
    pub scripted: Option<PathBuf>,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1", env = "TENON_HOST")]
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000, env = "TENON_PORT")]
    pub port: u16,
    /// The name that clients use [default: the file's]
    #[arg(long, value_name = "NAME", env = "TENON_SERVED_MODEL_NAME")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub served_model_name: Option<String>,
    /// Clients must send this key; may be given several times
    // An empty one is refused: the server of a script whose variable is unset would be open.
    #[arg(long, value_name = "KEY", env = "TENON_API_KEY", hide_env_values = true)]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub api_key: Vec<String>,
    /// Shares of the API keys under `--scheduling-policy fair`, in their order [default: 1 each]
    #[arg(long, value_name = "N,…", value_delimiter = ',', env = "TENON_TENANT_WEIGHTS")]
    #[arg(value_parser = value_parser!(u32).range(1..=65_536))]
    pub tenant_weights: Vec<u32>,
    /// Seconds that a request may take before it ends with an error; a client may set less with
    /// the header `x-request-timeout-ms` [default: any]
    #[arg(long, value_name = "SECONDS", env = "TENON_REQUEST_TIMEOUT")]
    #[arg(value_parser = value_parser!(u64).range(1..))]
    pub request_timeout: Option<u64>,
    /// Key for the extension routes; without it they answer 403
    #[arg(long, value_name = "KEY", env = "TENON_ADMIN_KEY", hide_env_values = true)]
    pub admin_key: Option<String>,
    /// `/metrics` needs the API key too
    #[arg(long)]
    pub metrics_auth: bool,
    /// Parser of tool calls: a name, `auto` or `none`
    #[arg(long, value_name = "NAME", default_value = "auto", env = "TENON_TOOL_CALL_PARSER")]
    pub tool_call_parser: String,
    /// Parser of reasoning: a name, `auto` or `none`
    #[arg(long, value_name = "NAME", default_value = "auto", env = "TENON_REASONING_PARSER")]
    pub reasoning_parser: String,
    /// Take tools even if the model's chat template ignores them
    #[arg(long)]
    pub allow_ignored_tools: bool,
    /// Where uploaded extensions are kept [default: in memory until the server stops]
    #[arg(long, value_name = "DIR", env = "TENON_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// Where compiled components are cached [default: ~/.cache/tenon/components]
    #[arg(long, value_name = "DIR", env = "TENON_COMPONENT_CACHE_DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Most requests that wait; more are answered 429
    #[arg(long, value_name = "N", default_value_t = 256, env = "TENON_MAX_QUEUED_REQUESTS")]
    #[arg(value_parser = between(0, 1 << 20))]
    pub max_queued_requests: usize,
    /// Largest request body
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20, env = "TENON_MAX_BODY_BYTES")]
    #[arg(value_parser = between(1, 1 << 32))]
    pub max_body_bytes: usize,
    /// Threads that turn tokens into text and run parsers
    #[arg(long, value_name = "N", default_value_t = 2, env = "TENON_OUTPUT_WORKERS")]
    #[arg(value_parser = between(1, 256))]
    pub output_workers: usize,
    /// Seconds that running requests get on SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30, env = "TENON_SHUTDOWN_TIMEOUT")]
    pub shutdown_timeout: u64,
}

/// `tenon run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// The model and how it runs.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Answer this prompt and exit
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// 0 is greedy
    #[arg(long, default_value_t = 0.7, allow_negative_numbers = true)]
    pub temperature: f32,
    /// Longest answer
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    pub max_tokens: u32,
    /// Same seed, same answer
    #[arg(long)]
    pub seed: Option<u64>,
}

/// `tenon extension …`.
#[derive(Debug, Subcommand)]
pub enum ExtensionCommand {
    /// Compile a parser crate to a component
    Build {
        /// The crate's directory
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// Where to write [default: extension/NAME.wasm in cargo's target directory]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Run conformance cases through a component, for every cut of their text
    Test {
        /// A component, or the name of a built-in parser [default: the built-in parser that each
        /// case's family names]
        component: Option<String>,
        /// JSON Lines in the schema of tests/cases/formats.jsonl
        #[arg(long, value_name = "FILE")]
        cases: PathBuf,
        /// Only cases of this family [default: those that the component's name or aliases match, or
        /// all without a component]
        #[arg(long)]
        family: Option<String>,
    },
    /// Upload a component to a running server
    Push {
        /// The component
        component: PathBuf,
        /// Its name there [default: what it calls itself]
        #[arg(long)]
        name: Option<String>,
        /// The server and the key.
        #[command(flatten)]
        server: ServerArgs,
        /// Also make it the default parser of this served model
        #[arg(long, value_name = "MODEL")]
        bind: Option<String>,
    },
    /// List what a running server has
    List {
        /// The server and the key.
        #[command(flatten)]
        server: ServerArgs,
    },
}

/// Which server, and with which key.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// The server
    #[arg(long, default_value = "http://127.0.0.1:8000", env = "TENON_URL")]
    pub url: String,
    /// Its admin key
    #[arg(long, value_name = "KEY", env = "TENON_ADMIN_KEY", hide_env_values = true)]
    pub admin_key: Option<String>,
}

/// `tenon doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

/// A size above nothing.
fn gibibytes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(size) if size > 0.0 && size <= 65_536.0 => Ok(size),
        _ => Err("use a size in GiB, above 0 and up to 65536".into()),
    }
}

/// A factor that a step may slow down by.
fn slowdown(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor == 0.0 || (1.1..=1e6).contains(&factor) => Ok(factor),
        _ => Err("use 0, or a factor from 1.1 to 1000000".into()),
    }
}

/// A number from `low` to `high`: clap's refusal names the flag and both.
pub fn between(low: u64, high: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(low..=high)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn flags_out_of_range_are_refused_by_name() {
        let max = u64::MAX.to_string();
        for (flag, value) in [
            ("--block-size", "0"),
            ("--block-size", &max),
            ("--threads", "0"),
            ("--max-model-len", "0"),
            ("--max-num-seqs", "0"),
            ("--max-num-batched-tokens", "0"),
            ("--max-queued-requests", &max),
            ("--max-body-bytes", "0"),
            ("--output-workers", "0"),
            ("--output-workers", "100000"),
            ("--served-model-name", ""),
            ("--api-key", ""),
        ] {
            let error = Cli::try_parse_from(["tenon", "serve", "m", flag, value]).unwrap_err();
            assert!(error.to_string().contains(flag), "{flag} {value}: {error}");
        }
        Cli::try_parse_from(["tenon", "serve", "m", "--max-queued-requests", "0"]).unwrap();
    }
}
