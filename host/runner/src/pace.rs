//! How many prefill tokens a step may take while others decode, so that their next token comes at
//! most a given factor later than it would without.
//!
//! Nothing is known of the device but what steps took: decode-only steps by batch size, and what
//! each prefill token added to a mixed step. The worker asks before each step and reports after
//! it. No clock in here, so that tests can play any device.

/// Batch sizes are told apart by powers of two, up to this one.
const NUM_SIZES: usize = 16;

/// Weight of a new measurement.
const GAIN: f64 = 0.2;

/// Of the allowed slowdown, so that what varies from step to step stays inside.
const MARGIN: f64 = 0.8;

/// A decode-only step is measured again after so many mixed ones: contexts grow.
const PROBE_EVERY: u32 = 64;

/// Prefill tokens in the first mixed step, when nothing is known of their cost.
const FIRST_CHUNK: usize = 16;

/// Prefill tokens that always may go: a prompt must come to its end, and a first measurement may be
/// far off.
const MIN_CHUNK: usize = 4;

/// What one step ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepLoad {
    /// Sequences that decoded.
    pub num_decodes: usize,
    /// Tokens of all others.
    pub num_prefill_tokens: usize,
}

/// The controller of one engine.
#[derive(Debug)]
pub struct Pace {
    // Step time with prefill over that without; none: no limit.
    slowdown: Option<f64>,
    // [NUM_SIZES] seconds of a decode-only step
    decode_s: [Option<f64>; NUM_SIZES],
    // Seconds that a prefill token adds.
    token_s: Option<f64>,
    num_mixed: u32,
}

impl Pace {
    /// `slowdown` above 1: with a prompt in the step it may take this many times as long. 0: any.
    pub fn new(slowdown: f64) -> Self {
        Pace {
            slowdown: (slowdown > 0.0).then(|| slowdown.max(1.0)),
            decode_s: [None; NUM_SIZES],
            token_s: None,
            num_mixed: 0,
        }
    }

    /// Prefill tokens for the next step, in which `num_decodes` sequences decode. 0: none this
    /// time, since the time without them is not known.
    pub fn limit(&mut self, num_decodes: usize) -> usize {
        let Some(slowdown) = self.slowdown.filter(|_| num_decodes > 0) else { return usize::MAX };
        let known = self.decode_s[size_of(num_decodes)];
        let Some(decode_s) = known.filter(|_| self.num_mixed < PROBE_EVERY) else {
            self.num_mixed = 0;
            return 0;
        };
        let Some(token_s) = self.token_s else { return FIRST_CHUNK };
        let room = (slowdown - 1.0) * MARGIN * decode_s;
        // As a float it saturates.
        ((room / token_s) as usize).max(MIN_CHUNK)
    }

    /// A step of this load took `seconds`.
    pub fn observe(&mut self, load: StepLoad, seconds: f64) {
        let StepLoad { num_decodes, num_prefill_tokens } = load;
        match (num_decodes, num_prefill_tokens) {
            (0, 0) => {}
            (_, 0) => blend(&mut self.decode_s[size_of(num_decodes)], seconds),
            (0, tokens) => {
                // Holds the fixed cost of a step too: only for want of better.
                self.token_s.get_or_insert(seconds / tokens as f64);
            }
            (_, tokens) => {
                self.num_mixed += 1;
                if let Some(decode_s) = self.decode_s[size_of(num_decodes)] {
                    let added = (seconds - decode_s).max(0.02 * seconds) / tokens as f64;
                    blend(&mut self.token_s, added);
                }
            }
        }
    }
}

fn size_of(num_decodes: usize) -> usize {
    (num_decodes.max(1).ilog2() as usize).min(NUM_SIZES - 1)
}

fn blend(mean: &mut Option<f64>, value: f64) {
    *mean = Some(mean.map_or(value, |mean| mean + GAIN * (value - mean)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A device: a fixed cost, one per decoding sequence, one per prefill token; seconds.
    #[derive(Debug, Clone, Copy)]
    struct Device {
        fixed: f64,
        decode: f64,
        token: f64,
    }

    impl Device {
        fn time(self, load: StepLoad) -> f64 {
            self.fixed
                + self.decode * load.num_decodes as f64
                + self.token * load.num_prefill_tokens as f64
        }
    }

    proptest! {
        /// 1,000 steps beside an endless prompt: 99 % of them within the slowdown, and the prompt
        /// gets its part of the time.
        #[test]
        fn decoding_keeps_its_pace(
            fixed in 1e-4..1e-1f64,
            decode in 1e-6..1e-2f64,
            token in 1e-5..1e-2f64,
            num_decodes in 1usize..200,
            slowdown in 1.2..4.0f64,
        ) {
            let device = Device { fixed, decode, token };
            let mut pace = Pace::new(slowdown);
            let alone = device.time(StepLoad { num_decodes, num_prefill_tokens: 0 });
            let (mut slow, mut prefilled) = (0, 0);
            for _ in 0..1000 {
                let num_prefill_tokens = pace.limit(num_decodes).min(2048);
                let load = StepLoad { num_decodes, num_prefill_tokens };
                let seconds = device.time(load);
                pace.observe(load, seconds);
                let is_least = num_prefill_tokens <= MIN_CHUNK;
                slow += usize::from(seconds > slowdown * alone && !is_least);
                prefilled += num_prefill_tokens;
            }
            prop_assert!(slow <= 10, "{} slow steps", slow);
            let most = ((slowdown - 1.0) * alone / token).clamp(1.0, 2048.0);
            let least = 0.5 * 900.0 * most.floor();
            prop_assert!(prefilled as f64 > least, "{} of {}", prefilled, most);
        }
    }

    #[test]
    fn alone_or_without_a_limit_a_prompt_takes_what_it_can() {
        assert_eq!(Pace::new(2.0).limit(0), usize::MAX);
        assert_eq!(Pace::new(0.0).limit(5), usize::MAX);
    }
}
