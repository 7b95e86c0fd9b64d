//! From logits to tokens, in place over the logits that the backend lends.
//!
//! bias → penalties → DRY → masks (stop tokens, all but allowed ones, bad words, grammar) →
//! temperature → min-p → top-k/top-p → Gumbel-max. Each feature is a file and costs nothing in
//! rows that do not use it. A row's draw depends on its own logits, tokens, parameters and seed
//! alone: never on the batch around it.

mod allowed;
mod bad_words;
mod bias;
mod dry;
mod filter;
mod grammar;
mod gumbel;
mod logprobs;
mod math;
mod penalties;
mod prompt_logprobs;
mod stop_mask;

use std::sync::Arc;

use tenon_backend::BackendError;
use tenon_engine::{Admitted, Sampled, SamplingParams};

use crate::batch::LogitsUse;
use crate::rows::Rows;

use allowed::AllowedTokens;
use dry::DryScratch;
use filter::{Candidates, Shape};
pub(crate) use grammar::RowGrammar;

/// Why a sequence ends whose masks and grammar contradict each other.
pub const NOTHING_LEFT: &str = "no token can be chosen: every one is masked";
use gumbel::NoiseKey;
use logprobs::RawLogprobs;
use penalties::Penalties;
use stop_mask::StopMask;

/// A row's sampling state.
#[derive(Debug)]
pub struct RowSampling {
    params: Arc<SamplingParams>,
    seed: u64,
    num_output: u32,
    penalties: Option<Penalties>,
    stop_mask: Option<StopMask>,
    allowed: Option<AllowedTokens>,
    pub(crate) grammar: Option<RowGrammar>,
}

impl RowSampling {
    /// State of a sequence as it is admitted, with what it generated before a preemption.
    pub fn new(admitted: &Admitted, eos_token_ids: &[u32]) -> Self {
        let params = admitted.params.clone();
        let max_output = admitted.max_len - admitted.prompt.len();
        RowSampling {
            seed: params.seed.unwrap_or(0).wrapping_add(u64::from(admitted.index)),
            num_output: admitted.output.len() as u32,
            penalties: Penalties::new(&params, &admitted.prompt, &admitted.output, max_output),
            stop_mask: StopMask::new(&params, eos_token_ids),
            allowed: AllowedTokens::new(&params),
            grammar: None,
            params,
        }
    }

    /// Applies what changes the logits themselves; says whether anything may have changed, or why
    /// this sequence cannot go on.
    fn adjust(
        &mut self,
        tokens: &[u32],
        logits: &mut [f32],
        dry: &mut DryScratch,
    ) -> Result<bool, String> {
        if !self.adjusts() {
            return Ok(false);
        }
        bias::apply(&self.params.logit_bias, logits);
        if let Some(penalties) = &self.penalties {
            penalties.apply(logits);
        }
        if let Some(params) = &self.params.dry {
            dry.apply(params, tokens, logits);
        }
        if let Some(mask) = &self.stop_mask {
            mask.apply(self.num_output, logits);
        }
        if let Some(allowed) = &self.allowed {
            allowed.apply(logits);
        }
        let output = &tokens[tokens.len() - self.num_output as usize..];
        bad_words::apply(&self.params.bad_words, output, logits);
        if let Some(grammar) = &mut self.grammar {
            grammar.apply(logits)?;
        }
        Ok(true)
    }

    fn adjusts(&self) -> bool {
        !self.params.logit_bias.is_empty()
            || self.penalties.is_some()
            || self.params.dry.is_some()
            || self.allowed.is_some()
            || self.grammar.is_some()
            || !self.params.bad_words.is_empty()
            || self.stop_mask.as_ref().is_some_and(|m| m.is_active(self.num_output))
    }

    /// Takes in the token that was chosen; says whether nothing can follow it, or why this sequence
    /// cannot go on.
    fn push(&mut self, token: u32) -> Result<bool, String> {
        self.num_output += 1;
        if let Some(penalties) = &mut self.penalties {
            penalties.push(token);
        }
        self.grammar.as_mut().map_or(Ok(false), |grammar| grammar.push(token))
    }
}

/// Scratch shared by all rows, allocated once; memory that no feature uses is never touched.
#[derive(Debug)]
pub struct Sampler {
    vocab_size: usize,
    candidates: Candidates,
    dry: DryScratch,
    // [vocab_size] the model's own logits of a row that needs them after they were adjusted.
    raw: Vec<f32>,
}

impl Sampler {
    /// For logits that are `vocab_size` wide.
    pub fn new(vocab_size: usize) -> Self {
        Sampler {
            vocab_size,
            candidates: Candidates::new(vocab_size),
            dry: DryScratch::new(vocab_size),
            raw: Vec::with_capacity(vocab_size),
        }
    }

    /// Does with the logits, `[sum of rows of uses, vocab_size]`, what `uses` say, in order:
    /// samples a row's next token and appends it to the row, or says how likely its prompt was.
    /// Logits without a usable maximum fail their own row only.
    pub fn sample(
        &mut self,
        rows: &mut Rows,
        uses: &[LogitsUse],
        logits: &mut [f32],
        results: &mut Vec<Sampled>,
    ) -> Result<(), BackendError> {
        let num_rows: usize = uses.iter().map(LogitsUse::num_rows).sum();
        if logits.len() != num_rows * self.vocab_size {
            let (got, width) = (logits.len(), self.vocab_size);
            let message = format!("`{got}` logits came back for {num_rows} rows of {width}");
            return Err(BackendError::Failed(message));
        }
        let mut rest = logits;
        for logits_use in uses {
            let (logits, others) = rest.split_at_mut(logits_use.num_rows() * self.vocab_size);
            rest = others;
            let state = rows.row_mut(logits_use.row());
            let sampling = state.sampling.as_mut().expect("a scheduled row has an owner");
            let mut result = match logits_use {
                LogitsUse::Next(_) => self.sample_row(sampling, &state.tokens, logits),
                LogitsUse::Prompt(_, positions) => {
                    let k = sampling.params.prompt_logprobs.unwrap_or(0) as usize;
                    let next = &state.tokens[positions.start as usize + 1..][..positions.len()];
                    prompt_logprobs::score(next, k, logits, &mut self.candidates)
                }
            };
            if let Sampled::Token { token, ref mut logprobs } = result {
                state.tokens.push(token);
                match sampling.push(token) {
                    Ok(false) => {}
                    Ok(true) => result = Sampled::Last { token, logprobs: logprobs.take() },
                    Err(message) => result = Sampled::Failed(message),
                }
            }
            results.push(result);
        }
        Ok(())
    }

    /// `tokens` are prompt and output so far.
    fn sample_row(&mut self, row: &mut RowSampling, tokens: &[u32], logits: &mut [f32]) -> Sampled {
        let Some(mut max) = math::max(logits) else {
            return Sampled::Failed("the model's logits are not numbers".into());
        };
        let wanted = row.params.logprobs;
        let raw = wanted.map(|k| RawLogprobs::new(logits, max, k as usize, &mut self.candidates));
        if raw.is_some() && row.adjusts() {
            self.raw.clear();
            self.raw.extend_from_slice(logits);
        }
        let is_adjusted = match row.adjust(tokens, logits, &mut self.dry) {
            Ok(is_adjusted) => is_adjusted,
            Err(message) => return Sampled::Failed(message),
        };
        if is_adjusted {
            // Biases and penalties are finite, so only -inf can be new.
            max = math::max(logits).unwrap_or(f32::NEG_INFINITY);
        }
        if max == f32::NEG_INFINITY {
            return Sampled::Failed(NOTHING_LEFT.into());
        }
        let token = self.choose(row, tokens.len(), logits, max);
        let raw_logits = if is_adjusted { &self.raw } else { &*logits };
        let logprobs = raw.map(|raw| Box::new(raw.finish(raw_logits, token)));
        Sampled::Token { token, logprobs }
    }

    /// `position` is that of the token to be chosen.
    fn choose(&mut self, row: &RowSampling, position: usize, logits: &[f32], max: f32) -> u32 {
        let params = &*row.params;
        if params.is_greedy() {
            return math::first_index_of(logits, max);
        }
        let key = NoiseKey::new(row.seed, position as u64);
        let shape = Shape::new(max, params);
        let top_k = params.top_k as usize;
        let has_top_k = top_k > 0 && top_k < self.vocab_size;
        let has_top_p = params.top_p < 1.0;
        match (has_top_k, has_top_p) {
            (false, false) => return gumbel::choose(logits, &shape, key, |_, _| true),
            (false, true) => {
                if let Some(bound) = self.candidates.take_nucleus(logits, &shape, params.top_p) {
                    return gumbel::choose(logits, &shape, key, |x, token| bound.keeps(x, token));
                }
            }
            (true, _) => self.candidates.take_top_k(logits, top_k, |x| shape.admits(x)),
        }
        if has_top_k && has_top_p {
            self.candidates.cut_to_mass(&shape, params.top_p);
        }
        gumbel::choose_of(self.candidates.list(), &shape, key)
    }
}

#[cfg(test)]
mod tests;
