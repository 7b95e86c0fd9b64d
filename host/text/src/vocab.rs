//! The vocabulary as bytes: what each id stands for, and which id stands for given bytes.
//!
//! Keys are decoded: byte-level tokens as raw bytes, sentencepiece `▁` as a space, `<0xNN>` as one
//! byte. One arena, one offset table and one open-addressing index: 262k tokens load in a few ms.

use crate::TextError;

/// No id.
pub(crate) const NONE: u32 = u32::MAX;

/// What an id is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Part of ordinary text.
    Normal,
    /// One byte, written `<0xNN>` in the file.
    Byte,
    /// Control or unknown: matched in text only when specials are parsed.
    Special,
    /// User-defined: always matched in text.
    Added,
    /// A hole, or an entry that is never written.
    Unused,
}

/// Ids to bytes and back. Bytes of ordinary tokens are unique keys: the lowest id wins.
pub(crate) struct Vocab {
    arena: Vec<u8>,
    offsets: Vec<u32>, // [size + 1]
    kinds: Vec<Kind>,  // [size]
    index: Vec<u32>,   // power of two, NONE = free
    longest: usize,
}

impl Vocab {
    pub(crate) fn with_capacity(size: usize) -> Vocab {
        let mut offsets = Vec::with_capacity(size + 1);
        offsets.push(0);
        let kinds = Vec::with_capacity(size);
        Vocab { arena: Vec::with_capacity(size * 8), offsets, kinds, index: Vec::new(), longest: 0 }
    }

    /// Appends the next id.
    pub(crate) fn push(&mut self, bytes: &[u8], kind: Kind) -> Result<(), TextError> {
        self.arena.extend_from_slice(bytes);
        let end = u32::try_from(self.arena.len())
            .map_err(|_| TextError::Vocabulary("its texts exceed 4 GiB".into()))?;
        self.offsets.push(end);
        self.kinds.push(kind);
        Ok(())
    }

    /// Builds the index over the ids that `wanted` accepts. Called once, after the last `push`.
    pub(crate) fn build_index(&mut self, wanted: impl Fn(u32, Kind) -> bool) {
        let capacity = (self.len() * 2).next_power_of_two().max(16);
        self.index = vec![NONE; capacity];
        for id in 0..self.len() as u32 {
            if !wanted(id, self.kinds[id as usize]) {
                continue;
            }
            let bytes = self.slice(id);
            if bytes.is_empty() {
                continue;
            }
            let len = bytes.len();
            let mut at = hash(bytes) as usize & (capacity - 1);
            loop {
                match self.index[at] {
                    NONE => {
                        self.index[at] = id;
                        break;
                    }
                    other if self.slice(other) == bytes => break,
                    _ => at = (at + 1) & (capacity - 1),
                }
            }
            self.longest = self.longest.max(len);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(crate) fn kind(&self, id: u32) -> Option<Kind> {
        self.kinds.get(id as usize).copied()
    }

    pub(crate) fn bytes(&self, id: u32) -> Option<&[u8]> {
        if (id as usize) < self.len() { Some(self.slice(id)) } else { None }
    }

    /// The indexed id of these bytes.
    pub(crate) fn lookup(&self, bytes: &[u8]) -> Option<u32> {
        if bytes.len() > self.longest || self.index.is_empty() {
            return None;
        }
        let mask = self.index.len() - 1;
        let mut at = hash(bytes) as usize & mask;
        loop {
            match self.index[at] {
                NONE => return None,
                id if self.slice(id) == bytes => return Some(id),
                _ => at = (at + 1) & mask,
            }
        }
    }

    fn slice(&self, id: u32) -> &[u8] {
        let at = id as usize;
        &self.arena[self.offsets[at] as usize..self.offsets[at + 1] as usize]
    }
}

/// A multiplicative hash over 8-byte words. The table is fixed at load, so texts cannot degrade it.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut h = bytes.len() as u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().expect("chunks of eight"));
        h = (h.rotate_left(23) ^ word).wrapping_mul(K);
    }
    let mut tail = [0u8; 8];
    tail[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    h = (h.rotate_left(23) ^ u64::from_le_bytes(tail)).wrapping_mul(K);
    h ^ (h >> 32)
}

/// Byte-level BPE writes each byte as one printable character: `!`..`~`, `¡`..`¬`, `®`..`ÿ` stand
/// for themselves, the other 68 bytes follow from U+0100 on. (GPT-2's `bytes_to_unicode`.)
pub(crate) fn byte_of_char(c: char) -> Option<u8> {
    let code = c as u32;
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => Some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// Decodes a byte-level token into `out`; false (and `out` unchanged) if it has other characters.
pub(crate) fn decode_byte_level(token: &str, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    for c in token.chars() {
        match byte_of_char(c) {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                return false;
            }
        }
    }
    true
}

/// The byte of a `<0xNN>` token.
pub(crate) fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn byte_characters_are_a_bijection() {
        let mut seen = [false; 256];
        for code in 0..0x200u32 {
            if let Some(byte) = char::from_u32(code).and_then(byte_of_char) {
                assert!(!seen[byte as usize], "byte {byte:#x} twice");
                seen[byte as usize] = true;
            }
        }
        assert!(seen.iter().all(|&s| s));
        assert_eq!(byte_of_char('Ġ'), Some(b' '));
        assert_eq!(byte_of_char('Ċ'), Some(b'\n'));
        assert_eq!(byte_of_char(' '), None);
    }

    #[test]
    fn index_finds_every_token_and_the_lowest_id() {
        let mut vocab = Vocab::with_capacity(5000);
        for i in 0..5000u32 {
            vocab.push(format!("t{}", i % 4000).as_bytes(), Kind::Normal).unwrap();
        }
        vocab.build_index(|_, _| true);
        for i in 0..4000u32 {
            assert_eq!(vocab.lookup(format!("t{i}").as_bytes()), Some(i));
        }
        assert_eq!(vocab.lookup(b"t4000"), None);
        assert_eq!(vocab.lookup(b"a much longer key than any token"), None);
    }

    #[test]
    fn byte_tokens() {
        assert_eq!(byte_token("<0x0A>"), Some(10));
        assert_eq!(byte_token("<0xfF>"), Some(255));
        for bad in ["<0x+A>", "<0xA>", "<0x0AA>", "0x0A", "<0xGG>", ""] {
            assert_eq!(byte_token(bad), None, "{bad}");
        }
    }
}
