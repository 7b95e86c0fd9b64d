//! `CpuBackend`: prepares a program and runs its steps, one operation after the other.

use tenon_backend::{
    Backend, BackendError, KvLayout, Op, PrepareOptions, Program, StepInputs, Ticket, WeightMode,
    quant::dequantize_row,
};

use crate::activations::{ActivationKind, Activations};
use crate::attention::{Attention, AttentionRows, KvCache};
use crate::elementwise::{self, for_rows_mut};
use crate::isa::Isa;
use crate::linear::{Product, linear};
use crate::memory::{Buffer, SharedPtr};
use crate::packed::{PANEL_ROWS, decode_row};
use crate::plan::{Part, Place, Plan, Step, Table, Vector};
use crate::pool::Pool;
use crate::rotary::Rotary;

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

// What the operations of a step work on.
struct StepMemory {
    isa: Isa,
    pool: Pool,
    /// All buffers, at their places.
    arena: Buffer<f32>,
    activations: Activations,
    attention: Attention,
    cache: KvCache,
    rotaries: Vec<Rotary>,
    products: Vec<Product>,
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
        let cache = KvCache::new(&program.kv_layers, &layout, options)?;
        let attention_ops: Vec<_> = program
            .ops
            .iter()
            .filter_map(|op| match op {
                Op::Attention { layer, num_heads, .. } => {
                    Some((program.kv_layers[*layer], *num_heads))
                }
                _ => None,
            })
            .collect();
        let plan = Plan::new(program, &layout, options, isa, &mut pool)?;
        let most = |kind| plan.most_columns(isa, kind);
        let memory = StepMemory {
            isa,
            arena: Buffer::zeroed(plan.arena_len, "activations")?,
            activations: Activations::new(
                options.max_step_tokens.max(options.max_logits_rows),
                most(ActivationKind::Int8),
                most(ActivationKind::Bf16),
                most(ActivationKind::F32),
            )?,
            attention: Attention::new(&attention_ops, options)?,
            cache,
            rotaries: plan
                .ropes
                .iter()
                .map(|table| Rotary::new(table.clone(), options.max_step_tokens))
                .collect::<Result<_, _>>()?,
            products: Vec::with_capacity(plan.most_parts()),
            pool,
        };
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
        memory.cache.copy_blocks(self.options.block_size, inputs.block_copies);
        for rotary in &mut memory.rotaries {
            rotary.update(&mut memory.pool, inputs.positions);
        }
        let mut rows = inputs.token_ids.len();
        for step in &self.plan.steps {
            if let Step::TakeLogitsRows { .. } = step {
                rows = inputs.logits_rows.len();
            }
            memory.run(step, &self.plan, inputs, rows);
        }
        self.num_logits = rows * self.plan.logits.width;
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

impl Plan {
    fn most_parts(&self) -> usize {
        let parts = self.steps.iter().map(|step| match step {
            Step::Linear { parts, .. } => parts.len(),
            _ => 0,
        });
        parts.max().unwrap_or(0)
    }

    fn vector(&self, vector: Vector) -> &[f32] {
        &self.vectors[vector.start..][..vector.len]
    }
}

// Buffers of the arena, several at a time.
#[derive(Clone, Copy)]
struct Arena {
    ptr: SharedPtr<f32>,
    rows: usize,
}

impl Arena {
    // SAFETY: the program was checked: an operation's outputs alias none of its inputs, except
    // where `run` handles that; callers take each place at most once.
    unsafe fn get<'a>(self, place: Place) -> &'a mut [f32] {
        // SAFETY: places lie within the arena, and have room for the step's rows.
        unsafe { self.ptr.slice(place.start, self.rows * place.width) }
    }
}

impl StepMemory {
    fn run(&mut self, step: &Step, plan: &Plan, inputs: &StepInputs<'_>, rows: usize) {
        let isa = self.isa;
        let arena = Arena { ptr: SharedPtr::new(&mut self.arena), rows };
        let pool = &mut self.pool;
        // SAFETY: each arm takes different places, see `Arena::get`.
        let get = |place| unsafe { arena.get(place) };
        match step {
            Step::Embed { table, scale, out } => {
                embed(pool, plan, table, *scale, inputs.token_ids, get(*out), out.width);
            }
            Step::RmsNorm { input, weight, eps, out } if input.start == out.start => {
                let weight = plan.vector(*weight);
                for_rows_mut(pool, get(*out), out.width, |_, x| {
                    elementwise::norm_in_place(isa, x, weight, *eps);
                });
            }
            Step::RmsNorm { input, weight, eps, out } => {
                let weight = plan.vector(*weight);
                elementwise::rms_norm(pool, isa, get(*input), weight, *eps, get(*out));
            }
            Step::AddRmsNorm { residual, input, weight, eps, out } => {
                let weight = plan.vector(*weight);
                let (residual, input, out) = (get(*residual), get(*input), get(*out));
                elementwise::add_rms_norm(pool, isa, residual, input, weight, *eps, out);
            }
            Step::Add { residual, input } => {
                elementwise::add_rows(pool, isa, get(*residual), get(*input), residual.width);
            }
            Step::Linear { input, parts } => self.linear(plan, *input, parts, rows),
            Step::HeadNorm { buf, weight, eps } => {
                let weight = plan.vector(*weight);
                for_rows_mut(pool, get(*buf), buf.width, |_, x| {
                    elementwise::norm_in_place(isa, x, weight, *eps);
                });
            }
            Step::Rope { buf, head_dim, rope } => {
                let rotary = &self.rotaries[*rope];
                rotary.rotate(pool, isa, get(*buf), buf.width, *head_dim);
            }
            Step::Attention { op, q, k, v, out } => {
                let rows = AttentionRows { q: get(*q), k: get(*k), v: get(*v), out: get(*out) };
                self.attention.run(pool, isa, &mut self.cache, op, inputs, rows);
            }
            Step::GatedMlp { gate, up, out, act } => {
                let gate = (gate.start != out.start).then(|| &*get(*gate));
                elementwise::gated_mlp(pool, isa, gate, get(*up), get(*out), out.width, *act);
            }
            Step::TakeLogitsRows { input, out } => {
                let all = Arena { rows: inputs.token_ids.len(), ..arena };
                // SAFETY: input and output are different buffers.
                let input = unsafe { all.get(*input) };
                let out_rows = get(*out).chunks_exact_mut(out.width);
                for (out_row, &row) in out_rows.zip(inputs.logits_rows) {
                    out_row.copy_from_slice(&input[row as usize * out.width..][..out.width]);
                }
            }
            Step::Softcap { buf, cap } => {
                for_rows_mut(pool, get(*buf), buf.width, |_, x| elementwise::softcap(isa, x, *cap));
            }
        }
    }

    fn linear(&mut self, plan: &Plan, input: Place, parts: &[Part], rows: usize) {
        if rows == 0 {
            return;
        }
        let arena = SharedPtr::new(&mut self.arena);
        self.products.clear();
        for part in parts {
            let bias = part.bias.map_or(std::ptr::null(), |bias| plan.vector(bias).as_ptr());
            // SAFETY: the part's output lies within the arena.
            let out = unsafe { arena.slice(part.out.start, rows * part.out.width) };
            self.products.push(Product { matrix: part.matrix, bias, out: SharedPtr::new(out) });
        }
        let (pool, products) = (&mut self.pool, &self.products);
        // SAFETY: shapes were checked and matrices packed for this program; outputs alias neither
        // each other nor the input.
        unsafe {
            let x = arena.slice(input.start, rows * input.width);
            let weights = &plan.weights;
            linear(pool, self.isa, weights, &mut self.activations, x, input.width, products);
        }
    }
}

fn embed(
    pool: &mut Pool,
    plan: &Plan,
    table: &Table,
    scale: f32,
    token_ids: &[u32],
    out: &mut [f32],
    width: usize,
) {
    for_rows_mut(pool, out, width, |start, out| {
        for (out, &id) in out.chunks_exact_mut(width).zip(&token_ids[start..]) {
            let id = id as usize;
            match table {
                Table::Packed(matrix) => {
                    let layout = &matrix.layout;
                    let at = matrix.offset + id / PANEL_ROWS * layout.bytes;
                    let panel = &plan.weights[at..][..layout.bytes];
                    decode_row(layout, panel, id % PANEL_ROWS, out);
                }
                Table::Stored(tensor) => {
                    let bytes = tensor.dtype.row_bytes(width);
                    dequantize_row(tensor.dtype, &tensor.data[id * bytes..][..bytes], out);
                }
            }
            out.iter_mut().for_each(|x| *x *= scale);
        }
    });
}
