//! Blocks in host memory: for a backend whose own memory is elsewhere, and for tests.

use std::collections::HashMap;
use std::io;

use super::KvTier;

/// See the module's doc. The engine's index bounds it.
#[derive(Debug, Default)]
pub struct MemoryTier {
    blocks: HashMap<u128, Box<[u8]>>,
}

impl KvTier for MemoryTier {
    fn store(&mut self, key: u128, bytes: &[u8]) -> io::Result<()> {
        self.blocks.insert(key, bytes.into());
        Ok(())
    }

    fn load(&mut self, key: u128, bytes: &mut [u8]) -> io::Result<()> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let stored = self.blocks.get(&key).filter(|b| b.len() == bytes.len());
        bytes.copy_from_slice(stored.ok_or_else(missing)?);
        Ok(())
    }

    fn remove(&mut self, key: u128) {
        self.blocks.remove(&key);
    }
}
