//! Who may depend on whom. The table is the one in ARCHITECTURE.md.

use std::fs;

use anyhow::{Context, Result};

use crate::shell;

/// Our crates → our crates that each may import (dev-dependencies are free).
const MAY_IMPORT: &[(&str, &[&str])] = &[
    (
        "tenon",
        &[
            "tenon-backend",
            "tenon-chat",
            "tenon-cpu",
            "tenon-engine",
            "tenon-extensions",
            "tenon-model",
            "tenon-reference",
            "tenon-registry",
            "tenon-runner",
            "tenon-scripted",
            "tenon-server",
            "tenon-text",
        ],
    ),
    (
        "tenon-server",
        &["tenon-chat", "tenon-engine", "tenon-grammar", "tenon-runner", "tenon-text"],
    ),
    ("tenon-chat", &["tenon-engine", "tenon-text"]),
    (
        "tenon-runner",
        &["tenon-backend", "tenon-engine", "tenon-grammar", "tenon-model", "tenon-text"],
    ),
    ("tenon-grammar", &["tenon-text"]),
    ("tenon-model", &["tenon-backend"]),
    ("tenon-cpu", &["tenon-backend"]),
    ("tenon-reference", &["tenon-backend"]),
    ("tenon-scripted", &["tenon-backend"]),
    ("tenon-extensions", &["tenon-chat"]),
    ("tenon-registry", &[]),
    ("tenon-engine", &[]),
    ("tenon-text", &[]),
    ("tenon-backend", &[]),
    ("tenon-guest", &[]),
    ("acme-parser", &["tenon-guest"]),
    ("tenon-formats", &["tenon-guest"]),
    ("tenon-fuzz", &["tenon-formats", "tenon-guest"]),
    ("tenon-tests", &[]),
    ("xtask", &[]),
];

/// What every crate under `parsers/` may import.
const PARSER_MAY_IMPORT: &[&str] = &["tenon-guest"];

/// External crates → the only crates of ours that may know them (not even in tests).
const ONLY_IN: &[(&str, &[&str])] = &[
    ("wasmtime", &["tenon-extensions"]),
    ("axum", &["tenon-server"]),
    ("hyper", &["tenon-server"]),
    ("hyper-util", &["tenon-server"]),
    ("memmap2", &["tenon-model"]),
    ("safetensors", &["tenon-model"]),
    ("tokenizers", &["tenon-text"]),
    ("toktrie", &["tenon-grammar"]),
    ("llguidance", &["tenon-grammar"]),
    ("minijinja", &["tenon-chat"]),
    ("talc", &["tenon-guest"]),
    ("wit-bindgen", &["tenon-guest"]),
    ("clap", &["tenon"]),
    ("pulp", &["tenon-runner"]),
    ("libfuzzer-sys", &["tenon-fuzz"]),
];

/// Checks every member's manifest.
pub fn check() -> Result<Vec<String>> {
    let text = fs::read_to_string(shell::root().join("Cargo.toml"))?;
    let workspace: toml::Value = toml::from_str(&text)?;
    let members = workspace["workspace"]["members"].as_array().context("no members")?;
    let mut found = Vec::new();
    for member in members {
        let pattern = member.as_str().context("a member is no string")?;
        for dir in expand(pattern)? {
            check_manifest(&dir, &mut found)?;
        }
    }
    Ok(found)
}

fn expand(pattern: &str) -> Result<Vec<String>> {
    let Some(parent) = pattern.strip_suffix("/*") else { return Ok(vec![pattern.to_owned()]) };
    let mut dirs = Vec::new();
    for entry in fs::read_dir(shell::root().join(parent))? {
        let entry = entry?;
        if entry.path().join("Cargo.toml").exists() {
            dirs.push(format!("{parent}/{}", entry.file_name().to_string_lossy()));
        }
    }
    Ok(dirs)
}

fn check_manifest(dir: &str, found: &mut Vec<String>) -> Result<()> {
    let path = format!("{dir}/Cargo.toml");
    let text = fs::read_to_string(shell::root().join(&path))?;
    let manifest: toml::Value = toml::from_str(&text).with_context(|| path.clone())?;
    let name = manifest["package"]["name"].as_str().context("a package has no name")?;
    let is_parser = |name: &str| name.starts_with("tenon-parser-");
    let row = MAY_IMPORT.iter().find(|(ours, _)| *ours == name).map(|(_, allowed)| *allowed);
    let Some(allowed) = row.or_else(|| is_parser(name).then_some(PARSER_MAY_IMPORT)) else {
        found.push(format!("{path}: `{name}` has no row in the dependency table"));
        return Ok(());
    };
    for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
        let Some(table) = manifest.get(section).and_then(toml::Value::as_table) else { continue };
        for (dependency, spec) in table {
            // The tests of all formats know all parsers; there is no list of them to keep.
            let is_tested = name == "tenon-formats" && is_parser(dependency);
            let ours = MAY_IMPORT.iter().any(|(ours, _)| ours == dependency);
            if (ours || is_parser(dependency))
                && !is_tested
                && section == "dependencies"
                && !allowed.contains(&dependency.as_str())
            {
                found.push(format!("{path}: `{name}` may not import `{dependency}`"));
            }
            let only = ONLY_IN.iter().find(|(external, _)| external == dependency);
            if let Some((external, owners)) = only
                && !owners.contains(&name)
            {
                found.push(format!("{path}: only {} may know `{external}`", owners.join(", ")));
            }
            let inherited = spec.get("workspace").is_some_and(|w| w.as_bool() == Some(true));
            if !inherited && !is_tested {
                found.push(format!("{path}: `{dependency}` is not inherited from the workspace"));
            }
        }
    }
    Ok(())
}
