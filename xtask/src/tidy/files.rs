//! What a file may look like and which words it may hold.

use std::fs;

use anyhow::Result;

use crate::shell;

const MAX_LINES: usize = 700;
const MAX_COLUMNS: usize = 100;

/// Files outside `kernels/` that may hold unsafe code, each for the reason in its header.
const UNSAFE_ALLOWED: &[&str] = &[
    "host/extensions/src/aot.rs",
    "host/model/src/mmap.rs",
    "guest-sdk/src/bindings.rs",
    "host/runner/tests/allocations.rs",
];

/// Who may read the environment: the composition root, build scripts, and what is not shipped.
const ENV_ALLOWED: &[&str] = &["fuzz/", "host/cli/", "tests/", "xtask/"];

/// Checks one tracked file.
pub fn check(path: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut say = |line: usize, what: String| found.push(format!("{path}:{line}: {what}"));
    let Ok(text) = fs::read_to_string(shell::root().join(path)) else { return Ok(found) };
    if path.ends_with(".lock") || path.starts_with("tests/cases/") {
        return Ok(found);
    }
    if !text.is_empty() && !text.ends_with('\n') {
        say(text.lines().count(), "no newline at the end".into());
    }
    for (i, line) in text.lines().enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            say(i + 1, "trailing blanks".into());
        }
        // A model's own token is none of our words.
        let line = line.replace(concat!("<|plu", "gin|>"), "");
        for word in banned_words() {
            if contains_word(&line, &word) {
                say(i + 1, format!("`{word}` does not belong in the project"));
            }
        }
    }
    if path.ends_with(".rs") {
        check_rust(path, &text, &mut say);
    }
    Ok(found)
}

fn check_rust(path: &str, text: &str, say: &mut impl FnMut(usize, String)) {
    let num_lines = text.lines().count();
    if num_lines > MAX_LINES {
        say(num_lines, format!("{num_lines} lines; split by noun (limit {MAX_LINES})"));
    }
    if !text.starts_with("//!") {
        say(1, "no module doc at the top".into());
    }
    for name in ["utils", "util", "common", "helpers", "misc"] {
        if path.ends_with(&format!("/{name}.rs")) || path.contains(&format!("/{name}/")) {
            say(1, format!("`{name}` says nothing; name it by its noun"));
        }
    }
    let allow_unsafe = path.starts_with("kernels/") || UNSAFE_ALLOWED.contains(&path);
    let is_shipped = !["/tests/", "/examples/", "/benches/"].iter().any(|p| path.contains(p));
    let allow_env = ENV_ALLOWED.iter().any(|p| path.starts_with(p)) || !is_shipped;
    for (i, line) in text.lines().enumerate() {
        if line.chars().count() > MAX_COLUMNS && !line.contains("://") {
            say(i + 1, format!("more than {MAX_COLUMNS} columns"));
        }
        let code = line.split("//").next().unwrap_or_default();
        if !allow_unsafe
            && contains_word(code, &format!("un{}", "safe"))
            && !code.contains("unsafe_code")
        {
            say(i + 1, "this code belongs in `kernels` or in a file of the list".into());
        }
        if !allow_env && code.contains(&format!("env{}var", "::")) {
            say(i + 1, "only `cli` reads the environment".into());
        }
        for stub in stubs() {
            if line.contains(&stub) {
                say(i + 1, format!("stub `{stub}`"));
            }
        }
        if contains_word(code, "fn") && code.contains(&format!("fn {}_", "get")) {
            say(i + 1, "a getter is named by its noun, without `get_`".into());
        }
    }
}

/// Stubs and tests that do not run. Written in pieces: this file is checked too.
fn stubs() -> Vec<String> {
    [("todo", "!("), ("unimplemented", "!("), ("#[ign", "ore"), ("FIX", "ME"), ("XX", "X")]
        .iter()
        .map(|(a, b)| format!("{a}{b}"))
        .collect()
}

/// Words that would tie the project to where it was made, or that the glossary replaces.
fn banned_words() -> Vec<String> {
    [
        ("sub", "agent"),
        ("sub", "agents"),
        ("C", "EO"),
        ("this work", "place"),
        ("plug", "in"),
        ("plug", "ins"),
        ("add", "on"),
        ("files.python", "hosted"),
        ("static.crates", ".io"),
        ("index.crates", ".io"),
        ("registry.npm", "js"),
        ("deb.deb", "ian"),
    ]
    .iter()
    .map(|(a, b)| format!("{a}{b}"))
    .collect()
}

/// Is `word` in `line`, not as a part of a longer word?
fn contains_word(line: &str, word: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}
