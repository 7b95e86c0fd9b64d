//! The KV blocks: who uses them, which are free, which free ones still hold a reusable prefix.
//!
//! Allocated once. A block is *used* (ref count > 0), *cached* (free, but its hash is indexed and a
//! hit brings it back) or *free*; `free + cached + used == total` at all times. The free list is
//! intrusive and in eviction order: blocks without a hash first, then the least recently used.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::hash::{BlockHash, TakeLowBits};

/// A run of `block_size` KV slots; `0..num_blocks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

impl BlockId {
    /// In a windowed group's block table: the window has passed this entry; no block.
    pub const NONE: BlockId = BlockId(u32::MAX);
}

const NIL: u32 = u32::MAX;

#[derive(Debug, Clone)]
struct Block {
    ref_count: u32,
    // Some while the index maps this hash to this block.
    hash: Option<BlockHash>,
    // Neighbours in the free list; NIL while used and at its ends.
    prev: u32,
    next: u32,
}

/// All blocks of the KV cache.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    index: HashMap<BlockHash, BlockId, BuildHasherDefault<TakeLowBits>>,
    head: u32,
    tail: u32,
    // On the free list, of these with a hash.
    num_listed: usize,
    num_cached: usize,
}

impl BlockPool {
    /// `num_blocks` free blocks, handed out in ascending order.
    pub fn new(num_blocks: usize) -> Self {
        assert!(num_blocks > 0 && num_blocks < NIL as usize);
        let last = num_blocks as u32 - 1;
        let blocks = (0..=last)
            .map(|i| Block {
                ref_count: 0,
                hash: None,
                prev: if i == 0 { NIL } else { i - 1 },
                next: if i == last { NIL } else { i + 1 },
            })
            .collect();
        BlockPool {
            blocks,
            index: HashMap::with_capacity_and_hasher(num_blocks, Default::default()),
            head: 0,
            tail: last,
            num_listed: num_blocks,
            num_cached: 0,
        }
    }

    /// All blocks.
    pub fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that [`BlockPool::allocate`] can hand out: free and cached ones.
    pub fn num_available(&self) -> usize {
        self.num_listed
    }

    /// Unused blocks that still hold a reusable prefix.
    pub fn num_cached(&self) -> usize {
        self.num_cached
    }

    /// Blocks that some sequence holds.
    pub fn num_used(&self) -> usize {
        self.blocks.len() - self.num_listed
    }

    /// The block that holds this prefix, used or cached.
    pub fn lookup(&self, hash: BlockHash) -> Option<BlockId> {
        self.index.get(&hash).copied()
    }

    /// Whether nobody holds the block, so that taking it makes one less available.
    pub fn is_unused(&self, block: BlockId) -> bool {
        self.blocks[block.0 as usize].ref_count == 0
    }

    /// Whether its one holder may write to it: nobody else reads it, now or by its hash.
    pub fn is_exclusive(&self, block: BlockId) -> bool {
        let entry = &self.blocks[block.0 as usize];
        entry.ref_count == 1 && entry.hash.is_none()
    }

    /// Takes a share of a block found by [`BlockPool::lookup`], or of one that somebody holds.
    pub fn share(&mut self, block: BlockId) {
        if self.is_unused(block) {
            assert!(self.blocks[block.0 as usize].hash.is_some(), "only cached blocks are shared");
            self.unlink(block.0);
            self.num_cached -= 1;
        }
        self.blocks[block.0 as usize].ref_count += 1;
    }

    /// Takes the first block in eviction order, with ref count 1; evicts the prefix it held.
    pub fn allocate(&mut self) -> Option<BlockId> {
        self.allocate_evicting().map(|(block, _)| block)
    }

    /// Like [`BlockPool::allocate`], with the identity of the prefix that was evicted: until
    /// somebody writes to the block it still holds it.
    pub fn allocate_evicting(&mut self) -> Option<(BlockId, Option<BlockHash>)> {
        if self.head == NIL {
            return None;
        }
        let id = self.head;
        self.unlink(id);
        let block = &mut self.blocks[id as usize];
        assert_eq!(block.ref_count, 0, "block {id} is on the free list and used");
        block.ref_count = 1;
        let evicted = block.hash.take();
        if let Some(hash) = evicted {
            let indexed = self.index.remove(&hash);
            assert_eq!(indexed, Some(BlockId(id)), "the index and its block disagree");
            self.num_cached -= 1;
        }
        Some((BlockId(id), evicted))
    }

    /// Gives up one share. The last one puts the block on the free list: to the end when it holds
    /// a prefix, else to the front. Panics when nobody holds it.
    pub fn release(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.0 as usize];
        assert!(entry.ref_count > 0, "block {} is freed twice", block.0);
        entry.ref_count -= 1;
        if entry.ref_count > 0 {
            return;
        }
        if entry.hash.is_some() {
            self.link_back(block.0);
            self.num_cached += 1;
        } else {
            self.link_front(block.0);
        }
    }

    /// Makes a used, full block findable. Does nothing when another block has this prefix already:
    /// block tables are append-only, so duplicates are not merged.
    pub fn register(&mut self, block: BlockId, hash: BlockHash) {
        let entry = &mut self.blocks[block.0 as usize];
        assert!(entry.ref_count > 0, "block {} is registered while unused", block.0);
        assert!(entry.hash.is_none(), "block {} is registered twice", block.0);
        if let std::collections::hash_map::Entry::Vacant(vacant) = self.index.entry(hash) {
            vacant.insert(block);
            entry.hash = Some(hash);
        }
    }

    /// Makes a block unfindable: what it holds is not to be trusted.
    pub fn forget(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.0 as usize];
        let Some(hash) = entry.hash.take() else { return };
        let is_unused = entry.ref_count == 0;
        self.index.remove(&hash);
        if is_unused {
            self.num_cached -= 1;
            self.unlink(block.0);
            self.link_front(block.0);
        }
    }

    /// Walks everything and panics where it does not add up. For tests and `doctor`: linear time.
    pub fn check(&self) {
        let (mut listed, mut cached, mut id, mut prev) = (0, 0, self.head, NIL);
        while id != NIL {
            let block = &self.blocks[id as usize];
            assert_eq!(block.ref_count, 0, "block {id} is on the free list and used");
            assert_eq!(block.prev, prev);
            listed += 1;
            cached += usize::from(block.hash.is_some());
            assert!(listed <= self.blocks.len(), "the free list has a cycle");
            (prev, id) = (id, block.next);
        }
        assert_eq!(self.tail, prev);
        assert_eq!((listed, cached), (self.num_listed, self.num_cached));
        let used = self.blocks.iter().filter(|b| b.ref_count > 0).count();
        assert_eq!(listed + used, self.blocks.len(), "a block is neither used nor free");
        for (hash, block) in &self.index {
            assert_eq!(self.blocks[block.0 as usize].hash.as_ref(), Some(hash));
        }
        let hashed = self.blocks.iter().filter(|b| b.hash.is_some()).count();
        assert_eq!(hashed, self.index.len());
    }

    fn unlink(&mut self, id: u32) {
        let Block { prev, next, .. } = self.blocks[id as usize];
        match prev {
            NIL => self.head = next,
            _ => self.blocks[prev as usize].next = next,
        }
        match next {
            NIL => self.tail = prev,
            _ => self.blocks[next as usize].prev = prev,
        }
        let block = &mut self.blocks[id as usize];
        (block.prev, block.next) = (NIL, NIL);
        self.num_listed -= 1;
    }

    fn link_front(&mut self, id: u32) {
        self.blocks[id as usize].next = self.head;
        match self.head {
            NIL => self.tail = id,
            head => self.blocks[head as usize].prev = id,
        }
        self.head = id;
        self.num_listed += 1;
    }

    fn link_back(&mut self, id: u32) {
        self.blocks[id as usize].prev = self.tail;
        match self.tail {
            NIL => self.head = id,
            tail => self.blocks[tail as usize].next = id,
        }
        self.tail = id;
        self.num_listed += 1;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unhashed_blocks_go_first_then_the_least_recently_used() {
        let mut pool = BlockPool::new(4);
        let blocks: Vec<_> = (0..4).map(|_| pool.allocate().unwrap()).collect();
        assert_eq!(pool.allocate(), None);
        for i in [1, 3] {
            pool.register(blocks[i], BlockHash(i as u128));
        }
        for i in [3, 1, 0, 2] {
            pool.release(blocks[i]);
        }
        let order: Vec<_> = (0..4).map(|_| pool.allocate().unwrap().0).collect();
        assert_eq!(order, [2, 0, 3, 1]);
        assert_eq!(pool.lookup(BlockHash(1)), None, "taking a cached block evicts it");
    }

    #[test]
    fn a_hit_brings_a_cached_block_back() {
        let mut pool = BlockPool::new(2);
        let block = pool.allocate().unwrap();
        pool.register(block, BlockHash(5));
        pool.release(block);
        assert_eq!((pool.num_used(), pool.num_cached(), pool.num_available()), (0, 1, 2));
        let hit = pool.lookup(BlockHash(5)).unwrap();
        pool.share(hit);
        pool.share(hit);
        pool.release(hit);
        assert_eq!((pool.num_used(), pool.num_cached()), (1, 0));
        pool.forget(hit);
        assert_eq!(pool.lookup(BlockHash(5)), None);
        pool.release(hit);
        assert_eq!((pool.num_used(), pool.num_cached()), (0, 0));
        pool.check();
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn freeing_twice_panics() {
        let mut pool = BlockPool::new(1);
        let block = pool.allocate().unwrap();
        pool.release(block);
        pool.release(block);
    }

    #[derive(Debug, Clone)]
    enum Action {
        Allocate,
        Share(u8),
        Release(u8),
        Register(u8, u8),
        Forget(u8),
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            3 => Just(Action::Allocate),
            2 => any::<u8>().prop_map(Action::Share),
            3 => any::<u8>().prop_map(Action::Release),
            2 => (any::<u8>(), any::<u8>()).prop_map(|(b, h)| Action::Register(b, h)),
            1 => any::<u8>().prop_map(Action::Forget),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        // Against a model that only knows who holds which share.
        #[test]
        fn shares_add_up(actions in prop::collection::vec(action(), 0..120)) {
            let mut pool = BlockPool::new(6);
            let mut held: Vec<BlockId> = Vec::new();
            let mut named = HashMap::new();
            for action in actions {
                match action {
                    Action::Allocate => {
                        let distinct: std::collections::HashSet<_> = held.iter().collect();
                        let block = pool.allocate();
                        prop_assert_eq!(block.is_some(), distinct.len() < 6);
                        if let Some(block) = block {
                            prop_assert!(!held.contains(&block));
                            named.retain(|_, b| *b != block);
                            held.push(block);
                        }
                    }
                    Action::Share(h) => {
                        let hash = BlockHash(u128::from(h % 8));
                        prop_assert_eq!(pool.lookup(hash), named.get(&hash).copied());
                        if let Some(block) = pool.lookup(hash) {
                            pool.share(block);
                            held.push(block);
                        }
                    }
                    Action::Release(i) if !held.is_empty() => {
                        pool.release(held.swap_remove(i as usize % held.len()));
                    }
                    Action::Register(i, h) if !held.is_empty() => {
                        let block = held[i as usize % held.len()];
                        let hash = BlockHash(u128::from(h % 8));
                        if !named.values().any(|b| *b == block) {
                            pool.register(block, hash);
                            named.entry(hash).or_insert(block);
                        }
                    }
                    Action::Forget(i) => {
                        let block = BlockId(u32::from(i % 6));
                        pool.forget(block);
                        named.retain(|_, b| *b != block);
                    }
                    _ => {}
                }
                pool.check();
                let distinct: std::collections::HashSet<_> = held.iter().collect();
                prop_assert_eq!(pool.num_used(), distinct.len());
            }
        }
    }
}
