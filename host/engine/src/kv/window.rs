//! What a window means for blocks: which ones it has left, and how many a sequence can need.
//!
//! A token at position `p` of a group with window `w` sees positions `p + 1 - w ..= p`. Used by
//! the limits (`config`) and the manager; it knows no pool and no sequence.

/// Blocks at the start of a table that no token from position `num_computed` on sees.
pub(crate) fn num_passed(window: Option<u32>, num_computed: usize, block_size: usize) -> usize {
    window.map_or(0, |w| (num_computed + 1).saturating_sub(w as usize) / block_size)
}

/// Most blocks that a group of this window holds at once for a sequence of `len` tokens, when a
/// step runs at most `max_step_tokens` of them.
pub(crate) fn most_blocks(
    window: Option<u32>,
    len: usize,
    block_size: usize,
    max_step_tokens: usize,
) -> usize {
    let all = len.div_ceil(block_size);
    // What the step's first token sees before itself, and the step; they may begin in the middle
    // of a block.
    window.map_or(all, |w| {
        let span = w as usize - 1 + max_step_tokens;
        all.min((span - 1).div_ceil(block_size) + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_block_is_passed_when_its_last_slot_is() {
        // Window 4, blocks of 2: position 5 sees 2 to 5, position 4 sees 1 to 4.
        assert_eq!(num_passed(Some(4), 4, 2), 0);
        assert_eq!(num_passed(Some(4), 5, 2), 1);
        assert_eq!(num_passed(Some(1), 6, 2), 3);
        assert_eq!(num_passed(None, 1000, 2), 0);
    }

    proptest! {
        // Counts slots instead of dividing.
        #[test]
        fn the_bound_holds_and_is_reached(
            (window, size, step) in (1_u32..20, 1_usize..7, 1_usize..20),
        ) {
            let mut most = 0;
            for start in 0..80 {
                let first_seen = (start + 1_usize).saturating_sub(window as usize);
                let held = (first_seen..start + step).map(|p| p / size);
                let held: std::collections::BTreeSet<_> = held.collect();
                let passed = num_passed(Some(window), start, size);
                prop_assert_eq!(held.first(), Some(&passed));
                most = most.max(held.len());
            }
            prop_assert_eq!(most_blocks(Some(window), 100, size, step), most);
        }
    }
}
