//! Seeded noise for unit tests.

/// `len` values in `-amplitude..amplitude`, the same for the same seed.
pub fn noise(len: usize, seed: u32, amplitude: f32) -> Vec<f32> {
    let mut state = u64::from(seed) << 1 | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| amplitude * next()).collect()
}
