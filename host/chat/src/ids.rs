//! Ids of tool calls: a guest has no randomness, so the host makes them.

use std::hash::{BuildHasher, RandomState};

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Letters and digits behind `call_`: 142 bits.
const NUM_CHARS: usize = 24;
/// Drawn from one 64-bit number: 62^8 is far below 2^64.
const CHARS_PER_DRAW: usize = 8;

/// Draws ids: a hash keyed by the operating system's randomness, over a counter.
#[derive(Default)]
pub(crate) struct CallIds {
    key: RandomState,
    num_draws: u64,
}

impl CallIds {
    /// `call_` and 24 letters or digits.
    pub fn next_id(&mut self) -> String {
        let mut id = String::with_capacity("call_".len() + NUM_CHARS);
        id.push_str("call_");
        for _ in 0..NUM_CHARS / CHARS_PER_DRAW {
            self.num_draws += 1;
            let mut bits = self.key.hash_one(self.num_draws);
            for _ in 0..CHARS_PER_DRAW {
                id.push(char::from(ALPHABET[(bits % 62) as usize]));
                bits /= 62;
            }
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_well_formed_and_differ() {
        let (mut one, mut other) = (CallIds::default(), CallIds::default());
        let mut seen = HashSet::new();
        for _ in 0..1000 {
            for ids in [&mut one, &mut other] {
                let id = ids.next_id();
                let random = id.strip_prefix("call_").expect("made so");
                assert_eq!(random.len(), NUM_CHARS);
                assert!(random.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
                assert!(seen.insert(id));
            }
        }
        let letters: HashSet<char> = seen.iter().flat_map(|id| id[5..].chars()).collect();
        assert_eq!(letters.len(), ALPHABET.len(), "every letter and digit occurs");
    }
}
