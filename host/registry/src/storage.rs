//! Where blobs and the index lie: a directory that one process owns, or memory.
//!
//! `index.json` and `blobs/<sha256>`; every file is written beside its place and renamed.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::error::RegistryError;
use crate::index::{Index, hex_of};

/// The two kinds.
#[derive(Debug)]
pub(crate) enum Storage {
    Memory(HashMap<String, Arc<[u8]>>),
    Disk(Disk),
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct Disk {
    dir: PathBuf,
    /// Held as long as the registry lives.
    _lock: File,
}

impl Storage {
    /// Opens or makes `dir` and reads its index.
    pub(crate) fn open(dir: &Path) -> Result<(Storage, Index), RegistryError> {
        let blobs = dir.join("blobs");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&blobs)
            .map_err(io("make", &blobs))?;
        let path = dir.join("lock");
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(io("open", &path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(RegistryError::InUse { dir: dir.to_path_buf() });
            }
            Err(fs::TryLockError::Error(error)) => return Err(io("lock", &path)(error)),
        }
        let disk = Disk { dir: dir.to_path_buf(), _lock: lock };
        let index = disk.read_index()?;
        Ok((Storage::Disk(disk), index))
    }

    /// Keeps a blob. Before the index mentions it.
    pub(crate) fn put(&mut self, digest: &str, bytes: &[u8]) -> Result<(), RegistryError> {
        match self {
            Storage::Memory(blobs) => {
                blobs.insert(digest.to_string(), bytes.into());
                Ok(())
            }
            Storage::Disk(disk) => write_atomically(&disk.blob_path(digest), bytes),
        }
    }

    /// A blob's bytes, checked against its digest.
    pub(crate) fn load(&self, digest: &str) -> Result<Arc<[u8]>, RegistryError> {
        match self {
            Storage::Memory(blobs) => Ok(blobs.get(digest).cloned().unwrap_or_default()),
            Storage::Disk(disk) => {
                let path = disk.blob_path(digest);
                let bytes = fs::read(&path).map_err(io("read", &path))?;
                if digest_of(&bytes) == digest {
                    Ok(bytes.into())
                } else {
                    Err(RegistryError::Corrupt { path })
                }
            }
        }
    }

    /// Writes the index. After the blobs that it mentions.
    pub(crate) fn save(&self, index: &Index) -> Result<(), RegistryError> {
        let Storage::Disk(disk) = self else { return Ok(()) };
        let path = disk.dir.join("index.json");
        let text = serde_json::to_vec_pretty(index)
            .map_err(|error| RegistryError::Index { path: path.clone(), why: error.to_string() })?;
        write_atomically(&path, &text)
    }

    /// Forgets a blob. After the index has stopped mentioning it.
    pub(crate) fn discard(&mut self, digest: &str) -> Result<(), RegistryError> {
        match self {
            Storage::Memory(blobs) => {
                blobs.remove(digest);
                Ok(())
            }
            Storage::Disk(disk) => {
                let path = disk.blob_path(digest);
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        Err(io("delete", &path)(error))
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

impl Disk {
    /// The name is hex: nothing that a request says becomes a path.
    fn blob_path(&self, digest: &str) -> PathBuf {
        self.dir.join("blobs").join(hex_of(digest).unwrap_or("none"))
    }

    fn read_index(&self) -> Result<Index, RegistryError> {
        let path = self.dir.join("index.json");
        let damaged = |why: String| RegistryError::Index { path: path.clone(), why };
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Index::new()),
            Err(error) => return Err(io("read", &path)(error)),
        };
        let index: Index =
            serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        if let Some(flaw) = index.flaw() {
            return Err(damaged(flaw));
        }
        for (name, entry) in &index.extensions {
            for version in &entry.versions {
                if !self.blob_path(&version.digest).is_file() {
                    return Err(damaged(format!(
                        "`{name}` has version `{}`, whose file is missing",
                        version.digest
                    )));
                }
            }
        }
        Ok(index)
    }
}

/// `sha256:…`
pub(crate) fn digest_of(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> RegistryError {
    let path = path.to_path_buf();
    move |error| RegistryError::Io { action, path, error }
}

/// Readers see the old file or the new one. The directory's owner is alone, so one name suffices.
fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), RegistryError> {
    let partial = path.with_extension("partial");
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&partial, path)?;
        // The rename itself must survive a power cut.
        path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    };
    write().map_err(io("write", path))
}
