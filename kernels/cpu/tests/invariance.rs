//! A token's logits are the same bit for bit alone, in any batch, for any cut of its prompt and
//! any number of threads.
#![allow(clippy::unwrap_used)]

mod support;

use proptest::prelude::*;
use support::{Shape, Span, decoder, ids, isas, options, step_with};
use tenon_backend::{Backend, DType, KvDType, KvGroup, PrepareOptions, Program, WeightMode};
use tenon_cpu::{CpuBackend, Isa};

/// Blocks of sequence `index`, apart from those of the others.
fn blocks(index: u32) -> Vec<u32> {
    (0..24).map(|b| b * 4 + index).collect()
}

// Logits of all tokens of each sequence, run in steps that take up to `chunk` tokens of each.
fn run(
    backend: &mut dyn Backend,
    groups: &[KvGroup],
    seqs: &[Vec<u32>],
    chunk: usize,
    vocab: usize,
) -> Vec<Vec<f32>> {
    let tables: Vec<_> = (0..seqs.len() as u32).map(blocks).collect();
    let mut logits = vec![vec![]; seqs.len()];
    let mut done = vec![0; seqs.len()];
    while let Some(i) = (0..seqs.len()).find(|&i| done[i] < seqs[i].len()) {
        let live: Vec<usize> = (i..seqs.len()).filter(|&i| done[i] < seqs[i].len()).collect();
        let ends: Vec<_> = live.iter().map(|&i| seqs[i].len().min(done[i] + chunk)).collect();
        let spans: Vec<_> = live
            .iter()
            .zip(&ends)
            .map(|(&i, &end)| Span {
                tokens: &seqs[i][done[i]..end],
                computed: done[i],
                blocks: &tables[i],
            })
            .collect();
        let all = step_with(backend, &spans, 16, groups, &[]);
        let mut rest = &all[..];
        for (&i, &end) in live.iter().zip(&ends) {
            let (own, others) = rest.split_at((end - done[i]) * vocab);
            logits[i].extend_from_slice(own);
            rest = others;
            done[i] = end;
        }
    }
    logits
}

struct Kept {
    weights: WeightMode,
    kv_dtype: KvDType,
    hybrid_kv: bool,
}

const NATIVE: Kept =
    Kept { weights: WeightMode::Native, kv_dtype: KvDType::BF16, hybrid_kv: false };

fn check(program: &Program, isa: Isa, kept: &Kept, seed: u64, chunk: usize) {
    let vocab = program.vocab_size();
    let seqs: Vec<_> =
        [330, 17, 65].iter().zip(0..).map(|(&n, i)| ids(n, vocab, seed + i)).collect();
    let &Kept { weights, kv_dtype, hybrid_kv } = kept;
    let groups = program.kv_layout(hybrid_kv).groups;
    let options = |threads| {
        let num_blocks = 96 * groups.len();
        PrepareOptions { weights, kv_dtype, hybrid_kv, num_blocks, ..options(threads) }
    };
    let prepare =
        |threads| CpuBackend::prepare_with(program.clone(), &options(threads), isa).unwrap();
    let mut alone = prepare(1);
    let expected: Vec<_> = seqs
        .iter()
        .map(|s| run(&mut alone, &groups, std::slice::from_ref(s), 1, vocab).remove(0))
        .collect();
    for threads in [1, 3] {
        let mut backend = prepare(threads);
        for chunk in [chunk, 200] {
            let found = run(&mut backend, &groups, &seqs, chunk, vocab);
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let different =
                    found.iter().zip(expected).filter(|(a, b)| a.to_bits() != b.to_bits());
                let count = different.count();
                let what =
                    format!("sequence {i}, {isa:?} {weights:?} {kv_dtype:?}, {threads} threads");
                assert_eq!(count, 0, "{what}, steps of {chunk}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn logits_do_not_depend_on_the_batch(
        chunk in 1usize..90, seed in 0u64..1000,
        window in prop::option::of(prop::sample::select(vec![5u32, 64, 290])),
    ) {
        let shape = Shape { window, ..Shape::small(DType::Q4_1) };
        let program = decoder(&shape, seed);
        let fastest = Isa::detect();
        check(&program, fastest, &NATIVE, seed, chunk);
        let floats = Kept { weights: WeightMode::Float32, ..NATIVE };
        check(&program, fastest, &floats, seed, chunk);
    }
}

#[test]
fn every_encoding_and_instruction_set() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q5_0, DType::Q6K, DType::Q4K] {
        let program = decoder(&Shape { layers: 1, ..Shape::small(dtype) }, 3);
        for isa in isas().into_iter().filter(|isa| *isa >= Isa::Avx2) {
            check(&program, isa, &NATIVE, 3, 37);
        }
    }
}

#[test]
fn every_kv_dtype_with_one_kv_group_and_several() {
    let window = Some(40);
    let shape = Shape { layers: 4, window, full_every: 3, ..Shape::small(DType::Q8_0) };
    let program = decoder(&shape, 5);
    for kv_dtype in [KvDType::F32, KvDType::BF16, KvDType::F16, KvDType::Int8] {
        for (isa, hybrid_kv) in [(Isa::detect(), false), (Isa::detect(), true), (Isa::Avx2, true)] {
            if isa.is_available() {
                check(&program, isa, &Kept { kv_dtype, hybrid_kv, ..NATIVE }, 5, 37);
            }
        }
    }
}
