//! What the sandbox costs here: `sandbox_costs target/guests/hermes.wasm`. Prints the least of
//! several batches, so that other work on the machine counts little.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use tenon_chat::parser::{
    Channel, ParseFinish, ParserFactory, ParserFault, RequestInfo, ToolChoice,
};
use tenon_extensions::{ExtensionHost, HostConfig, Parser, compile_child_main};

const NUM_BATCHES: usize = 15;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "__compile") {
        compile_child_main();
    }
    let file = args.first().ok_or("usage: sandbox_costs FILE.wasm")?;
    let wasm = std::fs::read(file)?;
    let cache = std::env::temp_dir().join(format!("tenon-costs-{}", std::process::id()));
    let result = measure(&cache, &wasm);
    std::fs::remove_dir_all(&cache)?;
    result
}

fn measure(cache: &Path, wasm: &[u8]) -> Result<(), Box<dyn Error>> {
    let host = ExtensionHost::new(HostConfig::new(cache.to_path_buf())?)?;
    let parser = host.admit(wasm)?;
    println!("admission, compiled:   {:8.1} ms", parser.admission().as_secs_f64() * 1e3);
    drop(parser);
    let parser = host.admit(wasm)?;
    println!("admission, cached:     {:8.1} ms", parser.admission().as_secs_f64() * 1e3);
    let open = least(1_000, |_| {
        std::hint::black_box(parser.open(&request())?);
        Ok(())
    })?;
    println!("open + drop a stream:  {:8.2} us", open.as_secs_f64() * 1e6);
    let plain = pushes(&parser, &[" Hello", ",", " this", " is", " plain", " text", "."])?;
    println!("push of plain content: {plain:8.0} ns");
    let head = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"text\": \"";
    let args = pushes_after(&parser, head, &[" more", " and", " more", " text"])?;
    println!("push inside arguments: {args:8.0} ns");
    Ok(())
}

fn pushes(parser: &Parser, tokens: &[&str]) -> Result<f64, ParserFault> {
    pushes_after(parser, "", tokens)
}

/// Nanoseconds of one token's push, behind `head`.
fn pushes_after(parser: &Parser, head: &str, tokens: &[&str]) -> Result<f64, ParserFault> {
    const NUM_PUSHES: usize = 5_000;
    let mut least = Duration::MAX;
    for _ in 0..NUM_BATCHES {
        let mut session = parser.open(&request())?;
        session.push(head, &[], 0)?;
        let started = Instant::now();
        for i in 0..NUM_PUSHES {
            std::hint::black_box(session.push(tokens[i % tokens.len()], &[], 0)?);
        }
        least = least.min(started.elapsed());
        session.finish(ParseFinish::Stop)?;
    }
    Ok(least.as_secs_f64() * 1e9 / NUM_PUSHES as f64)
}

fn least(
    num: u32,
    mut act: impl FnMut(u32) -> Result<(), ParserFault>,
) -> Result<Duration, ParserFault> {
    let mut least = Duration::MAX;
    for _ in 0..NUM_BATCHES {
        let started = Instant::now();
        for i in 0..num {
            act(i)?;
        }
        least = least.min(started.elapsed() / num);
    }
    Ok(least)
}

fn request() -> RequestInfo {
    RequestInfo {
        tools: r#"[{"type":"function","function":{"name":"f"}}]"#.into(),
        tool_choice: ToolChoice::Auto,
        parallel: true,
        strict: false,
        reasoning_style: None,
        start: Channel::Content,
        strict_markers: false,
    }
}
