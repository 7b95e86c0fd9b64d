//! A read-only memory map of a weight file: the only place of this crate with `unsafe`.
//!
//! Weights are paged in as they are read, and given back once a backend has repacked them.

use std::fs::File;
#[cfg(unix)]
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;
use tenon_backend::BytesOwner;

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

impl BytesOwner for MappedFile {
    #[cfg(unix)]
    fn release(&self, range: Range<usize>) {
        // SAFETY: the map is private, read-only and backed by the file: pages that are dropped are
        // read from it again when they are touched, with the same bytes.
        #[allow(unsafe_code)]
        let advised = unsafe {
            self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len())
        };
        // Only memory is at stake, and only until the file is unmapped.
        advised.unwrap_or_default();
    }
}
