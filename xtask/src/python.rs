//! Python packages for clients and tests, into a folder of their own: nothing is installed into the
//! system's Python (Debian refuses that, rightly).

use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use crate::shell;

/// What the end-to-end tests and the demo's snippet import.
const PACKAGES: &[&str] = &["openai==3.57.0"];

/// A folder for `PYTHONPATH` that holds the packages.
pub fn ensure() -> Result<PathBuf> {
    let dir = shell::root().join("target/python");
    let stamp = dir.join("packages.txt");
    let wanted = PACKAGES.join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(dir);
    }
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir)?;
    shell::run(
        shell::cmd("python3")
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(["--no-warn-conflicts", "--target"])
            .arg(&dir)
            .args(PACKAGES),
    )?;
    fs::write(stamp, wanted)?;
    Ok(dir)
}
