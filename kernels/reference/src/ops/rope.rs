//! Rotary position embedding (Su et al. 2021).

use tenon_backend::{RopeStyle, RopeTable};

/// Rotates one head in place; dims beyond the table's are left as they are.
pub fn rotate(head: &mut [f32], table: &RopeTable, position: u32) {
    let half = table.inv_freq.len();
    for (i, freq) in table.inv_freq.iter().enumerate() {
        let (a, b) = match table.style {
            RopeStyle::Half => (i, i + half),
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
        };
        let (sin, cos) = (position as f32 * freq).sin_cos();
        let (sin, cos) = (sin * table.magnitude, cos * table.magnitude);
        (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
    }
}
