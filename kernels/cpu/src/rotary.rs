//! Cosines and sines of a step's positions, computed once per step for all layers.

use tenon_backend::{BackendError, RopeTable};

use crate::elementwise::for_rows;
use crate::memory::{Buffer, SharedPtr};
use crate::pool::Pool;

/// One rotary table's values for the tokens of a step.
pub struct Rotary {
    table: RopeTable,
    /// `[num_tokens, 2 * pairs]`: cosines, then sines.
    values: Buffer<f32>,
}

/// Computing a sine or cosine costs about this many elements of cheap work.
const COST: usize = 16;

impl Rotary {
    /// For steps of at most `max_tokens` tokens.
    pub fn new(table: RopeTable, max_tokens: usize) -> Result<Self, BackendError> {
        let len = max_tokens.saturating_mul(2 * table.inv_freq.len());
        Ok(Rotary { values: Buffer::zeroed(len, "rotary tables")?, table })
    }

    /// The table.
    pub fn table(&self) -> &RopeTable {
        &self.table
    }

    /// Computes the values for the positions of a step.
    pub fn update(&mut self, pool: &mut Pool, positions: &[u32]) {
        let table = &self.table;
        let pairs = table.inv_freq.len();
        let values = SharedPtr::new(&mut self.values);
        for_rows(pool, positions.len(), pairs * COST, |start, rows| {
            for token in start..start + rows {
                // SAFETY: tokens have disjoint rows.
                let row = unsafe { values.slice(token * 2 * pairs, 2 * pairs) };
                let (cos, sin) = row.split_at_mut(pairs);
                for ((freq, cos), sin) in table.inv_freq.iter().zip(cos).zip(sin) {
                    let (s, c) = (positions[token] as f32 * freq).sin_cos();
                    (*cos, *sin) = (c * table.magnitude, s * table.magnitude);
                }
            }
        });
    }

    /// Cosines and sines of a token of the step.
    pub fn token(&self, token: usize) -> (&[f32], &[f32]) {
        let pairs = self.table.inv_freq.len();
        self.values[token * 2 * pairs..][..2 * pairs].split_at(pairs)
    }
}
