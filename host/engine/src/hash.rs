//! The identity of a full block: a keyed 128-bit hash chained over (parent, tokens), rooted in the
//! request's extra keys.
//!
//! The key is a secret of the process, so nobody outside can construct two prefixes that collide
//! (SipHash-2-4, Aumasson and Bernstein 2012, 128-bit variant).

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};

/// Identity of a full block together with everything before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockHash(pub u128);

/// Hashes blocks under one secret.
#[derive(Debug, Clone)]
pub struct BlockHasher {
    key: [u8; 16],
}

// First byte of each hashed message: roots and blocks can never be confused.
const ROOT: u8 = 0;
const BLOCK: u8 = 1;

impl BlockHasher {
    /// `key` is the process's secret.
    pub fn new(key: [u8; 16]) -> Self {
        BlockHasher { key }
    }

    /// The parent of a sequence's first block. Chaining carries the salt to all later ones.
    pub fn root(&self, salt: Option<&str>) -> BlockHash {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(&[ROOT, u8::from(salt.is_some())]);
        hasher.write(salt.unwrap_or_default().as_bytes());
        BlockHash(hasher.finish128().as_u128())
    }

    /// The hash of a full block of `tokens` that follows `parent`.
    pub fn chain(&self, parent: BlockHash, tokens: impl Iterator<Item = u32>) -> BlockHash {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(&[BLOCK]);
        hasher.write(&parent.0.to_le_bytes());
        for token in tokens {
            hasher.write(&token.to_le_bytes());
        }
        BlockHash(hasher.finish128().as_u128())
    }
}

/// For maps keyed by [`BlockHash`]: it is uniform and secret already.
#[derive(Debug, Default, Clone)]
pub(crate) struct TakeLowBits(u64);

impl Hasher for TakeLowBits {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes.iter().take(8) {
            self.0 = self.0 << 8 | u64::from(byte);
        }
    }

    fn write_u128(&mut self, value: u128) {
        self.0 = value as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_counts() {
        let hasher = BlockHasher::new([1; 16]);
        let root = hasher.root(None);
        let mut seen = vec![
            root,
            hasher.root(Some("")),
            hasher.root(Some("a")),
            BlockHasher::new([2; 16]).root(None),
            hasher.chain(root, [1, 2].into_iter()),
            hasher.chain(root, [2, 1].into_iter()),
            hasher.chain(root, [1].into_iter()),
            hasher.chain(hasher.root(Some("a")), [1, 2].into_iter()),
            hasher.chain(hasher.chain(root, [1, 2].into_iter()), [1, 2].into_iter()),
        ];
        let count = seen.len();
        seen.sort_by_key(|h| h.0);
        seen.dedup();
        assert_eq!(seen.len(), count);
        assert_eq!(root, BlockHasher::new([1; 16]).root(None));
    }
}
