//! A read-only memory map of a weight file: the only place of this crate with `unsafe`.
//!
//! Weights are paged in as kernels touch them and shared between processes.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use crate::error::ModelError;

/// A mapped file. Readers see it as bytes and check every offset that they take from it.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps `path`. Fails with [`ModelError::Io`] when it is missing, unreadable or no plain file.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let io = |source| ModelError::Io { path: path.to_path_buf(), source };
        // Before it is opened: to open a pipe waits for its other end.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(io(std::io::Error::other("not a plain file")));
        }
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is private and read-only, and no code here writes to weight files.
        // A file that another process truncates while it is mapped ends this process with a
        // bus error: the documented price of not copying gigabytes.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(MappedFile { map })
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}
