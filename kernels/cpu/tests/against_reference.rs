//! Fast kernels against the scalar oracle, for every encoding and instruction set.
//!
//! Tolerances are on the largest difference relative to the largest expected magnitude. Float
//! paths differ from the oracle by the order of sums alone; quantized ones also by the rounding of
//! activations to 8 bits (relative error of about 1/254 of a block's largest element, averaged
//! over a row); BF16 dot products by the rounding of activations to 8 bits of mantissa.
#![allow(clippy::unwrap_used)]

mod support;

use proptest::prelude::*;
use support::{Builder, Shape, Span, decoder, error, ids, isas, options, step, step_with};
use tenon_backend::{
    Activation, Backend, DType, KvDType, KvGroup, LinearPart, Op, PrepareOptions, Program,
    RopeStyle, WeightMode,
};
use tenon_cpu::{CpuBackend, Isa};
use tenon_reference::ReferenceBackend;

const FLOAT_TOLERANCE: f32 = 2e-5;
const INT8_TOLERANCE: f32 = 1.5e-2;
const BF16_TOLERANCE: f32 = 1e-2;
const KV_DTYPES: [KvDType; 4] = [KvDType::F32, KvDType::BF16, KvDType::F16, KvDType::Int8];

fn linear_tolerance(dtype: DType, isa: Isa, mode: WeightMode) -> f32 {
    match dtype {
        _ if mode == WeightMode::Float32 => FLOAT_TOLERANCE,
        DType::BF16 if isa == Isa::Avx512Bf16 => BF16_TOLERANCE,
        DType::F32 | DType::F16 | DType::BF16 => FLOAT_TOLERANCE,
        _ => INT8_TOLERANCE,
    }
}

// Embedding → two products of it, one with a bias.
fn linear_program(dtype: DType, rows: usize, cols: usize, seed: u64) -> Program {
    let mut b = Builder::default();
    let (x, taken) = (b.buffer(cols), b.buffer(cols));
    let (first, logits) = (b.buffer(rows / 2 + 1), b.buffer(rows));
    let embedding = b.weight(DType::F32, 64, cols, 1.0 + (seed % 5) as f32);
    b.op(Op::Embed { weight: embedding, scale: 1.0, out: x });
    b.op(Op::TakeLogitsRows { input: x, out: taken });
    let other = b.weight(DType::Q8_0, rows / 2 + 1, cols.next_multiple_of(32), 0.1);
    let other =
        if cols.is_multiple_of(32) { other } else { b.weight(dtype, rows / 2 + 1, cols, 0.1) };
    let weight = b.weight(dtype, rows, cols, 0.5);
    let bias = Some(b.weight(DType::F32, 1, rows, 0.5));
    let parts = vec![
        LinearPart { weight: other, bias: None, out: first },
        LinearPart { weight, bias, out: logits },
    ];
    b.op(Op::Linear { input: taken, parts });
    b.finish(logits, vec![], vec![])
}

fn both(
    program: &Program,
    options: &PrepareOptions,
    isa: Isa,
    run: impl Fn(&mut dyn Backend) -> Vec<f32>,
) -> f32 {
    let mut reference = ReferenceBackend::prepare(program.clone(), options).unwrap();
    let mut cpu = CpuBackend::prepare_with(program.clone(), options, isa).unwrap();
    error(&run(&mut cpu), &run(&mut reference))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn linear_of_every_encoding(
        rows in 1usize..90, blocks in 1usize..5, odd in 0usize..9, tokens in 1usize..40,
        seed in 0u64..1000,
    ) {
        for dtype in DType::ALL {
            let dense = dtype.block_len() == 1;
            let cols = if dense { 7 * blocks + odd } else { blocks * dtype.block_len() };
            let program = linear_program(dtype, rows, cols, seed);
            let tokens = ids(tokens, 64, seed);
            for isa in isas() {
                for weights in [WeightMode::Native, WeightMode::Float32] {
                    let options = PrepareOptions { weights, ..options(1 + rows % 3) };
                    let blocks: Vec<u32> = (0..3).collect();
                    let span = Span { tokens: &tokens, computed: 0, blocks: &blocks };
                    let e = both(&program, &options, isa, |backend| {
                        step(backend, std::slice::from_ref(&span), 16)
                    });
                    let tolerance = linear_tolerance(dtype, isa, weights);
                    prop_assert!(e <= tolerance, "{dtype:?} {isa:?} {weights:?}: error {e}");
                }
            }
        }
    }
}

// Kernels of all instruction sets do the same operations in the same order.
#[test]
fn instruction_sets_agree_bit_for_bit() {
    for dtype in DType::ALL {
        let cols = dtype.block_len().max(32) * 3;
        let program = linear_program(dtype, 75, cols, 5);
        let tokens = ids(29, 64, 3);
        let mut all = vec![];
        for isa in isas().into_iter().filter(|&i| dtype != DType::BF16 || i < Isa::Avx512Bf16) {
            let mut cpu = CpuBackend::prepare_with(program.clone(), &options(2), isa).unwrap();
            let span = Span { tokens: &tokens, computed: 0, blocks: &[3, 1] };
            all.push(step(&mut cpu, &[span], 16));
        }
        for other in &all[1..] {
            assert!(all[0] == *other, "{dtype:?}");
        }
    }
}

fn shapes() -> impl Strategy<Value = (Shape, u64)> {
    let dims = (1usize..4, 1usize..4, prop::sample::select(vec![8usize, 16, 24, 64, 80]));
    let kinds = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let window = prop::option::of(1u32..300);
    (dims, kinds, window, 0u64..1000).prop_map(|(dims, kinds, window, seed)| {
        let (kv_heads, group, head_dim) = dims;
        let (tied, bias, head_norm, interleaved, capped) = kinds;
        let shape = Shape {
            layers: 3,
            hidden: 64,
            mlp: 96,
            heads: kv_heads * group,
            kv_heads,
            head_dim,
            vocab: 67,
            linear: DType::F32,
            embedding: DType::BF16,
            tied,
            bias,
            head_norm,
            window,
            full_every: seed as usize % 3,
            softcap: capped.then_some(5.0),
            style: if interleaved { RopeStyle::Interleaved } else { RopeStyle::Half },
            act: if bias { Activation::GeluTanh } else { Activation::Silu },
        };
        (shape, seed)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    // Two sequences, one prefilled in two steps around the other's decode. The oracle always has
    // one KV group.
    #[test]
    fn whole_programs(
        (shape, seed) in shapes(), first in 1usize..330, second in 1usize..40,
        block_size in prop::sample::select(vec![1usize, 7, 8, 16, 32]),
        kv_dtype in prop::sample::select(KV_DTYPES.to_vec()),
        threads in 1usize..4, hybrid_kv in any::<bool>(),
    ) {
        let program = decoder(&shape, seed);
        let long = ids(first + 20, shape.vocab, seed);
        let short = ids(second + 1, shape.vocab, seed + 1);
        let long_blocks: Vec<u32> = (0..360 / block_size as u32 + 1).rev().collect();
        let short_blocks: Vec<u32> = (0..60 / block_size as u32 + 1).map(|b| b + 400).collect();
        let options = PrepareOptions {
            weights: WeightMode::Float32,
            kv_dtype,
            hybrid_kv,
            num_blocks: 470 * 4,
            block_size,
            ..options(threads)
        };
        let groups = program.kv_layout(hybrid_kv).groups;
        let plain = PrepareOptions { hybrid_kv: false, num_blocks: 470, ..options.clone() };
        // Rounding of keys and values may go the other way after another order of sums.
        let tolerance = match kv_dtype {
            KvDType::F32 => 2e-4,
            KvDType::BF16 => 3e-2,
            KvDType::F16 => 4e-3,
            KvDType::Int8 => 4e-2,
        };
        let run = |backend: &mut dyn Backend, groups: &[KvGroup]| {
            let span = |tokens, computed, blocks| Span { tokens, computed, blocks };
            let one = span(&long[..first], 0, &long_blocks);
            let two = span(&short[..second], 0, &short_blocks);
            let mut all = step_with(backend, &[one, two], block_size, groups, &[]);
            let one = span(&long[first..], first, &long_blocks);
            let two = span(&short[second..], second, &short_blocks);
            all.extend(step_with(backend, &[two, one], block_size, groups, &[]));
            all
        };
        let mut reference = ReferenceBackend::prepare(program.clone(), &plain).unwrap();
        let expected = run(&mut reference, &[KvGroup { window: None }]);
        if hybrid_kv {
            let mut grouped = ReferenceBackend::prepare(program.clone(), &options).unwrap();
            prop_assert_eq!(&run(&mut grouped, &groups), &expected);
        }
        for isa in isas() {
            let mut cpu = CpuBackend::prepare_with(program.clone(), &options, isa).unwrap();
            let e = error(&run(&mut cpu, &groups), &expected);
            prop_assert!(e <= tolerance, "{isa:?}: error {e}");
        }
    }
}

#[test]
fn quantized_programs_stay_near_the_oracle() {
    for dtype in [DType::Q4_1, DType::Q8_0, DType::Q4K, DType::Q6K, DType::BF16] {
        let shape = Shape { embedding: DType::Q8_0, tied: false, ..Shape::small(dtype) };
        let program = decoder(&shape, 11);
        let tokens = ids(50, shape.vocab, 2);
        let blocks: Vec<u32> = (0..4).collect();
        for isa in isas() {
            let e = both(&program, &options(2), isa, |backend| {
                step(backend, &[Span { tokens: &tokens, computed: 0, blocks: &blocks }], 16)
            });
            assert!(e < 8e-2, "{dtype:?} {isa:?}: error {e}");
        }
    }
}
