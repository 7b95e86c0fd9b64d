//! Writes the arguments of a call whose format is not JSON: an object, member by member, so that
//! what is said is always a beginning of the whole. Readers of tagged calls use it.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::{Call, json};

/// An object that grows at its end.
#[derive(Debug, Default)]
pub struct ObjectWriter {
    keys: KeySet,
}

impl ObjectWriter {
    /// The object begins.
    pub fn open(&mut self, call: &mut Call<'_>) {
        call.args("{");
    }

    /// Was a member of that name written?
    pub fn has(&self, key: &str) -> bool {
        self.keys.index(key).is_some()
    }

    /// A member begins; its value is next.
    pub fn key(&mut self, key: &str, call: &mut Call<'_>) {
        let mut text = String::with_capacity(key.len() + 6);
        text.push_str(if self.keys.keys.is_empty() { "\"" } else { ", \"" });
        json::escape_into(key, &mut text);
        text.push_str("\": ");
        call.args(&text);
        self.keys.add(key);
    }

    /// A piece of a string value; its quotes are the caller's.
    pub fn text(&self, piece: &str, call: &mut Call<'_>) {
        if piece.bytes().all(|byte| !matches!(byte, b'"' | b'\\' | 0..0x20)) {
            return call.args(piece);
        }
        let mut text = String::with_capacity(piece.len() + 8);
        json::escape_into(piece, &mut text);
        call.args(&text);
    }

    /// The object is whole, and so is the call.
    pub fn close(&mut self, call: &mut Call<'_>) {
        call.args("}");
        call.end();
    }
}

/// A set of keys: open addressing by FNV-1a, at most half full. (The standard library's maps cost
/// more code than all of this file.)
#[derive(Debug, Default)]
pub(crate) struct KeySet {
    keys: Vec<String>,
    /// Index into `keys` plus one; 0: free. A power of two long.
    slots: Vec<u32>,
}

impl KeySet {
    /// When the key was added, counted from 0.
    pub fn index(&self, key: &str) -> Option<usize> {
        let slot = *self.slots.get(self.slot(key))?;
        (slot as usize).checked_sub(1)
    }

    /// Adds a key that it does not have.
    pub fn add(&mut self, key: &str) {
        self.keys.push(key.into());
        if self.keys.len() * 2 > self.slots.len() {
            self.slots = vec![0; (self.slots.len() * 2).max(16)];
            for index in 0..self.keys.len() {
                let slot = self.slot(&self.keys[index]);
                self.slots[slot] = index as u32 + 1;
            }
            return;
        }
        let slot = self.slot(key);
        self.slots[slot] = self.keys.len() as u32;
    }

    /// Where the key is, or where it would be.
    fn slot(&self, key: &str) -> usize {
        let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let Some(mask) = self.slots.len().checked_sub(1) else { return 0 };
        let mut slot = hash as usize & mask;
        while self.slots[slot] != 0 && self.keys[self.slots[slot] as usize - 1] != key {
            slot = (slot + 1) & mask;
        }
        slot
    }
}
