//! `cargo xtask tidy`: the rules of ARCHITECTURE.md and of the house style that a machine can
//! check.

mod deps;
mod files;

use anyhow::{Result, bail};

use crate::shell;

/// Prints every violation; fails if there is one.
pub fn run() -> Result<()> {
    let tracked = shell::output(shell::cmd("git").args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
    ]))?;
    let paths: Vec<&str> = tracked.lines().filter(|p| shell::root().join(p).is_file()).collect();
    let mut found = deps::check()?;
    let num_files = paths.len();
    for path in paths {
        found.extend(files::check(path)?);
    }
    for violation in &found {
        println!("{violation}");
    }
    if !found.is_empty() {
        bail!("tidy: {} violations", found.len());
    }
    println!("tidy: {num_files} files are fine");
    Ok(())
}
