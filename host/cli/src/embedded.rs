//! The parsers that ship with the server: components and what each says of itself, embedded as
//! `cargo xtask guests` built them.

use anyhow::{Context, Result};
use serde::Deserialize;
use tenon_chat::parser::Descriptor;

mod built {
    include!(concat!(env!("OUT_DIR"), "/guests.rs"));
}

/// One embedded component.
pub struct Embedded {
    /// Canonical name.
    pub name: String,
    /// `sha256:…` of `bytes`.
    pub digest: String,
    /// Its own description, so that nothing has to be compiled to choose.
    pub descriptor: Descriptor,
    /// The component.
    pub bytes: &'static [u8],
}

#[derive(Deserialize)]
struct IndexEntry {
    name: String,
    digest: String,
    descriptor: Descriptor,
}

/// All of them, by name.
pub fn all() -> Result<Vec<Embedded>> {
    let entries: Vec<IndexEntry> =
        serde_json::from_str(built::INDEX).context("the embedded index is damaged")?;
    entries
        .into_iter()
        .map(|entry| {
            let bytes = built::COMPONENTS.iter().find(|(name, _)| *name == entry.name);
            let (_, bytes) = bytes.with_context(|| format!("no component `{}`", entry.name))?;
            let IndexEntry { name, digest, descriptor } = entry;
            Ok(Embedded { name, digest, descriptor, bytes })
        })
        .collect()
}
