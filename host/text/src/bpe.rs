//! Byte-level BPE: split into words, then merge pairs of tokens by rank inside each word.
//!
//! Ids come out as the reference implementations give them: lowest rank first, leftmost on a tie.

use tokenizers::NormalizedString;

use crate::TextError;
use crate::merge::{Merges, Scratch};
use crate::pretokenize::Splitter;
use crate::vocab::{NONE, Vocab};

/// Words up to this many bytes merge by scanning; longer ones use the heap.
const SCAN_BYTES: usize = 48;

/// A byte-level BPE model.
pub(crate) struct Bpe {
    pub(crate) merges: Merges,
    /// Token of each byte, or [`NONE`].
    pub(crate) bytes: Box<[u32; 256]>,
    pub(crate) splitter: Splitter,
    /// A word that is a token is that token, whatever the merges say.
    pub(crate) ignore_merges: bool,
    /// Compose to NFC first.
    pub(crate) nfc: bool,
    /// Stands for a byte without a token.
    pub(crate) unk: Option<u32>,
}

impl Bpe {
    /// Encodes a section of text that holds no added token.
    pub(crate) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        if self.nfc && !text.is_ascii() {
            let mut normalized = NormalizedString::from(text);
            normalized.nfc();
            return self.encode_words(vocab, normalized.get(), scratch, out);
        }
        self.encode_words(vocab, text, scratch, out)
    }

    fn encode_words(
        &self,
        vocab: &Vocab,
        text: &str,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        self.splitter.split(text, &mut |word| self.encode_word(vocab, word, scratch, out))
    }

    fn encode_word(
        &self,
        vocab: &Vocab,
        word: &str,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let bytes = word.as_bytes();
        if self.ignore_merges
            && let Some(id) = vocab.lookup(bytes)
        {
            out.push(id);
            return Ok(());
        }
        if bytes.len() <= SCAN_BYTES {
            self.scan(bytes, scratch, out)
        } else {
            self.heap(bytes, scratch, out)
        }
    }

    fn byte(&self, byte: u8) -> Result<u32, TextError> {
        match self.bytes[byte as usize] {
            NONE => self.unk.ok_or(TextError::Unencodable { byte }),
            id => Ok(id),
        }
    }

    /// Quadratic in the word, without allocation.
    fn scan(
        &self,
        word: &[u8],
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        // (token, rank of the pair that starts here)
        let parts = &mut scratch.pairs;
        parts.clear();
        for &byte in word {
            parts.push((self.byte(byte)?, NONE));
        }
        for i in 1..parts.len() {
            parts[i - 1].1 = self.rank(parts[i - 1].0, parts[i].0);
        }
        while parts.len() > 1 {
            let mut best = (NONE, 0);
            for (i, &(_, rank)) in parts.iter().enumerate() {
                if rank < best.0 {
                    best = (rank, i);
                }
            }
            let (rank, i) = best;
            if rank == NONE {
                break;
            }
            let merged = self.merges.get(parts[i].0, parts[i + 1].0);
            parts[i].0 = merged.expect("a pair with a rank has a merge").1;
            parts.remove(i + 1);
            parts[i].1 = match parts.get(i + 1) {
                Some(&(next, _)) => self.rank(parts[i].0, next),
                None => NONE,
            };
            if i > 0 {
                parts[i - 1].1 = self.rank(parts[i - 1].0, parts[i].0);
            }
        }
        out.extend(parts.iter().map(|&(id, _)| id));
        Ok(())
    }

    fn rank(&self, left: u32, right: u32) -> u32 {
        self.merges.get(left, right).map_or(NONE, |(rank, _)| rank)
    }

    fn heap(
        &self,
        word: &[u8],
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        scratch.clear();
        for (i, &byte) in word.iter().enumerate() {
            scratch.push(i as u32, 1, self.byte(byte)?);
        }
        scratch.merge_all(|a, b| self.merges.get(a.id, b.id));
        out.extend(scratch.rest().map(|s| s.id));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::pretokenize::Splitter;
    use crate::vocab::Kind;
    use proptest::prelude::*;

    /// Bytes, then `merges` in order; ids 256.. are the merged tokens.
    fn model(merges: &[(u32, u32)]) -> (Bpe, Vocab) {
        let mut texts: Vec<Vec<u8>> = (0..=255u8).map(|b| vec![b]).collect();
        let mut table = Merges::default();
        for (rank, &(a, b)) in merges.iter().enumerate() {
            let (a, b) = (a % texts.len() as u32, b % texts.len() as u32);
            let mut text = texts[a as usize].clone();
            text.extend_from_slice(&texts[b as usize].clone());
            table.insert(a, b, rank as u32, texts.len() as u32);
            texts.push(text);
        }
        let mut vocab = Vocab::with_capacity(texts.len());
        for text in &texts {
            vocab.push(text, Kind::Normal).unwrap();
        }
        vocab.build_index(|_, _| true);
        let bytes = Box::new(std::array::from_fn(|b| b as u32));
        let splitter = Splitter::whole();
        (Bpe { merges: table, bytes, splitter, ignore_merges: false, nfc: false, unk: None }, vocab)
    }

    proptest! {
        #[test]
        fn scan_and_heap_agree(
            merges in prop::collection::vec((97u32..100, 97u32..100), 0..4),
            more in prop::collection::vec((97u32..300, 97u32..300), 0..12),
            word in prop::collection::vec(97u8..100, 0..90),
        ) {
            let all: Vec<_> = merges.into_iter().chain(more).collect();
            let (bpe, _) = model(&all);
            let mut scratch = Scratch::default();
            let (mut a, mut b) = (vec![], vec![]);
            bpe.scan(&word, &mut scratch, &mut a).unwrap();
            bpe.heap(&word, &mut scratch, &mut b).unwrap();
            prop_assert_eq!(a, b);
        }
    }

    #[test]
    fn a_long_word_takes_no_quadratic_time() {
        let (bpe, vocab) = model(&[(97, 97), (256, 256), (257, 257), (258, 258)]);
        let text = "a".repeat(160_000);
        let mut out = vec![];
        bpe.encode(&vocab, &text, &mut Scratch::default(), &mut out).unwrap();
        assert_eq!(out.len(), 10_000);
    }
}
