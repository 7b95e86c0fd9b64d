//! Blocks in a directory of the process's own, one file each: `<2 hex>/<32 hex>.kv`.
//!
//! A file is the block's bytes and a keyed checksum of key and bytes; one that is cut, damaged or
//! in another's place is an error, never a block. Files are not synced: after a crash they are of
//! no use anyway. The directory and the files can be read by their user only: they hold what
//! prompts were about.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use siphasher::sip128::{Hasher128, SipHasher13};

use super::KvTier;

/// Bytes of the checksum behind the block.
const SUM_BYTES: usize = 16;

/// Only these are ours to remove.
const ENDING: &str = "kv";

/// See the module's doc.
#[derive(Debug)]
pub struct DiskTier {
    dir: PathBuf,
}

impl DiskTier {
    /// Makes the directory if it is not there, and removes what an earlier process left in it.
    ///
    /// # Errors
    /// Of the file system; and when the directory holds something that is not of this kind.
    pub fn open(dir: &Path) -> io::Result<DiskTier> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let tier = DiskTier { dir: dir.to_path_buf() };
        for shard in fs::read_dir(dir)? {
            let shard = shard?.path();
            let name = shard.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            let is_ours = name.len() == 2 && name.bytes().all(|b| b.is_ascii_hexdigit());
            if !is_ours || !shard.is_dir() {
                let found =
                    format!("`{}` is no KV block; give a directory of its own", shard.display());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, found));
            }
            for file in fs::read_dir(&shard)? {
                let file = file?.path();
                if file.extension().is_some_and(|ending| ending == ENDING || ending == "part") {
                    fs::remove_file(file)?;
                }
            }
        }
        Ok(tier)
    }

    fn path(&self, key: u128) -> PathBuf {
        let name = format!("{key:032x}");
        self.dir.join(&name[..2]).join(&name).with_extension(ENDING)
    }
}

fn checksum(key: u128, bytes: &[u8]) -> [u8; SUM_BYTES] {
    let mut hasher = SipHasher13::new_with_key(&key.to_le_bytes());
    hasher.write(bytes);
    hasher.finish128().as_u128().to_le_bytes()
}

impl KvTier for DiskTier {
    fn store(&mut self, key: u128, bytes: &[u8]) -> io::Result<()> {
        let path = self.path(key);
        let shard = path.parent().expect("it has a shard");
        DirBuilder::new().recursive(true).mode(0o700).create(shard)?;
        let part = path.with_extension("part");
        let write = || {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&part)?;
            file.write_all(bytes)?;
            file.write_all(&checksum(key, bytes))?;
            fs::rename(&part, &path)
        };
        write().inspect_err(|_| drop(fs::remove_file(&part)))
    }

    fn load(&mut self, key: u128, bytes: &mut [u8]) -> io::Result<()> {
        let mut file = File::open(self.path(key))?;
        file.read_exact(bytes)?;
        let mut sum = [0; SUM_BYTES];
        file.read_exact(&mut sum)?;
        if file.read(&mut [0])? > 0 || sum != checksum(key, bytes) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the block's file is damaged"));
        }
        Ok(())
    }

    fn remove(&mut self, key: u128) {
        // What is not there needs no removal; what cannot be removed is found at the next start.
        let _ = fs::remove_file(self.path(key));
    }
}

impl Drop for DiskTier {
    fn drop(&mut self) {
        // What is left is of no use to anybody.
        let Ok(shards) = fs::read_dir(&self.dir) else { return };
        for shard in shards.flatten() {
            let _ = fs::remove_dir_all(shard.path());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_damaged_cut_or_swapped_file_is_no_block() {
        let folder = tempfile::tempdir().unwrap();
        let mut tier = DiskTier::open(folder.path()).unwrap();
        tier.store(1, &[7; 64]).unwrap();
        tier.store(2, &[8; 64]).unwrap();
        let mut bytes = [0; 64];
        tier.load(1, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 64]);
        let good = fs::read(tier.path(1)).unwrap();
        for at in [0, 63, 64, 79] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(tier.path(1), &bad).unwrap();
            assert!(tier.load(1, &mut bytes).is_err(), "byte {at}");
        }
        for len in [0, 63, 64, 79] {
            fs::write(tier.path(1), &good[..len]).unwrap();
            assert!(tier.load(1, &mut bytes).is_err(), "{len} bytes");
        }
        fs::copy(tier.path(2), tier.path(1)).unwrap();
        assert!(tier.load(1, &mut bytes).is_err(), "another's block");
        assert!(tier.load(3, &mut bytes).is_err());
    }

    #[test]
    fn what_another_process_left_is_removed_and_foreign_files_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("kv");
        let mut tier = DiskTier::open(&dir).unwrap();
        tier.store(1, &[7; 8]).unwrap();
        let path = tier.path(1);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&path)), (0o700, 0o600));
        std::mem::forget(tier);
        let tier = DiskTier::open(&dir).unwrap();
        assert!(!path.exists());
        drop(tier);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::write(dir.join("diary.txt"), "mine").unwrap();
        let error = DiskTier::open(&dir).unwrap_err().to_string();
        assert!(error.contains("diary.txt"), "{error}");
        assert!(dir.join("diary.txt").exists());
    }
}
