//! Running other programs: every command is printed before it runs, and its failure names it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The repository's root.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask stands in a folder of the root").to_path_buf()
}

/// A program that cargo built.
pub fn binary(profile: &str, name: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| root().join("target")).join(profile).join(name)
}

/// Where downloads are kept between runs: `$TENON_CACHE_DIR`, else `~/.cache/tenon`.
pub fn cache_dir() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("TENON_CACHE_DIR") {
        return Ok(PathBuf::from(dir));
    }
    let home = std::env::var_os("HOME").context("HOME is not set; set TENON_CACHE_DIR")?;
    Ok(Path::new(&home).join(".cache/tenon"))
}

/// A command, ready to be given arguments.
pub fn cmd(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

/// `cargo` of the pinned toolchain, free of what the outer `cargo run` put into the environment.
pub fn cargo() -> Command {
    let mut command = Command::new("cargo");
    for name in ["CARGO", "CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "RUSTC", "RUSTDOC"] {
        command.env_remove(name);
    }
    command
}

/// Runs to the end with inherited output.
pub fn run(command: &mut Command) -> Result<()> {
    let line = describe(command);
    eprintln!("$ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// Runs to the end and returns its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let line = describe(command);
    let out = command.output().with_context(|| format!("cannot start `{line}`"))?;
    if !out.status.success() {
        let err = String::from_utf8_lossy(&out.stderr);
        bail!("`{line}` failed ({}): {}", out.status, err.trim());
    }
    String::from_utf8(out.stdout).with_context(|| format!("`{line}` printed no UTF-8"))
}

/// Does it run and succeed? Its output is dropped.
pub fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|out| out.status.success())
}

fn describe(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}
