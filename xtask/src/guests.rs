//! `cargo xtask guests`: each parser crate to a component, and their descriptors to an index.
//!
//! Writes `target/guests/{NAME.wasm,index.json}`. The server embeds both; a component that imports
//! anything at all is refused here, as it would be at upload.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::shell;
use crate::wasm_rust::{TARGET, WasmRust};

/// Largest component that we ship.
const MAX_COMPONENT_BYTES: usize = 100 * 1024;

/// How a component is built that is too large otherwise: a seventh smaller, and slower.
const FOR_SIZE: &[&str] = &["--config", "profile.guest.opt-level=\"s\""];

/// The program that admits components and prints what they say of themselves.
const DESCRIBE: &str = "tenon-describe";

/// Which host build runs `describe`: the one that the caller needs anyway.
#[derive(Clone, Copy)]
pub enum Profile {
    /// Tests.
    Ci,
    /// The demo.
    Release,
}

impl Profile {
    /// Its name for cargo.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Ci => "ci",
            Profile::Release => "release",
        }
    }
}

/// One line of `index.json`.
#[derive(Serialize)]
struct Entry {
    name: String,
    file: String,
    digest: String,
    size: usize,
    descriptor: serde_json::Value,
}

/// Builds every crate under `parsers/` and the example, then asks each to describe itself.
pub fn run(profile: Profile) -> Result<()> {
    let rust = WasmRust::find()?;
    let out = shell::root().join("target/guests");
    fs::create_dir_all(&out)?;
    let mut built = Vec::new();
    for Guest { package, name, feature } in guests()? {
        let feature = feature.as_deref();
        let mut component = component(&rust, &package, feature, &[])?;
        if component.len() > MAX_COMPONENT_BYTES {
            println!("{name}: {} bytes, built again for size alone", component.len());
            component = self::component(&rust, &package, feature, FOR_SIZE)?;
        }
        let path = out.join(format!("{name}.wasm"));
        write_if_changed(&path, &component)?;
        built.push(path);
    }
    // The example is for upload: it is built beside the others but not embedded.
    let example = component(&rust, "acme-parser", None, &[])?;
    let example_dir = out.join("examples");
    fs::create_dir_all(&example_dir)?;
    write_if_changed(&example_dir.join("acme.wasm"), &example)?;

    let descriptors = describe(profile, &built)?;
    let mut index = Vec::new();
    for path in &built {
        let bytes = fs::read(path)?;
        let file = file_name(path);
        let descriptor = descriptors.get(&file).with_context(|| format!("no answer: {file}"))?;
        let name = descriptor["name"].as_str().context("a descriptor has no name")?.to_owned();
        ensure!(file == format!("{name}.wasm"), "`{file}` describes itself as `{name}`");
        let digest = format!("sha256:{:x}", Sha256::digest(&bytes));
        println!("{name:12} {:6} bytes  {digest}", bytes.len());
        ensure!(
            bytes.len() <= MAX_COMPONENT_BYTES,
            "`{file}` has {} bytes; the limit is {MAX_COMPONENT_BYTES}",
            bytes.len()
        );
        index.push(Entry { name, file, digest, size: bytes.len(), descriptor: descriptor.clone() });
    }
    let text = serde_json::to_string_pretty(&index)? + "\n";
    write_if_changed(&out.join("index.json"), text.as_bytes())?;
    Ok(())
}

/// One component to build.
struct Guest {
    package: String,
    /// Of its file, and of the parser itself.
    name: String,
    /// Of the package, where it holds several components.
    feature: Option<String>,
}

/// One for each package under `parsers/`, or, where families share a crate, one for each name in
/// its `package.metadata.tenon.components`, which is a feature, too.
fn guests() -> Result<Vec<Guest>> {
    let mut guests = Vec::new();
    for entry in fs::read_dir(shell::root().join("parsers"))? {
        let manifest = entry?.path().join("Cargo.toml");
        let text = fs::read_to_string(&manifest)
            .with_context(|| format!("cannot read {}", manifest.display()))?;
        let manifest: toml::Value = toml::from_str(&text)?;
        let package = manifest["package"]["name"].as_str().context("a package has no name")?;
        let metadata = manifest["package"].get("metadata").and_then(|table| table.get("tenon"));
        match metadata.and_then(|table| table.get("components")).and_then(|list| list.as_array()) {
            None => {
                let name = package.strip_prefix("tenon-parser-").unwrap_or(package);
                let (package, name) = (package.to_owned(), name.replace('-', "_"));
                guests.push(Guest { package, name, feature: None });
            }
            Some(list) => {
                for name in list {
                    let name = name.as_str().context("a component's name is no string")?;
                    let (package, name) = (package.to_owned(), name.to_owned());
                    guests.push(Guest { package, feature: Some(name.clone()), name });
                }
            }
        }
    }
    guests.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(guests)
}

fn component(
    rust: &WasmRust,
    package: &str,
    feature: Option<&str>,
    config: &[&str],
) -> Result<Vec<u8>> {
    let module = compile(rust, package, feature, config)?;
    componentize(&module).with_context(|| format!("{package}, {feature:?}"))
}

fn compile(
    rust: &WasmRust,
    package: &str,
    feature: Option<&str>,
    config: &[&str],
) -> Result<PathBuf> {
    let target_dir = rust.target_dir();
    let remap = format!("--remap-path-prefix={}=/tenon", shell::root().display());
    let home = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| home + "/.cargo"))
        .context("neither CARGO_HOME nor HOME is set")?;
    let remap_home = format!("--remap-path-prefix={home}=/cargo");
    let mut cargo = rust.cargo()?;
    cargo
        .args(["rustc", "--quiet", "--locked", "--lib", "--package", package])
        .args(["--target", TARGET, "--profile", "guest", "--crate-type", "cdylib"])
        .arg("--target-dir")
        .arg(&target_dir)
        .args(rust.flags())
        .args(config)
        .args(feature.map(|feature| ["--features", feature]).iter().flatten())
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", format!("{remap} {remap_home}"));
    shell::run(&mut cargo)?;
    let file = format!("{}.wasm", package.replace('-', "_"));
    Ok(target_dir.join(TARGET).join("guest").join(file))
}

/// Core module to component; refuses imports.
fn componentize(module: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(module).with_context(|| format!("cannot read {}", module.display()))?;
    let mut encoder = wit_component::ComponentEncoder::default();
    let component = encoder.validate(true).module(&bytes)?.encode()?;
    let imports = imports(&component)?;
    if !imports.is_empty() {
        bail!("imports {imports:?}; a parser may import nothing");
    }
    Ok(component)
}

fn imports(component: &[u8]) -> Result<Vec<String>> {
    use wasmparser::{Parser, Payload};
    let mut depth = 0usize;
    let mut names = Vec::new();
    for payload in Parser::new(0).parse_all(component) {
        match payload? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    names.push(import?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(names)
}

/// Runs each component's `describe` in the sandbox host: `{file name: descriptor}`.
fn describe(profile: Profile, files: &[PathBuf]) -> Result<BTreeMap<String, serde_json::Value>> {
    // All that the caller builds afterwards, so that the sandbox's compiler, which takes minutes,
    // is built once and with the same features. The server itself is then built again, with what
    // is described here.
    let mut cargo = shell::cargo();
    cargo.args(["build", "--locked", "--profile", profile.name()]).env("TENON_BOOTSTRAP", "1");
    match profile {
        Profile::Ci => cargo.args(["--workspace", "--all-targets"]),
        Profile::Release => {
            cargo.args(["--package", "tenon", "--package", "tenon-extensions", "--bins"])
        }
    };
    shell::run(&mut cargo)?;
    let text = shell::output(shell::cmd(shell::binary(profile.name(), DESCRIBE)).args(files))?;
    serde_json::from_str(&text).with_context(|| format!("{DESCRIBE} printed no JSON"))
}

fn write_if_changed(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn file_name(path: &Path) -> String {
    path.file_name().expect("built by us with a name").to_string_lossy().into_owned()
}
