//! Causal attention over the paged cache: tiles of query rows that share a KV head, partitions of
//! 256 positions with a softmax each, merged in the order of positions.
//!
//! Partitions lie at fixed positions, so a row's result is the same whatever else is in the step,
//! how its prompt was cut, and whether partitions were computed by one thread or by several.

pub mod ahead;
mod blocks;
pub mod cache;
mod kernels;
mod tile;

use tenon_backend::layout::LayerPlace;
use tenon_backend::{
    BackendError, KvDType, KvLayer, KvLayout, PrepareOptions, SeqSpan, StepInputs,
};

use self::cache::{KvBf16, KvElement, KvF16, KvF32, KvInt8, LayerCache, padded_dim};
use self::kernels::{MAX_CODES_DIM, MAX_ROWS, PARTITION, RowStats};
use self::tile::{RowState, Scratch, TileContext};
use crate::elementwise::for_rows;
use crate::isa::Isa;
use crate::math::hadamard;
use crate::memory::{Buffer, SharedPtr};
use crate::pool::Pool;

/// Below this many tiles per thread, the partitions of long contexts are cut among threads.
const FEW_TILES_PER_THREAD: usize = 4;
/// Pieces that these are cut into, for each thread.
const PIECES_PER_THREAD: usize = 6;
/// Floats kept for the partial results of cut contexts (4 MB); larger steps are not cut.
const PARTIAL_FLOATS: usize = 1 << 20;

/// Keys and values.
pub struct KvCache {
    buffers: Buffers,
    /// What the buffers are parts of.
    _memory: Buffer<u8>,
}

// By physical buffer.
enum Buffers {
    /// 32-bit floats.
    F32(Vec<LayerCache<KvF32>>),
    /// bfloat16.
    Bf16(Vec<LayerCache<KvBf16>>),
    /// IEEE half.
    F16(Vec<LayerCache<KvF16>>),
    /// 8-bit codes with scales.
    Int8(Vec<LayerCache<KvInt8>>),
}

impl KvCache {
    /// Memory for all slots, untouched.
    pub fn new(
        layers: &[KvLayer],
        layout: &KvLayout,
        options: &PrepareOptions,
    ) -> Result<Self, BackendError> {
        let first = |buffer| layout.layers.iter().position(|place| place.buffer == buffer);
        let shapes: Vec<KvLayer> =
            (0..layout.num_buffers).filter_map(|buffer| Some(layers[first(buffer)?])).collect();
        fn all<E: KvElement>(
            shapes: &[KvLayer],
            options: &PrepareOptions,
            buffers: impl Fn(Vec<LayerCache<E>>) -> Buffers,
        ) -> Result<KvCache, BackendError> {
            let (memory, caches) = cache::allocate(shapes, options)?;
            Ok(KvCache { buffers: buffers(caches), _memory: memory })
        }
        match options.kv_dtype {
            KvDType::F32 => all(&shapes, options, Buffers::F32),
            KvDType::BF16 => all(&shapes, options, Buffers::Bf16),
            KvDType::F16 => all(&shapes, options, Buffers::F16),
            KvDType::Int8 => {
                if let Some(wide) = shapes.iter().find(|s| s.head_dim > MAX_CODES_DIM) {
                    let reason = format!(
                        "heads of `{}` with an int8 KV cache, which has at most {MAX_CODES_DIM}; \
                         choose another KV type",
                        wide.head_dim
                    );
                    return Err(BackendError::Unsupported { backend: "cpu", reason });
                }
                all(&shapes, options, Buffers::Int8)
            }
        }
    }
}

/// What one operation does.
#[derive(Debug, Clone, Copy)]
pub struct AttentionOp {
    /// Which block table and which buffer.
    pub place: LayerPlace,
    /// Tokens that the layer sees, themselves included.
    pub window: Option<u32>,
    /// Query heads.
    pub num_heads: usize,
    /// Multiplies q·k.
    pub scale: f32,
    /// `cap * tanh(x / cap)` on the scores.
    pub softcap: Option<f32>,
}

/// A tile of query rows and the partitions to run it over.
#[derive(Debug, Clone, Copy)]
struct Item {
    seq: SeqSpan,
    kv_head: usize,
    /// Of the sequence's rows for this KV head, token-major: token, then head of the group.
    first_row: usize,
    num_rows: usize,
    /// Only these partitions (the first one, and one past the last one), each one's result kept
    /// for merging; otherwise all, and the output written.
    partitions: Option<(usize, usize)>,
}

/// Work list and scratch memory, allocated once.
pub struct Attention {
    block_size: usize,
    items: Vec<Item>,
    /// `[workers][scratch_len]`
    scratch: Buffer<f32>,
    scratch_len: usize,
    /// `[token][head][partition]` of [max, sum, accumulated values...].
    partials: Buffer<f32>,
}

/// The rows of the step that an operation reads and writes, `[num_tokens, heads * head_dim]` each.
pub struct AttentionRows<'a> {
    /// Queries.
    pub q: &'a [f32],
    /// Written.
    pub out: &'a mut [f32],
}

impl Attention {
    /// For operations of `(layer, query heads)` each.
    pub fn new(
        operations: &[(KvLayer, usize)],
        options: &PrepareOptions,
    ) -> Result<Self, BackendError> {
        let dims = operations.iter().map(|(layer, _)| layer.head_dim);
        let scratch_len = Scratch::floats(dims.max().unwrap_or(1), options.block_size);
        let scratch_floats = scratch_len.saturating_mul(options.num_threads);
        let tiles = |&(layer, heads): &(KvLayer, usize)| {
            let group = heads / layer.num_kv_heads;
            layer.num_kv_heads * (options.max_step_tokens * (group / MAX_ROWS + 2))
        };
        let most_tiles = operations.iter().map(tiles).max().unwrap_or(0);
        let most_cut = PARTIAL_FLOATS / (GROUP_FLOATS + 2);
        Ok(Attention {
            block_size: options.block_size,
            items: Vec::with_capacity(most_tiles.max(most_cut)),
            scratch: Buffer::zeroed(scratch_floats, "attention scratch")?,
            scratch_len,
            partials: Buffer::zeroed(PARTIAL_FLOATS, "attention scratch")?,
        })
    }

    /// Attends to the cache, which has the step's keys and values.
    pub fn run(
        &mut self,
        pool: &mut Pool,
        isa: Isa,
        cache: &KvCache,
        op: &AttentionOp,
        inputs: &StepInputs<'_>,
        rows: AttentionRows<'_>,
    ) {
        match &cache.buffers {
            Buffers::F32(all) => {
                self.run_layer(pool, isa, &all[op.place.buffer], op, inputs, rows);
            }
            Buffers::Bf16(all) => {
                self.run_layer(pool, isa, &all[op.place.buffer], op, inputs, rows);
            }
            Buffers::F16(all) => {
                self.run_layer(pool, isa, &all[op.place.buffer], op, inputs, rows);
            }
            Buffers::Int8(all) => {
                self.run_layer(pool, isa, &all[op.place.buffer], op, inputs, rows);
            }
        }
    }

    fn run_layer<E: KvElement>(
        &mut self,
        pool: &mut Pool,
        isa: Isa,
        cache: &LayerCache<E>,
        op: &AttentionOp,
        inputs: &StepInputs<'_>,
        rows: AttentionRows<'_>,
    ) {
        let (num_kv_heads, head_dim) = (cache.num_kv_heads, cache.head_dim);
        let padded = padded_dim(head_dim);
        let longest = inputs.seqs.iter().map(|s| s.context_len as usize).max().unwrap_or(0);
        let partitions = longest.div_ceil(PARTITION);
        self.list_tiles(op, (num_kv_heads, head_dim), inputs, pool.num_threads(), partitions);
        let context = TileContext {
            isa,
            cache,
            op,
            window: op.window,
            kv_group: op.place.group,
            block_size: self.block_size,
            tables: inputs.block_tables,
            q: rows.q,
        };
        let items = &self.items;
        let scratch = SharedPtr::new(&mut self.scratch);
        let partials = SharedPtr::new(&mut self.partials);
        let out = SharedPtr::new(rows.out);
        let scratch_len = self.scratch_len;
        pool.run(items.len(), |index, worker| {
            // SAFETY: each worker has its own part, and runs one task at a time.
            let scratch = unsafe { scratch.slice(worker * scratch_len, scratch_len) };
            let mut scratch = Scratch::new(scratch, head_dim);
            let item = &items[index];
            let row_of = |row| {
                let (token, head) = context.token_and_head(item, row);
                token * op.num_heads + head
            };
            context.run(item, items.get(index + 1), &mut scratch, |partition, row, state| {
                let at = (row_of(row) * partitions + partition) * (padded + 2);
                // SAFETY: a row's partition belongs to one item.
                keep(state, unsafe { partials.slice(at, padded + 2) });
            });
            if item.partitions.is_none() {
                for row in 0..item.num_rows {
                    // SAFETY: a row belongs to one item.
                    let out = unsafe { out.slice(row_of(row) * head_dim, head_dim) };
                    finish::<E>(isa, scratch.row(row), out);
                }
            }
        });
        if items.first().is_some_and(|item| item.partitions.is_some()) {
            let merge = Merge { isa, op, dim: head_dim, is_spread: E::SCALED, inputs, partitions };
            merge.run(pool, &self.partials, out);
        }
    }

    // Tiles of all sequences and heads; the costly ones first, so that threads end together.
    fn list_tiles(
        &mut self,
        op: &AttentionOp,
        (num_kv_heads, head_dim): (usize, usize),
        inputs: &StepInputs<'_>,
        num_threads: usize,
        partitions: usize,
    ) {
        self.items.clear();
        let group = op.num_heads / num_kv_heads;
        let tiles_of = |seq: &SeqSpan| (seq.num_tokens as usize * group).div_ceil(MAX_ROWS);
        let num_tiles = num_kv_heads * inputs.seqs.iter().map(tiles_of).sum::<usize>();
        let partial_rows = inputs.token_ids.len() * op.num_heads * partitions;
        let cut = num_threads > 1
            && partitions > 1
            && num_tiles < num_threads * FEW_TILES_PER_THREAD
            && partial_rows * (padded_dim(head_dim) + 2) <= PARTIAL_FLOATS;
        let pieces = (num_threads * PIECES_PER_THREAD).div_ceil(num_tiles.max(1));
        let piece_len = partitions.div_ceil(pieces).max(1);
        for seq in inputs.seqs {
            let num_rows = seq.num_tokens as usize * group;
            let last = (seq.context_len as usize).div_ceil(PARTITION);
            for tile in (0..tiles_of(seq)).rev() {
                let first_row = tile * MAX_ROWS;
                let rows = MAX_ROWS.min(num_rows - first_row);
                for kv_head in 0..num_kv_heads {
                    let item =
                        Item { seq: *seq, kv_head, first_row, num_rows: rows, partitions: None };
                    if cut {
                        let piece = |start| {
                            let end = last.min(start + piece_len);
                            Item { partitions: Some((start, end)), ..item }
                        };
                        self.items.extend((0..last).step_by(piece_len).map(piece));
                    } else {
                        self.items.push(item);
                    }
                }
            }
        }
    }
}

/// Least floats that a kept partial result of one row takes, without its two statistics.
const GROUP_FLOATS: usize = cache::GROUP;

fn finish<E: KvElement>(isa: Isa, state: RowState<'_>, out: &mut [f32]) {
    kernels::scaled(isa, out, state.acc, 1.0 / state.stats.sum);
    if E::SCALED {
        hadamard(out);
    }
}

fn keep(state: RowState<'_>, partial: &mut [f32]) {
    partial[0] = state.stats.max;
    partial[1] = state.stats.sum;
    partial[2..][..state.acc.len()].copy_from_slice(state.acc);
}

// Joins the partitions of each row, in the order of positions.
struct Merge<'a> {
    isa: Isa,
    op: &'a AttentionOp,
    dim: usize,
    /// Values are Hadamard transforms.
    is_spread: bool,
    inputs: &'a StepInputs<'a>,
    partitions: usize,
}

impl Merge<'_> {
    fn run(&self, pool: &mut Pool, partials: &[f32], out: SharedPtr<f32>) {
        let (heads, dim) = (self.op.num_heads, self.dim);
        let padded = padded_dim(dim);
        let num_rows = self.inputs.token_ids.len() * heads;
        for_rows(pool, num_rows, self.partitions * padded, |start, rows| {
            for row in start..start + rows {
                let position = self.inputs.positions[row / heads] as usize;
                let at = row * self.partitions * (padded + 2);
                let kept = &partials[at..][..(position / PARTITION + 1) * (padded + 2)];
                // SAFETY: rows are disjoint parts of the output.
                let out = unsafe { out.slice(row * dim, dim) };
                self.row(kept, padded, out);
            }
        });
    }

    fn row(&self, kept: &[f32], padded: usize, out: &mut [f32]) {
        let mut total = RowStats::NONE;
        for partial in kept.chunks_exact(padded + 2) {
            let stats = RowStats { max: partial[0], sum: partial[1] };
            let values = &partial[2..][..out.len()];
            tile::merge(self.isa, &mut total, out, stats, values);
        }
        out.iter_mut().for_each(|x| *x *= 1.0 / total.sum);
        if self.is_spread {
            hadamard(out);
        }
    }
}
