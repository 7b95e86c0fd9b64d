//! Gauges and counters of the engine, for `/metrics`.

/// A snapshot. Gauges describe this moment; counters only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EngineStats {
    /// Sequences that own a row.
    pub num_requests_running: u64,
    /// Sequences that wait for a row, those that wait for a sibling included.
    pub num_requests_waiting: u64,
    /// Of these, the ones that wait until a sibling has computed their common prompt.
    pub num_requests_deferred: u64,
    /// Used blocks over all blocks, 0 to 1.
    pub kv_cache_usage: f64,
    /// Blocks in the pool.
    pub num_blocks: u64,
    /// Slots in a block.
    pub block_size: u64,
    /// Blocks that some sequence holds.
    pub num_used_blocks: u64,
    /// Unused blocks that still hold a reusable prefix.
    pub num_cached_blocks: u64,
    /// Slots of held blocks that hold no token over all slots of held blocks, 0 to 1: room for
    /// tokens to come, and what the block size rounds up.
    pub kv_cache_waste: f64,
    /// Blocks that the tier below the pool holds.
    pub num_tier_blocks: u64,
    /// Evicted blocks that went there.
    pub num_tier_stores: u64,
    /// Blocks that came back.
    pub num_tier_loads: u64,
    /// Blocks that could not be stored or brought back.
    pub num_tier_failures: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_cache_queries: u64,
    /// Prompt tokens found there.
    pub prefix_cache_hits: u64,
    /// Sequences that gave up their blocks for older ones.
    pub num_preemptions: u64,
    /// Prompt tokens of admitted sequences, cached ones included.
    pub prompt_tokens: u64,
    /// Output tokens.
    pub generation_tokens: u64,
    /// Forward passes.
    pub num_steps: u64,
    /// Steps that were planned while the one before ran.
    pub num_steps_ahead: u64,
    /// Tokens in all forward passes.
    pub num_step_tokens: u64,
    /// Steps by their number of tokens: `[i]` counts those of at most `STEP_TOKEN_BOUNDS[i]` (and
    /// more than the bound before); the last entry counts larger ones.
    pub step_tokens: [u64; STEP_TOKEN_BOUNDS.len() + 1],
}

/// Upper bounds of [`EngineStats::step_tokens`].
pub const STEP_TOKEN_BOUNDS: [u64; 13] =
    [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

impl EngineStats {
    pub(crate) fn count_step(&mut self, num_tokens: u64) {
        self.num_steps += 1;
        self.num_step_tokens += num_tokens;
        let bucket = STEP_TOKEN_BOUNDS.partition_point(|&bound| bound < num_tokens);
        self.step_tokens[bucket] += 1;
    }
}
