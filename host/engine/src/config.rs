//! Limits of the engine, checked once at start, and what they mean for a request.

use crate::kv::{TierConfig, most_blocks};
use crate::params::{MAX_N, ParamError};

/// Who comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SchedulingPolicy {
    /// By arrival.
    #[default]
    Fcfs,
    /// By [`crate::NewRequest::priority`], then by arrival.
    Priority,
    /// The tenant that was served least, by weight; then by arrival.
    FairShare,
}

/// Most prefill tokens of a step in which others decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefillLimit {
    /// In all.
    pub num_tokens: usize,
    /// Of long prompts.
    pub num_long_tokens: usize,
    /// A prompt with more tokens to compute is long: it would slow others down again and again.
    pub long_prompt: usize,
}

impl PrefillLimit {
    /// As much as fits.
    pub const NONE: PrefillLimit = PrefillLimit {
        num_tokens: usize::MAX,
        num_long_tokens: usize::MAX,
        long_prompt: usize::MAX,
    };
}

/// Limits of the engine. All of them are memory: nothing grows beyond them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// KV blocks in the pool.
    pub num_blocks: usize,
    /// Slots in a block.
    pub block_size: usize,
    /// Rows: most sequences that run at once.
    pub max_num_seqs: usize,
    /// Token budget of a step, prefill and decode together; at least `max_num_seqs`.
    pub max_step_tokens: usize,
    /// Most prompt tokens that one sequence gets in a step while others run or wait, so that a
    /// long prompt neither delays their next token by much nor keeps short prompts out.
    pub max_prefill_chunk: usize,
    /// Most logits rows of a step for log-probabilities of prompts; each is a row of the vocabulary
    /// in f32. A prompt that wants them is computed in pieces of at most so many tokens.
    pub max_prompt_logits_rows: usize,
    /// Who comes first.
    pub policy: SchedulingPolicy,
    /// Longest sequence, prompt and output together.
    pub max_model_len: usize,
    /// Most sequences that wait for a row.
    pub max_waiting: usize,
    /// `[num_groups]` window of each KV group, none: it sees everything. All groups share the pool;
    /// models without windows have one group.
    pub kv_groups: Vec<Option<u32>>,
    /// Where evicted blocks are kept on; only with one KV group.
    pub tier: Option<TierConfig>,
    /// Reuse full blocks between sequences with the same tokens and salt.
    pub prefix_caching: bool,
    /// Per-process secret of the block hash. Draw it at random: who knows it can forge collisions.
    pub hash_key: [u8; 16],
    /// Tokens that end a sequence unless `ignore_eos`.
    pub eos_token_ids: Vec<u32>,
}

/// A limit that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is `{value}`; {advice}")]
pub struct ConfigError {
    /// Which field of [`EngineConfig`].
    pub field: &'static str,
    /// Its value.
    pub value: usize,
    /// What would work.
    pub advice: String,
}

impl EngineConfig {
    /// Checks that the limits fit together.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let non_zero = [
            ("num_blocks", self.num_blocks),
            ("block_size", self.block_size),
            ("max_num_seqs", self.max_num_seqs),
            ("max_prefill_chunk", self.max_prefill_chunk),
            ("max_prompt_logits_rows", self.max_prompt_logits_rows),
        ];
        for (field, value) in non_zero {
            if value == 0 {
                return Err(ConfigError { field, value, advice: "use 1 or more".into() });
            }
        }
        if self.kv_groups.is_empty() || self.kv_groups.contains(&Some(0)) {
            let value = self.kv_groups.len();
            let advice = "use at least one group, and no window of 0".into();
            return Err(ConfigError { field: "kv_groups", value, advice });
        }
        if self.tier.is_some_and(|t| t.num_blocks == 0 || self.kv_groups.len() > 1) {
            let value = self.tier.map_or(0, |t| t.num_blocks);
            let advice = "use 1 or more blocks, and one KV group".into();
            return Err(ConfigError { field: "tier", value, advice });
        }
        if self.max_model_len < 2 {
            let advice = "use 2 or more: a prompt token and an output token".into();
            return Err(ConfigError { field: "max_model_len", value: self.max_model_len, advice });
        }
        if self.max_step_tokens < self.max_num_seqs {
            let advice = format!("use at least max_num_seqs, `{}`", self.max_num_seqs);
            let value = self.max_step_tokens;
            return Err(ConfigError { field: "max_step_tokens", value, advice });
        }
        // Block ids, rows, positions and KV slots are u32 on every backend.
        let sizes = [
            ("num_blocks", self.num_blocks.saturating_mul(self.block_size)),
            ("max_step_tokens", self.max_step_tokens),
            ("max_model_len", self.max_model_len),
            ("max_prompt_logits_rows", self.max_prompt_logits_rows),
            ("max_num_seqs", self.max_num_seqs.saturating_add(self.max_waiting)),
        ];
        for (field, value) in sizes {
            if value > i32::MAX as usize {
                let advice = format!("use at most {} (slots in all, for blocks)", i32::MAX);
                return Err(ConfigError { field, value, advice });
            }
        }
        Ok(())
    }

    /// Longest sequence that the model *and* the block pool can hold.
    pub fn max_seq_len(&self) -> usize {
        // The most that fits; what is needed grows with the length.
        let (mut fits, mut too_long) = (0, self.max_model_len + 1);
        while too_long - fits > 1 {
            let len = fits.midpoint(too_long);
            match self.blocks_for(len) <= self.num_blocks {
                true => fits = len,
                false => too_long = len,
            }
        }
        fits
    }

    /// Most blocks, over all KV groups, that a sequence of `len` tokens ever holds at once.
    pub fn blocks_for(&self, len: usize) -> usize {
        blocks_for(&self.kv_groups, len, self.block_size, self.max_step_tokens)
    }

    /// Most logits rows of a step: one per sequence, and those of prompts.
    pub fn max_logits_rows(&self) -> usize {
        self.max_num_seqs + self.max_prompt_logits_rows
    }

    /// Most sequences alive at once, running and waiting.
    pub fn max_live_seqs(&self) -> usize {
        self.max_num_seqs + self.max_waiting
    }

    /// Checks that a request can ever run: the prompt leaves room for one output token.
    pub fn check_request(
        &self,
        prompt_len: usize,
        max_tokens: u32,
        n: u32,
    ) -> Result<(), ParamError> {
        if prompt_len == 0 {
            return Err(ParamError::new(
                "prompt",
                "prompt has `0` tokens; send at least one".into(),
            ));
        }
        let max_n = self.max_live_seqs().min(MAX_N as usize);
        if n == 0 || n as usize > max_n {
            return Err(ParamError::new("n", format!("n is `{n}`; use a value from 1 to {max_n}")));
        }
        let max_len = self.max_seq_len();
        if prompt_len < max_len {
            return Ok(());
        }
        let (blocks, size) = (self.num_blocks, self.block_size);
        let asked = (prompt_len + max_tokens as usize).min(self.max_model_len.max(prompt_len + 1));
        let needed = self.blocks_for(asked);
        let advice = match max_len {
            0 | 1 => "give the KV cache more memory".into(),
            most => format!("shorten it to at most {}", most - 1),
        };
        let message = format!(
            "prompt has `{prompt_len}` tokens and leaves no room for an output token: \
             max_model_len is {} and the KV cache holds {} ({blocks} blocks of {size}; {asked} \
             tokens, prompt and output, would need {needed}); {advice}",
            self.max_model_len,
            blocks * size,
        );
        Err(ParamError::new("prompt", message))
    }
}

/// Most blocks that a sequence of `len` tokens ever holds at once, over KV groups of these windows,
/// when a step runs at most `max_step_tokens` of them.
pub fn blocks_for(
    kv_groups: &[Option<u32>],
    len: usize,
    block_size: usize,
    max_step_tokens: usize,
) -> usize {
    let most = |&w| most_blocks(w, len, block_size, max_step_tokens);
    kv_groups.iter().map(most).sum()
}

/// While others run, admission leaves one block in this many free, so that a newcomer is not
/// preempted by the next decode step.
pub(crate) const WATERMARK_DIVISOR: usize = 100;

/// The smallest pool in which so many sequences of so many blocks run together: beside others,
/// admission leaves some free.
pub fn pool_blocks_for(num_sequences: usize, per_sequence: usize) -> usize {
    let num_used = num_sequences * per_sequence;
    match num_sequences {
        0 | 1 => num_used,
        _ => num_used + num_used.saturating_sub(1) / (WATERMARK_DIVISOR - 1),
    }
}

#[cfg(test)]
pub(crate) fn test_config() -> EngineConfig {
    EngineConfig {
        num_blocks: 16,
        block_size: 4,
        max_num_seqs: 4,
        max_step_tokens: 16,
        max_prefill_chunk: 8,
        max_prompt_logits_rows: 5,
        policy: SchedulingPolicy::Fcfs,
        max_model_len: 64,
        max_waiting: 64,
        kv_groups: vec![None],
        tier: None,
        prefix_caching: true,
        hash_key: [7; 16],
        eos_token_ids: vec![0],
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_pool_has_room_beside_what_admission_leaves_free() {
        let room = |num_blocks: usize| num_blocks - num_blocks / WATERMARK_DIVISOR;
        for per_sequence in 1..10_000 {
            let num_blocks = pool_blocks_for(2, per_sequence);
            assert!(room(num_blocks) >= 2 * per_sequence, "{per_sequence}");
            assert!(room(num_blocks - 1) < 2 * per_sequence, "{per_sequence}: fewer do");
            assert_eq!(pool_blocks_for(1, per_sequence), per_sequence);
        }
    }

    #[test]
    fn limits_must_fit_together() {
        assert_eq!(test_config().validate(), Ok(()));
        let bad = EngineConfig { max_step_tokens: 3, ..test_config() };
        assert_eq!(
            bad.validate().unwrap_err().to_string(),
            "max_step_tokens is `3`; use at least max_num_seqs, `4`"
        );
        let bad = EngineConfig { num_blocks: 0, ..test_config() };
        assert_eq!(bad.validate().unwrap_err().field, "num_blocks");
        let bad = EngineConfig { num_blocks: 1 << 30, block_size: 16, ..test_config() };
        assert_eq!(bad.validate().unwrap_err().field, "num_blocks");
    }

    #[test]
    fn a_request_that_can_never_fit_is_told_the_numbers() {
        let config = EngineConfig { max_model_len: 100, ..test_config() };
        assert_eq!(config.check_request(63, 4, 1), Ok(()));
        let error = config.check_request(64, 4, 1).unwrap_err();
        assert_eq!(error.param, "prompt");
        for number in ["`64`", "100", "16 blocks of 4", "at most 63"] {
            assert!(error.message.contains(number), "{error}");
        }
        assert_eq!(config.check_request(0, 4, 1).unwrap_err().param, "prompt");
        assert_eq!(config.check_request(5, 4, 0).unwrap_err().param, "n");
        assert_eq!(config.check_request(5, 4, 69).unwrap_err().param, "n");
    }
}
