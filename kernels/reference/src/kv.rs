//! The paged KV cache: one f32 row per slot, each value rounded to the cache's type when written.

use half::{bf16, f16};
use tenon_backend::layout::LayerPlace;
use tenon_backend::{BackendError, BlockCopy, KvDType, KvLayer, KvLayout, PrepareOptions, Program};

/// Keys and values of every physical buffer, and which layer uses which.
pub struct KvCache {
    dtype: KvDType,
    block_size: usize,
    layout: KvLayout,
    shapes: Vec<KvLayer>,
    buffers: Vec<Buffer>,
}

// Keys and values, each `[num_slots, num_kv_heads * head_dim]`.
struct Buffer {
    width: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// One layer's view of the cache.
#[derive(Clone, Copy)]
pub struct Layer<'a> {
    /// Shape and window.
    pub shape: KvLayer,
    /// Slots in a block.
    pub block_size: usize,
    /// Whose block table it reads.
    pub group: usize,
    buffer: &'a Buffer,
}

impl KvCache {
    /// Zeroed; fails when the memory cannot be had.
    pub fn new(program: &Program, options: &PrepareOptions) -> Result<Self, BackendError> {
        let num_slots = options.num_blocks * options.block_size;
        let layout = program.kv_layout(options.hybrid_kv);
        let shapes = program.kv_layers.clone();
        let mut buffers = Vec::new();
        for buffer in 0..layout.num_buffers {
            let layer = layout.layers.iter().position(|place| place.buffer == buffer);
            let width = layer.map_or(0, |l| shapes[l].num_kv_heads * shapes[l].head_dim);
            let len = num_slots.saturating_mul(width);
            let (keys, values) = (zeroed(len)?, zeroed(len)?);
            buffers.push(Buffer { width, keys, values });
        }
        let (dtype, block_size) = (options.kv_dtype, options.block_size);
        Ok(KvCache { dtype, block_size, layout, shapes, buffers })
    }

    /// Groups, buffers, and who uses which.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// One layer.
    pub fn layer(&self, layer: usize) -> Layer<'_> {
        let LayerPlace { group, buffer } = self.layout.layers[layer];
        let (shape, block_size) = (self.shapes[layer], self.block_size);
        Layer { shape, block_size, group, buffer: &self.buffers[buffer] }
    }

    /// Stores one token's key and value rows, each `[num_kv_heads * head_dim]`.
    pub fn write(&mut self, layer: usize, slot: usize, key: &[f32], value: &[f32]) {
        let head_dim = self.shapes[layer].head_dim;
        let buffer = &mut self.buffers[self.layout.layers[layer].buffer];
        let at = slot * buffer.width..(slot + 1) * buffer.width;
        for (stored, given) in [(&mut buffer.keys, key), (&mut buffer.values, value)] {
            let heads = stored[at.clone()].chunks_exact_mut(head_dim);
            for (stored, given) in heads.zip(given.chunks_exact(head_dim)) {
                round(self.dtype, given, stored);
            }
        }
    }

    /// Copies whole blocks, in order.
    pub fn copy_blocks(&mut self, copies: &[BlockCopy]) {
        for copy in copies {
            for buffer in &mut self.buffers {
                let len = self.block_size * buffer.width;
                let (from, to) = (copy.from as usize * len, copy.to as usize * len);
                buffer.keys.copy_within(from..from + len, to);
                buffer.values.copy_within(from..from + len, to);
            }
        }
    }

    /// Bytes of a block over all buffers.
    pub fn block_bytes(&self) -> usize {
        self.buffers.iter().map(|b| 2 * b.width * self.block_size * size_of::<f32>()).sum()
    }

    /// Calls `f` with every element of a block, in a fixed order.
    pub fn for_block(&mut self, block: u32, mut f: impl FnMut(&mut f32)) {
        for buffer in &mut self.buffers {
            let len = self.block_size * buffer.width;
            let at = block as usize * len..(block as usize + 1) * len;
            buffer.keys[at.clone()].iter_mut().for_each(&mut f);
            buffer.values[at].iter_mut().for_each(&mut f);
        }
    }
}

impl Layer<'_> {
    /// The key of `head` at `slot`, `[head_dim]`.
    pub fn key(&self, slot: usize, head: usize) -> &[f32] {
        &self.buffer.keys[self.at(slot, head)..][..self.shape.head_dim]
    }

    /// The value of `head` at `slot`, `[head_dim]`.
    pub fn value(&self, slot: usize, head: usize) -> &[f32] {
        &self.buffer.values[self.at(slot, head)..][..self.shape.head_dim]
    }

    fn at(&self, slot: usize, head: usize) -> usize {
        (slot * self.shape.num_kv_heads + head) * self.shape.head_dim
    }
}

// One head's elements as the cache keeps them.
fn round(dtype: KvDType, given: &[f32], stored: &mut [f32]) {
    stored.copy_from_slice(given);
    if dtype == KvDType::Int8 {
        // Codes are of the Hadamard transform, which spreads outliers and is its own inverse.
        hadamard(stored);
        let largest = stored.iter().fold(0.0f32, |a, x| a.max(x.abs()));
        let (scale, inverse) =
            if largest > 0.0 { (largest / 127.0, 127.0 / largest) } else { (0.0, 0.0) };
        stored.iter_mut().for_each(|x| *x = (*x * inverse).round_ties_even() * scale);
        hadamard(stored);
        return;
    }
    for x in stored {
        *x = match dtype {
            KvDType::BF16 => bf16::from_f32(*x).to_f32(),
            KvDType::F16 => f16::from_f32(*x).to_f32(),
            KvDType::F32 | KvDType::Int8 => *x,
        };
    }
}

// Of each run of as many elements as the largest power of two that divides the length, normalized:
// entry (i, j) is the parity of the bits that i and j share, as a sign.
fn hadamard(x: &mut [f32]) {
    let len = 1usize << x.len().trailing_zeros();
    for run in x.chunks_exact_mut(len) {
        let given = run.to_vec();
        for (i, out) in run.iter_mut().enumerate() {
            let sign = |j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
            let sum: f32 = given.iter().enumerate().map(|(j, x)| sign(j) * x).sum();
            *out = sum / (len as f32).sqrt();
        }
    }
}

fn zeroed(len: usize) -> Result<Vec<f32>, BackendError> {
    let mut v = Vec::new();
    v.try_reserve_exact(len).map_err(|_| BackendError::OutOfMemory {
        what: "the KV cache",
        bytes: len.saturating_mul(4),
    })?;
    v.resize(len, 0.0);
    Ok(v)
}
