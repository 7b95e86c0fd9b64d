//! Pair merging over a linked list with a heap: O(n log n) for any text, shared by BPE (pairs of
//! ids, by rank) and sentencepiece (spans of text, by score).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use crate::vocab::NONE;

/// A run of the text that is one token so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Symbol {
    /// First byte in the section.
    pub(crate) start: u32,
    /// Bytes; 0 once it has been merged into its left neighbour.
    pub(crate) len: u32,
    /// Token, or [`NONE`].
    pub(crate) id: u32,
    prev: u32,
    next: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: u32, // smallest first
    left: u32,     // then leftmost
    right: u32,
    len: u32, // of both; differs once either was merged
    id: u32,
}

/// Buffers that live across sections of one text.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<Candidate>>,
    pub(crate) pairs: Vec<(u32, u32)>,
}

impl Scratch {
    /// Starts a section.
    pub(crate) fn clear(&mut self) {
        self.symbols.clear();
        self.heap.clear();
    }

    /// Appends an initial symbol.
    pub(crate) fn push(&mut self, start: u32, len: u32, id: u32) {
        let at = self.symbols.len() as u32;
        let prev = at.checked_sub(1).unwrap_or(NONE);
        if let Some(last) = self.symbols.last_mut() {
            last.next = at;
        }
        self.symbols.push(Symbol { start, len, id, prev, next: NONE });
    }

    /// Merges until no pair is left. `pair(left, right)` gives (priority, merged id).
    pub(crate) fn merge_all(&mut self, pair: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        for left in 1..self.symbols.len() as u32 {
            self.offer(left - 1, left, &pair);
        }
        while let Some(Reverse(top)) = self.heap.pop() {
            let (left, right) = (self.symbols[top.left as usize], self.symbols[top.right as usize]);
            if left.len == 0 || right.len == 0 || left.len + right.len != top.len {
                continue; // stale: one side was merged since
            }
            let merged = &mut self.symbols[top.left as usize];
            merged.len = top.len;
            merged.id = top.id;
            merged.next = right.next;
            self.symbols[top.right as usize].len = 0;
            if right.next != NONE {
                self.symbols[right.next as usize].prev = top.left;
                self.offer(top.left, right.next, &pair);
            }
            if left.prev != NONE {
                self.offer(left.prev, top.left, &pair);
            }
        }
    }

    fn offer(
        &mut self,
        left: u32,
        right: u32,
        pair: &impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>,
    ) {
        let (a, b) = (&self.symbols[left as usize], &self.symbols[right as usize]);
        if let Some((priority, id)) = pair(a, b) {
            let len = a.len + b.len;
            self.heap.push(Reverse(Candidate { priority, left, right, len, id }));
        }
    }

    /// What is left, in order.
    pub(crate) fn rest(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|s| s.len != 0)
    }
}

/// Merge rules of BPE: (left id, right id) → (rank, merged id). The first rule for a pair wins.
#[derive(Default)]
pub(crate) struct Merges {
    map: HashMap<u64, (u32, u32), BuildHasherDefault<PairHasher>>,
}

impl Merges {
    pub(crate) fn with_capacity(n: usize) -> Merges {
        Merges { map: HashMap::with_capacity_and_hasher(n, BuildHasherDefault::default()) }
    }

    pub(crate) fn insert(&mut self, left: u32, right: u32, rank: u32, id: u32) {
        self.map.entry(key(left, right)).or_insert((rank, id));
    }

    pub(crate) fn get(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        self.map.get(&key(left, right)).copied()
    }
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// A fast hash for tables that are fixed at load: pairs of ids, token texts.
#[derive(Default)]
pub(crate) struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = self.0.rotate_left(5) ^ crate::vocab::hash(bytes);
    }

    fn write_u64(&mut self, value: u64) {
        let h = (value ^ value >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = h ^ h >> 32;
    }
}
