//! Compiled code on disk: `<sha256 of the wasm>-<engine>.cwasm`, written by this server only.
//!
//! Loading it is the one unsafe act of this crate: the file is machine code. So the directory and
//! every file must belong to this user and be writable by nobody else.
#![allow(unsafe_code)]

use std::fs;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::error::HostError;

/// Bits of a mode that let others write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// A directory of compiled components for one engine.
#[derive(Debug)]
pub(crate) struct Cache {
    dir: PathBuf,
    /// Hex, from the engine's version, target and configuration.
    engine: String,
    num_partial: AtomicU64,
}

impl Cache {
    /// Opens or makes the directory (mode 0700).
    ///
    /// # Errors
    /// When it belongs to somebody else, others may write to it, or it cannot be made.
    pub(crate) fn open(dir: &Path, engine: &Engine) -> Result<Cache, HostError> {
        let fail = |why: String| HostError::Cache { path: dir.to_path_buf(), why };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(|error| fail(format!("{error}; choose a directory that can be written")))?;
        let about = fs::symlink_metadata(dir).map_err(|error| fail(error.to_string()))?;
        let dir = fs::canonicalize(dir).map_err(|error| fail(error.to_string()))?;
        if !about.is_dir() {
            return Err(fail("it is no directory; choose another path".into()));
        }
        check_owner(&about).map_err(fail)?;
        let mut hasher = Sha256Hasher(Sha256::new());
        engine.precompile_compatibility_hash().hash(&mut hasher);
        let engine = hex(&hasher.0.finalize())[..16].to_string();
        Ok(Cache { dir, engine, num_partial: AtomicU64::new(0) })
    }

    /// Where the code of `sha256` (hex) belongs.
    pub(crate) fn path(&self, sha256: &str) -> PathBuf {
        self.dir.join(format!("{sha256}-{}.cwasm", self.engine))
    }

    /// A new name beside it, for a file that is still being written.
    pub(crate) fn partial_path(&self, sha256: &str) -> PathBuf {
        let num = self.num_partial.fetch_add(1, Ordering::Relaxed);
        self.dir.join(format!(".{sha256}-{}-{}-{num}.partial", self.engine, std::process::id()))
    }

    /// The component of `sha256`, if its code is here, ours and fits the engine.
    ///
    /// # Errors
    /// When there is a file that must not or cannot be loaded; the words say why.
    pub(crate) fn load(&self, engine: &Engine, sha256: &str) -> Result<Option<Component>, String> {
        let path = self.path(sha256);
        let about = match fs::symlink_metadata(&path) {
            Ok(about) => about,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("`{}`: {error}", path.display())),
        };
        if !about.is_file() {
            return Err(format!("`{}` is no plain file; delete it", path.display()));
        }
        check_owner(&about).map_err(|why| format!("`{}`: {why}", path.display()))?;
        // SAFETY: the file is `Engine::precompile_component`'s output: it lies in a directory and
        // has an owner and mode that were just checked, so only this user wrote it, and this
        // server writes such names only by renaming what its own compiler process finished. It is
        // replaced by renaming, never changed in place, so the mapping stays what was checked.
        let component = unsafe { Component::deserialize_file(engine, &path) };
        component.map(Some).map_err(|error| format!("`{}`: {error:#}", path.display()))
    }
}

/// This user's, and writable by nobody else.
fn check_owner(about: &fs::Metadata) -> Result<(), String> {
    let us = rustix::process::geteuid().as_raw();
    if about.uid() != us {
        return Err(format!(
            "it belongs to user `{}`, not to `{us}`; it holds machine code, so give it to this \
             user or choose another directory",
            about.uid()
        ));
    }
    if about.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(format!(
            "others may write to it (mode `{:o}`); it holds machine code, so `chmod go-w` it",
            about.mode() & 0o777
        ));
    }
    Ok(())
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of `bytes`, in hex.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// A hash that is the same in every process.
struct Sha256Hasher(Sha256);

impl Hasher for Sha256Hasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.clone().finalize();
        u64::from_le_bytes([
            digest[0], digest[1], digest[2], digest[3], digest[4], digest[5], digest[6], digest[7],
        ])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::engine::{compiling_engine, serving_engine};
    use crate::limits::RunLimits;

    fn engine() -> Engine {
        compiling_engine(&RunLimits::default()).unwrap()
    }

    #[test]
    fn the_compiler_and_the_server_agree_on_the_code() {
        let dir = tempfile::tempdir().unwrap();
        let serving = serving_engine(&RunLimits::default(), 4).unwrap();
        let ours = Cache::open(&dir.path().join("a"), &serving).unwrap();
        let theirs = Cache::open(&dir.path().join("b"), &engine()).unwrap();
        assert_eq!(ours.engine, theirs.engine);
        assert_eq!(ours.engine.len(), 16);
    }

    #[test]
    fn the_directory_is_ours_alone() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("compiled");
        Cache::open(&inside, &engine()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&inside), 0o700);

        fs::set_permissions(&inside, fs::Permissions::from_mode(0o770)).unwrap();
        let error = Cache::open(&inside, &engine()).unwrap_err().to_string();
        assert!(error.contains("others may write to it (mode `770`)"), "{error}");

        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        let error = Cache::open(&link, &engine()).unwrap_err().to_string();
        assert!(error.contains("no directory"), "{error}");
    }

    #[test]
    fn a_file_that_others_may_write_is_not_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine();
        let cache = Cache::open(&dir.path().join("compiled"), &engine).unwrap();
        let wasm = wat::parse_str("(component)").unwrap();
        let digest = sha256(&wasm);
        assert!(cache.load(&engine, &digest).unwrap().is_none());
        fs::write(cache.path(&digest), engine.precompile_component(&wasm).unwrap()).unwrap();
        fs::set_permissions(cache.path(&digest), fs::Permissions::from_mode(0o600)).unwrap();
        assert!(cache.load(&engine, &digest).unwrap().is_some());

        fs::set_permissions(cache.path(&digest), fs::Permissions::from_mode(0o602)).unwrap();
        let error = cache.load(&engine, &digest).err().unwrap();
        assert!(error.contains("others may write"), "{error}");

        fs::remove_file(cache.path(&digest)).unwrap();
        fs::write(cache.path(&digest), b"not code").unwrap();
        fs::set_permissions(cache.path(&digest), fs::Permissions::from_mode(0o600)).unwrap();
        assert!(cache.load(&engine, &digest).is_err());
    }
}
