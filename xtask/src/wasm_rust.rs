//! A Rust that can compile to `wasm32-unknown-unknown`: rustup's target where rustup may add it,
//! else a private compiler out of Debian's packages (`xtask/wasm-rust.sh`).

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// The target of every guest.
pub const TARGET: &str = "wasm32-unknown-unknown";

/// How guests are compiled on this machine.
pub enum WasmRust {
    /// The pinned toolchain has the target.
    Rustup,
    /// A private prefix; the standard library is built from its sources.
    Private(PathBuf),
}

impl WasmRust {
    /// Finds one, adding the target or fetching the private compiler if need be.
    ///
    /// `TENON_WASM_RUST=rustup|private` forces one way (both are tried by hand before a release).
    pub fn find() -> Result<WasmRust> {
        let forced = std::env::var("TENON_WASM_RUST").ok();
        match forced.as_deref() {
            None | Some("rustup" | "private") => {}
            Some(other) => bail!("TENON_WASM_RUST is `{other}`; use `rustup` or `private`"),
        }
        if forced.as_deref() != Some("private") {
            if has_target() {
                return Ok(WasmRust::Rustup);
            }
            eprintln!("adding the target {TARGET} to the pinned toolchain");
            let added = shell::run(shell::cmd("rustup").args(["target", "add", TARGET]));
            if added.is_ok() && has_target() {
                return Ok(WasmRust::Rustup);
            }
            if forced.is_some() {
                bail!("rustup could not add {TARGET}");
            }
            eprintln!("rustup could not add it; taking a private compiler from Debian's packages");
        }
        let prefix = shell::cache_dir()?.join("wasm-rust");
        if !prefix.join("usr/bin/rustc").exists() {
            let script = shell::root().join("xtask/wasm-rust.sh");
            shell::run(shell::cmd("bash").arg(script).arg(&prefix))
                .context("no wasm-capable Rust: run `rustup target add wasm32-unknown-unknown`")?;
        }
        Ok(WasmRust::Private(prefix))
    }

    /// A cargo that compiles guests.
    pub fn cargo(&self) -> Result<Command> {
        let mut cargo = shell::cargo();
        cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
        if let WasmRust::Private(prefix) = self {
            cargo = Command::new(prefix.join("usr/bin/cargo"));
            for name in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
                cargo.env_remove(name);
            }
            cargo
                .env("LD_LIBRARY_PATH", prefix.join("usr/lib/x86_64-linux-gnu"))
                .env("RUSTC", prefix.join("usr/bin/rustc"))
                .env("RUSTDOC", prefix.join("usr/bin/rustdoc"))
                .env("RUSTC_BOOTSTRAP", "1")
                .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker(prefix)?);
        }
        Ok(cargo)
    }

    /// Flags that this way needs behind `cargo rustc`.
    pub fn flags(&self) -> &'static [&'static str] {
        match self {
            WasmRust::Rustup => &[],
            WasmRust::Private(_) => &["-Zbuild-std=std,panic_abort"],
        }
    }

    /// Each way has its own build folder: they do not share a compiler.
    pub fn target_dir(&self) -> PathBuf {
        let name = match self {
            WasmRust::Rustup => "guests-build",
            WasmRust::Private(_) => "guests-build-private",
        };
        shell::root().join("target").join(name)
    }
}

fn has_target() -> bool {
    let args = ["--print", "target-libdir", "--target", TARGET];
    let mut rustc = shell::cmd("rustc");
    rustc.env_remove("RUSTC").args(args);
    shell::output(&mut rustc).is_ok_and(|dir| {
        let Ok(entries) = std::fs::read_dir(dir.trim()) else { return false };
        entries.flatten().any(|e| e.file_name().to_string_lossy().starts_with("libstd-"))
    })
}

fn linker(prefix: &std::path::Path) -> Result<PathBuf> {
    let bin = prefix.join("usr/bin");
    let mut found: Vec<PathBuf> = std::fs::read_dir(&bin)?
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("wasm-ld-")))
        .collect();
    found.sort();
    found.pop().with_context(|| format!("no wasm-ld in {}", bin.display()))
}
