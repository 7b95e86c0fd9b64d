//! From files to programs: built-in families, shapes, left-over tensors, transforms.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use tenon_backend::{DType, Op, Program, RopeStyle};
use tenon_model::gguf::{Gguf, GgufWriter, WriteValue};
use tenon_model::open::open_gguf;
use tenon_model::store::StoredTensor;
use tenon_model::{ArchSpec, TinyArch, TinyModel};

fn tiny(arch: TinyArch) -> Gguf {
    Gguf::from_bytes("tiny.gguf", Arc::new(TinyModel::new(arch, 7).gguf())).unwrap()
}

fn lower(gguf: Gguf) -> Result<Program, String> {
    open_gguf(gguf, None).map(|m| m.program).map_err(|e| e.to_string())
}

fn count(program: &Program, wanted: impl Fn(&Op) -> bool) -> usize {
    program.ops.iter().filter(|op| wanted(op)).count()
}

#[test]
fn built_in_families_are_valid_and_complete() {
    for name in ArchSpec::built_in_names() {
        let spec = ArchSpec::built_in(name).unwrap();
        assert_eq!(spec.name, name);
        assert!(spec.gguf.is_some() && spec.safetensors.is_some(), "{name}");
    }
}

#[test]
fn every_tiny_family_lowers() {
    for arch in TinyArch::ALL {
        let program = lower(tiny(arch)).unwrap();
        assert_eq!(program.vocab_size(), TinyModel::VOCAB);
        assert_eq!(program.kv_layers.len(), 2);
        assert_eq!(count(&program, |op| matches!(op, Op::Attention { .. })), 2);
        assert_eq!(
            count(&program, |op| matches!(op, Op::Linear { parts, .. } if parts.len() == 3)),
            2
        );
        assert_eq!(
            count(&program, |op| matches!(op, Op::Linear { parts, .. } if parts.len() == 2)),
            2
        );
        assert_eq!(count(&program, |op| matches!(op, Op::AddRmsNorm { .. })), 3);
        let head_norms = if matches!(arch, TinyArch::Qwen3 | TinyArch::Gemma3) { 4 } else { 0 };
        assert_eq!(count(&program, |op| matches!(op, Op::HeadNorm { .. })), head_norms);
        let style = if arch == TinyArch::Llama { RopeStyle::Interleaved } else { RopeStyle::Half };
        assert!(program.ropes.iter().all(|rope| rope.style == style));
        let last_norm = program.ops.len() - 2;
        assert!(matches!(program.ops[last_norm - 1], Op::TakeLogitsRows { .. }), "{arch:?}");
    }
}

#[test]
fn every_weight_type_lowers() {
    use DType::*;
    for dtype in [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4K, Q5K, Q6K] {
        let program = TinyModel::new(TinyArch::Llama, 3).with_dtype(dtype).program();
        assert!(program.weights.iter().any(|w| w.dtype == dtype));
        for w in &program.weights {
            assert_eq!(w.data.len(), w.rows * w.dtype.row_bytes(w.cols), "{}", w.name);
        }
    }
}

#[test]
fn gemma_windows_alternate_and_have_their_own_base() {
    let program = lower(tiny(TinyArch::Gemma3)).unwrap();
    let windows: Vec<_> = program.kv_layers.iter().map(|l| l.window).collect();
    assert_eq!(windows, [Some(8), None]);
    let ropes: Vec<u32> = program
        .ops
        .iter()
        .filter_map(|op| if let Op::Rope { rope, .. } = op { Some(rope.0) } else { None })
        .collect();
    assert_eq!(ropes, [1, 1, 0, 0]);
    assert!(matches!(program.ops[0], Op::Embed { scale, .. } if scale == 8.0));
}

#[test]
fn tied_and_untied_heads() {
    let weights = |arch| {
        let program = lower(tiny(arch)).unwrap();
        let embed = match program.ops[0] {
            Op::Embed { weight, .. } => weight,
            _ => panic!("the first operation embeds"),
        };
        let Some(Op::Linear { parts, .. }) = program.ops.last() else { panic!("head is last") };
        parts[0].weight == embed
    };
    assert!(weights(TinyArch::Gemma3));
    assert!(!weights(TinyArch::Llama));
}

#[test]
fn missing_left_over_and_misshapen_tensors_are_named() {
    let broken = |change: &dyn Fn(&mut Gguf)| {
        let mut gguf = tiny(TinyArch::Qwen3);
        change(&mut gguf);
        lower(gguf).unwrap_err()
    };
    let found = broken(&|g| drop(g.store.tensors.remove("blk.1.ffn_up.weight")));
    assert!(found.contains("`blk.1.ffn_up.weight` is missing"), "{found}");

    let found = broken(&|g| {
        let bias = g.store.tensors["blk.0.attn_norm.weight"].clone();
        g.store.tensors.insert("blk.0.attn_q.bias".into(), bias.clone());
        g.store.tensors.insert("blk.1.attn_q.bias".into(), bias);
    });
    assert!(found.contains("`blk.0.attn_q.bias` is not part of a `qwen3` model"), "{found}");
    assert!(found.contains("nor is `blk.1.attn_q.bias`"), "{found}");

    let found = broken(&|g| {
        let q = g.store.tensors["blk.0.attn_q.weight"].clone();
        g.store.tensors.insert("blk.0.attn_k.weight".into(), q);
    });
    assert!(
        found.contains("`blk.0.attn_k.weight` has shape [64, 64], expected [32, 64]"),
        "{found}"
    );

    let found = broken(&|g| {
        let norm = g.store.tensors["blk.0.attn_q_norm.weight"].clone();
        g.store.tensors.insert("blk.0.attn_norm.weight".into(), norm);
    });
    assert!(found.contains("`blk.0.attn_norm.weight` has 16 elements, expected 64"), "{found}");

    let found = broken(&|g| {
        let quantized = StoredTensor {
            shape: vec![64],
            dtype: DType::Q4_0,
            data: tenon_backend::TensorBytes::owned(vec![0; 36]),
        };
        g.store.tensors.insert("output_norm.weight".into(), quantized);
    });
    assert!(found.contains("`output_norm.weight` is a vector stored as Q4_0"), "{found}");
}

#[test]
fn stored_rope_factors_are_used() {
    let mut gguf = tiny(TinyArch::Llama);
    let plain = lower(gguf.clone()).unwrap().ropes[0].inv_freq.clone();
    let data: Vec<u8> = (0..8).flat_map(|i| (1.0 + i as f32).to_le_bytes()).collect();
    let factors = StoredTensor {
        shape: vec![8],
        dtype: DType::F32,
        data: tenon_backend::TensorBytes::owned(data),
    };
    gguf.store.tensors.insert("rope_freqs.weight".into(), factors);
    let scaled = lower(gguf).unwrap().ropes[0].inv_freq.clone();
    for i in 0..8 {
        assert!((plain[i] / (1.0 + i as f32) - scaled[i]).abs() < 1e-7);
    }
}

/// A complete tiny model whose metadata has one pair changed or added.
fn with_key(key: &str, value: WriteValue) -> Result<Program, String> {
    let mut writer = GgufWriter::default();
    let mut pairs = vec![
        ("general.architecture", WriteValue::Text("llama".into())),
        ("llama.block_count", WriteValue::U32(1)),
        ("llama.context_length", WriteValue::U32(128)),
        ("llama.embedding_length", WriteValue::U32(8)),
        ("llama.feed_forward_length", WriteValue::U32(8)),
        ("llama.attention.head_count", WriteValue::U32(2)),
        ("llama.attention.layer_norm_rms_epsilon", WriteValue::F32(1e-5)),
    ];
    pairs.retain(|(name, _)| *name != key);
    if value != WriteValue::Bool(false) {
        pairs.push((key, value));
    }
    for (name, value) in pairs {
        writer.key(name, value);
    }
    for (name, shape) in [
        ("token_embd.weight", vec![10, 8]),
        ("output_norm.weight", vec![8]),
        ("blk.0.attn_norm.weight", vec![8]),
        ("blk.0.attn_q.weight", vec![8, 8]),
        ("blk.0.attn_k.weight", vec![8, 8]),
        ("blk.0.attn_v.weight", vec![8, 8]),
        ("blk.0.attn_output.weight", vec![8, 8]),
        ("blk.0.ffn_norm.weight", vec![8]),
        ("blk.0.ffn_gate.weight", vec![8, 8]),
        ("blk.0.ffn_up.weight", vec![8, 8]),
        ("blk.0.ffn_down.weight", vec![8, 8]),
    ] {
        let len = shape.iter().product::<usize>() * 4;
        writer.tensor(name, &shape, DType::F32, &vec![0; len]);
    }
    lower(Gguf::from_bytes("keys.gguf", Arc::new(writer.finish())).unwrap())
}

#[test]
fn bad_numbers_name_their_key() {
    let missing = WriteValue::Bool(false);
    let u32 = WriteValue::U32;
    let text = |t: &str| WriteValue::Text(t.into());
    for (key, value, wanted) in [
        ("llama.block_count", missing.clone(), "`llama.block_count` is missing"),
        ("llama.block_count", u32(0), "`llama.block_count` is `0`, expected 1 to"),
        ("llama.block_count", u32(u32::MAX), "`llama.block_count` is `4294967295`"),
        ("llama.embedding_length", text("big"), "`llama.embedding_length` is of type Text"),
        ("llama.attention.head_count", u32(3), "`llama.attention.key_length` is missing"),
        ("llama.attention.head_count_kv", u32(0), "expected 1 to"),
        ("llama.attention.key_length", u32(3), "expected an even number"),
        ("llama.attention.value_length", u32(2), "`llama.attention.value_length` is `2`"),
        ("llama.rope.freq_base", WriteValue::F32(f32::NAN), "`llama.rope.freq_base` is `NaN`"),
        ("llama.rope.dimension_count", u32(6), "expected an even number up to 4"),
        ("llama.rope.scaling.type", text("longrope"), "is `longrope`, which is not supported"),
        ("llama.rope.scaling.type", text("yarn"), "`llama.rope.scaling.factor` is missing"),
        ("llama.expert_count", u32(8), "mixture-of-experts"),
        ("llama.vocab_size", u32(11), "has shape [10, 8], expected [11, 8]"),
        ("general.architecture", missing.clone(), "`general.architecture` is missing"),
        ("general.architecture", text("mamba"), "unknown architecture `mamba` (built in: llama"),
    ] {
        let found = with_key(key, value).unwrap_err();
        assert!(found.contains(wanted), "{found}\nwanted: {wanted}");
        assert!(found.contains("keys.gguf"), "{found}");
    }
    with_key("llama.vocab_size", WriteValue::U32(10)).unwrap();
}
