//! Causal attention over the paged cache, one query head at a time.

use tenon_backend::{SeqSpan, StepInputs};

use super::elementwise::capped;
use crate::kv::{KvCache, Layer};

/// How `q · k` becomes a score.
pub struct Scores {
    /// Multiplies `q · k`.
    pub scale: f32,
    /// `cap * tanh(x / cap)` afterwards.
    pub softcap: Option<f32>,
}

/// Stores the step's keys and values, each `[num_tokens, num_kv_heads * head_dim]`, at its slots.
pub fn write_kv(kv: &mut KvCache, layer: usize, k: &[f32], v: &[f32], inputs: &StepInputs<'_>) {
    let width = k.len() / inputs.token_ids.len();
    let group = kv.layer(layer).group;
    let slots = inputs.slot_mapping.chunks_exact(inputs.token_ids.len()).nth(group);
    for (t, &slot) in slots.into_iter().flatten().enumerate() {
        let row = t * width..(t + 1) * width;
        kv.write(layer, slot as usize, &k[row.clone()], &v[row]);
    }
}

/// `[num_tokens, num_heads * head_dim]` from queries of the same shape.
pub fn attention(
    layer: Layer<'_>,
    q: &[f32],
    num_heads: usize,
    scores: &Scores,
    inputs: &StepInputs<'_>,
) -> Vec<f32> {
    let dim = layer.shape.head_dim;
    let group = num_heads / layer.shape.num_kv_heads;
    let mut out = vec![0.0; q.len()];
    for seq in inputs.seqs {
        for t in 0..seq.num_tokens as usize {
            let token = seq.token_start as usize + t;
            let position = inputs.positions[token] as usize;
            let slots = visible_slots(seq, position, &layer, inputs);
            for head in 0..num_heads {
                let at = (token * num_heads + head) * dim..(token * num_heads + head + 1) * dim;
                attend(&layer, &slots, head / group, &q[at.clone()], scores, &mut out[at]);
            }
        }
    }
    out
}

// Slots of the positions that a token at `position` sees, oldest first.
fn visible_slots(
    seq: &SeqSpan,
    position: usize,
    layer: &Layer<'_>,
    inputs: &StepInputs<'_>,
) -> Vec<usize> {
    let first = layer.shape.window.map_or(0, |w| (position + 1).saturating_sub(w as usize));
    let len = seq.table_len as usize;
    let start = seq.table_start as usize + layer.group * len;
    let table = &inputs.block_tables[start..][..len];
    let size = layer.block_size;
    (first..=position).map(|p| table[p / size] as usize * size + p % size).collect()
}

// One query head over the visible slots: softmax(scores) · values.
fn attend(
    layer: &Layer<'_>,
    slots: &[usize],
    kv_head: usize,
    q: &[f32],
    scores: &Scores,
    out: &mut [f32],
) {
    let mut weights = Vec::with_capacity(slots.len());
    for &slot in slots {
        let dot: f32 = q.iter().zip(layer.key(slot, kv_head)).map(|(a, b)| a * b).sum();
        let score = dot * scores.scale;
        weights.push(scores.softcap.map_or(score, |cap| capped(score, cap)));
    }
    let largest = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    weights.iter_mut().for_each(|w| *w = (*w - largest).exp());
    let total: f32 = weights.iter().sum();
    for (&slot, weight) in slots.iter().zip(&weights) {
        for (o, x) in out.iter_mut().zip(layer.value(slot, kv_head)) {
            *o += weight / total * x;
        }
    }
}
