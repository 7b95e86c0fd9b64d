//! The paged KV cache: one f32 row per slot, each value rounded to the cache's type when written.

use half::{bf16, f16};
use tenon_backend::{BackendError, KvDType, KvLayer, PrepareOptions};

/// Keys and values of every layer.
pub struct KvCache {
    dtype: KvDType,
    layers: Vec<Layer>,
}

/// One layer's keys and values, each `[num_slots, num_kv_heads * head_dim]`.
pub struct Layer {
    /// Shape and window.
    pub shape: KvLayer,
    /// Slots in a block.
    pub block_size: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl KvCache {
    /// Zeroed; fails when the memory cannot be had.
    pub fn new(shapes: &[KvLayer], options: &PrepareOptions) -> Result<Self, BackendError> {
        if options.kv_dtype == KvDType::Int8 || options.hybrid_kv {
            let reason = "int8 or hybrid KV cache".into();
            return Err(BackendError::Unsupported { backend: "reference", reason });
        }
        let num_slots = options.num_blocks * options.block_size;
        let mut layers = Vec::new();
        for &shape in shapes {
            let len = num_slots.saturating_mul(shape.num_kv_heads * shape.head_dim);
            let (keys, values) = (zeroed(len)?, zeroed(len)?);
            layers.push(Layer { shape, block_size: options.block_size, keys, values });
        }
        Ok(KvCache { dtype: options.kv_dtype, layers })
    }

    /// One layer.
    pub fn layer(&self, layer: usize) -> &Layer {
        &self.layers[layer]
    }

    /// Stores one token's key and value rows, each `[num_kv_heads * head_dim]`.
    pub fn write(&mut self, layer: usize, slot: usize, key: &[f32], value: &[f32]) {
        let width = key.len();
        let dtype = self.dtype;
        let layer = &mut self.layers[layer];
        for i in 0..width {
            layer.keys[slot * width + i] = round(dtype, key[i]);
            layer.values[slot * width + i] = round(dtype, value[i]);
        }
    }
}

impl Layer {
    /// The key of `head` at `slot`, `[head_dim]`.
    pub fn key(&self, slot: usize, head: usize) -> &[f32] {
        &self.keys[self.at(slot, head)..][..self.shape.head_dim]
    }

    /// The value of `head` at `slot`, `[head_dim]`.
    pub fn value(&self, slot: usize, head: usize) -> &[f32] {
        &self.values[self.at(slot, head)..][..self.shape.head_dim]
    }

    fn at(&self, slot: usize, head: usize) -> usize {
        (slot * self.shape.num_kv_heads + head) * self.shape.head_dim
    }
}

fn round(dtype: KvDType, x: f32) -> f32 {
    match dtype {
        KvDType::F32 => x,
        KvDType::BF16 => bf16::from_f32(x).to_f32(),
        KvDType::F16 => f16::from_f32(x).to_f32(),
        KvDType::Int8 => unreachable!("refused when prepared"),
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
