//! Compiled grammars by what was asked for, the least recently used one out first.

use std::collections::HashMap;

use crate::Grammar;

/// A bounded map.
#[derive(Debug)]
pub(crate) struct Cache {
    limit: usize,
    clock: u64,
    entries: HashMap<String, (u64, Grammar)>,
}

impl Cache {
    pub fn new(limit: usize) -> Cache {
        Cache { limit, clock: 0, entries: HashMap::new() }
    }

    /// The grammar of that key, unless it broke.
    pub fn get(&mut self, key: &str) -> Option<Grammar> {
        self.clock += 1;
        let (used, grammar) = self.entries.get_mut(key)?;
        if grammar.is_broken() {
            self.entries.remove(key);
            return None;
        }
        *used = self.clock;
        Some(grammar.clone())
    }

    pub fn insert(&mut self, key: String, grammar: Grammar) {
        self.clock += 1;
        self.entries.insert(key, (self.clock, grammar));
        while self.entries.len() > self.limit {
            let oldest = self.entries.iter().min_by_key(|(_, (used, _))| *used);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else { return };
            self.entries.remove(&key);
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }
}
