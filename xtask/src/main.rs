//! Repository tasks, run as `cargo xtask NAME`. The only place that knows how the pieces are built,
//! fetched and checked; the product itself never calls it.

mod demo;
mod fuzz;
mod guests;
mod models;
mod python;
mod shell;
mod test;
mod tidy;
mod wasm_rust;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask TASK

  demo [--port N] [--model FILE]   build everything, fetch the demo model, serve it on 127.0.0.1
  test [STAGE ...]                 everything that CI runs (stages: tidy fmt guests clippy build
                                   models unit fuzz e2e)
  guests [--release]               build the parsers to components: target/guests/ (and with
                                   --release by a sandbox of the release build)
  fetch-models [NAME ...]          fetch reference models into the cache (smollm2 gemma3 qwen0.5b)
  fuzz [TARGET ...] [--seconds N]  fuzz the parser engine, part by part, N seconds each
  tidy                             check dependency rules, file hygiene and the word list";

fn main() {
    if let Err(error) = run() {
        eprintln!("error: {error:#}");
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rest = args.get(1..).unwrap_or_default();
    std::env::set_current_dir(shell::root())?;
    match args.first().map(String::as_str) {
        Some("demo") => demo::run(rest),
        Some("test") => test::run(rest),
        Some("guests") => match rest.first().map(String::as_str) {
            None => guests::run(guests::Profile::Ci),
            Some("--release") => guests::run(guests::Profile::Release),
            Some(other) => bail!("unknown flag `{other}` (known: --release)"),
        },
        Some("fuzz") => fuzz::run(rest),
        Some("fetch-models") => models::fetch(rest),
        Some("tidy") => tidy::run(),
        Some("help" | "--help" | "-h") => {
            println!("{USAGE}");
            Ok(())
        }
        Some(other) => bail!("unknown task `{other}`\n{USAGE}"),
        None => bail!("no task given\n{USAGE}"),
    }
}
