//! `CpuBackend`: prepares a program, runs its steps, and moves blocks of its KV cache.

use tenon_backend::{
    Backend, BackendError, KvLayout, PrepareOptions, Program, StepInputs, Ticket, WeightMode,
};

use crate::isa::Isa;
use crate::plan::Plan;
use crate::pool::Pool;
use crate::steps::{StepMemory, attention_shapes};

/// The backend's name in messages.
const NAME: &str = "cpu";

/// Runs a [`Program`] on the CPU's threads.
///
/// `forward` computes before it returns and allocates nothing: all memory is had at prepare.
pub struct CpuBackend {
    plan: Plan,
    layout: KvLayout,
    options: PrepareOptions,
    memory: StepMemory,
    steps: u64,
    /// Logits of the latest step.
    num_logits: usize,
}

impl CpuBackend {
    /// Checks the program, packs its weights and allocates everything that steps need, for the
    /// fastest instruction set of this machine.
    ///
    /// The program's weight bytes are released when this returns, but for embeddings that no
    /// linear operation uses. Fails when the program or the options are inconsistent, or when
    /// memory or threads cannot be had.
    pub fn prepare(program: Program, options: &PrepareOptions) -> Result<Self, BackendError> {
        Self::prepare_with(program, options, Isa::detect())
    }

    /// As [`CpuBackend::prepare`], with kernels for `isa`.
    pub fn prepare_with(
        program: Program,
        options: &PrepareOptions,
        isa: Isa,
    ) -> Result<Self, BackendError> {
        let unsupported = |reason| BackendError::Unsupported { backend: NAME, reason };
        if !isa.is_available() {
            let reason = format!("this machine does not have `{}`; choose another", isa.name());
            return Err(unsupported(reason));
        }
        program.validate(NAME, options)?;
        let mut pool = Pool::new(options.num_threads)
            .map_err(|e| unsupported(format!("{} threads: {e}", options.num_threads)))?;
        let layout = program.kv_layout(options.hybrid_kv);
        let kv_layers = program.kv_layers.clone();
        let attention = attention_shapes(&program);
        let plan = Plan::new(program, &layout, options, isa, &mut pool)?;
        let memory = StepMemory::new(&plan, (&kv_layers, &layout), &attention, options, isa, pool)?;
        Ok(CpuBackend { plan, layout, options: options.clone(), memory, steps: 0, num_logits: 0 })
    }
}

impl CpuBackend {
    fn check_block(&self, block: u32, bytes: usize) -> Result<(), BackendError> {
        let (num_blocks, expected) = (self.options.num_blocks, self.block_bytes());
        if block as usize >= num_blocks || bytes != expected {
            return Err(BackendError::Failed(format!(
                "block `{block}` of {num_blocks} in `{bytes}` bytes where {expected} are needed"
            )));
        }
        Ok(())
    }
}

impl Backend for CpuBackend {
    fn describe(&self) -> String {
        let weights = match self.options.weights {
            WeightMode::Native => "native",
            WeightMode::Float32 => "f32",
        };
        let threads = self.memory.pool.num_threads();
        let (isa, kv) = (self.memory.isa.name(), self.options.kv_dtype);
        format!("{NAME} ({isa}, {threads} threads, {weights} weights, {kv:?} KV)")
    }

    fn forward(&mut self, inputs: &StepInputs<'_>) -> Result<Ticket, BackendError> {
        inputs.check(self.plan.vocab_size, &self.options, &self.layout.groups)?;
        let memory = &mut self.memory;
        memory.pool.pin_caller();
        memory.cache.copy_blocks(self.options.block_size, inputs.block_copies);
        self.num_logits = memory.run(&self.plan, inputs) * self.plan.logits.width;
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
        Ok(&mut self.memory.arena[self.plan.logits.start..][..self.num_logits])
    }

    fn block_bytes(&self) -> usize {
        self.memory.cache.block_bytes(self.options.block_size)
    }

    fn read_block(&mut self, block: u32, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.check_block(block, bytes.len())?;
        self.memory.cache.read_block(self.options.block_size, block as usize, bytes);
        Ok(())
    }

    fn write_block(&mut self, block: u32, bytes: &[u8]) -> Result<(), BackendError> {
        self.check_block(block, bytes.len())?;
        self.memory.cache.write_block(self.options.block_size, block as usize, bytes);
        Ok(())
    }
}
