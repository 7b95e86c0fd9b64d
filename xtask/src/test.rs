//! `cargo xtask test`: everything that CI runs, stage by stage, with minutes per stage.

use std::time::Instant;

use anyhow::{Result, bail};

use crate::{fuzz, guests, models, python, shell, tidy};

type Stage = (&'static str, fn() -> Result<()>);

const STAGES: &[Stage] = &[
    ("tidy", tidy::run),
    ("fmt", fmt),
    ("guests", build_guests),
    ("clippy", clippy),
    ("build", build),
    ("models", fetch_models),
    ("unit", unit),
    ("fuzz", fuzz::smoke),
    ("e2e", e2e),
];

/// Runs the named stages, or all of them.
pub fn run(names: &[String]) -> Result<()> {
    for name in names {
        if !STAGES.iter().any(|(stage, _)| stage == name) {
            let known: Vec<_> = STAGES.iter().map(|(stage, _)| *stage).collect();
            bail!("unknown stage `{name}` (known: {})", known.join(", "));
        }
    }
    let begin = Instant::now();
    let mut times = Vec::new();
    for (name, stage) in STAGES {
        if !names.is_empty() && !names.iter().any(|n| n == name) {
            continue;
        }
        eprintln!("== {name}");
        let start = Instant::now();
        stage()?;
        times.push((*name, start.elapsed().as_secs_f64() / 60.0));
    }
    for (name, minutes) in times {
        println!("{name:8} {minutes:5.1} min");
    }
    println!("{:8} {:5.1} min", "total", begin.elapsed().as_secs_f64() / 60.0);
    Ok(())
}

fn fmt() -> Result<()> {
    shell::run(shell::cargo().args(["fmt", "--all", "--check"]))
}

fn build_guests() -> Result<()> {
    guests::run(guests::Profile::Ci)
}

fn clippy() -> Result<()> {
    let args = ["clippy", "--locked", "--workspace", "--all-targets", "--profile", "ci"];
    shell::run(shell::cargo().args(args).args(["--", "-D", "warnings"]))
}

fn build() -> Result<()> {
    let args = ["build", "--locked", "--profile", "ci", "--workspace", "--all-targets"];
    shell::run(shell::cargo().args(args))
}

fn fetch_models() -> Result<()> {
    models::SMOLLM2.ensure().map(drop)
}

fn unit() -> Result<()> {
    if !shell::succeeds(shell::cargo().args(["nextest", "--version"])) {
        let install = ["install", "--locked", "--version", "0.9.143", "cargo-nextest"];
        shell::run(shell::cargo().args(install))?;
    }
    let args = ["nextest", "run", "--locked", "--workspace", "--cargo-profile", "ci"];
    shell::run(shell::cargo().args(args).arg("--no-fail-fast"))
}

/// The real OpenAI client against the real binary.
fn e2e() -> Result<()> {
    let packages = python::ensure()?;
    let binary = shell::binary("ci", "tenon");
    let mut python = shell::cmd("python3");
    python
        .args(["-m", "unittest", "discover", "--start-directory", "tests/python", "--verbose"])
        .env("PYTHONPATH", packages)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TENON_BINARY", binary)
        .env("TENON_MODEL_DIR", models::dir()?);
    shell::run(&mut python)
}
