//! Device-ready inputs of one step. Built by `runner`, read by every backend.

/// One sequence's share of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqSpan {
    /// The sequence's permanent row in runner state.
    pub row: u32,
    /// First of its tokens in the step's flat token arrays.
    pub token_start: u32,
    /// How many tokens it runs in this step.
    pub num_tokens: u32,
    /// KV entries that exist once this step has written its own: position of the last token + 1.
    pub context_len: u32,
    /// Length of the user's prompt (a replaying backend tells prompt from output by it).
    pub prompt_len: u32,
    /// First entry of its block tables in `StepInputs::block_tables`: that of KV group `g` starts
    /// at `table_start + g * table_len`.
    pub table_start: u32,
    /// Entries of each of its block tables: `ceil(context_len / block_size)`.
    pub table_len: u32,
}

/// One block's contents, in all physical buffers, to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// Read.
    pub from: u32,
    /// Overwritten.
    pub to: u32,
}

/// What one forward pass runs. All slices are flat and borrowed from the runner.
#[derive(Debug, Clone, Copy)]
pub struct StepInputs<'a> {
    /// `[num_tokens]`
    pub token_ids: &'a [u32],
    /// `[num_tokens]` position of each token in its sequence.
    pub positions: &'a [u32],
    /// `[num_groups, num_tokens]` flat KV slot of each token in each KV group:
    /// `block * block_size + offset`.
    pub slot_mapping: &'a [u32],
    /// `[num_seqs]` in ascending `token_start`.
    pub seqs: &'a [SeqSpan],
    /// `[sum of num_groups * table_len]` block ids; [`crate::layout::NO_BLOCK`] where a group's
    /// window has passed.
    pub block_tables: &'a [u32],
    /// Done in order, before anything else of the step.
    pub block_copies: &'a [BlockCopy],
    /// `[num_logits_rows]` index into the flat token arrays.
    pub logits_rows: &'a [u32],
}
