//! Each kernel beside what the machine allows: `cargo bench --package tenon-cpu --bench kernels`.
//!
//! A kernel is run as the backend runs it, many times in one step, with the conversion of its input
//! and what its threads wait for each other. Its share is the time that memory or multiplications
//! would take at the rates that were read in the same seconds, whichever is longer, of the time
//! that it took; more than all is possible where caches hold something. Text after `--` is looked
//! for in the names: `-- attention`.
#![allow(clippy::unwrap_used, unsafe_code)]

mod peaks;
#[path = "../tests/support/mod.rs"]
mod support;

use peaks::Peaks;
use support::{Builder, PlannedStep, Shape, Span, decoder, ids, options};
use tenon_backend::{
    Activation, BufferId, DType, KvDType, KvGroup, LinearPart, Op, PrepareOptions, Program, RopeId,
    RopeStyle, RopeTable,
};
use tenon_cpu::{CpuBackend, Isa};

const THREADS: usize = 2;
const REPEATS: usize = 7;
const BLOCK: usize = 16;
/// Rows and columns of the matrices, a whole number of blocks of every encoding.
const WIDTH: usize = 2048;
/// Weights of one step: far more than the caches hold.
const WEIGHT_BYTES: usize = 96 << 20;
/// Context of the decoded sequences.
const CONTEXT: usize = 4096;
const VOCAB: usize = 64;

/// What a kernel multiplies.
#[derive(Debug, Clone, Copy)]
enum Unit {
    F32,
    Bf16,
    Int8,
}

/// What a kernel does in a step.
#[derive(Debug, Clone, Copy)]
struct Work {
    /// That it must read or write at least.
    bytes: f64,
    /// Multiplications and additions.
    operations: f64,
    unit: Unit,
}

impl Work {
    /// Of a kernel that does little with what it moves.
    fn moved(bytes: usize) -> Work {
        Work { bytes: bytes as f64, operations: 0.0, unit: Unit::F32 }
    }
}

struct Bench {
    wanted: Option<String>,
}

fn main() {
    // Cargo passes options of its own.
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    println!("{}, {THREADS} threads\n", Isa::detect().name());
    println!("| kernel | rate | limit | share |\n|---|---|---|---|");
    let bench = Bench { wanted };
    for dtype in DType::ALL {
        bench.linear(dtype);
    }
    for kv_dtype in [KvDType::BF16, KvDType::F16, KvDType::F32, KvDType::Int8] {
        bench.decode_attention(kv_dtype);
    }
    bench.prefill_attention();
    bench.elementwise();
}

impl Bench {
    fn is_wanted(&self, name: &str) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| name.contains(wanted))
    }

    fn report(&self, name: &str, work: Work, seconds: f64) {
        let peaks = Peaks::measure(THREADS, 0.1);
        let (most, unit) = match work.unit {
            Unit::F32 => (peaks.f32, "f32"),
            Unit::Bf16 => (peaks.bf16, "bfloat16"),
            Unit::Int8 => (peaks.int8, "8-bit"),
        };
        let (moving, multiplying) = (work.bytes / peaks.dram, work.operations / most.max(1.0));
        let least = moving.max(multiplying);
        let (rate, limit) = if moving > multiplying {
            (work.bytes / seconds, format!("{:.1} GB/s of memory", peaks.dram / 1e9))
        } else {
            (work.operations / seconds, format!("{:.0} {unit} GOP/s", most / 1e9))
        };
        println!("| {name} | {:.1} | {limit} | {:.0} % |", rate / 1e9, 100.0 * least / seconds);
    }

    fn linear(&self, dtype: DType) {
        let names = [1, 8, 32, 512].map(|rows| (rows, format!("linear {dtype:?}, {rows} rows")));
        if !names.iter().any(|(_, name)| self.is_wanted(name)) {
            return;
        }
        let bytes = WIDTH * dtype.row_bytes(WIDTH);
        let count = WEIGHT_BYTES.div_ceil(bytes);
        let mut backend = backend(|b, [x, _, out]| {
            let first = b.weight(dtype, WIDTH, WIDTH, 0.03);
            for i in 0..count {
                let weight = if i == 0 { first } else { b.copy_of(first) };
                b.op(Op::Linear { input: x, parts: vec![LinearPart { weight, bias: None, out }] });
            }
        });
        let unit = match dtype {
            DType::BF16 if Isa::detect() == Isa::Avx512Bf16 => Unit::Bf16,
            DType::F32 | DType::F16 | DType::BF16 => Unit::F32,
            _ => Unit::Int8,
        };
        for (rows, name) in names.iter().filter(|(_, name)| self.is_wanted(name)) {
            let operations = 2.0 * (count * rows * WIDTH * WIDTH) as f64;
            let work = Work { bytes: (count * bytes) as f64, operations, unit };
            self.report(name, work, run(&mut backend, *rows));
        }
    }

    fn decode_attention(&self, kv_dtype: KvDType) {
        let name =
            |batch| format!("attention, decode, {kv_dtype:?}, batch {batch}, {CONTEXT} tokens");
        for batch in [1, 4].into_iter().filter(|&batch| self.is_wanted(&name(batch))) {
            let (with, shape) = self.decode_step(kv_dtype, batch, true);
            let (without, _) = self.decode_step(kv_dtype, batch, false);
            let bytes_of_slot = match kv_dtype {
                KvDType::F32 => 4.0,
                KvDType::BF16 | KvDType::F16 => 2.0,
                // A scale for each head.
                KvDType::Int8 => 1.0 + 4.0 / shape.head_dim as f64,
            };
            let elements = 2 * shape.layers * batch * CONTEXT * shape.kv_heads * shape.head_dim;
            // A multiplication and an addition for each query head of a key head.
            let operations = (2 * elements * shape.heads / shape.kv_heads) as f64;
            let unit = if kv_dtype == KvDType::BF16 { Unit::Bf16 } else { Unit::F32 };
            let work = Work { bytes: elements as f64 * bytes_of_slot, operations, unit };
            self.report(&name(batch), work, with - without);
        }
    }

    // A step of layers that attend and little else, with a context or with none.
    fn decode_step(&self, kv_dtype: KvDType, batch: usize, is_long: bool) -> (f64, Shape) {
        let shape = attending();
        let num_blocks = batch * (CONTEXT / BLOCK + 1);
        let max_step_tokens = 512;
        let options = PrepareOptions { kv_dtype, num_blocks, max_step_tokens, ..options(THREADS) };
        let mut cpu = CpuBackend::prepare(decoder(&shape, 1), &options).unwrap();
        let tokens = ids(CONTEXT, VOCAB, 3);
        let per = num_blocks / batch;
        let blocks: Vec<Vec<u32>> =
            (0..batch).map(|s| (s * per..(s + 1) * per).map(|b| b as u32).collect()).collect();
        let context = if is_long { CONTEXT } else { 0 };
        for blocks in &blocks {
            for computed in (0..context).step_by(max_step_tokens) {
                let tokens = &tokens[computed..][..max_step_tokens];
                plan(&[Span { tokens, computed, blocks }]).time(&mut cpu);
            }
        }
        let span = |blocks| Span { tokens: &tokens[..1], computed: context, blocks };
        let step = plan(&blocks.iter().map(|b| span(b)).collect::<Vec<_>>());
        (median(|| step.time(&mut cpu)), shape)
    }

    fn prefill_attention(&self) {
        let name = "attention, prefill 512, BF16";
        if !self.is_wanted(name) {
            return;
        }
        let shape = attending();
        let options = PrepareOptions { kv_dtype: KvDType::BF16, ..options(THREADS) };
        let mut cpu = CpuBackend::prepare(decoder(&shape, 1), &options).unwrap();
        let tokens = ids(512, VOCAB, 3);
        let blocks: Vec<u32> = (0..32).collect();
        let one = plan(&[Span { tokens: &tokens, computed: 0, blocks: &blocks }]);
        let all: Vec<Vec<u32>> = (0..32).map(|b| vec![b]).collect();
        let spans: Vec<_> = all
            .iter()
            .zip(tokens.chunks(BLOCK))
            .map(|(blocks, tokens)| Span { tokens, computed: 0, blocks })
            .collect();
        // As many rows in short sequences cost the same but for attention.
        let short = plan(&spans);
        let (with, without) = (median(|| one.time(&mut cpu)), median(|| short.time(&mut cpu)));
        let pairs = 512 * 513 / 2 - 32 * BLOCK * (BLOCK + 1) / 2;
        let operations = 4 * shape.layers * shape.heads * shape.head_dim * pairs;
        let work = Work { bytes: 0.0, operations: operations as f64, unit: Unit::Bf16 };
        self.report(name, work, with - without);
    }

    fn elementwise(&self) {
        const COUNT: usize = 64;
        const ROWS: usize = 512;
        type AddOps = fn(&mut Builder, [BufferId; 3]);
        // Name, what is run, and arrays that it reads and writes.
        let kernels: [(&str, AddOps, usize); 5] = [
            (
                "RMS norm",
                |b, [x, _, z]| {
                    let weight = b.norm_weight(WIDTH);
                    b.op(Op::RmsNorm { input: x, weight, eps: 1e-5, out: z });
                },
                2,
            ),
            (
                "RMS norm and residual",
                |b, [x, y, z]| {
                    let weight = b.norm_weight(WIDTH);
                    b.op(Op::AddRmsNorm { residual: x, input: y, weight, eps: 1e-5, out: z });
                },
                4,
            ),
            (
                "gated MLP, SiLU",
                |b, [x, y, z]| {
                    b.op(Op::GatedMlp { gate: x, up: y, out: z, act: Activation::Silu });
                },
                3,
            ),
            (
                "gated MLP, GELU",
                |b, [x, y, z]| {
                    b.op(Op::GatedMlp { gate: x, up: y, out: z, act: Activation::GeluTanh });
                },
                3,
            ),
            (
                "rotary embedding",
                |b, [x, ..]| {
                    b.op(Op::Rope { buf: x, head_dim: 64, rope: RopeId(0) });
                },
                2,
            ),
        ];
        for (name, add, arrays) in kernels {
            let name = format!("{name}, {ROWS} rows of {WIDTH}");
            if self.is_wanted(&name) {
                let mut backend = backend(|b, buffers| (0..COUNT).for_each(|_| add(b, buffers)));
                let seconds = run(&mut backend, ROWS);
                self.report(&name, Work::moved(COUNT * ROWS * WIDTH * 4 * arrays), seconds);
            }
        }
    }
}

// SmolLM2-135M's heads with next to nothing around them.
fn attending() -> Shape {
    let shape = Shape::small(DType::Q8_0);
    let (layers, heads, kv_heads, head_dim) = (30, 9, 3, 64);
    Shape { layers, heads, kv_heads, head_dim, vocab: VOCAB, ..shape }
}

// A step that does what `add` puts behind two embeddings; the third buffer is for its output.
fn backend(add: impl FnOnce(&mut Builder, [BufferId; 3])) -> CpuBackend {
    let mut b = Builder::default();
    let [x, y, z, last] = [(); 4].map(|()| b.buffer(WIDTH));
    let logits = b.buffer(VOCAB);
    let weight = b.weight(DType::F32, VOCAB, WIDTH, 1.0);
    b.op(Op::Embed { weight, scale: 1.0, out: x });
    b.op(Op::Embed { weight, scale: 1.0, out: y });
    add(&mut b, [x, y, z]);
    b.op(Op::TakeLogitsRows { input: x, out: last });
    b.op(Op::Linear { input: last, parts: vec![LinearPart { weight, bias: None, out: logits }] });
    let inv_freq = (0..32).map(|i| 1e4f32.powf(-(i as f32) / 32.0)).collect();
    let rope = RopeTable { style: RopeStyle::Half, inv_freq, magnitude: 1.0 };
    let program: Program = b.finish(logits, Vec::new(), vec![rope]);
    CpuBackend::prepare(program, &options(THREADS)).unwrap()
}

fn plan(spans: &[Span<'_>]) -> PlannedStep {
    PlannedStep::new(spans, BLOCK, &[KvGroup { window: None }]).last_rows()
}

fn run(backend: &mut CpuBackend, rows: usize) -> f64 {
    let tokens = ids(rows, VOCAB, 3);
    let blocks: Vec<u32> = (0..64).collect();
    let step = plan(&[Span { tokens: &tokens, computed: 0, blocks: &blocks }]);
    median(|| step.time(backend))
}

// Of several runs, the first of which warms up.
fn median(mut seconds: impl FnMut() -> f64) -> f64 {
    seconds();
    let mut all: Vec<f64> = (0..REPEATS).map(|_| seconds()).collect();
    all.sort_by(f64::total_cmp);
    all[REPEATS / 2]
}
