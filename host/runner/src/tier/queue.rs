//! What waits for the place of a tier, and in which order it gets there. Of the keeper's thread.
//!
//! Loads first: somebody waits for them. Then removals, which make room. Then stores, the newest
//! first: blocks are evicted tail first, and a tail is of use only with its head. When there is too
//! much, the oldest is given up, for the same reason.

use std::collections::{BTreeMap, HashMap, VecDeque};

use tenon_engine::{BlockHash, BlockId};

/// Something to do at the tier's place.
#[derive(Debug, PartialEq)]
pub(super) enum Job {
    Store(BlockHash, Vec<u8>),
    /// With the block's length.
    Load(BlockId, BlockHash, usize),
    Remove(BlockHash),
}

#[derive(Debug)]
struct Store {
    hash: BlockHash,
    bytes: Vec<u8>,
}

/// See the module's doc. All operations are logarithmic.
#[derive(Debug)]
pub(super) struct Queue {
    loads: VecDeque<Job>,
    removes: VecDeque<BlockHash>,
    // By the time they came.
    stores: BTreeMap<u64, Store>,
    times: HashMap<BlockHash, u64>,
    now: u64,
    num_bytes: usize,
    // Of the stores.
    max_bytes: usize,
}

impl Queue {
    pub fn new(max_bytes: usize) -> Queue {
        Queue {
            loads: VecDeque::new(),
            removes: VecDeque::new(),
            stores: BTreeMap::new(),
            times: HashMap::new(),
            now: 0,
            num_bytes: 0,
            max_bytes,
        }
    }

    pub fn push(&mut self, job: Job) {
        match job {
            Job::Load(..) => self.loads.push_back(job),
            Job::Remove(hash) => {
                self.take_store(hash);
                self.removes.push_back(hash);
            }
            Job::Store(hash, bytes) => {
                self.take_store(hash);
                self.now += 1;
                self.num_bytes += bytes.len();
                self.times.insert(hash, self.now);
                self.stores.insert(self.now, Store { hash, bytes });
            }
        }
    }

    /// What is to be done next.
    pub fn pop(&mut self) -> Option<Job> {
        if let Some(load) = self.loads.pop_front() {
            return Some(load);
        }
        if let Some(hash) = self.removes.pop_front() {
            return Some(Job::Remove(hash));
        }
        let hash = self.stores.last_key_value()?.1.hash;
        let bytes = self.take_store(hash).expect("it was just seen");
        Some(Job::Store(hash, bytes))
    }

    /// A store that there is no room for. One alone always has room.
    pub fn give_up(&mut self) -> Option<BlockHash> {
        if self.num_bytes <= self.max_bytes || self.stores.len() < 2 {
            return None;
        }
        let hash = self.stores.first_key_value()?.1.hash;
        self.take_store(hash);
        Some(hash)
    }

    /// A block that is on its way there.
    pub fn stored(&self, hash: BlockHash) -> Option<&[u8]> {
        self.stores.get(self.times.get(&hash)?).map(|store| &*store.bytes)
    }

    fn take_store(&mut self, hash: BlockHash) -> Option<Vec<u8>> {
        let store = self.stores.remove(&self.times.remove(&hash)?)?;
        self.num_bytes -= store.bytes.len();
        Some(store.bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const CHAIN: u128 = 1000;

    /// A chain's blocks, as they are evicted.
    fn evict(chain: u128, len: u128) -> impl Iterator<Item = Job> {
        (0..len).rev().map(move |at| Job::Store(BlockHash(chain * CHAIN + at), vec![0; 8]))
    }

    proptest! {
        /// Bursts of evictions, some stores in between: what is there of a chain begins with its
        /// head, and of the last chain there is as much as there is room for.
        #[test]
        fn what_is_kept_of_a_chain_is_of_use(
            max_blocks in 1_usize..40,
            bursts in prop::collection::vec((prop::collection::vec(1_u128..60, 1..4), 0..30), 1..8),
        ) {
            let mut queue = Queue::new(max_blocks * 8);
            let (mut kept, mut chain) = (HashSet::new(), 0);
            let mut last = 0;
            for (lens, num_stores) in bursts {
                for len in lens {
                    evict(chain, len).for_each(|job| queue.push(job));
                    (chain, last) = (chain + 1, len);
                }
                while queue.give_up().is_some() {}
                prop_assert!(queue.stores.len() <= max_blocks);
                for _ in 0..num_stores {
                    let Some(Job::Store(hash, _)) = queue.pop() else { break };
                    kept.insert(hash);
                }
            }
            while let Some(Job::Store(hash, _)) = queue.pop() {
                kept.insert(hash);
            }
            for chain in 0..chain {
                let is_kept = |at: &u128| kept.contains(&BlockHash(chain * CHAIN + at));
                let num_leading = (0..CHAIN).take_while(is_kept).count();
                prop_assert_eq!(num_leading, (0..CHAIN).filter(is_kept).count(), "chain {}", chain);
            }
            let is_last_kept = |at: &u128| kept.contains(&BlockHash((chain - 1) * CHAIN + at));
            let num_last = (0..last).filter(is_last_kept).count();
            prop_assert!(num_last >= max_blocks.min(last as usize));
        }

        /// Whatever the order: a block is there exactly when the last that came of it was a store.
        #[test]
        fn the_last_job_of_a_block_counts(
            jobs in prop::collection::vec((0_u128..4, any::<bool>(), any::<bool>()), 0..60),
        ) {
            let mut queue = Queue::new(100);
            let (mut place, mut wanted) = (HashMap::new(), HashMap::new());
            let apply = |queue: &mut Queue, place: &mut HashMap<_, _>| match queue.pop().unwrap() {
                Job::Store(hash, bytes) => drop(place.insert(hash, bytes)),
                Job::Remove(hash) => drop(place.remove(&hash)),
                Job::Load(..) => unreachable!(),
            };
            for (at, (key, is_store, is_done)) in jobs.into_iter().enumerate() {
                let hash = BlockHash(key);
                match is_store {
                    true => queue.push(Job::Store(hash, vec![at as u8])),
                    false => queue.push(Job::Remove(hash)),
                }
                match is_store {
                    true => drop(wanted.insert(hash, vec![at as u8])),
                    false => drop(wanted.remove(&hash)),
                }
                prop_assert_eq!(queue.stored(hash), wanted.get(&hash).map(|b| &**b));
                if is_done {
                    apply(&mut queue, &mut place);
                }
            }
            while !(queue.removes.is_empty() && queue.stores.is_empty()) {
                apply(&mut queue, &mut place);
            }
            prop_assert_eq!(place, wanted);
            prop_assert_eq!((queue.num_bytes, queue.times.len()), (0, 0));
        }
    }

    #[test]
    fn who_waits_goes_first() {
        let mut queue = Queue::new(100);
        let load = || Job::Load(BlockId(0), BlockHash(3), 8);
        queue.push(Job::Store(BlockHash(1), vec![1]));
        queue.push(Job::Remove(BlockHash(2)));
        queue.push(load());
        assert_eq!(queue.pop(), Some(load()));
        assert_eq!(queue.pop(), Some(Job::Remove(BlockHash(2))));
        assert_eq!(queue.pop(), Some(Job::Store(BlockHash(1), vec![1])));
        assert_eq!(queue.pop(), None);
    }
}
