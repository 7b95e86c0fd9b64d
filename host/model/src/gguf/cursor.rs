//! Bounds-checked reading of GGUF's little-endian primitives.

use std::ops::Range;

/// A position in the bytes of a file. Every read is checked; errors say where and of what.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Cursor { bytes, at }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Steps over `len` bytes and returns where they lie.
    pub(super) fn skip(&mut self, len: u64, what: &str) -> Result<Range<usize>, String> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        match end {
            Some(end) if end <= self.bytes.len() => {
                let range = self.at..end;
                self.at = end;
                Ok(range)
            }
            _ => Err(format!(
                "{what} at byte {} needs {len} bytes, {} are left",
                self.at,
                self.remaining()
            )),
        }
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        let range = self.skip(N as u64, what)?;
        Ok(self.bytes[range].try_into().expect("skip returned N bytes"))
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A count of things that take at least `min_bytes` each: never more than the file can hold.
    pub(super) fn count(&mut self, min_bytes: usize, what: &str) -> Result<usize, String> {
        let count = self.u64(what)?;
        let fits = (self.remaining() / min_bytes) as u64;
        if count > fits {
            return Err(format!("{what} is {count}, the rest of the file can hold {fits}"));
        }
        Ok(count as usize)
    }

    /// A length-prefixed string's bytes.
    pub(super) fn text(&mut self, what: &str) -> Result<Range<usize>, String> {
        let len = self.u64(what)?;
        self.skip(len, what)
    }

    /// A length-prefixed UTF-8 string of at most `max` bytes.
    pub(super) fn name(&mut self, max: usize, what: &str) -> Result<&'a str, String> {
        let range = self.text(what)?;
        if range.len() > max {
            return Err(format!("{what} has {} bytes, the most is {max}", range.len()));
        }
        let start = range.start;
        std::str::from_utf8(&self.bytes[range])
            .map_err(|_| format!("{what} at byte {start} is not UTF-8"))
    }
}
