//! DRY: the token that would continue a repetition loses more the longer the repetition is.
//!
//! For every earlier place that ends as the sequence does, the length of what is common is found
//! by the Z-algorithm (Gusfield 1997) over the reversed window: linear in the window whatever is
//! in it. Repetitions are measured up to [`MAX_DRY_MATCH`], so the Z-box fits into a few bytes.

use tenon_engine::Dry;
use tenon_engine::params::MAX_DRY_MATCH;

const MAX_MATCH: usize = MAX_DRY_MATCH as usize;

/// Scratch of all rows that use it.
#[derive(Debug)]
pub struct DryScratch {
    // [vocab_size] longest repetition that the token would continue; all 0 between rows.
    lengths: Vec<u8>,
    // Tokens whose length is not 0.
    touched: Vec<u32>,
}

impl DryScratch {
    /// For logits that are `vocab_size` wide.
    pub fn new(vocab_size: usize) -> Self {
        DryScratch { lengths: vec![0; vocab_size], touched: Vec::with_capacity(vocab_size) }
    }

    /// Penalizes after `tokens`, prompt and output.
    pub fn apply(&mut self, dry: &Dry, tokens: &[u32], logits: &mut [f32]) {
        let range = if dry.range == 0 { tokens.len() } else { dry.range as usize };
        let window = &tokens[tokens.len().saturating_sub(range)..];
        self.measure(window, dry);
        for token in self.touched.drain(..) {
            let length = u32::from(std::mem::take(&mut self.lengths[token as usize]));
            if dry.breakers.binary_search(&token).is_ok() {
                continue;
            }
            let exponent = (length - dry.allowed_length) as i32;
            let logit = &mut logits[token as usize];
            // A large power is infinite; what is infinite cannot be compared.
            *logit = (*logit - dry.multiplier * dry.base.powi(exponent)).max(f32::MIN);
        }
    }

    /// Notes for each token the longest repetition that it would continue, if that is long enough.
    fn measure(&mut self, window: &[u32], dry: &Dry) {
        let len = window.len();
        // What comes `i` tokens before the newest one.
        let back = |i: usize| window[len - 1 - i];
        let is_breaker = |i: &usize| dry.breakers.binary_search(&back(*i)).is_ok();
        let longest = len.min(MAX_MATCH);
        // No repetition reaches across a breaker.
        let cap = (0..longest).find(is_breaker).unwrap_or(longest);
        // The original counts a place from its first equal token on.
        let shortest = (dry.allowed_length as usize).max(1);
        if cap < shortest {
            return;
        }
        // [cap] common lengths of the window and of itself shifted by so much, at most `cap`
        let mut z = [0_u8; MAX_MATCH];
        let (mut left, mut right) = (0, 0);
        for at in 1..len {
            let mut length = 0;
            if at < right {
                let known = usize::from(z[at - left]);
                length = known.min(right - at);
            }
            if at + length >= right {
                while length < cap && at + length < len && back(length) == back(at + length) {
                    length += 1;
                }
                (left, right) = (at, at + length);
            }
            if at < MAX_MATCH {
                z[at] = length as u8;
            }
            if length >= shortest {
                self.note(back(at - 1), length as u8);
            }
        }
    }

    fn note(&mut self, next: u32, length: u8) {
        let longest = &mut self.lengths[next as usize];
        if *longest == 0 {
            self.touched.push(next);
        }
        *longest = (*longest).max(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The original definition, place by place.
    fn naive(dry: &Dry, tokens: &[u32], logits: &mut [f32]) {
        let range = if dry.range == 0 { usize::MAX } else { dry.range as usize };
        let window = &tokens[tokens.len().saturating_sub(range)..];
        let Some((last, before)) = window.split_last() else { return };
        if dry.breakers.contains(last) {
            return;
        }
        let mut lengths = vec![0; logits.len()];
        for (at, _) in before.iter().enumerate().filter(|(_, token)| *token == last) {
            let next = window[at + 1];
            if dry.breakers.contains(&next) {
                continue;
            }
            let mut length = 1;
            while length < MAX_MATCH && length <= at {
                let token = window[window.len() - 1 - length];
                if window[at - length] != token || dry.breakers.contains(&token) {
                    break;
                }
                length += 1;
            }
            lengths[next as usize] = lengths[next as usize].max(length);
        }
        for (logit, length) in logits.iter_mut().zip(lengths) {
            if length >= (dry.allowed_length as usize).max(1) {
                let exponent = (length - dry.allowed_length as usize) as i32;
                *logit = (*logit - dry.multiplier * dry.base.powi(exponent)).max(f32::MIN);
            }
        }
    }

    /// Texts that repeat: pieces of a small alphabet, some of them many times.
    fn tokens() -> impl Strategy<Value = Vec<u32>> {
        let piece = (prop::collection::vec(0_u32..4, 1..7), 1_usize..30);
        prop::collection::vec(piece, 1..8)
            .prop_map(|pieces| pieces.iter().flat_map(|(p, n)| p.repeat(*n)).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(600))]
        #[test]
        fn it_is_what_the_definition_says(
            tokens in tokens(),
            more in prop::collection::vec(tokens(), 0..3),
            allowed_length in 0_u32..12,
            range in prop_oneof![Just(0_u32), 1_u32..300],
            base in prop_oneof![Just(1.75_f32), 1.0_f32..100.0],
            breakers in prop::collection::btree_set(0_u32..5, 0..2),
        ) {
            let breakers = breakers.into_iter().collect();
            let dry = Dry { multiplier: 0.8, base, allowed_length, range, breakers };
            // The scratch of one row is clean for the next.
            let mut scratch = DryScratch::new(5);
            for tokens in more.iter().chain([&tokens]) {
                let (mut got, mut want) = ([1.0_f32; 5], [1.0_f32; 5]);
                scratch.apply(&dry, tokens, &mut got);
                naive(&dry, tokens, &mut want);
                prop_assert_eq!(got, want, "{:?}", tokens);
                prop_assert!(got.iter().all(|x| x.is_finite()));
            }
        }
    }
}
