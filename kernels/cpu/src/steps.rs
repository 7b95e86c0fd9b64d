//! Runs a plan's steps. Most need no more than a row at a time: with few rows each step is cut
//! among the threads by weights; with many, each thread takes runs of rows through all steps up to
//! the next attention, so that what one step writes is in its core's cache for the next.
//!
//! A row's result is the same either way, bit for bit.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use tenon_backend::quant::dequantize_row;
use tenon_backend::{BackendError, KvLayer, KvLayout, Op, PrepareOptions, Program, StepInputs};

use crate::activations::{ActivationKind, Activations, Tile};
use crate::attention::ahead::{self, Ahead};
use crate::attention::{Attention, AttentionOp, AttentionRows, KvCache};
use crate::elementwise::{self, for_rows_mut};
use crate::isa::Isa;
use crate::linear::{Product, linear};
use crate::memory::{Buffer, SharedPtr};
use crate::packed::{BLOCK, PANEL_ROWS, decode_row};
use crate::plan::{Part, Place, Plan, Step, Table, Vector};
use crate::pool::Pool;
use crate::rotary::Rotary;

/// Most rows that a thread takes through the steps at a time.
const CHUNK_ROWS: usize = 32;
/// From this many rows per thread on, rows are cut among the threads: what one step writes is in
/// its core's cache for the next, and threads meet at attention only. Each thread streams all
/// weights then, which fewer rows would wait for.
const MIN_ROWS_PER_THREAD: usize = 8;
/// The same where weights are mostly floats, of which there are more bytes for each multiplication.
const MIN_FLOAT_ROWS_PER_THREAD: usize = CHUNK_ROWS;

/// What the operations of a step work on, allocated once.
pub struct StepMemory {
    pub(crate) isa: Isa,
    pub(crate) pool: Pool,
    /// Buffers, at their places.
    pub(crate) arena: Buffer<f32>,
    /// Keys and values.
    pub(crate) cache: KvCache,
    attention: Attention,
    rotaries: Vec<Rotary>,
    /// For steps that all threads run together.
    together: RowMemory,
    /// `[num_threads]` for chunks of rows.
    workers: Vec<Mutex<Worker>>,
    /// Rows from which on they are cut.
    cut_from: usize,
    block_size: usize,
}

// What linear steps need besides their rows.
struct RowMemory {
    activations: Activations,
    products: Vec<Product>,
}

// A thread that goes on its own.
struct Worker {
    pool: Pool,
    memory: RowMemory,
    /// Of the keys and values to ask for.
    blocks: Vec<u32>,
}

impl RowMemory {
    fn new(rows: usize, plan: &Plan) -> Result<Self, BackendError> {
        let most = |kind| plan.most_columns(kind);
        let (int8, bf16) = (most(ActivationKind::Int8), most(ActivationKind::Bf16));
        let activations = Activations::new(rows, int8, bf16, most(ActivationKind::F32))?;
        Ok(RowMemory { activations, products: Vec::with_capacity(plan.most_parts()) })
    }
}

/// Query heads of each attention operation, with its layer's shape.
pub fn attention_shapes(program: &Program) -> Vec<(KvLayer, usize)> {
    let shape = |op: &Op| match op {
        Op::Attention { layer, num_heads, .. } => Some((program.kv_layers[*layer], *num_heads)),
        _ => None,
    };
    program.ops.iter().filter_map(shape).collect()
}

impl StepMemory {
    /// For steps of `plan`, whose program has the given KV layers and attention operations.
    pub fn new(
        plan: &Plan,
        kv: (&[KvLayer], &KvLayout),
        attention: &[(KvLayer, usize)],
        options: &PrepareOptions,
        isa: Isa,
        pool: Pool,
    ) -> Result<Self, BackendError> {
        let most_rows = options.max_step_tokens.max(options.max_logits_rows);
        let is_int8 = plan.is_mostly(ActivationKind::Int8);
        let per_thread = if is_int8 { MIN_ROWS_PER_THREAD } else { MIN_FLOAT_ROWS_PER_THREAD };
        let cut_from = per_thread * options.num_threads;
        let rotary =
            |table: &tenon_backend::RopeTable| Rotary::new(table.clone(), options.max_step_tokens);
        let worker = |_| {
            let pool = Pool::new(1).map_err(|e| BackendError::Failed(e.to_string()))?;
            let memory = RowMemory::new(CHUNK_ROWS.min(most_rows), plan)?;
            let blocks = Vec::with_capacity(ahead::MAX_BLOCKS);
            Ok(Mutex::new(Worker { pool, memory, blocks }))
        };
        Ok(StepMemory {
            isa,
            arena: Buffer::zeroed(plan.arena_len, "activations")?,
            cache: KvCache::new(kv.0, kv.1, options)?,
            attention: Attention::new(attention, options)?,
            rotaries: plan.ropes.iter().map(rotary).collect::<Result<_, _>>()?,
            together: RowMemory::new(most_rows.min(cut_from), plan)?,
            workers: (0..options.num_threads).map(worker).collect::<Result<_, BackendError>>()?,
            cut_from,
            block_size: options.block_size,
            pool,
        })
    }

    /// Runs all steps; the logits of so many rows stand at their place then.
    pub fn run(&mut self, plan: &Plan, inputs: &StepInputs<'_>) -> usize {
        for rotary in &mut self.rotaries {
            rotary.update(&mut self.pool, inputs.positions);
        }
        let mut rows = inputs.token_ids.len();
        let mut rest = &plan.steps[..];
        while let Some((first, after)) = rest.split_first() {
            match first {
                Step::Attention { op, q, out } => {
                    let arena = SharedPtr::new(&mut self.arena);
                    // SAFETY: the program was checked: the output aliases no input.
                    let (q, out) =
                        unsafe { (place(arena, *q, 0..rows), place(arena, *out, 0..rows)) };
                    let rows = AttentionRows { q, out };
                    self.attention.run(&mut self.pool, self.isa, &self.cache, op, inputs, rows);
                    rest = after;
                }
                Step::TakeLogitsRows { input, out } => {
                    take_rows(&mut self.arena, *input, *out, inputs);
                    rows = inputs.logits_rows.len();
                    rest = after;
                }
                _ => {
                    let local = rest.iter().take_while(|step| step.is_local()).count();
                    let next = match rest.get(local) {
                        Some(Step::Attention { op, .. }) => Some(op),
                        _ => None,
                    };
                    self.run_local(plan, &rest[..local], next, inputs, rows);
                    rest = &rest[local..];
                }
            }
        }
        rows
    }

    // Steps that need one row at a time, and come before attention `next`.
    fn run_local(
        &mut self,
        plan: &Plan,
        steps: &[Step],
        next: Option<&AttentionOp>,
        inputs: &StepInputs<'_>,
        rows: usize,
    ) {
        let arena = SharedPtr::new(&mut self.arena);
        let (isa, cache, rotaries) = (self.isa, &self.cache, &self.rotaries);
        let local = Local { isa, plan, inputs, arena, cache, rotaries };
        let workers = &self.workers;
        if rows < self.cut_from {
            for step in steps {
                local.run(&mut self.pool, &mut self.together, step, 0..rows, None);
            }
            return;
        }
        let block_size = self.block_size;
        let chunk_rows = chunk_rows(rows, workers.len());
        self.pool.run(rows.div_ceil(chunk_rows), |chunk, worker| {
            let chunk = chunk * chunk_rows..rows.min((chunk + 1) * chunk_rows);
            // No other task has this worker's number now.
            let mut worker = workers[worker].lock().unwrap_or_else(PoisonError::into_inner);
            let Worker { pool, memory, blocks } = &mut *worker;
            let tiles = Tile::count(ActivationKind::Int8, chunk.len());
            let work = tiles * steps.iter().map(Step::num_products).sum::<usize>();
            let ahead =
                next.and_then(|op| Ahead::new(cache, op, inputs, block_size, &chunk, work, blocks));
            for step in steps {
                local.run(pool, memory, step, chunk.clone(), ahead.as_ref());
            }
        });
    }
}

// Rows of a chunk: all threads have as many chunks, of about as many rows. An odd row would be a
// tile of its own, for which weights are unpacked once more.
fn chunk_rows(rows: usize, num_threads: usize) -> usize {
    let chunks_per_thread = rows.div_ceil(CHUNK_ROWS * num_threads);
    rows.div_ceil(chunks_per_thread * num_threads).next_multiple_of(2).min(CHUNK_ROWS)
}

impl Step {
    fn is_local(&self) -> bool {
        !matches!(self, Step::Attention { .. } | Step::TakeLogitsRows { .. })
    }

    // Products of a tile of 8-bit activations and 32 columns of a panel.
    fn num_products(&self) -> usize {
        let Step::Linear { parts, .. } = self else { return 0 };
        let matrices = parts.iter().map(|part| &part.matrix);
        let int8 = matrices.filter(|matrix| matrix.kind == ActivationKind::Int8);
        int8.map(|matrix| matrix.num_panels() * matrix.layout.cols / BLOCK).sum()
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

// SAFETY: places lie within the arena and have room for the step's rows; nothing else refers to
// these rows of the place.
unsafe fn place<'a>(arena: SharedPtr<f32>, place: Place, rows: Range<usize>) -> &'a mut [f32] {
    // SAFETY: by this function's contract.
    unsafe { arena.slice(place.start + rows.start * place.width, rows.len() * place.width) }
}

fn take_rows(arena: &mut [f32], input: Place, out: Place, inputs: &StepInputs<'_>) {
    for (i, &row) in inputs.logits_rows.iter().enumerate() {
        let from = input.start + row as usize * input.width;
        arena.copy_within(from..from + out.width, out.start + i * out.width);
    }
}

// What the steps of all rows share.
struct Local<'a> {
    isa: Isa,
    plan: &'a Plan,
    inputs: &'a StepInputs<'a>,
    arena: SharedPtr<f32>,
    cache: &'a KvCache,
    rotaries: &'a [Rotary],
}

impl Local<'_> {
    // One step over some rows, which no other thread works on.
    fn run(
        &self,
        pool: &mut Pool,
        memory: &mut RowMemory,
        step: &Step,
        rows: Range<usize>,
        ahead: Option<&Ahead<'_>>,
    ) {
        let (isa, plan) = (self.isa, self.plan);
        // SAFETY: the program was checked: an operation's outputs alias none of its inputs, except
        // where an arm handles that; each arm takes each place at most once.
        let get = |p: Place| unsafe { place(self.arena, p, rows.clone()) };
        match step {
            Step::Embed { table, scale, out } => {
                let ids = &self.inputs.token_ids[rows.clone()];
                embed(pool, plan, table, *scale, ids, get(*out), out.width);
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
            Step::Linear { input, parts } => {
                self.linear(pool, memory, *input, parts, rows, ahead);
            }
            Step::HeadNorm { buf, weight, eps } => {
                let weight = plan.vector(*weight);
                for_rows_mut(pool, get(*buf), buf.width, |_, x| {
                    elementwise::norm_in_place(isa, x, weight, *eps);
                });
            }
            Step::Rope { buf, head_dim, rope } => {
                let rotary = &self.rotaries[*rope];
                rotary.rotate(pool, isa, rows.start, get(*buf), buf.width, *head_dim);
            }
            Step::WriteKv { place, k, v } => {
                self.cache.write(pool, *place, self.inputs, rows.start, (get(*k), get(*v)));
            }
            Step::GatedMlp { gate, up, out, act } => {
                let gate = (gate.start != out.start).then(|| &*get(*gate));
                elementwise::gated_mlp(pool, isa, gate, get(*up), get(*out), out.width, *act);
            }
            Step::Softcap { buf, cap } => {
                for_rows_mut(pool, get(*buf), buf.width, |_, x| elementwise::softcap(isa, x, *cap));
            }
            Step::Attention { .. } | Step::TakeLogitsRows { .. } => {
                unreachable!("these need all rows")
            }
        }
    }

    fn linear(
        &self,
        pool: &mut Pool,
        memory: &mut RowMemory,
        input: Place,
        parts: &[Part],
        rows: Range<usize>,
        ahead: Option<&Ahead<'_>>,
    ) {
        if rows.is_empty() {
            return;
        }
        let plan = self.plan;
        memory.products.clear();
        for part in parts {
            let bias = part.bias.map_or(std::ptr::null(), |bias| plan.vector(bias).as_ptr());
            // SAFETY: the part's output lies within the arena, and aliases nothing.
            let out = SharedPtr::new(unsafe { place(self.arena, part.out, rows.clone()) });
            memory.products.push(Product { matrix: part.matrix, bias, out });
        }
        let RowMemory { activations, products } = memory;
        // SAFETY: shapes were checked and matrices packed for this program; outputs alias neither
        // each other nor the input.
        unsafe {
            let x = (&*place(self.arena, input, rows), input.width);
            linear(pool, self.isa, &plan.weights, activations, x, products, ahead);
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
