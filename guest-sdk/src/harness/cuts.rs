//! Ways of cutting a text: one character at a time, every place once, and at random.

/// The boundaries in front of every character but the first.
pub fn chars(text: &str) -> Vec<usize> {
    text.char_indices().skip(1).map(|(at, _)| at).collect()
}

/// Every way of cutting in two.
pub fn two_ways(text: &str) -> Vec<Vec<usize>> {
    chars(text).into_iter().map(|at| vec![at]).collect()
}

/// `count` random cuts, the same ones for the same seed. Pieces get longer from cut to cut, so that
/// some are about a token long and some about a line.
pub fn random(text: &str, count: usize, mut seed: u64) -> Vec<Vec<usize>> {
    let boundaries = chars(text);
    let cut = |n: usize| {
        let keep_one_in = 1 + n as u64 % 23;
        boundaries.iter().copied().filter(|_| next(&mut seed).is_multiple_of(keep_one_in)).collect()
    };
    (0..count).map(cut).collect()
}

/// SplitMix64 (Steele, Lea and Flood 2014).
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
