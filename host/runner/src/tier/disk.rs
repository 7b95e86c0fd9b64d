//! Blocks in a directory of the process's own, one file each: `<2 hex>/<32 hex>.kv`.
//!
//! A file is the block's bytes and a keyed checksum of key and bytes; one that is cut, damaged or
//! in another's place is an error, never a block. Files are not synced: after a crash they are of
//! no use anyway. The directory and the files can be read by their user only: they hold what
//! prompts were about. Nothing else is ever removed, and no link is followed to a file's removal.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use siphasher::sip128::{Hasher128, SipHasher13};

use super::KvTier;

/// Bytes of the checksum behind the block.
const SUM_BYTES: usize = 16;

/// A block's file, and the same while it is being written.
const ENDINGS: [&str; 2] = ["kv", "part"];

/// Locked by the process whose directory it is.
const LOCK: &str = "lock";

/// See the module's doc.
#[derive(Debug)]
pub struct DiskTier {
    dir: PathBuf,
    // Held until everything is removed.
    _lock: File,
}

impl DiskTier {
    /// Makes the directory if it is not there, and removes the blocks that an earlier process left
    /// in it.
    ///
    /// # Errors
    /// Of the file system; when the directory holds anything but blocks, links among it; and when
    /// another process uses it. Nothing was removed then.
    pub fn open(dir: &Path) -> io::Result<DiskTier> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        walk(dir, &mut |found| match found {
            Found::Block(_) | Found::Shard(_) => Ok(()),
            Found::Foreign(path) => {
                let why =
                    format!("`{}` is no KV block; give a directory of its own", path.display());
                Err(io::Error::new(io::ErrorKind::AlreadyExists, why))
            }
        })?;
        let tier = DiskTier { dir: dir.to_path_buf(), _lock: lock(dir)? };
        tier.clear()?;
        Ok(tier)
    }

    fn path(&self, key: u128) -> PathBuf {
        let name = format!("{key:032x}");
        self.dir.join(&name[..2]).join(&name).with_extension(ENDINGS[0])
    }

    /// Removes all blocks, and the shards that are empty then.
    fn clear(&self) -> io::Result<()> {
        let mut failure = None;
        walk(&self.dir, &mut |found| {
            match found {
                // One that cannot be removed does not keep the others.
                Found::Block(path) => failure = fs::remove_file(path).err().or(failure.take()),
                // It stays when it holds something of somebody else's.
                Found::Shard(path) => drop(fs::remove_dir(path)),
                Found::Foreign(_) => {}
            }
            Ok(())
        })?;
        failure.map_or(Ok(()), Err)
    }
}

/// What is in the directory, but for the lock.
enum Found<'a> {
    Block(&'a Path),
    // After what is in it.
    Shard(&'a Path),
    Foreign(&'a Path),
}

/// Shows everything in the directory; what vanishes meanwhile is passed over.
fn walk(dir: &Path, see: &mut dyn FnMut(Found) -> io::Result<()>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (shard, kind, name) = (entry.path(), entry.file_type()?, entry.file_name());
        if name == LOCK && kind.is_file() {
            continue;
        }
        if !kind.is_dir() || !is_hex(&name, 2) {
            see(Found::Foreign(&shard))?;
            continue;
        }
        let files = match fs::read_dir(&shard) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            files => files?,
        };
        for file in files {
            let file = file?;
            let path = file.path();
            match file.file_type()?.is_file() && is_block(&path, &name) {
                true => see(Found::Block(&path))?,
                false => see(Found::Foreign(&path))?,
            }
        }
        see(Found::Shard(&shard))?;
    }
    Ok(())
}

fn is_block(path: &Path, shard: &OsStr) -> bool {
    let stem = path.file_stem().unwrap_or_default();
    let is_there = stem.as_encoded_bytes().starts_with(shard.as_encoded_bytes());
    is_there && is_hex(stem, 32) && ENDINGS.iter().any(|e| path.extension() == Some(e.as_ref()))
}

fn is_hex(name: &OsStr, len: usize) -> bool {
    let bytes = name.as_encoded_bytes();
    bytes.len() == len && bytes.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The directory's lock, until the file is dropped.
fn lock(dir: &Path) -> io::Result<File> {
    let path = dir.join(LOCK);
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path)?;
    // One that ends removes the file before it gives up the lock: that may be a lock of nothing.
    let is_in_place =
        || -> io::Result<bool> { Ok(fs::symlink_metadata(&path)?.ino() == file.metadata()?.ino()) };
    let is_locked = match file.try_lock() {
        Ok(()) => is_in_place().unwrap_or(false),
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(error)) => return Err(error),
    };
    if !is_locked {
        let why = "another process keeps its KV blocks there; give each a directory of its own";
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
    }
    Ok(file)
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
        let part = path.with_extension(ENDINGS[1]);
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
        // What is left is of no use to anybody; what cannot be removed is found at the next start.
        let _ = self.clear();
        let _ = fs::remove_file(self.dir.join(LOCK));
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
    fn what_another_process_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("kv");
        let mut tier = DiskTier::open(&dir).unwrap();
        tier.store(1, &[7; 8]).unwrap();
        let path = tier.path(1);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&path)), (0o700, 0o600));
        drop(tier);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::create_dir(path.parent().unwrap()).unwrap();
        fs::write(&path, "left").unwrap();
        fs::write(path.with_extension("part"), "left").unwrap();
        fs::write(dir.join(LOCK), "").unwrap();
        let tier = DiskTier::open(&dir).unwrap();
        assert!(!path.parent().unwrap().exists());
        drop(tier);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    }

    /// Each is refused, named, and left alone with the block beside it.
    #[test]
    fn what_is_not_its_own_is_refused_and_left_alone() {
        let block = format!("{:032x}.kv", 0xab_u128 << 120);
        let check = |name: &str, named: &str, is_link: bool| {
            let folder = tempfile::tempdir().unwrap();
            let (dir, elsewhere) = (folder.path().join("kv"), folder.path().join("elsewhere"));
            fs::create_dir_all(dir.join("ab")).unwrap();
            fs::create_dir(&elsewhere).unwrap();
            fs::write(dir.join("ab").join(&block), "block").unwrap();
            fs::write(elsewhere.join(&block), "mine").unwrap();
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let target =
                if name.ends_with(".kv") { elsewhere.join(&block) } else { elsewhere.clone() };
            match is_link {
                true => std::os::unix::fs::symlink(target, &path).unwrap(),
                false => fs::write(&path, "mine").unwrap(),
            }
            let error = DiskTier::open(&dir).unwrap_err().to_string();
            let named = dir.join(named);
            assert!(error.contains(&format!("`{}`", named.display())), "{name}: {error}");
            assert!(path.exists() && dir.join("ab").join(&block).exists(), "{name}");
            assert!(elsewhere.join(&block).exists(), "{name}");
        };
        for name in ["diary.txt", "ab/diary.txt", "ab/diary.kv", "AB"] {
            check(name, name, false);
        }
        check("ab/deep/x", "ab/deep", false);
        check("abc/x", "abc", false);
        let (other_shard, linked) =
            (format!("cd/{block}"), format!("ab/{:032x}.kv", 0xab1_u128 << 116));
        check(&other_shard, &other_shard, false);
        for name in ["cd", "lock", "ab/deep", &linked] {
            check(name, name, true);
        }
    }

    #[test]
    fn what_came_later_outlives_it() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, elsewhere) = (folder.path().join("kv"), folder.path().join("elsewhere"));
        let mut tier = DiskTier::open(&dir).unwrap();
        tier.store(1, &[7; 8]).unwrap();
        let path = tier.path(1);
        let mine = [dir.join("later/x"), path.with_file_name("x"), elsewhere.join("x.kv")];
        for mine in &mine {
            fs::create_dir_all(mine.parent().unwrap()).unwrap();
            fs::write(mine, "mine").unwrap();
        }
        std::os::unix::fs::symlink(&elsewhere, dir.join("ef")).unwrap();
        drop(tier);
        assert!(mine.iter().all(|mine| mine.exists()) && !path.exists());
    }

    #[test]
    fn one_process_at_a_time_uses_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut tier = DiskTier::open(folder.path()).unwrap();
        tier.store(1, &[7; 8]).unwrap();
        let error = DiskTier::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("another process"), "{error}");
        tier.load(1, &mut [0; 8]).unwrap();
        drop(tier);
        DiskTier::open(folder.path()).unwrap();
    }
}
