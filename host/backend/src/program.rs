//! A model as a list of operations over buffer ids: what an `ArchSpec` lowers to.
//!
//! Buffers are f32, `[num_tokens, width]`, row-major. After [`Op::TakeLogitsRows`] the remaining
//! operations run over `[num_logits_rows, width]`.

use std::ops::Range;
use std::sync::Arc;

use crate::quant::DType;

/// Index into [`Program::weights`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WeightId(pub u32);

/// Index into [`Program::buffers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BufferId(pub u32);

/// Index into [`Program::ropes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RopeId(pub u32);

/// Whoever keeps the bytes of tensors: a mapped file or an owned buffer.
pub trait BytesOwner: AsRef<[u8]> + Send + Sync {
    /// Says that a range will hardly be read again: a mapped file gives its memory back. Its bytes
    /// stay readable, from the file.
    fn release(&self, range: Range<usize>) {
        let _ = range;
    }
}

impl BytesOwner for Vec<u8> {}

/// Shared, read-only bytes: a range of a mapped file or of an owned buffer.
#[derive(Clone)]
pub struct TensorBytes {
    owner: Arc<dyn BytesOwner>,
    range: Range<usize>,
}

impl TensorBytes {
    /// `range` of `owner`. Panics when the range is outside of it: loaders check before.
    pub fn new(owner: Arc<dyn BytesOwner>, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= (*owner).as_ref().len());
        TensorBytes { owner, range }
    }

    /// Says that `range` of these bytes will hardly be read again: [`BytesOwner::release`].
    pub fn release(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.range.len());
        self.owner.release(self.range.start + range.start..self.range.start + range.end);
    }

    /// Takes an owned buffer.
    pub fn owned(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        TensorBytes { owner: Arc::new(bytes), range }
    }
}

impl std::ops::Deref for TensorBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl std::fmt::Debug for TensorBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TensorBytes({} bytes)", self.range.len())
    }
}

/// A weight: `rows` × `cols`, each row contiguous and encoded as `dtype`.
///
/// A matrix maps `cols` inputs to `rows` outputs. Vectors (norms, biases) are `F32` with one row.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// The name in the file, for messages.
    pub name: String,
    /// How each row is encoded.
    pub dtype: DType,
    /// Outputs.
    pub rows: usize,
    /// Inputs; a multiple of `dtype.block_len()`.
    pub cols: usize,
    /// `rows * dtype.row_bytes(cols)` bytes.
    pub data: TensorBytes,
}

/// What one layer keeps per token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayer {
    /// Heads of K and of V.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Sliding window: token `p` sees positions `> p - window` (itself included in the count).
    pub window: Option<u32>,
}

/// How rotary embedding pairs the elements of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeStyle {
    /// Pairs (i, i + half): GPT-NeoX and Hugging Face checkpoints.
    Half,
    /// Pairs (2i, 2i + 1): the original Llama layout, used by GGUF `llama` files.
    Interleaved,
}

/// Angular frequencies, scaling included: pair `i` at position `p` turns by `p * inv_freq[i]`.
#[derive(Debug, Clone)]
pub struct RopeTable {
    /// Pairing.
    pub style: RopeStyle,
    /// `[rotated dims / 2]`; dims beyond are passed through.
    pub inv_freq: Vec<f32>,
    /// Multiplies cos and sin (YaRN's attention factor; 1.0 otherwise).
    pub magnitude: f32,
}

/// The gate's activation in a gated MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU, tanh approximation.
    GeluTanh,
}

/// One of the products that share an input.
#[derive(Debug, Clone, Copy)]
pub struct LinearPart {
    /// `[rows, cols]`
    pub weight: WeightId,
    /// `[rows]` in F32.
    pub bias: Option<WeightId>,
    /// Buffer of width `rows`.
    pub out: BufferId,
}

/// One operation. `out` never aliases an input unless said.
#[derive(Debug, Clone)]
pub enum Op {
    /// `out[t] = scale * weight[token_ids[t]]`
    Embed {
        /// `[vocab, hidden]`
        weight: WeightId,
        /// Gemma multiplies by sqrt(hidden).
        scale: f32,
        /// Width hidden.
        out: BufferId,
    },
    /// `out = input / rms(input) * weight`. `out` may be `input`.
    RmsNorm {
        /// Read.
        input: BufferId,
        /// `[width]`, F32, any `+1` already applied.
        weight: WeightId,
        /// Added to the mean square.
        eps: f32,
        /// Written.
        out: BufferId,
    },
    /// `residual += input; out = rms_norm(residual)`.
    AddRmsNorm {
        /// Read and written.
        residual: BufferId,
        /// Read.
        input: BufferId,
        /// `[width]`, F32.
        weight: WeightId,
        /// Added to the mean square.
        eps: f32,
        /// Written.
        out: BufferId,
    },
    /// `residual += input`.
    Add {
        /// Read and written.
        residual: BufferId,
        /// Read.
        input: BufferId,
    },
    /// Each part: `part.out = input · part.weightᵀ + part.bias`.
    Linear {
        /// Width = every part's `cols`.
        input: BufferId,
        /// At least one; they share the input (Q, K and V; gate and up).
        parts: Vec<LinearPart>,
    },
    /// RMS norm over each head of width `head_dim`, in place (Qwen 3, Gemma 3).
    HeadNorm {
        /// Width `heads * head_dim`.
        buf: BufferId,
        /// `[head_dim]`, F32.
        weight: WeightId,
        /// Width of a head.
        head_dim: usize,
        /// Added to the mean square.
        eps: f32,
    },
    /// Rotates each head of `buf` in place.
    Rope {
        /// Width `heads * head_dim`.
        buf: BufferId,
        /// Width of a head.
        head_dim: usize,
        /// Which frequencies.
        rope: RopeId,
    },
    /// Writes `k` and `v` to the cache at the step's slots, then causal attention over the cache.
    Attention {
        /// Index into [`Program::kv_layers`].
        layer: usize,
        /// `[num_heads * head_dim]`
        q: BufferId,
        /// `[num_kv_heads * head_dim]`
        k: BufferId,
        /// `[num_kv_heads * head_dim]`
        v: BufferId,
        /// Like `q`.
        out: BufferId,
        /// Query heads; a multiple of the layer's KV heads.
        num_heads: usize,
        /// Multiplies q·k.
        scale: f32,
        /// `cap * tanh(x / cap)` on the scores.
        softcap: Option<f32>,
    },
    /// `out = act(gate) * up`. `out` may be `gate`.
    GatedMlp {
        /// Read.
        gate: BufferId,
        /// Read.
        up: BufferId,
        /// Written.
        out: BufferId,
        /// On the gate.
        act: Activation,
    },
    /// `out[i] = input[logits_rows[i]]`; later operations run over the logits rows.
    TakeLogitsRows {
        /// Read.
        input: BufferId,
        /// Written.
        out: BufferId,
    },
    /// `buf = cap * tanh(buf / cap)` (Gemma 2's final softcap).
    Softcap {
        /// Read and written.
        buf: BufferId,
        /// The cap.
        cap: f32,
    },
}

/// A decoder-only transformer, lowered.
#[derive(Debug, Clone)]
pub struct Program {
    /// Architecture name, for messages.
    pub name: String,
    /// In execution order.
    pub ops: Vec<Op>,
    /// Width of each buffer.
    pub buffers: Vec<usize>,
    /// All weights; tied ones appear once.
    pub weights: Vec<Tensor>,
    /// Rotary tables.
    pub ropes: Vec<RopeTable>,
    /// `[num_layers]`
    pub kv_layers: Vec<KvLayer>,
    /// Where the logits stand at the end; its width is the vocabulary.
    pub logits: BufferId,
    /// Longest sequence that the model was made for.
    pub max_position: usize,
}

impl Program {
    /// Entries of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.buffers[self.logits.0 as usize]
    }

    /// Bytes of one slot of the KV cache over the physical buffers of `layout`.
    pub fn kv_bytes_per_slot(&self, dtype: crate::KvDType, layout: &crate::KvLayout) -> usize {
        let shapes = self.kv_layers.iter().zip(&layout.layers);
        let first = shapes.filter(|(_, place)| place.group == 0);
        first.map(|(l, _)| 2 * l.num_kv_heads * dtype.head_bytes(l.head_dim)).sum()
    }
}
