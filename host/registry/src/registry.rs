//! The operations. Each one changes a copy of the index, saves it, and only then makes it current,
//! so a failed write changes nothing.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::RegistryError;
use crate::index::{Entry, Index, Version, hex_of, is_name};
use crate::storage::{Storage, digest_of};

/// Names in one registry.
pub const MAX_EXTENSIONS: usize = 1024;

/// Versions kept of one name; the oldest one not in use goes first.
pub const MAX_VERSIONS: usize = 8;

/// Models in the bindings.
const MAX_BINDINGS: usize = 4096;

/// Characters of a caller's word in a message.
const MAX_SHOWN: usize = 80;

/// An extension's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    /// Its name.
    pub name: String,
    /// Digest in use.
    pub current: String,
    /// Digest in use before; `rollback` returns to it.
    pub previous: Option<String>,
    /// Oldest first.
    pub versions: Vec<Version>,
    /// Models that use it.
    pub bound: Vec<String>,
}

/// An extension's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// A name that has this version.
    pub name: String,
    /// `sha256:…`
    pub digest: String,
    /// Verified against the digest.
    pub bytes: Arc<[u8]>,
}

/// Shared by all that need it; blocks on the disk, so not for an async thread.
#[derive(Debug)]
pub struct Registry {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    index: Index,
    storage: Storage,
}

impl Registry {
    /// One that forgets everything with the process.
    pub fn in_memory() -> Self {
        let storage = Storage::Memory(std::collections::HashMap::new());
        Registry { state: Mutex::new(State { index: Index::new(), storage }) }
    }

    /// Opens or makes a directory.
    ///
    /// # Errors
    /// When it cannot be used, another process uses it, or its index is damaged.
    pub fn open(dir: &Path) -> Result<Self, RegistryError> {
        let (storage, index) = Storage::open(dir)?;
        Ok(Registry { state: Mutex::new(State { index, storage }) })
    }

    /// Keeps `bytes` as a version of `name` and makes it current. Returns its digest.
    ///
    /// # Errors
    /// A bad name, too many extensions, or the disk's.
    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<String, RegistryError> {
        if !is_name(name) {
            return Err(RegistryError::BadName { name: shown(name) });
        }
        let digest = digest_of(bytes);
        let mut state = self.lock();
        let mut index = state.index.clone();
        if !index.extensions.contains_key(name) && index.extensions.len() >= MAX_EXTENSIONS {
            return Err(RegistryError::Full { what: "extensions", limit: MAX_EXTENSIONS });
        }
        let entry = index.extensions.entry(name.to_string()).or_insert_with(|| Entry {
            current: digest.clone(),
            previous: None,
            versions: Vec::new(),
        });
        if !entry.versions.iter().any(|version| version.digest == digest) {
            let num_bytes = bytes.len() as u64;
            entry.versions.push(Version { digest: digest.clone(), num_bytes });
        }
        entry.choose(&digest);
        entry.forget_oldest();
        state.storage.put(&digest, bytes)?;
        state.commit(index)?;
        Ok(digest)
    }

    /// The current bytes of a name, or the bytes of a digest.
    ///
    /// # Errors
    /// When there is none, or the disk's.
    pub fn get(&self, name_or_digest: &str) -> Result<Blob, RegistryError> {
        let state = self.lock();
        let (name, digest) = if hex_of(name_or_digest).is_some() {
            let owner = state.index.extensions.iter().find(|(_, entry)| {
                entry.versions.iter().any(|version| version.digest == name_or_digest)
            });
            let (name, _) = owner.ok_or_else(|| state.unknown(name_or_digest))?;
            (name.clone(), name_or_digest.to_string())
        } else {
            (name_or_digest.to_string(), state.entry(name_or_digest)?.current.clone())
        };
        let bytes = state.storage.load(&digest)?;
        Ok(Blob { name, digest, bytes })
    }

    /// Everything there is, by name.
    pub fn list(&self) -> Vec<Extension> {
        let state = self.lock();
        state.index.extensions.keys().filter_map(|name| state.record(name)).collect()
    }

    /// One record.
    ///
    /// # Errors
    /// When there is none.
    pub fn describe(&self, name: &str) -> Result<Extension, RegistryError> {
        let state = self.lock();
        state.record(name).ok_or_else(|| state.unknown(name))
    }

    /// Makes a kept version current.
    ///
    /// # Errors
    /// When there is no such name or version, or the disk's.
    pub fn activate(&self, name: &str, digest: &str) -> Result<(), RegistryError> {
        let mut state = self.lock();
        let mut index = state.index.clone();
        let entry = index.extensions.get_mut(name).ok_or_else(|| state.unknown(name))?;
        if !entry.versions.iter().any(|version| version.digest == digest) {
            return Err(RegistryError::UnknownVersion {
                name: name.to_string(),
                digest: shown(digest),
                known: entry.versions.iter().map(|version| version.digest.clone()).collect(),
            });
        }
        entry.choose(digest);
        state.commit(index)
    }

    /// Makes the previous version current, and this one previous. Returns the digest now in use.
    ///
    /// # Errors
    /// When there is no such name or no previous version, or the disk's.
    pub fn rollback(&self, name: &str) -> Result<String, RegistryError> {
        let mut state = self.lock();
        let mut index = state.index.clone();
        let entry = index.extensions.get_mut(name).ok_or_else(|| state.unknown(name))?;
        let Some(previous) = entry.previous.clone() else {
            return Err(RegistryError::NoPrevious { name: name.to_string() });
        };
        entry.choose(&previous);
        state.commit(index)?;
        Ok(previous)
    }

    /// From now on `model` uses `name`.
    ///
    /// # Errors
    /// When there is no such name, there are too many bindings, or the disk's.
    pub fn bind(&self, model: &str, name: &str) -> Result<(), RegistryError> {
        let mut state = self.lock();
        state.entry(name)?;
        let mut index = state.index.clone();
        if !index.bindings.contains_key(model) && index.bindings.len() >= MAX_BINDINGS {
            return Err(RegistryError::Full { what: "bindings", limit: MAX_BINDINGS });
        }
        index.bindings.insert(model.to_string(), name.to_string());
        state.commit(index)
    }

    /// From now on `model` uses nothing of this registry. Returns what it used.
    ///
    /// # Errors
    /// The disk's.
    pub fn unbind(&self, model: &str) -> Result<Option<String>, RegistryError> {
        let mut state = self.lock();
        let mut index = state.index.clone();
        let name = index.bindings.remove(model);
        if name.is_some() {
            state.commit(index)?;
        }
        Ok(name)
    }

    /// The name that `model` uses.
    pub fn bound(&self, model: &str) -> Option<String> {
        self.lock().index.bindings.get(model).cloned()
    }

    /// Deletes a name with all its versions.
    ///
    /// # Errors
    /// When a model uses it, there is none, or the disk's.
    pub fn delete(&self, name: &str) -> Result<(), RegistryError> {
        let mut state = self.lock();
        state.entry(name)?;
        let models = state.index.models_of(name);
        if !models.is_empty() {
            return Err(RegistryError::Bound { name: name.to_string(), models });
        }
        let mut index = state.index.clone();
        index.extensions.remove(name);
        state.commit(index)
    }

    /// A panic elsewhere left a whole index: changes are made to a copy.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Saves `index`, makes it the index, and drops blobs that it no longer mentions.
    fn commit(&mut self, index: Index) -> Result<(), RegistryError> {
        self.storage.save(&index)?;
        let old = std::mem::replace(&mut self.index, index);
        let versions = old.extensions.values().flat_map(|entry| &entry.versions);
        for version in versions {
            if !self.index.mentions(&version.digest) {
                self.storage.discard(&version.digest)?;
            }
        }
        Ok(())
    }

    fn entry(&self, name: &str) -> Result<&Entry, RegistryError> {
        self.index.extensions.get(name).ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> RegistryError {
        let known = self.index.extensions.keys().cloned().collect();
        RegistryError::Unknown { name: shown(name), known }
    }

    fn record(&self, name: &str) -> Option<Extension> {
        let entry = self.index.extensions.get(name)?;
        Some(Extension {
            name: name.to_string(),
            current: entry.current.clone(),
            previous: entry.previous.clone(),
            versions: entry.versions.clone(),
            bound: self.index.models_of(name),
        })
    }
}

impl Entry {
    /// Makes `digest`, one of its versions, current.
    fn choose(&mut self, digest: &str) {
        if self.current != digest {
            let old = std::mem::replace(&mut self.current, digest.to_string());
            self.previous = Some(old);
        }
    }

    fn forget_oldest(&mut self) {
        while self.versions.len() > MAX_VERSIONS {
            let is_used =
                |digest: &str| digest == self.current || self.previous.as_deref() == Some(digest);
            let Some(oldest) = self.versions.iter().position(|v| !is_used(&v.digest)) else {
                return;
            };
            self.versions.remove(oldest);
        }
    }
}

/// A caller's word, short enough for a message.
fn shown(word: &str) -> String {
    word.chars().filter(|c| !c.is_control()).take(MAX_SHOWN).collect()
}
