//! Device-ready inputs of a step, gathered from rows into buffers that are reused.

use std::ops::Range;

use tenon_backend::{BlockCopy, SeqSpan, StepInputs};
use tenon_engine::{EngineConfig, Row, StepPlan};

use crate::rows::Rows;

/// What the next logits rows are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogitsUse {
    /// The row's next token.
    Next(Row),
    /// How likely the row's prompt was: its positions, a logits row each.
    Prompt(Row, Range<u32>),
}

impl LogitsUse {
    /// Logits rows that it takes.
    pub fn num_rows(&self) -> usize {
        match self {
            LogitsUse::Next(_) => 1,
            LogitsUse::Prompt(_, positions) => positions.len(),
        }
    }

    /// Whose.
    pub fn row(&self) -> Row {
        match self {
            LogitsUse::Next(row) | LogitsUse::Prompt(row, _) => *row,
        }
    }
}

/// Entries of block tables that there is room for from the start (4 MiB).
const MAX_TABLE_ROOM: usize = 1 << 20;

/// Buffers of [`StepInputs`], sized once for the largest step.
#[derive(Debug)]
pub struct InputBatch {
    block_size: usize,
    num_groups: usize,
    // [num_tokens]
    token_ids: Vec<u32>,
    positions: Vec<u32>,
    // [num_groups, num_tokens]
    slot_mapping: Vec<u32>,
    // [num_seqs]
    seqs: Vec<SeqSpan>,
    // [sum of num_groups * table_len]
    block_tables: Vec<u32>,
    // [num_block_copies]
    block_copies: Vec<BlockCopy>,
    // [num_logits_rows]
    logits_rows: Vec<u32>,
    // In the order of `logits_rows`, each for one or several of them.
    logits_uses: Vec<LogitsUse>,
}

impl InputBatch {
    /// For the steps that these limits allow.
    pub fn new(config: &EngineConfig) -> Self {
        let (max_step_tokens, max_num_seqs) = (config.max_step_tokens, config.max_num_seqs);
        let num_groups = config.kv_groups.len();
        let max_blocks = config.max_seq_len().div_ceil(config.block_size);
        let max_table_room = num_groups * max_num_seqs * max_blocks;
        let max_logits_rows = config.max_logits_rows();
        InputBatch {
            block_size: config.block_size,
            num_groups,
            token_ids: Vec::with_capacity(max_step_tokens),
            positions: Vec::with_capacity(max_step_tokens),
            slot_mapping: Vec::with_capacity(num_groups * max_step_tokens),
            seqs: Vec::with_capacity(max_num_seqs),
            block_tables: Vec::with_capacity(max_table_room.min(MAX_TABLE_ROOM)),
            // Each writes to one block per group that it may share.
            block_copies: Vec::with_capacity(num_groups * max_num_seqs),
            logits_rows: Vec::with_capacity(max_logits_rows),
            logits_uses: Vec::with_capacity(max_logits_rows),
        }
    }

    /// Gathers the plan's tokens and block tables. The plan was applied to `rows`.
    pub fn build(&mut self, rows: &Rows, plan: &StepPlan) -> StepInputs<'_> {
        self.clear();
        self.slot_mapping.resize(self.num_groups * plan.num_tokens, 0);
        self.block_copies
            .extend(plan.block_copies.iter().map(|c| BlockCopy { from: c.from.0, to: c.to.0 }));
        for item in &plan.scheduled {
            let state = rows.row(item.row);
            let (start, end) = (item.start as usize, (item.start + item.num_tokens) as usize);
            let table_len = end.div_ceil(self.block_size);
            let token_start = self.token_ids.len();
            self.seqs.push(SeqSpan {
                row: item.row.0,
                token_start: token_start as u32,
                num_tokens: item.num_tokens,
                context_len: end as u32,
                prompt_len: state.prompt_len as u32,
                table_start: self.block_tables.len() as u32,
                table_len: table_len as u32,
            });
            self.token_ids.extend_from_slice(&state.tokens[start..end]);
            self.positions.extend(item.start..end as u32);
            let size = self.block_size;
            for (group, table) in state.tables.iter().enumerate() {
                let slots = &mut self.slot_mapping[group * plan.num_tokens + token_start..];
                for (slot, p) in slots.iter_mut().zip(start..end) {
                    *slot = table[p / size] * size as u32 + (p % size) as u32;
                }
                self.block_tables.extend_from_slice(&table[..table_len]);
            }
            let Range { start: first, end: last } = item.prompt_rows.clone();
            if first < last {
                let at = token_start as u32;
                self.logits_rows.extend((first..last).map(|p| at + p - item.start));
                self.logits_uses.push(LogitsUse::Prompt(item.row, first..last));
            }
            if item.wants_logits {
                assert_eq!(end, state.tokens.len(), "logits are of the newest token");
                self.logits_rows.push(self.token_ids.len() as u32 - 1);
                self.logits_uses.push(LogitsUse::Next(item.row));
            }
        }
        self.inputs()
    }

    /// A step of one token in block 0, to be run before anything else lives there.
    pub fn warm_up(&mut self) -> StepInputs<'_> {
        self.clear();
        self.token_ids.push(0);
        self.positions.push(0);
        self.slot_mapping.resize(self.num_groups, 0);
        self.block_tables.resize(self.num_groups, 0);
        self.logits_rows.push(0);
        self.seqs.push(SeqSpan {
            row: 0,
            token_start: 0,
            num_tokens: 1,
            context_len: 1,
            prompt_len: 1,
            table_start: 0,
            table_len: 1,
        });
        self.inputs()
    }

    /// What the logits rows are for, in their order.
    pub fn logits_uses(&self) -> &[LogitsUse] {
        &self.logits_uses
    }

    fn inputs(&self) -> StepInputs<'_> {
        StepInputs {
            token_ids: &self.token_ids,
            positions: &self.positions,
            slot_mapping: &self.slot_mapping,
            seqs: &self.seqs,
            block_tables: &self.block_tables,
            logits_rows: &self.logits_rows,
            block_copies: &self.block_copies,
        }
    }

    fn clear(&mut self) {
        self.token_ids.clear();
        self.positions.clear();
        self.slot_mapping.clear();
        self.seqs.clear();
        self.block_tables.clear();
        self.block_copies.clear();
        self.logits_rows.clear();
        self.logits_uses.clear();
    }
}
