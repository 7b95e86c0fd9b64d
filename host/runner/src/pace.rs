//! How many prefill tokens a step may take while others decode, so that their next token comes at
//! most a given factor later than it would without.
//!
//! Nothing is known of the device but what steps took: decode-only steps by batch size, and what
//! each prefill token added to a mixed step. The worker asks before each step and reports after
//! it. No clock in here, so that tests can play any device.

use tenon_engine::PrefillLimit;

/// Batch sizes are told apart by powers of two, up to this one.
const NUM_SIZES: usize = 16;

/// Measurements of a kind whose median counts: what a busy machine adds now and then does not.
const NUM_KEPT: usize = 7;

/// Of the allowed slowdown, so that what varies from step to step stays inside.
const MARGIN: f64 = 0.8;

/// A decode-only step is measured again after so many mixed ones: contexts grow.
const PROBE_EVERY: u32 = 64;

/// Prefill tokens in the first mixed step, when nothing is known of their cost.
const FIRST_CHUNK: usize = 16;

/// Prefill tokens that always may go: a prompt must come to its end, and a first measurement may be
/// far off. With one sequence that decodes these are four rows, one tile of the CPU's kernels: five
/// cost more than a fifth more.
const MIN_CHUNK: usize = 3;

/// Short prompts may slow streams down to this time per step, if they are faster: 40 tokens per
/// second are faster than anybody reads, and every stream began with a prompt.
const SHORT_STEP_S: f64 = 0.025;

/// Tokens to compute beyond which a prompt is long.
const LONG_PROMPT: usize = 512;

/// What one step ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepLoad {
    /// Sequences that decoded.
    pub num_decodes: usize,
    /// Tokens of all others.
    pub num_prefill_tokens: usize,
}

/// The last measurements of one kind.
#[derive(Debug, Clone, Copy, Default)]
struct Recent {
    values: [f64; NUM_KEPT],
    num: usize,
}

impl Recent {
    fn push(&mut self, value: f64) {
        self.values[self.num % NUM_KEPT] = value;
        self.num += 1;
    }

    fn median(&self) -> Option<f64> {
        let num = self.num.min(NUM_KEPT);
        let mut sorted = self.values;
        sorted[..num].sort_unstable_by(f64::total_cmp);
        (num > 0).then(|| sorted[num / 2])
    }
}

/// The controller of one engine.
#[derive(Debug)]
pub struct Pace {
    // Step time with prefill over that without; none: no limit.
    slowdown: Option<f64>,
    // [NUM_SIZES] seconds per sequence of decode-only steps, and their sizes
    decode_s: [Recent; NUM_SIZES],
    decode_size: [f64; NUM_SIZES],
    // Seconds that a prefill token adds to a mixed step.
    token_s: Recent,
    // Seconds per token of a step of prefill alone: only for want of better.
    alone_s: Recent,
    num_mixed: u32,
}

impl Pace {
    /// `slowdown` above 1: with a prompt in the step it may take this many times as long. 0: any.
    pub fn new(slowdown: f64) -> Self {
        Pace {
            slowdown: (slowdown > 0.0).then(|| slowdown.max(1.0)),
            decode_s: [Recent::default(); NUM_SIZES],
            decode_size: [1.0; NUM_SIZES],
            token_s: Recent::default(),
            alone_s: Recent::default(),
            num_mixed: 0,
        }
    }

    /// Prefill tokens for the next step, in which `num_decodes` sequences decode. 0: none this
    /// time, since the time without them is not known.
    pub fn limit(&mut self, num_decodes: usize) -> PrefillLimit {
        let is_free = num_decodes == 0;
        let Some(slowdown) = self.slowdown.filter(|_| !is_free) else { return PrefillLimit::NONE };
        let known = self.decode_time(num_decodes);
        let Some(decode_s) = known.filter(|_| self.num_mixed < PROBE_EVERY) else {
            self.num_mixed = 0;
            return limit(0, 0);
        };
        let Some(token_s) = self.token_s.median().or(self.alone_s.median()) else {
            return limit(FIRST_CHUNK, FIRST_CHUNK);
        };
        // As a float it saturates.
        let tokens = |room_s: f64| ((room_s / token_s) as usize).max(MIN_CHUNK);
        let long_s = (slowdown - 1.0) * MARGIN * decode_s;
        let num_long_tokens = tokens(long_s);
        limit(tokens(long_s.max(SHORT_STEP_S - decode_s)), num_long_tokens)
    }

    /// A step of this load took `seconds`.
    pub fn observe(&mut self, load: StepLoad, seconds: f64) {
        let StepLoad { num_decodes, num_prefill_tokens } = load;
        match (num_decodes, num_prefill_tokens) {
            (0, 0) => {}
            (_, 0) => {
                let at = size_of(num_decodes);
                self.decode_s[at].push(seconds);
                self.decode_size[at] = num_decodes as f64;
            }
            (0, tokens) => self.alone_s.push(seconds / tokens as f64),
            (_, tokens) => {
                self.num_mixed += 1;
                if let Some(decode_s) = self.decode_time(num_decodes) {
                    // What is too small is noise.
                    let added = (seconds - decode_s).max(0.02 * seconds);
                    self.token_s.push(added / tokens as f64);
                }
            }
        }
    }

    /// Of a decode-only step, from steps of about the same size: half of its time is taken to grow
    /// with the batch.
    fn decode_time(&self, num_decodes: usize) -> Option<f64> {
        let at = size_of(num_decodes);
        let median = self.decode_s[at].median()?;
        Some(median * (0.5 + 0.5 * num_decodes as f64 / self.decode_size[at]))
    }
}

fn limit(num_tokens: usize, num_long_tokens: usize) -> PrefillLimit {
    PrefillLimit { num_tokens, num_long_tokens, long_prompt: LONG_PROMPT }
}

fn size_of(num_decodes: usize) -> usize {
    (num_decodes.max(1).ilog2() as usize).min(NUM_SIZES - 1)
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
                let num_prefill_tokens = pace.limit(num_decodes).num_long_tokens.min(2048);
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
    fn short_prompts_may_slow_fast_streams_down_to_a_readers_pace() {
        let device = Device { fixed: 2e-3, decode: 1e-4, token: 3e-4 };
        let mut pace = Pace::new(2.0);
        for _ in 0..200 {
            let limit = pace.limit(8);
            let load = StepLoad { num_decodes: 8, num_prefill_tokens: limit.num_tokens };
            let seconds = device.time(load);
            pace.observe(load, seconds);
            assert!(seconds < 1.1 * SHORT_STEP_S || load.num_prefill_tokens == FIRST_CHUNK);
        }
        let limit = pace.limit(8);
        assert!(limit.num_tokens > 4 * limit.num_long_tokens, "{limit:?}");
    }

    #[test]
    fn alone_or_without_a_limit_a_prompt_takes_what_it_can() {
        assert_eq!(Pace::new(2.0).limit(0), PrefillLimit::NONE);
        assert_eq!(Pace::new(0.0).limit(5), PrefillLimit::NONE);
    }
}
