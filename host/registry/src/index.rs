//! The index file: names, versions, bindings. Pure data; whoever reads it from disk checks it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The format's number.
pub(crate) const FORMAT: u32 = 1;

/// Bytes of a name.
const MAX_NAME_BYTES: usize = 64;

/// One upload of an extension.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Version {
    /// `sha256:…` of the bytes.
    pub digest: String,
    /// Size of the blob.
    pub num_bytes: u64,
}

/// All versions of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// Digest of the version in use.
    pub(crate) current: String,
    /// Digest of the version in use before it.
    pub(crate) previous: Option<String>,
    /// Oldest first.
    pub(crate) versions: Vec<Version>,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Index {
    pub(crate) format: u32,
    pub(crate) extensions: BTreeMap<String, Entry>,
    /// Model → name.
    pub(crate) bindings: BTreeMap<String, String>,
}

impl Index {
    pub(crate) fn new() -> Self {
        Index { format: FORMAT, extensions: BTreeMap::new(), bindings: BTreeMap::new() }
    }

    /// What is wrong with an index that somebody else may have written; none: nothing.
    pub(crate) fn flaw(&self) -> Option<String> {
        if self.format != FORMAT {
            return Some(format!("format `{}`, this server reads {FORMAT}", self.format));
        }
        for (name, entry) in &self.extensions {
            if !is_name(name) {
                return Some(format!("`{name}` is no extension name"));
            }
            let has = |digest: &str| entry.versions.iter().any(|v| v.digest == digest);
            if let Some(bad) = entry.versions.iter().find(|v| hex_of(&v.digest).is_none()) {
                return Some(format!("`{}` of `{name}` is no digest", bad.digest));
            }
            let chosen = std::iter::once(&entry.current).chain(&entry.previous);
            if let Some(lost) = chosen.into_iter().find(|digest| !has(digest)) {
                return Some(format!("`{name}` chooses `{lost}`, which it does not have"));
            }
        }
        let lost = self.bindings.iter().find(|(_, name)| !self.extensions.contains_key(*name));
        lost.map(|(model, name)| format!("model `{model}` uses `{name}`, which is not there"))
    }

    /// Is the blob of any version?
    pub(crate) fn mentions(&self, digest: &str) -> bool {
        self.extensions.values().any(|entry| entry.versions.iter().any(|v| v.digest == digest))
    }

    /// Models that use `name`.
    pub(crate) fn models_of(&self, name: &str) -> Vec<String> {
        let users = self.bindings.iter().filter(|(_, bound)| *bound == name);
        users.map(|(model, _)| model.clone()).collect()
    }
}

/// Fits file systems, URLs and logs.
pub(crate) fn is_name(name: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
    !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name.bytes().all(is_allowed)
        && name.as_bytes()[0].is_ascii_alphanumeric()
}

/// The hex part of `sha256:…`, if it is one.
pub(crate) fn hex_of(digest: &str) -> Option<&str> {
    let hex = digest.strip_prefix("sha256:")?;
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    (hex.len() == 64 && hex.bytes().all(is_hex)).then_some(hex)
}
