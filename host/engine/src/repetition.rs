//! Finds the end of an output that repeats itself.
//!
//! A sequence asks after each token. One counter per pattern size says for how many tokens the
//! output has equalled itself, shifted by that size: the cost per token is one comparison per size,
//! however long the output is.

use crate::request::RepetitionDetection;

/// State of one sequence. It outlives a preemption: tokens are never taken back.
#[derive(Debug)]
pub(crate) struct RepetitionDetector {
    wanted: RepetitionDetection,
    // [max_pattern_size - min_pattern_size + 1] tokens in a row that equal the one a size before
    num_equal: Vec<u32>,
}

impl RepetitionDetector {
    pub fn new(wanted: RepetitionDetection) -> Self {
        let num_sizes = wanted.max_pattern_size + 1 - wanted.min_pattern_size;
        RepetitionDetector { wanted, num_equal: vec![0; num_sizes as usize] }
    }

    /// Takes note of the newest token of `output` and says whether the output now ends in some
    /// pattern of an allowed size, `min_count` times in a row.
    pub fn push(&mut self, output: &[u32]) -> bool {
        let newest = output.len() - 1;
        let mut is_found = false;
        for (size, num_equal) in (self.wanted.min_pattern_size..).zip(&mut self.num_equal) {
            let Some(before) = newest.checked_sub(size as usize) else { break };
            *num_equal = if output[before] == output[newest] { *num_equal + 1 } else { 0 };
            let num_repeated = u64::from(size) * u64::from(self.wanted.min_count - 1);
            is_found |= u64::from(*num_equal) >= num_repeated;
        }
        is_found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition: the tail is one pattern, `min_count` times.
    fn ends_repeated(output: &[u32], wanted: &RepetitionDetection) -> bool {
        (wanted.min_pattern_size..=wanted.max_pattern_size).any(|size| {
            let size = size as usize;
            let Some(start) = output.len().checked_sub(size * wanted.min_count as usize) else {
                return false;
            };
            let pattern = &output[output.len() - size..];
            output[start..].chunks(size).all(|part| part == pattern)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn counters_find_what_the_definition_finds(
            output in prop::collection::vec(0_u32..3, 1..60),
            sizes in (1_u32..8, 0_u32..8),
            min_count in 2_u32..5,
        ) {
            let (min_pattern_size, more) = sizes;
            let max_pattern_size = min_pattern_size + more;
            let wanted = RepetitionDetection { min_pattern_size, max_pattern_size, min_count };
            let mut detector = RepetitionDetector::new(wanted);
            for end in 1..=output.len() {
                let want = ends_repeated(&output[..end], &wanted);
                prop_assert_eq!(detector.push(&output[..end]), want, "{:?}", &output[..end]);
            }
        }
    }
}
