//! Cosines and sines of a step's positions, computed once per step for all layers.

use tenon_backend::{BackendError, RopeTable};

use crate::elementwise::{for_rows, for_rows_mut, rotate};
use crate::isa::Isa;
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

    /// Computes the values for the positions of a step.
    pub fn update(&mut self, pool: &mut Pool, positions: &[u32]) {
        let table = &self.table;
        let pairs = table.inv_freq.len();
        let values = SharedPtr::new(&mut self.values);
        for_rows(pool, positions.len(), pairs * COST, |start, rows| {
            for (token, &position) in positions.iter().enumerate().skip(start).take(rows) {
                // SAFETY: tokens have disjoint rows.
                let row = unsafe { values.slice(token * 2 * pairs, 2 * pairs) };
                let (cos, sin) = row.split_at_mut(pairs);
                for ((freq, cos), sin) in table.inv_freq.iter().zip(cos).zip(sin) {
                    let (s, c) = (position as f32 * freq).sin_cos();
                    (*cos, *sin) = (c * table.magnitude, s * table.magnitude);
                }
            }
        });
    }

    /// Rotates the heads of `buf`, rows from `first` on of `[num_tokens, width]`.
    pub fn rotate(
        &self,
        pool: &mut Pool,
        isa: Isa,
        first: usize,
        buf: &mut [f32],
        width: usize,
        head_dim: usize,
    ) {
        let pairs = self.table.inv_freq.len();
        for_rows_mut(pool, buf, width, |start, rows| {
            let values = self.values[(first + start) * 2 * pairs..].chunks_exact(2 * pairs);
            for (row, values) in rows.chunks_exact_mut(width).zip(values) {
                let (cos, sin) = values.split_at(pairs);
                rotate(isa, row, head_dim, self.table.style, cos, sin);
            }
        });
    }
}
