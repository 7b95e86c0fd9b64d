//! Scalar oracle backend: plain loops, one op per function, everything in f32.
//!
//! Weights stay as they are on disk and are decoded on the fly. Fast backends are tested against
//! this one; nothing here is optimized. It must not know any other backend.

mod kv;
mod ops;

use tenon_backend::{Backend, BackendError, Op, PrepareOptions, Program, StepInputs, Ticket};

use crate::kv::KvCache;

/// The backend's name in messages.
const NAME: &str = "reference";

/// Runs a [`Program`] with scalar code on the calling thread.
///
/// [`PrepareOptions::weights`] makes no difference: products and sums are always in f32. Keys and
/// values are rounded to [`PrepareOptions::kv_dtype`].
pub struct ReferenceBackend {
    program: Program,
    options: PrepareOptions,
    kv: KvCache,
    /// One per buffer of the program, `[rows, width]`.
    buffers: Vec<Vec<f32>>,
    steps: u64,
}

impl ReferenceBackend {
    /// Checks the program and allocates the KV pool.
    ///
    /// Fails with [`BackendError::Unsupported`] when the program or the options are inconsistent.
    pub fn prepare(program: Program, options: &PrepareOptions) -> Result<Self, BackendError> {
        program.validate(NAME, options)?;
        let kv = KvCache::new(&program, options)?;
        let buffers = vec![Vec::new(); program.buffers.len()];
        Ok(ReferenceBackend { program, options: options.clone(), kv, buffers, steps: 0 })
    }

    /// The vocabulary that token ids are looked up in: the smallest embedding's rows.
    fn embedded_vocab(&self) -> usize {
        let rows = self.program.ops.iter().filter_map(|op| match op {
            Op::Embed { weight, .. } => Some(self.program.weights[weight.0 as usize].rows),
            _ => None,
        });
        rows.min().unwrap_or(usize::MAX)
    }

    fn check_block(&self, block: u32, bytes: usize) -> Result<(), BackendError> {
        let (num_blocks, expected) = (self.options.num_blocks, self.kv.block_bytes());
        if block as usize >= num_blocks || bytes != expected {
            return Err(BackendError::Failed(format!(
                "block `{block}` of {num_blocks} in `{bytes}` bytes where {expected} are needed"
            )));
        }
        Ok(())
    }
}

impl Backend for ReferenceBackend {
    fn describe(&self) -> String {
        format!("{NAME} (scalar, f32, {:?} KV)", self.options.kv_dtype)
    }

    fn forward(&mut self, inputs: &StepInputs<'_>) -> Result<Ticket, BackendError> {
        let groups = &self.kv.layout().groups;
        inputs.check(self.embedded_vocab(), &self.options, groups)?;
        self.kv.copy_blocks(inputs.block_copies);
        let mut num_rows = inputs.token_ids.len();
        for op in &self.program.ops {
            if let Op::TakeLogitsRows { .. } = op {
                num_rows = inputs.logits_rows.len();
            }
            ops::run(op, &self.program, &mut self.buffers, &mut self.kv, inputs, num_rows);
        }
        self.steps += 1;
        Ok(Ticket(self.steps))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<&mut [f32], BackendError> {
        if ticket.0 != self.steps {
            return Err(BackendError::Failed(format!(
                "ticket `{}` is not of the latest step {}; wait before the next forward",
                ticket.0, self.steps
            )));
        }
        Ok(&mut self.buffers[self.program.logits.0 as usize])
    }

    fn block_bytes(&self) -> usize {
        self.kv.block_bytes()
    }

    fn read_block(&mut self, block: u32, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.check_block(block, bytes.len())?;
        let mut words = bytes.as_chunks_mut::<4>().0.iter_mut();
        self.kv.for_block(block, |x| *words.next().expect("checked") = x.to_le_bytes());
        Ok(())
    }

    fn write_block(&mut self, block: u32, bytes: &[u8]) -> Result<(), BackendError> {
        self.check_block(block, bytes.len())?;
        let mut words = bytes.as_chunks::<4>().0.iter();
        self.kv.for_block(block, |x| *x = f32::from_le_bytes(*words.next().expect("checked")));
        Ok(())
    }
}
