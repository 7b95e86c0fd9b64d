//! `tenon extension …`: an author's loop. Build a crate to a component, run its cases for every cut
//! of their text, upload it, list what a server has.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tenon_chat::cases::{self, Case, Run, Scope};
use tenon_chat::choose;
use tenon_chat::parser::ParserFactory;

use crate::args::ExtensionCommand;
use crate::client::Client;
use crate::embedded::{self, Embedded};
use crate::hub;
use crate::new_file::NewFile;

const TARGET: &str = "wasm32-unknown-unknown";

/// Random cuts of each case's text, next to whole, single characters and every two-way cut.
const NUM_RANDOM_CUTS: usize = 200;

/// Runs one of them.
pub fn run(command: &ExtensionCommand) -> Result<()> {
    match command {
        ExtensionCommand::Build { dir, output } => build(dir, output.as_deref()),
        ExtensionCommand::Test { component, cases, family } => {
            test(component.as_deref(), cases, family.as_deref())
        }
        ExtensionCommand::Push { component, name, server, bind } => {
            push(&Client::new(server), component, name.as_deref(), bind.as_deref())
        }
        ExtensionCommand::List { server } => list(&Client::new(server)),
    }
}

/// Compiles the crate for the sandbox's target and wraps the module.
fn build(dir: &Path, output: Option<&Path>) -> Result<()> {
    let manifest = dir.join("Cargo.toml");
    let mut metadata = Command::new("cargo");
    metadata.args(["metadata", "--format-version", "1", "--no-deps", "--manifest-path"]);
    let metadata = metadata.arg(&manifest).output().context("cannot start `cargo`")?;
    if !metadata.status.success() {
        let said = String::from_utf8_lossy(&metadata.stderr);
        bail!("{}", said.trim().trim_start_matches("error: "));
    }
    let metadata: Value = serde_json::from_slice(&metadata.stdout)?;
    let package = package_at(&metadata, &manifest)?;
    let target_dir = metadata["target_directory"].as_str().context("no target directory")?;
    let target_dir = Path::new(target_dir).join("extension");

    let status = Command::new("cargo")
        .args(["rustc", "--lib", "--release", "--crate-type", "cdylib", "--target", TARGET])
        .args(["--config", "profile.release.panic=\"abort\""])
        .args(["--config", "profile.release.strip=true", "--manifest-path"])
        .arg(&manifest)
        .arg("--target-dir")
        .arg(&target_dir)
        .status()
        .context("cannot start `cargo`")?;
    if !status.success() {
        bail!("cargo failed; if the target is missing, run `rustup target add {TARGET}`");
    }
    let file = format!("{}.wasm", package.replace('-', "_"));
    let module = target_dir.join(TARGET).join("release").join(&file);
    let bytes =
        std::fs::read(&module).with_context(|| format!("cannot read {}", module.display()))?;
    let mut encoder = wit_component::ComponentEncoder::default();
    let component = encoder
        .validate(true)
        .module(&bytes)
        .and_then(|encoder| encoder.encode())
        .with_context(|| format!("`{package}` does not become a component"))?;
    let output = output.map(Path::to_path_buf).unwrap_or_else(|| target_dir.join(&file));
    NewFile::open(&output)
        .and_then(|file| file.write(&component))
        .with_context(|| format!("cannot write {}", output.display()))?;
    println!("{} ({} bytes)", output.display(), component.len());
    Ok(())
}

fn package_at(metadata: &Value, manifest: &Path) -> Result<String> {
    let wanted = manifest.canonicalize()?;
    let packages = metadata["packages"].as_array().context("cargo lists no packages")?;
    let found = packages.iter().find(|package| {
        let path = package["manifest_path"].as_str().map(PathBuf::from);
        path.and_then(|path| path.canonicalize().ok()).is_some_and(|path| path == wanted)
    });
    let name = found.and_then(|package| package["name"].as_str());
    Ok(name.with_context(|| format!("`{}` is no package", manifest.display()))?.to_owned())
}

/// Runs every case of the component's families; fails if one fails.
fn test(component: Option<&str>, path: &Path, family: Option<&str>) -> Result<()> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the cases `{}`", path.display()))?;
    let all = cases::read(&text).with_context(|| path.display().to_string())?;
    let mut subjects = match component {
        Some(component) => Subjects::One(hub::open_component(component)?),
        None => Subjects::BuiltIn {
            sandbox: hub::BuiltIn::new()?,
            all: embedded::all()?,
            open: BTreeMap::new(),
        },
    };
    let selected: Vec<&Case> = all.iter().filter(|case| subjects.reads(case, family)).collect();
    if selected.is_empty() {
        bail!("no case in `{}` fits; name its family by --family", path.display());
    }
    let bar = progress_bar(selected.len() as u64);
    let (mut num_passed, mut num_failed, mut num_runs) = (0, 0, 0);
    for case in selected {
        match subjects.check(case)? {
            Ok(runs) => {
                num_passed += 1;
                num_runs += runs;
            }
            Err(message) => {
                num_failed += 1;
                bar.suspend(|| println!("FAILED {}\n  {message}", case.id));
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    println!("{num_runs} runs");
    println!("{num_passed} passed, {num_failed} failed");
    if num_failed > 0 {
        bail!("{num_failed} cases fail");
    }
    Ok(())
}

/// What is tested.
enum Subjects {
    One(Arc<dyn ParserFactory>),
    /// The parser that each case's family names; opened when it is first needed.
    BuiltIn {
        sandbox: hub::BuiltIn,
        all: Vec<Embedded>,
        open: BTreeMap<String, Arc<dyn ParserFactory>>,
    },
}

impl Subjects {
    fn reads(&self, case: &Case, family: Option<&str>) -> bool {
        match (family, self) {
            (Some(family), _) => case.family == family,
            (None, Subjects::BuiltIn { .. }) => true,
            (None, Subjects::One(factory)) => {
                let descriptor = factory.descriptor();
                case.family == descriptor.name || descriptor.aliases.contains(&case.family)
            }
        }
    }

    /// How many runs the case took, or how it failed.
    fn check(&mut self, case: &Case) -> Result<Result<usize, String>> {
        let (factory, style) = match self {
            Subjects::One(factory) => {
                let choice = choose::for_family([factory.descriptor()], &case.family);
                (Arc::clone(factory), choice.ok().and_then(|choice| choice.style))
            }
            Subjects::BuiltIn { sandbox, all, open } => {
                let descriptors = all.iter().map(|embedded| &embedded.descriptor);
                let choice = match choose::for_family(descriptors, &case.family) {
                    Ok(choice) => choice,
                    Err(error) => return Ok(Err(error.to_string())),
                };
                let factory = match open.get(&choice.parser) {
                    Some(factory) => Arc::clone(factory),
                    None => {
                        let parser = all.iter().find(|parser| parser.name == choice.parser);
                        let parser = parser.context("the choice is one of them")?;
                        let factory: Arc<dyn ParserFactory> = sandbox.open(parser)?;
                        open.insert(choice.parser.clone(), Arc::clone(&factory));
                        factory
                    }
                };
                (factory, choice.style)
            }
        };
        let style = case.reasoning_family.clone().or(style);
        let scope = if factory.descriptor().tools { Scope::Whole } else { Scope::Reasoning };
        let run = Run { factory: &factory, style: style.as_deref(), scope };
        Ok(run.check(case, NUM_RANDOM_CUTS).map_err(|failure| {
            let how = if failure.watched { "watched" } else { "unwatched" };
            format!("{how}, cut at {:?}: {}", failure.cuts, failure.message)
        }))
    }
}

fn progress_bar(len: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} cases")
        .expect("the template is a constant");
    ProgressBar::new(len).with_style(style)
}

fn push(client: &Client, path: &Path, name: Option<&str>, bind: Option<&str>) -> Result<()> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let record = client.upload("/v1/extensions", name, &bytes)?;
    let name = record["name"].as_str().context("the answer has no name")?.to_owned();
    println!("{name} {}", record["digest"].as_str().unwrap_or_default());
    if let Some(model) = bind {
        client.put(&format!("/v1/extensions/{name}/bind"), &json!({"model": model}))?;
        println!("bound to `{model}`");
    }
    Ok(())
}

fn list(client: &Client) -> Result<()> {
    let answer = client.get("/v1/extensions")?;
    for record in answer["data"].as_array().context("the answer has no `data`")? {
        let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
        let bound = record["bound"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let bound = bound.collect::<Vec<_>>().join(",");
        let is_builtin = record["builtin"].as_bool().unwrap_or_default();
        let source = if is_builtin { "built in" } else { "uploaded" };
        println!("{:16} {source:9} {} {bound}", text("name"), text("digest"));
    }
    Ok(())
}
