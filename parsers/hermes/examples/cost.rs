//! What a token costs natively, by the state of the stream: prose, reasoning, arguments.
//! `cargo run --release -p tenon-parser-hermes --example cost`

use std::time::Instant;

use tenon_guest::{Channel, FinishReason, Parser, RequestInfo, Session, ToolChoice};
use tenon_parser_hermes::Hermes;

/// Bytes of a token, about the mean of English text.
const TOKEN_BYTES: usize = 4;
const NUM_TOKENS: usize = 2_000;
const NUM_RUNS: usize = 200;

fn main() {
    let shapes = [
        ("content", "", "plain words of an answer, "),
        ("reasoning", "<think>", "plain words of a thought, "),
        (
            "arguments",
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"",
            "words of a value, ",
        ),
    ];
    for (name, head, unit) in shapes {
        let text = head.to_string() + &unit.repeat(NUM_TOKENS * TOKEN_BYTES / unit.len());
        let best = (0..NUM_RUNS).map(|_| run(&text)).fold(f64::INFINITY, f64::min);
        let num_tokens = text.len().div_ceil(TOKEN_BYTES);
        println!("{name}: {:.0} ns per token", best * 1e9 / num_tokens as f64);
    }
}

/// Seconds for one stream, a token at a time.
fn run(text: &str) -> f64 {
    let begin = Instant::now();
    let mut session = Hermes::open(RequestInfo {
        tools: "[{}]".into(),
        tool_choice: ToolChoice::Auto,
        tool_name: None,
        parallel: true,
        strict: false,
        reasoning_style: Some("qwen3".into()),
        start: Channel::Content,
        strict_markers: false,
    });
    let mut num_events = 0;
    for token in text.as_bytes().chunks(TOKEN_BYTES) {
        let token = std::str::from_utf8(token).expect("the text is ASCII");
        num_events += session.push(token, &[], 0).events.len();
    }
    num_events += session.finish(FinishReason::Stop).events.len();
    assert!(num_events > 0);
    begin.elapsed().as_secs_f64()
}
