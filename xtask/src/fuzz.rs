//! `cargo xtask fuzz`: coverage-guided fuzzing of the parser engine with libFuzzer, on the pinned
//! stable toolchain. Corpus and findings are kept in `target/fuzz/`.

use std::fs;

use anyhow::{Context, Result, bail, ensure};

use crate::shell;

/// Every target: one per part of the engine.
const TARGETS: &[&str] =
    &["families", "envelope", "headed", "tagged", "python", "bare-keys", "framed", "schema"];

/// Seconds per target unless told.
const NUM_SECONDS: u32 = 60;

/// Seconds per target in the tests: all of them together stay under a minute.
const NUM_TEST_SECONDS: u32 = 6;

/// Longest input; one byte is up to one marker.
const MAX_LEN_BYTES: u32 = 400;

/// Coverage for libFuzzer, as its driver for nightly toolchains sets it.
const RUSTFLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
    --cfg fuzzing";

/// The targets named, or all of them.
pub fn run(args: &[String]) -> Result<()> {
    let mut num_seconds = NUM_SECONDS;
    let mut names = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seconds" => {
                let value = args.next().context("--seconds needs a number behind it")?;
                let parsed = value.parse();
                num_seconds = parsed.with_context(|| format!("`{value}` is no number"))?;
            }
            name if TARGETS.contains(&name) => names.push(name),
            other => bail!("unknown target `{other}` (known: {})", TARGETS.join(", ")),
        }
    }
    let names = if names.is_empty() { TARGETS.to_vec() } else { names };
    fuzz(&names, num_seconds)
}

/// A short run of every target.
pub fn smoke() -> Result<()> {
    fuzz(TARGETS, NUM_TEST_SECONDS)
}

fn fuzz(names: &[&str], num_seconds: u32) -> Result<()> {
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let dir = shell::root().join("target/fuzz");
    let build = dir.join("build");
    let mut cargo = shell::cargo();
    cargo
        .args(["build", "--locked", "--package", "tenon-fuzz", "--profile", "ci"])
        .args(["--target", &triple, "--target-dir"])
        .arg(&build)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", RUSTFLAGS);
    shell::run(&mut cargo).context("fuzzing needs a C++ compiler for libFuzzer; install g++")?;
    let binary = build.join(&triple).join("ci/tenon-fuzz");
    ensure!(binary.exists(), "cargo has not written `{}`", binary.display());
    for name in names {
        let [corpus, seeds, findings] =
            ["corpus", "seeds", "findings"].map(|part| dir.join(part).join(name));
        for folder in [&corpus, &seeds, &findings] {
            fs::create_dir_all(folder)?;
        }
        let mut fuzzer = shell::cmd(&binary);
        fuzzer
            .arg(format!("-max_total_time={num_seconds}"))
            .arg(format!("-max_len={MAX_LEN_BYTES}"))
            .args(["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0"])
            .arg(format!("-artifact_prefix={}/", findings.display()))
            .args([&corpus, &seeds])
            .env("TENON_FUZZ_TARGET", name)
            .env("TENON_FUZZ_SEEDS", &seeds);
        shell::run(&mut fuzzer).with_context(|| {
            let folder = findings.display();
            format!(
                "`{name}` found something: TENON_FUZZ_TARGET={name} tenon-fuzz FILE \
                replays what lies in `{folder}`"
            )
        })?;
    }
    Ok(())
}
