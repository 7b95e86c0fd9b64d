//! Permanent per-sequence state: one row from admission to the sequence's end.
//!
//! This file is shared by every model and every feature: a row holds what *all* sequences need.
//! Rows change only by a plan's diffs and by tokens that were sampled.

use tenon_backend::layout::NO_BLOCK;
use tenon_engine::{Admitted, BlockId, Row, StepPlan};

use crate::grammars::Grammars;
use crate::pace::StepLoad;
use crate::sampler::RowSampling;

// Engine and backends know nothing of each other and say "no block" alike.
const _: () = assert!(NO_BLOCK == BlockId::NONE.0);

/// State of the sequence that owns the row.
#[derive(Debug, Default)]
pub struct RowState {
    /// Prompt and output so far.
    pub tokens: Vec<u32>,
    /// How many of them are the user's prompt.
    pub prompt_len: usize,
    /// `[num_groups]` block tables; [`tenon_backend::layout::NO_BLOCK`] where a window has passed.
    pub tables: Vec<Vec<u32>>,
    /// How to sample; none while the row is free.
    pub sampling: Option<RowSampling>,
}

/// All rows.
#[derive(Debug)]
pub struct Rows {
    // [max_num_seqs]
    rows: Vec<RowState>,
    eos_token_ids: Vec<u32>,
    /// Of the requests that are alive.
    pub(crate) grammars: Grammars,
}

impl Rows {
    /// `max_num_seqs` free rows, with room for a block table of `max_blocks` in each of
    /// `num_groups`: steps do not allocate.
    pub fn new(
        max_num_seqs: usize,
        num_groups: usize,
        max_blocks: usize,
        eos_token_ids: Vec<u32>,
    ) -> Self {
        let tables = || (0..num_groups).map(|_| Vec::with_capacity(max_blocks)).collect();
        let free = || RowState { tables: tables(), ..RowState::default() };
        let rows = (0..max_num_seqs).map(|_| free()).collect();
        Rows { rows, eos_token_ids, grammars: Grammars::default() }
    }

    /// The row's state.
    pub fn row(&self, row: Row) -> &RowState {
        &self.rows[row.0 as usize]
    }

    /// The row's state.
    pub fn row_mut(&mut self, row: Row) -> &mut RowState {
        &mut self.rows[row.0 as usize]
    }

    /// Takes over what the plan changes.
    pub fn apply(&mut self, plan: &StepPlan) {
        for &row in &plan.released {
            let state = self.row_mut(row);
            assert!(state.sampling.is_some(), "row {} is released twice", row.0);
            state.sampling = None;
            state.tokens.clear();
            state.tables.iter_mut().for_each(Vec::clear);
        }
        for admitted in &plan.admitted {
            self.admit(admitted);
        }
        for item in &plan.scheduled {
            let updates = &plan.tables[item.tables.start as usize..item.tables.end as usize];
            let tables = &mut self.row_mut(item.row).tables;
            assert_eq!(tables.len(), updates.len(), "one update per KV group");
            for (table, update) in tables.iter_mut().zip(updates) {
                let new = update.new_blocks.start as usize..update.new_blocks.end as usize;
                table.truncate(update.num_kept as usize);
                table.extend(plan.new_blocks[new].iter().map(|b| b.0));
                table[..update.num_passed as usize].fill(NO_BLOCK);
            }
        }
    }

    /// What a step of this plan, which was applied, is made of.
    pub fn load(&self, plan: &StepPlan) -> StepLoad {
        let mut load = StepLoad::default();
        for item in &plan.scheduled {
            let is_decode = item.wants_logits
                && item.num_tokens == 1
                && item.start as usize >= self.row(item.row).prompt_len;
            match is_decode {
                true => load.num_decodes += 1,
                false => load.num_prefill_tokens += item.num_tokens as usize,
            }
        }
        load
    }

    fn admit(&mut self, admitted: &Admitted) {
        let mut sampling = RowSampling::new(admitted, &self.eos_token_ids);
        sampling.grammar = self.grammars.admit(admitted);
        let state = self.row_mut(admitted.row);
        assert!(state.sampling.is_none(), "row {} has an owner", admitted.row.0);
        state.tokens.reserve_exact(admitted.max_len);
        state.tokens.extend_from_slice(&admitted.prompt);
        state.tokens.extend_from_slice(&admitted.output);
        state.prompt_len = admitted.prompt.len();
        state.sampling = Some(sampling);
    }
}
