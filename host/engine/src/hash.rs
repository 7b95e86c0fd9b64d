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

impl BlockHash {
    /// The same tokens in another KV group. Hashes are uniform, so that two of them differ in
    /// just these bits is as unlikely as that they are equal.
    pub(crate) fn in_group(self, group: usize) -> BlockHash {
        BlockHash(self.0 ^ group as u128)
    }
}

/// A part of a block's identity beside its tokens. All blocks of a sequence have the same ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtraKey<'a> {
    /// Who asked: tenants never share.
    Tenant(u64),
    /// The request's `cache_salt`.
    Salt(&'a str),
}

/// Hashes blocks under one secret.
#[derive(Debug, Clone)]
pub struct BlockHasher {
    key: [u8; 16],
}

// First byte of each hashed message: roots and blocks can never be confused.
const ROOT: u8 = 0;
const BLOCK: u8 = 1;
// First byte of each extra key.
const TENANT: u8 = 0;
const SALT: u8 = 1;

impl BlockHasher {
    /// `key` is the process's secret.
    pub fn new(key: [u8; 16]) -> Self {
        BlockHasher { key }
    }

    /// The parent of a sequence's first block. Chaining carries the extra keys to all later ones.
    pub fn root<'a>(&self, keys: impl IntoIterator<Item = ExtraKey<'a>>) -> BlockHash {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(&[ROOT]);
        for key in keys {
            // Kind and length first: lists that differ never spell the same bytes.
            match key {
                ExtraKey::Tenant(id) => {
                    hasher.write(&[TENANT]);
                    hasher.write(&id.to_le_bytes());
                }
                ExtraKey::Salt(salt) => {
                    hasher.write(&[SALT]);
                    hasher.write(&(salt.len() as u64).to_le_bytes());
                    hasher.write(salt.as_bytes());
                }
            }
        }
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
        use ExtraKey::{Salt, Tenant};
        let hasher = BlockHasher::new([1; 16]);
        let root = hasher.root([]);
        let salted = hasher.root([Salt("a")]);
        let mut seen = vec![
            root,
            root.in_group(1),
            hasher.root([Salt("")]),
            salted,
            hasher.root([Tenant(0)]),
            hasher.root([Tenant(1)]),
            hasher.root([Tenant(1), Salt("a")]),
            hasher.root([Tenant(1), Salt("ab")]),
            hasher.root([Tenant(1), Salt("a"), Salt("b")]),
            BlockHasher::new([2; 16]).root([]),
            hasher.chain(root, [1, 2].into_iter()),
            hasher.chain(root, [2, 1].into_iter()),
            hasher.chain(root, [1].into_iter()),
            hasher.chain(salted, [1, 2].into_iter()),
            hasher.chain(hasher.chain(root, [1, 2].into_iter()), [1, 2].into_iter()),
        ];
        let count = seen.len();
        seen.sort_by_key(|h| h.0);
        seen.dedup();
        assert_eq!(seen.len(), count);
        assert_eq!(root, BlockHasher::new([1; 16]).root([]));
    }
}
