//! `tenon bench serve`: what clients of a server see. Names and definitions are those of
//! `vllm bench serve`: TTFT from sending to the first chunk, ITL between chunks, TPOT without the
//! first token.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

use super::args::ServeBenchArgs;
use super::stream::{Target, Timing};
use super::summary::add_latency;
use super::{goodput, html, load, machine, print_row};
use crate::new_file::NewFile;

/// What the table calls the JSON's keys.
const LABELS: &[(&str, &str)] = &[
    ("completed", "Successful requests"),
    ("failed", "Failed requests"),
    ("duration", "Benchmark duration (s)"),
    ("total_input_tokens", "Total input tokens"),
    ("total_output_tokens", "Total generated tokens"),
    ("request_throughput", "Request throughput (req/s)"),
    ("request_goodput", "Request goodput (req/s)"),
    ("output_throughput", "Output token throughput (tok/s)"),
    ("max_output_tokens_per_s", "Peak output throughput (tok/s)"),
    ("max_concurrent_requests", "Peak concurrent requests"),
    ("total_token_throughput", "Total token throughput (tok/s)"),
];

/// The per-request figures: the part of the key, and what the table says.
const LATENCIES: &[(&str, &str)] =
    &[("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "E2EL")];

/// Per-request figures in milliseconds, and tokens over time.
#[derive(Debug, Default)]
pub struct Series {
    /// One per request.
    pub ttft_ms: Vec<f64>,
    /// One per request with at least two output tokens.
    pub tpot_ms: Vec<f64>,
    /// One per chunk after the first.
    pub itl_ms: Vec<f64>,
    /// One per request.
    pub e2el_ms: Vec<f64>,
    /// Output tokens in each second of the bench.
    pub tokens_per_second: Vec<f64>,
}

/// Measures, prints, writes the files.
pub fn run(args: &ServeBenchArgs) -> Result<()> {
    ensure!(
        args.shared_prefix_len <= args.input_len,
        "--shared-prefix-len is `{}`, longer than --input-len `{}`; lower it",
        args.shared_prefix_len,
        args.input_len
    );
    let target = Target::new(&args.url, &args.model, args.api_key.as_deref(), args.concurrency)?;
    // Before the load: a report that cannot be written must not cost a bench.
    let json_file = args.json.as_deref().map(|path| open(path, "--json")).transpose()?;
    let html_file = args.html.as_deref().map(|path| open(path, "--html")).transpose()?;
    let outcome = load::run(args, &target);
    if outcome.timings.is_empty()
        && let Some(error) = outcome.error
    {
        return Err(error.context(format!("all {} requests failed", outcome.num_failed)));
    }
    let series = Series::new(&outcome.timings, outcome.duration_s);
    let result = result(args, &outcome, &series);
    print(&result);
    if let Some(file) = json_file {
        let line = format!("{}\n", Value::Object(result.clone()));
        file.write(line.as_bytes()).context("cannot write --json")?;
    }
    if let Some(file) = html_file {
        let page = html::report(&result, &rows(&result), &series);
        file.write(page.as_bytes()).context("cannot write --html")?;
    }
    if let Some(error) = outcome.error {
        bail!("{} requests failed, one of them: {error:#}", outcome.num_failed);
    }
    Ok(())
}

fn open(path: &Path, flag: &str) -> Result<NewFile> {
    NewFile::open(path).with_context(|| format!("cannot write {flag} `{}`", path.display()))
}

impl Series {
    /// Of all completed requests.
    pub fn new(timings: &[Timing], duration_s: f64) -> Series {
        let num_seconds = (duration_s.ceil() as usize).max(1);
        let mut series = Series { tokens_per_second: vec![0.0; num_seconds], ..Series::default() };
        for timing in timings {
            let (first, last) = (timing.chunks_s[0], timing.chunks_s[timing.chunks_s.len() - 1]);
            series.ttft_ms.push((first - timing.start_s) * 1e3);
            series.e2el_ms.push((last - timing.start_s) * 1e3);
            if timing.num_output_tokens > 1 {
                let num = (timing.num_output_tokens - 1) as f64;
                series.tpot_ms.push((last - first) * 1e3 / num);
            }
            let gaps = timing.chunks_s.windows(2).map(|pair| (pair[1] - pair[0]) * 1e3);
            series.itl_ms.extend(gaps);
            // A chunk may bring several tokens; which one does is not said.
            let per_chunk = timing.num_output_tokens as f64 / timing.chunks_s.len() as f64;
            for &at in &timing.chunks_s {
                series.tokens_per_second[(at as usize).min(num_seconds - 1)] += per_chunk;
            }
        }
        series
    }
}

/// The most requests that were under way at one time.
fn max_concurrent(timings: &[Timing]) -> usize {
    let mut changes: Vec<(f64, i64)> =
        timings.iter().flat_map(|t| [(t.start_s, 1), (t.end_s, -1)]).collect();
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut now = 0;
    let running = changes.iter().map(|change| {
        now += change.1;
        now
    });
    running.max().unwrap_or(0) as usize
}

fn result(args: &ServeBenchArgs, outcome: &load::Outcome, series: &Series) -> Map<String, Value> {
    let timings = &outcome.timings;
    let duration = outcome.duration_s.max(f64::MIN_POSITIVE);
    let num_input: u64 = timings.iter().map(|t| t.num_input_tokens).sum();
    let num_output: u64 = timings.iter().map(|t| t.num_output_tokens).sum();
    let peak = series.tokens_per_second.iter().copied().fold(0.0, f64::max);
    let mut result = Map::new();
    result.insert("kind".into(), json!("serve"));
    result.insert("version".into(), json!(env!("CARGO_PKG_VERSION")));
    result.insert(
        "config".into(),
        json!({
            "url": args.url,
            "model": args.model,
            "num_prompts": args.num_prompts,
            "concurrency": args.concurrency,
            "request_rate": args.request_rate,
            "input_len": args.input_len,
            "output_len": args.output_len,
            "shared_prefix_len": args.shared_prefix_len,
            "vocab_size": args.vocab_size,
            "seed": args.seed,
            "goodput": args.goodput.iter().map(ToString::to_string).collect::<Vec<_>>(),
        }),
    );
    result.insert("machine".into(), machine::describe());
    for (key, value) in [
        ("completed", json!(timings.len())),
        ("failed", json!(outcome.num_failed)),
        ("duration", json!(outcome.duration_s)),
        ("total_input_tokens", json!(num_input)),
        ("total_output_tokens", json!(num_output)),
        ("request_throughput", json!(timings.len() as f64 / duration)),
        ("output_throughput", json!(num_output as f64 / duration)),
        ("max_output_tokens_per_s", json!(peak)),
        ("max_concurrent_requests", json!(max_concurrent(timings))),
        ("total_token_throughput", json!((num_input + num_output) as f64 / duration)),
    ] {
        result.insert(key.to_owned(), value);
    }
    if !args.goodput.is_empty() {
        let num_good = goodput::num_good(timings, &args.goodput) as f64;
        result.insert("request_goodput".into(), json!(num_good / duration));
    }
    for (name, values) in [
        ("ttft", &series.ttft_ms),
        ("tpot", &series.tpot_ms),
        ("itl", &series.itl_ms),
        ("e2el", &series.e2el_ms),
    ] {
        add_latency(&mut result, name, values.clone());
    }
    result
}

/// Label and value of each figure, as people read them.
fn rows(result: &Map<String, Value>) -> Vec<(String, f64)> {
    let value = |key: &str| result.get(key).and_then(Value::as_f64).unwrap_or(0.0);
    // Goodput is there if it was asked for.
    let labels = LABELS.iter().filter(|(key, _)| result.contains_key(*key));
    let totals = labels.map(|(key, label)| ((*label).to_owned(), value(key)));
    let latencies = LATENCIES.iter().flat_map(|(key, label)| {
        [("mean", "Mean"), ("median", "Median"), ("p99", "P99")].map(|(part, word)| {
            (format!("{word} {label} (ms)"), value(&format!("{part}_{key}_ms")))
        })
    });
    totals.chain(latencies).collect()
}

fn print(result: &Map<String, Value>) {
    println!("{:=^45}", " Serving Benchmark Result ");
    for (label, value) in rows(result) {
        print_row(&label, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(start_s: f64, chunks_s: &[f64], num_output_tokens: u64) -> Timing {
        let end_s = chunks_s[chunks_s.len() - 1] + 0.5;
        let num_input_tokens = 4;
        Timing { start_s, chunks_s: chunks_s.to_vec(), end_s, num_input_tokens, num_output_tokens }
    }

    #[test]
    fn figures_follow_their_definitions() {
        let timings = [timing(0.0, &[1.0, 1.5, 3.0], 6), timing(2.0, &[2.25], 1)];
        let series = Series::new(&timings, 3.2);
        assert_eq!(series.ttft_ms, [1000.0, 250.0]);
        assert_eq!(series.itl_ms, [500.0, 1500.0]);
        assert_eq!(series.tpot_ms, [400.0]);
        assert_eq!(series.e2el_ms, [3000.0, 250.0]);
        assert_eq!(series.tokens_per_second, [0.0, 4.0, 1.0, 2.0]);
    }

    #[test]
    fn requests_overlap_only_while_both_run() {
        let one_after_the_other = [timing(0.0, &[0.5], 1), timing(1.0, &[1.5], 1)];
        assert_eq!(max_concurrent(&one_after_the_other), 1);
        let together = [timing(0.0, &[1.0], 1), timing(1.25, &[2.0], 1), timing(1.3, &[2.0], 1)];
        assert_eq!(max_concurrent(&together), 3);
        assert_eq!(max_concurrent(&[]), 0);
    }
}
