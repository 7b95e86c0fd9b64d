//! The flags of `tenon bench`.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};

use crate::args::{DTypeArg, KvDTypeArg, between};

use super::goodput::Objective;

/// `tenon bench …`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure prefill and decode of a model in this process, without a server
    Offline(OfflineArgs),
    /// Measure a running server with streamed completions
    Serve(ServeBenchArgs),
    /// Compare two saved results; fails if the second one is worse
    Compare(CompareArgs),
}

/// `tenon bench offline`.
#[derive(Debug, Clone, Args)]
pub struct OfflineArgs {
    /// A GGUF file or a directory of safetensors
    #[arg(long, value_name = "MODEL", env = "TENON_MODEL")]
    pub model: PathBuf,
    /// Tokens of each prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = between(1, 1 << 20))]
    pub prompt_len: usize,
    /// Output tokens of each sequence
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = between(2, 1 << 20))]
    pub output_len: usize,
    /// Sequences at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = between(1, 1024))]
    pub batch: usize,
    /// Measured runs; medians over them are reported
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = between(1, 1000))]
    pub runs: usize,
    /// How weights are computed with
    #[arg(long, value_enum, default_value = "auto")]
    pub dtype: DTypeArg,
    /// How keys and values are kept
    #[arg(long, value_enum, default_value = "auto")]
    pub kv_cache_dtype: KvDTypeArg,
    /// Worker threads [default: the cores that this process may use]
    #[arg(long, value_name = "N", value_parser = between(1, 1024))]
    pub threads: Option<usize>,
    /// Most tokens in one step, prefill and decode together
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = between(1, 1 << 20))]
    pub max_num_batched_tokens: usize,
    /// Same seed, same prompts
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

/// `tenon bench serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeBenchArgs {
    /// The server
    #[arg(long, default_value = "http://127.0.0.1:8000", env = "TENON_URL")]
    pub url: String,
    /// The name that the server gives the model
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub model: String,
    /// Its API key
    #[arg(long, value_name = "KEY", env = "TENON_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Requests in all
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = between(1, 100_000))]
    pub num_prompts: usize,
    /// Most requests at once
    #[arg(long, value_name = "N", value_parser = between(1, 1024))]
    pub concurrency: usize,
    /// Requests per second, Poisson arrivals [default: each as soon as another one ended]
    #[arg(long, value_name = "R", value_parser = rate)]
    pub request_rate: Option<f64>,
    /// Tokens of each prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 256, value_parser = between(1, 1 << 20))]
    pub input_len: usize,
    /// Output tokens of each request
    #[arg(long, value_name = "TOKENS", default_value_t = 64, value_parser = between(1, 1 << 20))]
    pub output_len: usize,
    /// Of each prompt's tokens, this many are the same in all
    #[arg(long, value_name = "TOKENS", default_value_t = 0, value_parser = between(0, 1 << 20))]
    pub shared_prefix_len: usize,
    /// The token ids of prompts are below this
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = between(2, 1 << 31))]
    pub vocab_size: usize,
    /// Count the requests that meet these, per second: `ttft:MS`, `tpot:MS`, `e2el:MS`
    #[arg(long, value_name = "OBJECTIVE", num_args = 1.., value_parser = Objective::parse)]
    pub goodput: Vec<Objective>,
    /// Same seed, same prompts and arrivals
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Write the result here
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a report with charts here
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// `tenon bench compare`.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// A result as `--json` gives it
    #[arg(value_name = "A.json")]
    pub before: PathBuf,
    /// Another one of the same kind
    #[arg(value_name = "B.json")]
    pub after: PathBuf,
    /// How much worse B may be, as a share of A
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = tolerance)]
    pub tolerance: f64,
}

fn rate(text: &str) -> Result<f64, String> {
    in_range(text, 1e-3, 1e6)
}

fn tolerance(text: &str) -> Result<f64, String> {
    in_range(text, 0.0, 10.0)
}

fn in_range(text: &str, low: f64, high: f64) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (low..=high).contains(value));
    value.ok_or_else(|| format!("give a number from {low} to {high}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use crate::args::Cli;

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let offline = ["offline", "--model", "m"];
        let serve = ["serve", "--model", "m", "--concurrency", "1"];
        let compare = ["compare", "a", "b"];
        for (verb, flag, value) in [
            (&offline[..], "--prompt-len", "0"),
            (&offline, "--output-len", "1"),
            (&offline, "--batch", "0"),
            (&offline, "--runs", "1001"),
            (&offline, "--threads", "0"),
            (&serve, "--num-prompts", "0"),
            (&serve, "--request-rate", "0"),
            (&serve, "--request-rate", "NaN"),
            (&serve, "--input-len", "0"),
            (&serve, "--vocab-size", "1"),
            (&serve, "--goodput", "itl:5"),
            (&compare, "--tolerance", "NaN"),
            (&compare, "--tolerance", "inf"),
        ] {
            let line = ["tenon", "bench"].iter().chain(verb).copied();
            let error = Cli::try_parse_from(line.clone().chain([flag, value])).unwrap_err();
            assert!(error.to_string().contains(flag), "{flag} {value}: {error}");
            Cli::try_parse_from(line).unwrap();
        }
    }
}
