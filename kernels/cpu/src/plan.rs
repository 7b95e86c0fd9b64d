//! A program made ready: weights packed, buffers placed, operations with everything resolved.

use std::collections::HashMap;

use tenon_backend::layout::LayerPlace;
use tenon_backend::quant::dequantize_row;
use tenon_backend::{
    Activation, BackendError, BufferId, DType, KvLayout, Op, PrepareOptions, Program, RopeTable,
    Tensor, WeightId, WeightMode,
};

use crate::activations::ActivationKind;
use crate::attention::AttentionOp;
use crate::isa::Isa;
use crate::linear::Matrix;
use crate::memory::{Buffer, SharedPtr};
use crate::packed::{PANEL_ROWS, PanelLayout, pack_panel};
use crate::pool::Pool;

/// Where a buffer lies in the arena.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// First float.
    pub start: usize,
    /// Floats of a row.
    pub width: usize,
}

/// A vector among [`Plan::vectors`].
#[derive(Debug, Clone, Copy)]
pub struct Vector {
    /// First float.
    pub start: usize,
    /// Floats.
    pub len: usize,
}

/// Where an embedding's rows come from.
pub enum Table {
    /// A matrix that linear operations use, too.
    Packed(Matrix),
    /// The file's own bytes: an embedding that nothing else uses is not copied.
    Stored(Tensor),
}

/// One product of a linear step.
pub struct Part {
    /// The packed weight.
    pub matrix: Matrix,
    /// Added to each row.
    pub bias: Option<Vector>,
    /// Written.
    pub out: Place,
}

/// An operation, resolved.
pub enum Step {
    /// See [`Op::Embed`].
    Embed { table: Table, scale: f32, out: Place },
    /// See [`Op::RmsNorm`].
    RmsNorm { input: Place, weight: Vector, eps: f32, out: Place },
    /// See [`Op::AddRmsNorm`].
    AddRmsNorm { residual: Place, input: Place, weight: Vector, eps: f32, out: Place },
    /// See [`Op::Add`].
    Add { residual: Place, input: Place },
    /// See [`Op::Linear`].
    Linear { input: Place, parts: Vec<Part> },
    /// See [`Op::HeadNorm`].
    HeadNorm { buf: Place, weight: Vector, eps: f32 },
    /// See [`Op::Rope`].
    Rope { buf: Place, head_dim: usize, rope: usize },
    /// The first part of [`Op::Attention`]: keys and values to the cache.
    WriteKv { place: LayerPlace, k: Place, v: Place },
    /// The other part.
    Attention { op: AttentionOp, q: Place, out: Place },
    /// See [`Op::GatedMlp`].
    GatedMlp { gate: Place, up: Place, out: Place, act: Activation },
    /// See [`Op::TakeLogitsRows`].
    TakeLogitsRows { input: Place, out: Place },
    /// See [`Op::Softcap`].
    Softcap { buf: Place, cap: f32 },
}

/// What a step of the engine runs.
pub struct Plan {
    /// In execution order.
    pub steps: Vec<Step>,
    /// Panels of all matrices.
    pub weights: Buffer<u8>,
    /// Norm weights and biases.
    pub vectors: Buffer<f32>,
    /// Floats of all buffers together.
    pub arena_len: usize,
    /// Rotary tables.
    pub ropes: Vec<RopeTable>,
    /// The logits' place.
    pub logits: Place,
    /// Token ids are below this.
    pub vocab_size: usize,
}

impl Plan {
    /// Packs and resolves a program that was checked.
    pub fn new(
        program: Program,
        layout: &KvLayout,
        options: &PrepareOptions,
        isa: Isa,
        pool: &mut Pool,
    ) -> Result<Self, BackendError> {
        let (matrices, weights) = pack_weights(&program, options.weights, isa, pool)?;
        let (places, arena_len) = place_buffers(&program, options)?;
        let mut vectors = Vec::new();
        let mut known = HashMap::new();
        let mut lowering = Lowering {
            program: &program,
            layout,
            matrices: &matrices,
            places: &places,
            vectors: &mut vectors,
            known: &mut known,
        };
        let steps = program.ops.iter().flat_map(|op| lowering.steps(op)).collect();
        let mut vector_memory = Buffer::zeroed(vectors.len(), "norm weights")?;
        vector_memory.copy_from_slice(&vectors);
        let embedded = program.ops.iter().filter_map(|op| match op {
            Op::Embed { weight, .. } => Some(program.weights[weight.0 as usize].rows),
            _ => None,
        });
        Ok(Plan {
            steps,
            weights,
            vectors: vector_memory,
            arena_len,
            logits: places[program.logits.0 as usize],
            vocab_size: embedded.min().unwrap_or(usize::MAX),
            ropes: program.ropes,
        })
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.steps.iter().flat_map(|step| match step {
            Step::Linear { parts, .. } => parts.as_slice(),
            _ => &[],
        })
    }

    /// Most columns that linear steps convert to `kind`.
    pub fn most_columns(&self, kind: ActivationKind) -> usize {
        let of_kind = self.parts().filter(|part| part.matrix.kind == kind);
        of_kind.map(|part| part.matrix.layout.cols).max().unwrap_or(0)
    }

    /// Whether most of the bytes that linear steps read are for activations of `kind`.
    pub fn is_mostly(&self, kind: ActivationKind) -> bool {
        let bytes = |part: &Part| part.matrix.num_panels() * part.matrix.layout.bytes;
        let of_kind = self.parts().filter(|part| part.matrix.kind == kind).map(bytes);
        2 * of_kind.sum::<usize>() > self.parts().map(bytes).sum()
    }
}

// Packs every weight that a linear operation uses, on all threads.
fn pack_weights(
    program: &Program,
    mode: WeightMode,
    isa: Isa,
    pool: &mut Pool,
) -> Result<(HashMap<u32, Matrix>, Buffer<u8>), BackendError> {
    let mut matrices = HashMap::new();
    // (matrix, tensor, panel)
    let mut panels = Vec::new();
    let mut total = 0usize;
    let parts = program.ops.iter().flat_map(|op| match op {
        Op::Linear { parts, .. } => parts.as_slice(),
        _ => &[],
    });
    for part in parts {
        let tensor = &program.weights[part.weight.0 as usize];
        if matrices.contains_key(&part.weight.0) {
            continue;
        }
        let dtype = match mode {
            WeightMode::Native => tensor.dtype,
            WeightMode::Float32 => DType::F32,
        };
        let layout = PanelLayout::new(dtype, tensor.cols);
        let matrix = Matrix::new(isa, layout, tensor.rows, total);
        matrices.insert(part.weight.0, matrix);
        panels.extend((0..matrix.num_panels()).map(|panel| PanelJob { matrix, tensor, panel }));
        let bytes = layout.matrix_bytes(tensor.rows);
        total = bytes
            .and_then(|bytes| total.checked_add(bytes))
            .ok_or(BackendError::OutOfMemory { what: "packed weights", bytes: usize::MAX })?;
    }
    let mut weights = Buffer::zeroed_huge(total, "packed weights")?;
    let shared = SharedPtr::new(&mut weights);
    let num_tasks = panels.len().div_ceil(PANELS_PER_PACK_TASK);
    pool.run(num_tasks, |task, _| {
        let jobs = &panels[task * PANELS_PER_PACK_TASK..];
        let jobs = &jobs[..PANELS_PER_PACK_TASK.min(jobs.len())];
        for job in jobs {
            let layout = job.matrix.layout;
            let start = job.matrix.offset + job.panel * layout.bytes;
            // SAFETY: panels are disjoint parts of the packed weights.
            let out = unsafe { shared.slice(start, layout.bytes) };
            pack_panel(job.tensor, job.panel, &layout, out);
        }
        release(jobs);
    });
    Ok((matrices, weights))
}

// Gives the stored bytes of packed panels back: what is packed is not read again.
fn release(jobs: &[PanelJob<'_>]) {
    for run in jobs.chunk_by(|a, b| std::ptr::eq(a.tensor, b.tensor)) {
        let (first, last) = (&run[0], &run[run.len() - 1]);
        let row_bytes = first.tensor.dtype.row_bytes(first.tensor.cols);
        let end = first.tensor.rows.min((last.panel + 1) * PANEL_ROWS);
        first.tensor.data.release(first.panel * PANEL_ROWS * row_bytes..end * row_bytes);
    }
}

/// Panels that one task packs.
const PANELS_PER_PACK_TASK: usize = 64;

struct PanelJob<'p> {
    matrix: Matrix,
    tensor: &'p Tensor,
    panel: usize,
}

// Buffers one after the other, each on a cache line, with rows for the larger of the two kinds of
// rows that it can hold.
fn place_buffers(
    program: &Program,
    options: &PrepareOptions,
) -> Result<(Vec<Place>, usize), BackendError> {
    let mut rows = vec![0; program.buffers.len()];
    let mut current = options.max_step_tokens;
    for op in &program.ops {
        if matches!(op, Op::TakeLogitsRows { .. }) {
            current = options.max_logits_rows;
        }
        for out in written(op) {
            let rows = &mut rows[out.0 as usize];
            *rows = current.max(*rows);
        }
    }
    let mut total = 0usize;
    let mut places = Vec::new();
    for (&rows, &width) in rows.iter().zip(&program.buffers) {
        places.push(Place { start: total, width });
        let floats = rows.checked_mul(width).map(|floats| floats.next_multiple_of(16));
        total = floats
            .and_then(|floats| total.checked_add(floats))
            .ok_or(BackendError::OutOfMemory { what: "activations", bytes: usize::MAX })?;
    }
    Ok((places, total))
}

fn written(op: &Op) -> Vec<BufferId> {
    match op {
        Op::Embed { out, .. }
        | Op::RmsNorm { out, .. }
        | Op::AddRmsNorm { out, .. }
        | Op::Attention { out, .. }
        | Op::GatedMlp { out, .. }
        | Op::TakeLogitsRows { out, .. } => vec![*out],
        Op::Linear { parts, .. } => parts.iter().map(|part| part.out).collect(),
        Op::Add { .. } | Op::HeadNorm { .. } | Op::Rope { .. } | Op::Softcap { .. } => vec![],
    }
}

struct Lowering<'a> {
    program: &'a Program,
    layout: &'a KvLayout,
    matrices: &'a HashMap<u32, Matrix>,
    places: &'a [Place],
    vectors: &'a mut Vec<f32>,
    known: &'a mut HashMap<u32, Vector>,
}

impl Lowering<'_> {
    fn at(&self, id: BufferId) -> Place {
        self.places[id.0 as usize]
    }

    fn vector(&mut self, id: WeightId) -> Vector {
        if let Some(vector) = self.known.get(&id.0) {
            return *vector;
        }
        let tensor = &self.program.weights[id.0 as usize];
        let vector = Vector { start: self.vectors.len(), len: tensor.cols };
        self.vectors.resize(vector.start + vector.len.next_multiple_of(16), 0.0);
        let values = &mut self.vectors[vector.start..][..vector.len];
        dequantize_row(tensor.dtype, &tensor.data, values);
        self.known.insert(id.0, vector);
        vector
    }

    fn steps(&mut self, op: &Op) -> Vec<Step> {
        let Op::Attention { layer, q, k, v, out, num_heads, scale, softcap } = op else {
            return vec![self.step(op)];
        };
        let place = self.layout.layers[*layer];
        let window = self.program.kv_layers[*layer].window;
        let (num_heads, scale, softcap) = (*num_heads, *scale, *softcap);
        let op = AttentionOp { place, window, num_heads, scale, softcap };
        let write = Step::WriteKv { place, k: self.at(*k), v: self.at(*v) };
        vec![write, Step::Attention { op, q: self.at(*q), out: self.at(*out) }]
    }

    fn step(&mut self, op: &Op) -> Step {
        match op {
            Op::Embed { weight, scale, out } => {
                let table = match self.matrices.get(&weight.0) {
                    Some(matrix) => Table::Packed(*matrix),
                    None => Table::Stored(self.program.weights[weight.0 as usize].clone()),
                };
                Step::Embed { table, scale: *scale, out: self.at(*out) }
            }
            Op::RmsNorm { input, weight, eps, out } => Step::RmsNorm {
                input: self.at(*input),
                weight: self.vector(*weight),
                eps: *eps,
                out: self.at(*out),
            },
            Op::AddRmsNorm { residual, input, weight, eps, out } => Step::AddRmsNorm {
                residual: self.at(*residual),
                input: self.at(*input),
                weight: self.vector(*weight),
                eps: *eps,
                out: self.at(*out),
            },
            Op::Add { residual, input } => {
                Step::Add { residual: self.at(*residual), input: self.at(*input) }
            }
            Op::Linear { input, parts } => {
                let part = |part: &tenon_backend::LinearPart| Part {
                    matrix: self.matrices[&part.weight.0],
                    bias: part.bias.map(|bias| self.vector(bias)),
                    out: self.at(part.out),
                };
                let parts = parts.iter().map(part).collect();
                Step::Linear { input: self.at(*input), parts }
            }
            Op::HeadNorm { buf, weight, head_dim: _, eps } => {
                Step::HeadNorm { buf: self.at(*buf), weight: self.vector(*weight), eps: *eps }
            }
            Op::Rope { buf, head_dim, rope } => {
                Step::Rope { buf: self.at(*buf), head_dim: *head_dim, rope: rope.0 as usize }
            }
            Op::Attention { .. } => unreachable!("it is two steps"),
            Op::GatedMlp { gate, up, out, act } => Step::GatedMlp {
                gate: self.at(*gate),
                up: self.at(*up),
                out: self.at(*out),
                act: *act,
            },
            Op::TakeLogitsRows { input, out } => {
                Step::TakeLogitsRows { input: self.at(*input), out: self.at(*out) }
            }
            Op::Softcap { buf, cap } => Step::Softcap { buf: self.at(*buf), cap: *cap },
        }
    }
}
