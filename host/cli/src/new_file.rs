//! A file that a command writes at its end: whole, or what was there before stays.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

/// The mode of a new file, less the umask.
const MODE: u32 = 0o666;

/// Where a result will go.
pub enum NewFile {
    /// Renamed to its path at the end.
    Temporary(NamedTempFile, PathBuf),
    /// A pipe or a device: nothing of it can be kept.
    Special(File),
}

impl NewFile {
    /// Finds out now whether `path` can be written; nothing there changes yet.
    pub fn open(path: &Path) -> Result<NewFile> {
        // A link stays one: the file that it names is replaced.
        let path = match path.canonicalize() {
            Ok(path) => path,
            Err(error) if error.kind() == ErrorKind::NotFound => path.to_owned(),
            Err(error) => return Err(error.into()),
        };
        let mut permissions = Permissions::from_mode(MODE);
        if path.exists() {
            // Or a rename would replace what must not be written.
            let file = OpenOptions::new().write(true).open(&path)?;
            let metadata = file.metadata()?;
            if !metadata.is_file() {
                return Ok(NewFile::Special(file));
            }
            permissions = metadata.permissions();
        }
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        let file = builder.prefix(".tenon-").permissions(permissions).tempfile_in(folder)?;
        Ok(NewFile::Temporary(file, path))
    }

    /// Writes the file.
    pub fn write(self, bytes: &[u8]) -> Result<()> {
        match self {
            NewFile::Special(mut file) => file.write_all(bytes)?,
            NewFile::Temporary(mut file, path) => {
                file.write_all(bytes)?;
                file.persist(&path).context("cannot rename the file")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_replaced_at_the_end_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let num_files = || fs::read_dir(folder.path()).unwrap().count();
        NewFile::open(&path).unwrap();
        assert_eq!(num_files(), 0);
        NewFile::open(&path).unwrap().write(b"first").unwrap();
        let file = NewFile::open(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        drop(file);
        assert_eq!((fs::read(&path).unwrap().as_slice(), num_files()), (&b"first"[..], 1));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("a", &link).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        NewFile::open(&link).unwrap().write(b"2").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"2");
        assert!(link.is_symlink());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(num_files(), 2);
    }

    #[test]
    fn what_cannot_be_written_is_known_at_once() {
        let folder = tempfile::tempdir().unwrap();
        assert!(NewFile::open(&folder.path().join("none/a")).is_err());
        assert!(NewFile::open(folder.path()).is_err());
        NewFile::open(Path::new("/dev/null")).unwrap().write(b"x").unwrap();
    }
}
