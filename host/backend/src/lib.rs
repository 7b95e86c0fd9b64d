//! What a device must do, and nothing about how.
//!
//! `model` lowers an architecture to a [`Program`]; `runner` builds [`StepInputs`]; each crate
//! under `kernels/` implements [`Backend`]. This crate holds no implementation of a device.

pub mod inputs;
pub mod layout;
pub mod program;
pub mod quant;
pub mod validate;

pub use inputs::{BlockCopy, SeqSpan, StepInputs};
pub use layout::{KvGroup, KvLayout};
pub use program::{
    Activation, BufferId, BytesOwner, KvLayer, LinearPart, Op, Program, RopeId, RopeStyle,
    RopeTable, Tensor, TensorBytes, WeightId,
};
pub use quant::DType;

/// A forward pass that was launched and whose logits have not been taken yet.
///
/// Not `Clone`: each ticket is waited on exactly once.
#[derive(Debug)]
pub struct Ticket(pub u64);

/// Why a device could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The program asks for something that this backend does not have.
    #[error("{backend} cannot run this model: {reason}")]
    Unsupported {
        /// The backend's name.
        backend: &'static str,
        /// What is missing, with the offending value in backticks.
        reason: String,
    },
    /// Memory for weights, KV cache or activations could not be had.
    #[error("out of memory: {what} needs {bytes} bytes")]
    OutOfMemory {
        /// What was being allocated.
        what: &'static str,
        /// How much.
        bytes: usize,
    },
    /// The step failed while it ran; the engine is unhealthy afterwards.
    #[error("forward pass failed: {0}")]
    Failed(String),
}

/// How the weights are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightMode {
    /// As stored in the file (repacked), with the activations quantized where that is faster.
    #[default]
    Native,
    /// Dequantized to f32 at load; every product and sum in f32.
    Float32,
}

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvDType {
    /// 32-bit floats.
    F32,
    /// bfloat16, rounded to nearest even.
    #[default]
    BF16,
    /// IEEE half.
    F16,
    /// Symmetric 8-bit integers with an f32 scale per token and head.
    Int8,
}

impl KvDType {
    /// Bytes of one head's keys (or values) of one token.
    pub fn head_bytes(self, head_dim: usize) -> usize {
        match self {
            KvDType::F32 => 4 * head_dim,
            KvDType::BF16 | KvDType::F16 => 2 * head_dim,
            KvDType::Int8 => head_dim + size_of::<f32>(),
        }
    }
}

/// What a backend is prepared with, next to the program.
#[derive(Debug, Clone)]
pub struct PrepareOptions {
    /// How the weights are kept.
    pub weights: WeightMode,
    /// How keys and values are kept.
    pub kv_dtype: KvDType,
    /// Windowed layers get block tables of their own: [`Program::kv_layout`].
    pub hybrid_kv: bool,
    /// KV blocks in the pool.
    pub num_blocks: usize,
    /// Slots in a block.
    pub block_size: usize,
    /// Most tokens in one step.
    pub max_step_tokens: usize,
    /// Most logits rows in one step.
    pub max_logits_rows: usize,
    /// Worker threads, the caller's included.
    pub num_threads: usize,
}

/// A device that runs one [`Program`] over a paged KV cache.
///
/// Constructors belong to each implementation (`CpuBackend::prepare(program, options)`): what a
/// device needs at load differs, what it does per step does not.
pub trait Backend: Send {
    /// A short name and the features in use, for start-up text and logs.
    fn describe(&self) -> String;

    /// Launches one step. KV of the scheduled tokens is written to `inputs.slot_mapping`.
    ///
    /// Reads nothing of `inputs` after it returns.
    fn forward(&mut self, inputs: &StepInputs<'_>) -> Result<Ticket, BackendError>;

    /// Waits for the step and lends its logits, `[num_logits_rows, vocab_size]` in f32, to be
    /// changed in place by the sampler. Valid until the next `forward`.
    fn wait(&mut self, ticket: Ticket) -> Result<&mut [f32], BackendError>;

    /// Bytes of a block over all physical buffers, for [`Backend::read_block`].
    fn block_bytes(&self) -> usize;

    /// Copies a block's keys and values to `bytes`, in a layout of the backend's own. No step is in
    /// flight.
    fn read_block(&mut self, block: u32, bytes: &mut [u8]) -> Result<(), BackendError>;

    /// Puts back what [`Backend::read_block`] gave. No step is in flight.
    fn write_block(&mut self, block: u32, bytes: &[u8]) -> Result<(), BackendError>;

    /// Whether `forward` returns before the step has run, so that planning the next step meanwhile
    /// saves time.
    fn is_async(&self) -> bool {
        false
    }
}
