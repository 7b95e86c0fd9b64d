//! Which blocks a tier below the pool keeps: least recently used, or ARC, which also heeds how
//! often a block was asked for and so survives a scan of blocks that nobody wants twice (Megiddo
//! and Modha 2003, "ARC: A Self-Tuning, Low Overhead Replacement Cache").
//!
//! Only identities are here; the contents are where the runner puts them.

use std::collections::{BTreeMap, HashMap};

use crate::hash::BlockHash;

/// How a tier chooses what goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TierPolicy {
    /// What was used least recently.
    #[default]
    Lru,
    /// Recency and frequency, balanced by what turns out to be missed.
    Arc,
}

/// Hashes in order of use. All operations are logarithmic.
#[derive(Debug, Default)]
struct Recency {
    by_hash: HashMap<BlockHash, u64>,
    by_time: BTreeMap<u64, BlockHash>,
    now: u64,
}

impl Recency {
    fn len(&self) -> usize {
        self.by_hash.len()
    }

    fn has(&self, hash: BlockHash) -> bool {
        self.by_hash.contains_key(&hash)
    }

    fn push(&mut self, hash: BlockHash) {
        self.remove(hash);
        self.now += 1;
        self.by_hash.insert(hash, self.now);
        self.by_time.insert(self.now, hash);
    }

    fn remove(&mut self, hash: BlockHash) -> bool {
        let time = self.by_hash.remove(&hash);
        time.is_some_and(|time| self.by_time.remove(&time).is_some())
    }

    fn pop_oldest(&mut self) -> Option<BlockHash> {
        let (_, hash) = self.by_time.pop_first()?;
        self.by_hash.remove(&hash);
        Some(hash)
    }
}

/// The identities of at most `capacity` blocks.
#[derive(Debug)]
pub(crate) struct TierIndex {
    policy: TierPolicy,
    capacity: usize,
    // Seen once lately, and more than once; LRU uses the first only.
    recent: Recency,
    frequent: Recency,
    // ARC's ghosts: gone from the two above, remembered to learn from.
    recent_ghosts: Recency,
    frequent_ghosts: Recency,
    // ARC's target for the length of `recent`.
    target: usize,
}

impl TierIndex {
    pub fn new(policy: TierPolicy, capacity: usize) -> Self {
        TierIndex {
            policy,
            capacity,
            recent: Recency::default(),
            frequent: Recency::default(),
            recent_ghosts: Recency::default(),
            frequent_ghosts: Recency::default(),
            target: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.recent.len() + self.frequent.len()
    }

    pub fn has(&self, hash: BlockHash) -> bool {
        self.recent.has(hash) || self.frequent.has(hash)
    }

    /// The block was asked for again.
    pub fn touch(&mut self, hash: BlockHash) {
        match self.policy {
            TierPolicy::Lru => self.recent.push(hash),
            TierPolicy::Arc => {
                self.recent.remove(hash);
                self.frequent.push(hash);
            }
        }
    }

    /// The block comes once more, as one that is taken in does: it is the newest of its kind.
    pub fn refresh(&mut self, hash: BlockHash) {
        match self.frequent.has(hash) {
            true => self.frequent.push(hash),
            false => self.recent.push(hash),
        }
    }

    /// Takes a block in; the one that has to go for it, if any.
    pub fn insert(&mut self, hash: BlockHash) -> Option<BlockHash> {
        debug_assert!(!self.has(hash));
        match self.policy {
            TierPolicy::Lru => {
                let is_full = self.len() >= self.capacity;
                let gone = if is_full { self.recent.pop_oldest() } else { None };
                self.recent.push(hash);
                gone
            }
            TierPolicy::Arc => self.insert_adaptively(hash),
        }
    }

    /// The tier lost it; whether it was held.
    pub fn remove(&mut self, hash: BlockHash) -> bool {
        self.recent.remove(hash) || self.frequent.remove(hash)
    }

    /// The tier lost everything.
    pub fn clear(&mut self) {
        *self = TierIndex::new(self.policy, self.capacity);
    }

    /// The paper's cases II to IV; case I is `touch`.
    fn insert_adaptively(&mut self, hash: BlockHash) -> Option<BlockHash> {
        let (b1, b2) = (self.recent_ghosts.len(), self.frequent_ghosts.len());
        if self.recent_ghosts.remove(hash) {
            self.target = self.capacity.min(self.target + (b2 / b1.max(1)).max(1));
            let gone = self.replace(false);
            self.frequent.push(hash);
            return gone;
        }
        if self.frequent_ghosts.remove(hash) {
            self.target = self.target.saturating_sub((b1 / b2.max(1)).max(1));
            let gone = self.replace(true);
            self.frequent.push(hash);
            return gone;
        }
        let mut gone = None;
        let num_recent = self.recent.len() + self.recent_ghosts.len();
        if num_recent >= self.capacity {
            if self.recent.len() < self.capacity {
                self.recent_ghosts.pop_oldest();
                gone = self.replace(false);
            } else {
                gone = self.recent.pop_oldest();
            }
        } else if num_recent + self.frequent.len() + b2 >= self.capacity {
            if num_recent + self.frequent.len() + b2 >= 2 * self.capacity {
                self.frequent_ghosts.pop_oldest();
            }
            gone = self.replace(false);
        }
        self.recent.push(hash);
        gone
    }

    /// Makes room if there is none; what goes becomes a ghost.
    fn replace(&mut self, was_frequent_ghost: bool) -> Option<BlockHash> {
        if self.len() < self.capacity {
            return None;
        }
        let num_recent = self.recent.len();
        let takes_recent =
            num_recent > self.target || (was_frequent_ghost && num_recent == self.target);
        if num_recent > 0 && (takes_recent || self.frequent.len() == 0) {
            let gone = self.recent.pop_oldest()?;
            self.recent_ghosts.push(gone);
            return Some(gone);
        }
        let gone = self.frequent.pop_oldest()?;
        self.frequent_ghosts.push(gone);
        Some(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ask(index: &mut TierIndex, key: u32) -> bool {
        let hash = BlockHash(u128::from(key));
        let is_hit = index.has(hash);
        match is_hit {
            true => index.touch(hash),
            false => {
                let gone = index.insert(hash);
                assert!(gone.is_none_or(|gone| !index.has(gone)));
            }
        }
        is_hit
    }

    proptest! {
        #[test]
        fn what_is_held_is_bounded_and_the_newest_is_held(
            policy in prop_oneof![Just(TierPolicy::Lru), Just(TierPolicy::Arc)],
            capacity in 1usize..9,
            keys in prop::collection::vec((0u32..20, any::<bool>()), 0..200),
        ) {
            let mut index = TierIndex::new(policy, capacity);
            let mut held = std::collections::HashSet::new();
            for (key, is_lost) in keys {
                let hash = BlockHash(u128::from(key));
                if is_lost && index.has(hash) {
                    index.remove(hash);
                    held.remove(&hash);
                    continue;
                }
                if index.has(hash) {
                    index.touch(hash);
                } else {
                    let gone = index.insert(hash);
                    held.insert(hash);
                    // Exactly what it says goes.
                    if let Some(gone) = gone {
                        prop_assert!(held.remove(&gone));
                    }
                }
                prop_assert!(index.has(hash));
                prop_assert!(index.len() <= capacity);
                prop_assert_eq!(index.len(), held.len());
                prop_assert!(held.iter().all(|&h| index.has(h)));
                let num_ghosts = index.recent_ghosts.len() + index.frequent_ghosts.len();
                prop_assert!(num_ghosts <= 2 * capacity);
            }
        }
    }

    #[test]
    fn the_least_recently_used_goes() {
        let mut index = TierIndex::new(TierPolicy::Lru, 2);
        let hits: Vec<bool> = [1, 2, 1, 3, 1, 2].map(|key| ask(&mut index, key)).into();
        assert_eq!(hits, [false, false, true, false, true, false]);
    }

    #[test]
    fn a_scan_does_not_drive_out_what_is_used_often() {
        let run = |policy| {
            let mut index = TierIndex::new(policy, 10);
            let mut num_hits = 0;
            for round in 0..40 {
                for key in 0..5 {
                    num_hits += u32::from(ask(&mut index, key));
                    ask(&mut index, key);
                }
                for scan in 0..20 {
                    ask(&mut index, 1000 + round * 20 + scan);
                }
            }
            num_hits
        };
        assert_eq!(run(TierPolicy::Lru), 0);
        assert!(run(TierPolicy::Arc) > 150, "{}", run(TierPolicy::Arc));
    }
}
