//! Random prompts from a seed.

/// SplitMix64 (Steele, Lea, Flood 2014): small, and the same on every machine.
pub struct Rng(u64);

impl Rng {
    /// Same seed, same numbers.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// `len` token ids below `vocab_size` (not 0).
    pub fn tokens(&mut self, len: usize, vocab_size: u32) -> Vec<u32> {
        (0..len).map(|_| (self.next() % u64::from(vocab_size)) as u32).collect()
    }

    /// Seconds to the next arrival of a Poisson process with `rate` per second.
    pub fn gap_s(&mut self, rate: f64) -> f64 {
        // In (0, 1]: the logarithm is finite.
        let uniform = ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        -uniform.ln() / rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_follow_the_seed() {
        let prompt = |seed| Rng::new(seed).tokens(64, 1000);
        assert_eq!(prompt(1), prompt(1));
        assert_ne!(prompt(1), prompt(2));
        assert!(prompt(3).iter().all(|&token| token < 1000));
        let mut rng = Rng::new(1);
        assert_ne!(rng.tokens(64, 1000), rng.tokens(64, 1000));
    }

    #[test]
    fn arrivals_have_the_rate() {
        let mut rng = Rng::new(5);
        let seconds: f64 = (0..10_000).map(|_| rng.gap_s(4.0)).sum();
        assert!((2350.0..2650.0).contains(&seconds), "{seconds}");
    }
}
