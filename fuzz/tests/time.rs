//! Time is linear in the calls of every family, in pieces of a few bytes: twice the text takes
//! twice the time. Measured is the thread's own time for a text and for four times as much. The
//! best run of each counts, and one attempt under the bound suffices, so that a busy machine
//! disturbs nothing: what is quadratic takes 16 times as long in every attempt.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tenon_formats::{Entry, all, request};
use tenon_guest::{Channel, FinishReason, RequestInfo};

/// Bound of time(2n) / time(n), as the root of time(4n) / time(n).
const MAX_GROWTH: f64 = 2.5;

/// Attempts before a shape counts as slow.
const NUM_ATTEMPTS: usize = 12;

/// Longest text.
const MAX_BYTES: usize = 1 << 20;

/// Bytes of a push.
const PIECE_BYTES: usize = 5;

fn tools() -> String {
    json!([{"type": "function", "function": {"name": "f_g", "parameters": {"type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "array"}}}}}])
    .to_string()
}

/// Fails if the time for `text` grows faster than its size, from `len` to four times as much.
fn check(entry: &Entry, what: &str, len: usize, text: impl Fn(usize) -> String) {
    let style = (entry.describe)().reasoning_styles.first().map(|style| style.name.clone());
    let request = request(&tools(), style.as_deref(), Channel::Content);
    let (short, long) = (text(len), text(4 * len));
    let mut best = (Duration::MAX, Duration::MAX);
    let mut growth = f64::MAX;
    for _ in 0..NUM_ATTEMPTS {
        best.0 = best.0.min(time(entry, &request, &short));
        best.1 = best.1.min(time(entry, &request, &long));
        growth = (best.1.as_secs_f64() / best.0.as_secs_f64()).sqrt();
        if growth < MAX_GROWTH {
            return;
        }
    }
    let head: String = short.chars().take(80).collect();
    panic!("{}: {what}: {growth:.1} times as long for twice `{head}`…", entry.name);
}

fn time(entry: &Entry, request: &RequestInfo, text: &str) -> Duration {
    let begin = on_cpu();
    let mut session = (entry.open)(request.clone());
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rest.ceil_char_boundary(PIECE_BYTES));
        session.push(piece, &[], 0);
        rest = behind;
    }
    session.finish(FinishReason::Stop);
    on_cpu().saturating_sub(begin)
}

/// How long this thread has run, where the system counts it; else the time of day.
fn on_cpu() -> Duration {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    std::thread::yield_now(); // brings the count up to date
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let num_ns = text.split(' ').next().and_then(|num_ns| num_ns.parse().ok());
    match num_ns {
        Some(num_ns) if num_ns > 0 => Duration::from_nanos(num_ns),
        _ => BEGIN.elapsed(),
    }
}

fn call(entry: &Entry, arguments: Value) -> Option<String> {
    entry.render.map(|render| render(&[("f_g".into(), arguments)]))
}

/// Long values and many of them, up to a megabyte.
#[test]
fn calls_of_a_megabyte_take_linear_time() {
    let long = |len: usize| json!({"a": "word and é ".repeat(len / 12)});
    let list = |len: usize| json!({"b": vec![Value::from(17); len / 4]});
    let many = |len: usize| {
        let member = |at: usize| (format!("k{at}"), Value::from("x"));
        Value::Object((0..len / 32).map(member).collect::<Map<String, Value>>())
    };
    let shapes: [(&str, &dyn Fn(usize) -> Value); 3] =
        [("a long string", &long), ("a long list", &list), ("many members", &many)];
    for entry in all().filter(|entry| entry.render.is_some()) {
        for (what, arguments) in shapes {
            for len in [MAX_BYTES / 64, MAX_BYTES / 4] {
                check(entry, what, len, |len| call(entry, arguments(len)).unwrap_or_default());
            }
        }
        let calls = |len: usize| -> Vec<(String, Value)> {
            vec![("f_g".into(), json!({"a": "x"})); len / 64]
        };
        let text = |len: usize| entry.render.map_or(String::new(), |render| render(&calls(len)));
        check(entry, "many calls", MAX_BYTES / 16, text);
    }
}
