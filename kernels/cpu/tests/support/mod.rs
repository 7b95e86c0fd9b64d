//! Small random programs, and steps over them that a scheduler could have planned.
#![allow(clippy::unwrap_used, dead_code, missing_docs)]

use std::time::Instant;

use tenon_backend::layout::NO_BLOCK;
use tenon_backend::quant::quantize_row;
use tenon_backend::{
    Activation, Backend, BlockCopy, BufferId, DType, KvDType, KvGroup, KvLayer, LinearPart, Op,
    PrepareOptions, Program, RopeId, RopeStyle, RopeTable, SeqSpan, StepInputs, Tensor,
    TensorBytes, WeightId, WeightMode,
};
use tenon_cpu::Isa;

/// `len` values in `-amplitude..amplitude`, the same for the same seed.
pub fn noise(len: usize, seed: u64, amplitude: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2) | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    next();
    (0..len).map(|_| amplitude * next()).collect()
}

/// A weight of noise.
pub fn tensor(
    name: &str,
    dtype: DType,
    rows: usize,
    cols: usize,
    seed: u64,
    amplitude: f32,
) -> Tensor {
    let values = noise(rows * cols, seed, amplitude);
    let mut data = vec![0; rows * dtype.row_bytes(cols)];
    let row_bytes = dtype.row_bytes(cols);
    for (row, bytes) in values.chunks_exact(cols).zip(data.chunks_exact_mut(row_bytes)) {
        quantize_row(dtype, row, bytes);
    }
    Tensor { name: name.into(), dtype, rows, cols, data: TensorBytes::owned(data) }
}

/// The shape of a random model.
#[derive(Debug, Clone)]
pub struct Shape {
    pub layers: usize,
    pub hidden: usize,
    pub mlp: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    pub linear: DType,
    pub embedding: DType,
    pub tied: bool,
    pub bias: bool,
    pub head_norm: bool,
    pub window: Option<u32>,
    /// The last of each run of so many layers has no window; 0: all have it.
    pub full_every: usize,
    pub softcap: Option<f32>,
    pub style: RopeStyle,
    pub act: Activation,
}

impl Shape {
    /// Something small that runs every operation.
    pub fn small(linear: DType) -> Shape {
        let unit = linear.block_len().max(32);
        Shape {
            layers: 2,
            hidden: unit,
            mlp: 2 * unit,
            heads: 4,
            kv_heads: 2,
            head_dim: unit / 4,
            vocab: 41,
            linear,
            embedding: DType::F16,
            tied: true,
            bias: false,
            head_norm: false,
            window: None,
            full_every: 0,
            softcap: None,
            style: RopeStyle::Half,
            act: Activation::Silu,
        }
    }
}

/// Assembles a [`Program`].
#[derive(Default)]
pub struct Builder {
    buffers: Vec<usize>,
    weights: Vec<Tensor>,
    ops: Vec<Op>,
    seed: u64,
}

impl Builder {
    pub fn buffer(&mut self, width: usize) -> BufferId {
        self.buffers.push(width);
        BufferId(self.buffers.len() as u32 - 1)
    }

    pub fn weight(&mut self, dtype: DType, rows: usize, cols: usize, amplitude: f32) -> WeightId {
        self.seed += 1;
        let name = format!("w{}", self.weights.len());
        self.weights.push(tensor(&name, dtype, rows, cols, self.seed * 7919, amplitude));
        WeightId(self.weights.len() as u32 - 1)
    }

    /// The same values in other memory.
    pub fn copy_of(&mut self, weight: WeightId) -> WeightId {
        let name = format!("w{}", self.weights.len());
        let copy = Tensor { name, ..self.weights[weight.0 as usize].clone() };
        self.weights.push(copy);
        WeightId(self.weights.len() as u32 - 1)
    }

    pub fn norm_weight(&mut self, width: usize) -> WeightId {
        let id = self.weight(DType::F32, 1, width, 0.3);
        let values: Vec<u8> = self.weights[id.0 as usize]
            .data
            .chunks_exact(4)
            .flat_map(|b| (1.0 + f32::from_le_bytes(b.try_into().unwrap())).to_le_bytes())
            .collect();
        self.weights[id.0 as usize].data = TensorBytes::owned(values);
        id
    }

    fn part(
        &mut self,
        s: &Shape,
        rows: usize,
        cols: usize,
        out: BufferId,
        bias: bool,
    ) -> LinearPart {
        let weight = self.weight(s.linear, rows, cols, 1.7 / (cols as f32).sqrt());
        let bias = bias.then(|| self.weight(DType::F32, 1, rows, 0.2));
        LinearPart { weight, bias, out }
    }

    pub fn op(&mut self, op: Op) {
        self.ops.push(op);
    }

    pub fn finish(
        self,
        logits: BufferId,
        kv_layers: Vec<KvLayer>,
        ropes: Vec<RopeTable>,
    ) -> Program {
        Program {
            name: "random".into(),
            ops: self.ops,
            buffers: self.buffers,
            weights: self.weights,
            ropes,
            kv_layers,
            logits,
            max_position: 4096,
        }
    }
}

/// A decoder of the given shape with random weights.
pub fn decoder(s: &Shape, seed: u64) -> Program {
    let mut b = Builder { seed: seed.wrapping_mul(1000), ..Builder::default() };
    let (q_width, kv_width) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
    let [x, h, attn, proj] = [s.hidden, s.hidden, q_width, s.hidden].map(|w| b.buffer(w));
    let [q, k, v] = [q_width, kv_width, kv_width].map(|w| b.buffer(w));
    let [gate, up, last, logits] = [s.mlp, s.mlp, s.hidden, s.vocab].map(|w| b.buffer(w));
    let embedding = b.weight(s.embedding, s.vocab, s.hidden, 1.0);
    b.op(Op::Embed { weight: embedding, scale: 1.5, out: x });
    let eps = 1e-5;
    let first = b.norm_weight(s.hidden);
    b.op(Op::RmsNorm { input: x, weight: first, eps, out: h });
    for layer in 0..s.layers {
        let parts = vec![
            b.part(s, q_width, s.hidden, q, s.bias),
            b.part(s, kv_width, s.hidden, k, s.bias),
            b.part(s, kv_width, s.hidden, v, s.bias),
        ];
        b.op(Op::Linear { input: h, parts });
        for buf in [q, k] {
            if s.head_norm {
                let weight = b.norm_weight(s.head_dim);
                b.op(Op::HeadNorm { buf, weight, head_dim: s.head_dim, eps });
            }
            b.op(Op::Rope { buf, head_dim: s.head_dim, rope: RopeId(0) });
        }
        let scale = 1.0 / (s.head_dim as f32).sqrt();
        let (num_heads, softcap) = (s.heads, s.softcap);
        b.op(Op::Attention { layer, q, k, v, out: attn, num_heads, scale, softcap });
        let parts = vec![b.part(s, s.hidden, q_width, proj, false)];
        b.op(Op::Linear { input: attn, parts });
        let weight = b.norm_weight(s.hidden);
        b.op(Op::AddRmsNorm { residual: x, input: proj, weight, eps, out: h });
        let parts =
            vec![b.part(s, s.mlp, s.hidden, gate, false), b.part(s, s.mlp, s.hidden, up, false)];
        b.op(Op::Linear { input: h, parts });
        b.op(Op::GatedMlp { gate, up, out: gate, act: s.act });
        let parts = vec![b.part(s, s.hidden, s.mlp, proj, false)];
        b.op(Op::Linear { input: gate, parts });
        if layer + 1 < s.layers {
            let weight = b.norm_weight(s.hidden);
            b.op(Op::AddRmsNorm { residual: x, input: proj, weight, eps, out: h });
        } else {
            b.op(Op::Add { residual: x, input: proj });
        }
    }
    b.op(Op::TakeLogitsRows { input: x, out: last });
    let weight = b.norm_weight(s.hidden);
    b.op(Op::RmsNorm { input: last, weight, eps, out: last });
    let head = if s.tied { embedding } else { b.weight(s.linear, s.vocab, s.hidden, 0.5) };
    let parts = vec![LinearPart { weight: head, bias: None, out: logits }];
    b.op(Op::Linear { input: last, parts });
    if s.softcap.is_some() {
        b.op(Op::Softcap { buf: logits, cap: 30.0 });
    }
    let is_full = |layer: usize| s.full_every > 0 && layer % s.full_every == s.full_every - 1;
    let layer = |layer| KvLayer {
        num_kv_heads: s.kv_heads,
        head_dim: s.head_dim,
        window: s.window.filter(|_| !is_full(layer)),
    };
    let pairs = s.head_dim / 2;
    let inv_freq = (0..pairs).map(|i| 1e4f32.powf(-(i as f32) / pairs as f32)).collect();
    let rope = RopeTable { style: s.style, inv_freq, magnitude: 1.0 };
    b.finish(logits, (0..s.layers).map(layer).collect(), vec![rope])
}

pub fn options(num_threads: usize) -> PrepareOptions {
    PrepareOptions {
        weights: WeightMode::Native,
        kv_dtype: KvDType::F32,
        hybrid_kv: false,
        num_blocks: 96,
        block_size: 16,
        max_step_tokens: 640,
        max_logits_rows: 640,
        num_threads,
    }
}

/// One sequence's share of a step.
#[derive(Debug, Clone)]
pub struct Span<'a> {
    pub tokens: &'a [u32],
    /// Tokens that ran before.
    pub computed: usize,
    /// Its blocks, at least as many as its context needs.
    pub blocks: &'a [u32],
}

/// Runs one step over one KV group and gives back the logits of every token.
pub fn step(backend: &mut dyn Backend, spans: &[Span<'_>], block_size: usize) -> Vec<f32> {
    step_with(backend, spans, block_size, &[KvGroup { window: None }], &[])
}

/// The same over `groups`, after `copies`. Group `g` has block `num_groups * b + g` where a span
/// says `b`, and none that its window has passed.
pub fn step_with(
    backend: &mut dyn Backend,
    spans: &[Span<'_>],
    block_size: usize,
    groups: &[KvGroup],
    copies: &[BlockCopy],
) -> Vec<f32> {
    let planned = PlannedStep::new(spans, block_size, groups);
    let ticket = backend.forward(&StepInputs { block_copies: copies, ..planned.inputs() }).unwrap();
    backend.wait(ticket).unwrap().to_vec()
}

/// The inputs of a step.
#[derive(Default)]
pub struct PlannedStep {
    ids: Vec<u32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
    seqs: Vec<SeqSpan>,
    tables: Vec<u32>,
    /// All tokens, unless somebody wants fewer.
    pub logits_rows: Vec<u32>,
}

impl PlannedStep {
    /// See [`step_with`].
    pub fn new(spans: &[Span<'_>], block_size: usize, groups: &[KvGroup]) -> Self {
        let mut step = PlannedStep::default();
        let mut slots = vec![vec![]; groups.len()];
        let block =
            |span: &Span<'_>, g: usize, b: usize| span.blocks[b] * groups.len() as u32 + g as u32;
        for (row, span) in spans.iter().enumerate() {
            let context = span.computed + span.tokens.len();
            let blocks = context.div_ceil(block_size);
            step.seqs.push(SeqSpan {
                row: row as u32,
                token_start: step.ids.len() as u32,
                num_tokens: span.tokens.len() as u32,
                context_len: context as u32,
                prompt_len: context as u32,
                table_start: step.tables.len() as u32,
                table_len: blocks as u32,
            });
            for (i, &id) in span.tokens.iter().enumerate() {
                let position = span.computed + i;
                step.ids.push(id);
                step.positions.push(position as u32);
                for (g, slots) in slots.iter_mut().enumerate() {
                    let block = block(span, g, position / block_size) as usize;
                    slots.push((block * block_size + position % block_size) as u32);
                }
            }
            for (g, group) in groups.iter().enumerate() {
                let visible =
                    group.window.map_or(0, |w| (span.computed + 1).saturating_sub(w as usize));
                step.tables.extend((0..blocks).map(|b| match (b + 1) * block_size <= visible {
                    true => NO_BLOCK,
                    false => block(span, g, b),
                }));
            }
        }
        step.slots = slots.concat();
        step.logits_rows = (0..step.ids.len() as u32).collect();
        step
    }

    /// The same with the logits of each sequence's last token alone.
    pub fn last_rows(mut self) -> Self {
        self.logits_rows = self.seqs.iter().map(|s| s.token_start + s.num_tokens - 1).collect();
        self
    }

    pub fn inputs(&self) -> StepInputs<'_> {
        StepInputs {
            token_ids: &self.ids,
            positions: &self.positions,
            slot_mapping: &self.slots,
            seqs: &self.seqs,
            block_tables: &self.tables,
            logits_rows: &self.logits_rows,
            block_copies: &[],
        }
    }

    /// Seconds that it takes.
    pub fn time(&self, backend: &mut dyn Backend) -> f64 {
        let start = Instant::now();
        let ticket = backend.forward(&self.inputs()).unwrap();
        std::hint::black_box(backend.wait(ticket).unwrap());
        start.elapsed().as_secs_f64()
    }
}

pub fn ids(len: usize, vocab: usize, seed: u64) -> Vec<u32> {
    noise(len, seed + 99, 0.5).iter().map(|x| ((x + 0.5) * vocab as f32) as u32).collect()
}

/// The instruction sets of this machine; says which ones it lacks.
pub fn isas() -> Vec<Isa> {
    let (here, missing): (Vec<_>, Vec<_>) = Isa::ALL.into_iter().partition(|i| i.is_available());
    for isa in missing {
        println!("skipped: this machine does not have {}", isa.name());
    }
    here
}

/// Largest difference, relative to the largest magnitude of the expected values.
pub fn error(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(1e-6f32, |a, x| a.max(x.abs()));
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(found.iter().all(|x| x.is_finite()));
    worst / largest
}
