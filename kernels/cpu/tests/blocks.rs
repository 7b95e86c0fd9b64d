//! Blocks of the KV cache as a whole: copies, bytes and back, and what a block held before.
#![allow(clippy::unwrap_used)]

mod support;

use proptest::prelude::*;
use support::{Shape, Span, decoder, error, ids, isas, options, step, step_with};
use tenon_backend::{Backend, BlockCopy, DType, KvDType, PrepareOptions, TensorBytes};
use tenon_cpu::CpuBackend;
use tenon_reference::ReferenceBackend;

const KV_DTYPES: [KvDType; 4] = [KvDType::F32, KvDType::BF16, KvDType::F16, KvDType::Int8];

fn program(window: Option<u32>) -> tenon_backend::Program {
    let shape = Shape { layers: 4, window, full_every: 2, tied: false, ..Shape::small(DType::F32) };
    decoder(&shape, 9)
}

// The blocks of all groups that `step_with` uses for block `b`.
fn physical(blocks: &[u32], num_groups: u32) -> Vec<u32> {
    blocks.iter().flat_map(|b| (0..num_groups).map(move |g| b * num_groups + g)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    // A fork goes on over copies, the original over its own blocks, and a third sequence over what
    // was read and written back elsewhere: all as one that never shared anything.
    #[test]
    fn copied_and_restored_blocks_are_the_same_bit_for_bit(
        kv_dtype in prop::sample::select(KV_DTYPES.to_vec()), prefix in 1usize..70,
        block_size in prop::sample::select(vec![1usize, 5, 8, 16, 32]), hybrid_kv in any::<bool>(),
        window in prop::option::of(20u32..60),
    ) {
        let program = program(window);
        let groups = program.kv_layout(hybrid_kv).groups;
        let num_groups = groups.len() as u32;
        let num_blocks = 500 * groups.len();
        let options = PrepareOptions { kv_dtype, hybrid_kv, num_blocks, block_size, ..options(2) };
        let table = |first: u32| -> Vec<u32> { (0..100).rev().map(|b| first + b).collect() };
        let tables = [table(0), table(100), table(200)];
        let used = prefix.div_ceil(block_size);
        let tokens = ids(prefix, 41, 3);
        let ends = [ids(9, 41, 4), ids(9, 41, 5)];
        let run = |backend: &mut dyn Backend| {
            let go = |backend: &mut dyn Backend, tokens, computed, table, copies: &[BlockCopy]| {
                let span = Span { tokens, computed, blocks: table };
                step_with(backend, &[span], block_size, &groups, copies)
            };
            go(backend, &tokens, 0, &tables[0], &[]);
            let from = physical(&tables[0][..used], num_groups);
            let to = physical(&tables[1][..used], num_groups);
            let copies: Vec<_> =
                from.iter().zip(to).map(|(&from, to)| BlockCopy { from, to }).collect();
            let fork = go(backend, &ends[1], prefix, &tables[1], &copies);
            let own = go(backend, &ends[0], prefix, &tables[0], &[]);
            let mut bytes = vec![0; backend.block_bytes()];
            let fork_blocks = physical(&tables[1][..used], num_groups);
            for (&from, to) in fork_blocks.iter().zip(physical(&tables[2][..used], num_groups)) {
                backend.read_block(from, &mut bytes).unwrap();
                backend.write_block(to, &bytes).unwrap();
            }
            let restored = go(backend, &ends[1], prefix, &tables[2], &[]);
            let plain = go(backend, &tokens, 0, &tables[2], &[]);
            let plain = [plain, go(backend, &ends[1], prefix, &tables[2], &[])];
            (own, fork, restored, plain)
        };
        let mut reference = ReferenceBackend::prepare(program.clone(), &options).unwrap();
        let expected = run(&mut reference);
        prop_assert_eq!(&expected.1, &expected.2);
        for isa in isas() {
            let mut cpu = CpuBackend::prepare_with(program.clone(), &options, isa).unwrap();
            let (own, fork, restored, plain) = run(&mut cpu);
            prop_assert_eq!(&fork, &plain[1]);
            prop_assert_eq!(&restored, &plain[1]);
            let worst = error(&own, &expected.0).max(error(&fork, &expected.1));
            prop_assert!(worst < 5e-2, "{isa:?}: error {worst}");
        }
    }
}

// A sequence whose activations are not finite leaves its blocks to the next one.
#[test]
fn what_a_block_held_before_does_not_matter() {
    let mut program = program(Some(30));
    // Token 40 embeds as infinity.
    let embedding = &mut program.weights[0];
    let mut bytes = embedding.data.to_vec();
    let row = embedding.dtype.row_bytes(embedding.cols);
    bytes[40 * row..41 * row].as_chunks_mut::<2>().0.fill(0x7c00u16.to_le_bytes());
    embedding.data = TensorBytes::owned(bytes);
    let bad = vec![40; 64];
    let blocks: Vec<u32> = (0..16).collect();
    for kv_dtype in KV_DTYPES {
        for (isa, block_size) in isas().into_iter().flat_map(|isa| [(isa, 16), (isa, 8)]) {
            let options = PrepareOptions { kv_dtype, block_size, ..options(1) };
            for len in [1, 2, 3, 17, 21] {
                let tokens = ids(len, 40, 1);
                let mut cpu = CpuBackend::prepare_with(program.clone(), &options, isa).unwrap();
                let span = Span { tokens: &tokens, computed: 0, blocks: &blocks };
                let expected = step(&mut cpu, std::slice::from_ref(&span), block_size);
                let broken = Span { tokens: &bad, computed: 0, blocks: &blocks };
                assert!(step(&mut cpu, &[broken], block_size).iter().any(|x| x.is_nan()));
                let found = step(&mut cpu, &[span], block_size);
                assert_eq!(found, expected, "{kv_dtype:?} {isa:?}, {len} tokens");
            }
        }
    }
}

#[test]
fn blocks_outside_of_the_pool_are_refused() {
    let program = program(None);
    let mut cpu = CpuBackend::prepare(program.clone(), &options(1)).unwrap();
    let mut reference = ReferenceBackend::prepare(program, &options(1)).unwrap();
    for backend in [&mut cpu as &mut dyn Backend, &mut reference] {
        let mut bytes = vec![0; backend.block_bytes()];
        backend.read_block(95, &mut bytes).unwrap();
        let error = backend.read_block(96, &mut bytes).unwrap_err().to_string();
        assert!(error.contains("block `96` of 96"), "{error}");
        let error = backend.write_block(0, &bytes[1..]).unwrap_err().to_string();
        assert!(error.contains(&format!("`{}` bytes", bytes.len() - 1)), "{error}");
    }
}
