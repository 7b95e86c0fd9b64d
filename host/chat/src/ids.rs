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
        self.draw(NUM_CHARS, &mut id);
        id
    }

    /// As many letters or digits as `pattern` has asterisks; none: it holds something else.
    pub fn of_pattern(&mut self, pattern: &str) -> Option<String> {
        if pattern.is_empty() || pattern.bytes().any(|byte| byte != b'*') {
            return None;
        }
        let mut id = String::with_capacity(pattern.len());
        self.draw(pattern.len(), &mut id);
        Some(id)
    }

    fn draw(&mut self, num_chars: usize, id: &mut String) {
        let mut bits = 0;
        for at in 0..num_chars {
            if at % CHARS_PER_DRAW == 0 {
                self.num_draws += 1;
                bits = self.key.hash_one(self.num_draws);
            }
            id.push(char::from(ALPHABET[(bits % 62) as usize]));
            bits /= 62;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_pattern_says_how_many_letters() {
        let mut ids = CallIds::default();
        let (one, other) = (ids.of_pattern("*********"), ids.of_pattern("*********"));
        assert_ne!(one, other);
        let one = one.expect("asterisks alone");
        assert!(one.len() == 9 && one.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{one}");
        for own in ["", "a1", "a***", "call_*"] {
            assert_eq!(ids.of_pattern(own), None, "{own}");
        }
    }

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
