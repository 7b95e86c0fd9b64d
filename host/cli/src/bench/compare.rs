//! `tenon bench compare`: two results of the same kind, metric by metric.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

use super::args::CompareArgs;

/// Largest result that is read.
const MAX_RESULT_BYTES: u64 = 16 << 20;

/// Better when higher.
const HIGHER: &[&str] = &[
    "completed",
    "decode_tok_per_s",
    "max_output_tokens_per_s",
    "output_throughput",
    "prefill_tok_per_s",
    "request_throughput",
    "request_goodput",
    "total_token_throughput",
];

/// Better when lower; so is what begins with `mean_`, `median_` or `p99_` and ends with `_ms`.
const LOWER: &[&str] = &["failed", "itl_ms_p50", "itl_ms_p99", "load_s", "peak_rss_mb", "ttft_ms"];

/// One metric of both results.
#[derive(Debug, PartialEq)]
struct Row {
    name: String,
    before: f64,
    after: f64,
    /// after / before; 1 if both are 0, infinite if only `before` is.
    ratio: f64,
    is_worse: bool,
}

/// Prints the table; an error if B is worse than A by more than the tolerance.
pub fn run(args: &CompareArgs) -> Result<()> {
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let rows = compare(&before, &after, args.tolerance)
        .with_context(|| format!("cannot compare with `{}`", args.after.display()))?;
    if set_up(&before) != set_up(&after) {
        eprintln!("warning: the two were measured with other flags or on another machine");
    }
    println!("{:<26} {:>14} {:>14} {:>8}", "metric", "A", "B", "B/A");
    for Row { name, before, after, ratio, is_worse } in &rows {
        let mark = if *is_worse { "  worse" } else { "" };
        println!("{name:<26} {before:>14.3} {after:>14.3} {ratio:>8.3}{mark}");
    }
    let num_worse = rows.iter().filter(|row| row.is_worse).count();
    let percent = args.tolerance * 100.0;
    ensure!(num_worse == 0, "{num_worse} metrics are worse by more than {percent} % (--tolerance)");
    Ok(())
}

/// Flags and machine, but for where the server listened.
fn set_up(result: &Map<String, Value>) -> [Option<Value>; 2] {
    let mut config = result.get("config").cloned();
    if let Some(Value::Object(flags)) = &mut config {
        flags.remove("url");
    }
    [config, result.get("machine").cloned()]
}

fn read(path: &Path) -> Result<Map<String, Value>> {
    let shown = path.display();
    let mut text = String::new();
    let file = std::fs::File::open(path).with_context(|| format!("cannot read `{shown}`"))?;
    file.take(MAX_RESULT_BYTES)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read `{shown}`"))?;
    let value = serde_json::from_str(&text);
    match value.with_context(|| format!("`{shown}` is no result of `tenon bench … --json`"))? {
        Value::Object(result) if result.get("kind").is_some_and(Value::is_string) => Ok(result),
        _ => bail!("`{shown}` is no result of `tenon bench … --json`: it has no `kind`"),
    }
}

/// Whether lower is better; None of what is no metric (totals, spreads, settings).
fn lower_is_better(name: &str) -> Option<bool> {
    let is_latency = name.ends_with("_ms")
        && ["mean_", "median_", "p99_"].iter().any(|prefix| name.starts_with(prefix));
    if is_latency || LOWER.contains(&name) {
        return Some(true);
    }
    HIGHER.contains(&name).then_some(false)
}

fn compare(
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    tolerance: f64,
) -> Result<Vec<Row>> {
    let kind = |result: &Map<String, Value>| result["kind"].as_str().unwrap_or("").to_owned();
    ensure!(
        kind(before) == kind(after),
        "`kind` is `{}` in A and `{}` in B; give two results of the same kind",
        kind(before),
        kind(after)
    );
    let mut rows = Vec::new();
    for (name, value) in before {
        let Some(lower) = lower_is_better(name) else { continue };
        let number = |value: Option<&Value>, which: &str| {
            let number = value.and_then(Value::as_f64).filter(|number| *number >= 0.0);
            number.with_context(|| format!("`{name}` of {which} is no number from 0 on"))
        };
        let (a, b) = (number(Some(value), "A")?, number(after.get(name), "B")?);
        let ratio = match (a, b) {
            (0.0, 0.0) => 1.0,
            _ => b / a,
        };
        let is_worse = if lower { b > a * (1.0 + tolerance) } else { b < a * (1.0 - tolerance) };
        rows.push(Row { name: name.clone(), before: a, after: b, ratio, is_worse });
    }
    ensure!(!rows.is_empty(), "A has no metric");
    Ok(rows)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn result(more: Value) -> Map<String, Value> {
        let mut result = json!({"kind": "serve", "config": {}}).as_object().unwrap().clone();
        result.extend(more.as_object().unwrap().clone());
        result
    }

    fn worse(name: &str, a: f64, b: f64, tolerance: f64) -> bool {
        let rows = compare(&result(json!({name: a})), &result(json!({name: b})), tolerance);
        rows.unwrap()[0].is_worse
    }

    #[test]
    fn each_metric_has_its_direction() {
        for name in LOWER.iter().chain(&["mean_ttft_ms", "median_itl_ms", "p99_e2el_ms"]) {
            assert!(worse(name, 100.0, 106.0, 0.05), "{name}");
            assert!(!worse(name, 100.0, 104.0, 0.05), "{name}");
            assert!(!worse(name, 100.0, 50.0, 0.05), "{name}");
        }
        for name in HIGHER {
            assert!(worse(name, 100.0, 94.0, 0.05), "{name}");
            assert!(!worse(name, 100.0, 96.0, 0.05), "{name}");
            assert!(!worse(name, 100.0, 200.0, 0.05), "{name}");
        }
        for name in ["std_ttft_ms", "duration", "total_input_tokens", "max_concurrent_requests"] {
            assert_eq!(lower_is_better(name), None, "{name}");
        }
    }

    #[test]
    fn nothing_is_worse_than_itself() {
        let one = result(json!({"failed": 0, "output_throughput": 31.5, "p99_itl_ms": 0.0}));
        assert!(compare(&one, &one, 0.0).unwrap().iter().all(|r| !r.is_worse && r.ratio == 1.0));
        assert!(worse("failed", 0.0, 1.0, 10.0));
        assert!(worse("completed", 4.0, 0.0, 0.99));
    }

    #[test]
    fn an_address_is_no_set_up() {
        let with = |url: &str, seed: u64, cpu: &str| {
            let config = json!({"url": url, "seed": seed});
            set_up(&result(json!({"config": config, "machine": {"cpu": cpu}})))
        };
        assert_eq!(with("http://a:1", 0, "x"), with("http://a:2", 0, "x"));
        assert_ne!(with("http://a:1", 0, "x"), with("http://a:1", 1, "x"));
        assert_ne!(with("http://a:1", 0, "x"), with("http://a:1", 0, "y"));
    }

    #[test]
    fn what_cannot_be_compared_is_named() {
        let a = result(json!({"ttft_ms": 1.0}));
        for (b, says) in [
            (result(json!({})), "`ttft_ms` of B"),
            (result(json!({"ttft_ms": "fast"})), "`ttft_ms` of B"),
            (result(json!({"ttft_ms": -1.0})), "`ttft_ms` of B"),
            (result(json!({"kind": "offline", "ttft_ms": 1.0})), "`kind` is `serve` in A"),
        ] {
            let error = compare(&a, &b, 0.05).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let error = compare(&result(json!({"x": 1})), &a, 0.05).unwrap_err().to_string();
        assert!(error.contains("no metric"), "{error}");
    }
}
