//! Presence and frequency penalty over the output, repetition penalty over prompt and output.
//!
//! Repetition first (Keskar et al. 2019, CTRL: a positive logit is divided, a negative one
//! multiplied), then the additive two, as OpenAI's API describes them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tenon_engine::SamplingParams;

#[derive(Debug)]
struct Count {
    token: u32,
    num_output: u32,
}

/// Distinct tokens of a sequence and how often each occurs in its output.
#[derive(Debug)]
pub struct Penalties {
    presence: f32,
    frequency: f32,
    repetition: f32,
    // With `repetition` off only tokens of the output are in here.
    counts: Vec<Count>,
    index: HashMap<u32, u32>,
}

impl Penalties {
    /// None when all three are off. Has room for `max_output` tokens, so that none of them
    /// allocates.
    pub fn new(
        params: &SamplingParams,
        prompt: &[u32],
        output: &[u32],
        max_output: usize,
    ) -> Option<Self> {
        let (presence, frequency) = (params.presence_penalty, params.frequency_penalty);
        let repetition = params.repetition_penalty;
        if presence == 0.0 && frequency == 0.0 && repetition == 1.0 {
            return None;
        }
        let mut penalties = Penalties {
            presence,
            frequency,
            repetition,
            counts: Vec::with_capacity(max_output),
            index: HashMap::with_capacity(max_output),
        };
        if repetition != 1.0 {
            prompt.iter().for_each(|&token| penalties.add(token, 0));
            penalties.counts.reserve(max_output);
            penalties.index.reserve(max_output);
        }
        output.iter().for_each(|&token| penalties.push(token));
        Some(penalties)
    }

    /// Counts an output token.
    pub fn push(&mut self, token: u32) {
        self.add(token, 1);
    }

    /// Applies all three.
    pub fn apply(&self, logits: &mut [f32]) {
        for count in &self.counts {
            let logit = &mut logits[count.token as usize];
            if self.repetition != 1.0 {
                let is_positive = *logit > 0.0;
                let factor = if is_positive { 1.0 / self.repetition } else { self.repetition };
                // A tiny penalty overflows; what is infinite cannot be compared.
                *logit = (*logit * factor).min(f32::MAX);
            }
            if count.num_output > 0 {
                *logit -= self.presence + self.frequency * count.num_output as f32;
            }
        }
    }

    fn add(&mut self, token: u32, num_output: u32) {
        match self.index.entry(token) {
            Entry::Occupied(at) => self.counts[*at.get() as usize].num_output += num_output,
            Entry::Vacant(vacant) => {
                vacant.insert(self.counts.len() as u32);
                self.counts.push(Count { token, num_output });
            }
        }
    }
}
