//! Safetensors checkpoints: the same tiny model in both formats gives the same logits, and every
//! transform of a weight-name rule undoes what a checkpoint did.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use tenon_backend::{
    Backend, DType, KvDType, PrepareOptions, Program, SeqSpan, StepInputs, TensorBytes, WeightMode,
};
use tenon_model::arch::{Slot, Transform};
use tenon_model::config_hf::HfConfig;
use tenon_model::gguf::Gguf;
use tenon_model::lower::lower;
use tenon_model::open::open_gguf;
use tenon_model::store::{StoredTensor, TensorStore};
use tenon_model::{ArchSpec, Format, ModelConfig, RopeScaling, TinyArch, TinyModel, open};
use tenon_reference::ReferenceBackend;

/// Logits after each of a few tokens.
fn logits(program: Program) -> Vec<f32> {
    let options = PrepareOptions {
        weights: WeightMode::Float32,
        kv_dtype: KvDType::F32,
        hybrid_kv: false,
        num_blocks: 2,
        block_size: 16,
        max_step_tokens: 32,
        max_logits_rows: 32,
        num_threads: 1,
    };
    let tokens: Vec<u32> = (0..20).map(|i| (i * 37 + 11) % 250).collect();
    let all: Vec<u32> = (0..20).collect();
    let span = SeqSpan {
        row: 0,
        token_start: 0,
        num_tokens: 20,
        context_len: 20,
        prompt_len: 20,
        table_start: 0,
        table_len: 2,
    };
    let inputs = StepInputs {
        token_ids: &tokens,
        positions: &all,
        slot_mapping: &all,
        seqs: &[span],
        block_tables: &[0, 1],
        logits_rows: &all,
        block_copies: &[],
    };
    let mut backend = ReferenceBackend::prepare(program, &options).unwrap();
    let ticket = backend.forward(&inputs).unwrap();
    backend.wait(ticket).unwrap().to_vec()
}

fn assert_close(found: &[f32], wanted: &[f32], tolerance: f32) {
    assert_eq!(found.len(), wanted.len());
    let spread = wanted.iter().fold(0f32, |m, v| m.max(v.abs()));
    assert!(spread > 1.0, "the model says something: {spread}");
    let worst = found.iter().zip(wanted).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
    assert!(worst <= tolerance, "off by {worst}");
}

fn tiny(arch: TinyArch) -> Gguf {
    Gguf::from_bytes("tiny.gguf", Arc::new(TinyModel::new(arch, 11).gguf())).unwrap()
}

fn gguf_logits(gguf: &Gguf) -> Vec<f32> {
    logits(open_gguf(gguf.clone(), None).unwrap().program)
}

fn floats(tensor: &StoredTensor) -> Vec<f32> {
    tensor.data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn stored(shape: &[usize], values: &[f32]) -> StoredTensor {
    let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    StoredTensor { shape: shape.to_vec(), dtype: DType::F32, data: TensorBytes::owned(data) }
}

/// Rows from interleaved pairs to halves, head by head.
fn to_halves(tensor: &StoredTensor, head_dim: usize) -> StoredTensor {
    let (rows, cols) = (tensor.shape[0], tensor.shape[1]);
    let values = floats(tensor);
    let mut out = Vec::new();
    for head in (0..rows).step_by(head_dim) {
        for first in [0, 1] {
            for row in (head + first..head + head_dim).step_by(2) {
                out.extend(&values[row * cols..(row + 1) * cols]);
            }
        }
    }
    stored(&tensor.shape, &out)
}

/// The tensors as a checkpoint has them, by the built-in spec's own two tables.
fn checkpoint_tensors(arch: TinyArch, gguf: &Gguf) -> BTreeMap<String, StoredTensor> {
    let spec = ArchSpec::built_in(arch.name()).unwrap();
    let (from, to) = (spec.gguf.unwrap().tensors, spec.safetensors.unwrap().tensors);
    let head_dim = TinyModel::new(arch, 0).head_dim;
    let mut out = BTreeMap::new();
    for (slot, rule) in &to {
        for layer in 0..2 {
            let name = |names: &[String]| names[0].replace("{layer}", &layer.to_string());
            let Some(tensor) = gguf.store.tensors.get(&name(&from[slot].names)) else { continue };
            let mut tensor = tensor.clone();
            if rule.transforms.contains(&Transform::AddOne) {
                let values: Vec<f32> = floats(&tensor).iter().map(|v| v - 1.0).collect();
                tensor = stored(&tensor.shape, &values);
            }
            if arch == TinyArch::Llama && matches!(slot, Slot::Q | Slot::K) {
                tensor = to_halves(&tensor, head_dim);
            }
            out.insert(name(&rule.names), tensor);
        }
    }
    out
}

fn config_json(arch: TinyArch) -> serde_json::Value {
    let (model, class, act) = match arch {
        TinyArch::Llama => (TinyModel::new(arch, 0), "LlamaForCausalLM", "silu"),
        TinyArch::Qwen2 => (TinyModel::new(arch, 0), "Qwen2ForCausalLM", "silu"),
        TinyArch::Qwen3 => (TinyModel::new(arch, 0), "Qwen3ForCausalLM", "silu"),
        TinyArch::Gemma3 => (TinyModel::new(arch, 0), "Gemma3ForCausalLM", "gelu_pytorch_tanh"),
    };
    let mut config = serde_json::json!({
        "architectures": [class],
        "hidden_act": act,
        "hidden_size": model.hidden,
        "num_hidden_layers": model.num_layers,
        "intermediate_size": model.ffn,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": model.max_position,
        "vocab_size": TinyModel::VOCAB,
        "tie_word_embeddings": arch == TinyArch::Gemma3,
        "transformers_version": "unknown fields are ignored",
    });
    if arch == TinyArch::Gemma3 {
        config["sliding_window"] = model.window.into();
        config["layer_types"] = serde_json::json!(["sliding_attention", "full_attention"]);
        config["query_pre_attn_scalar"] = model.head_dim.into();
        config["rope_local_base_freq"] = serde_json::json!(10000.0);
    }
    config
}

/// A safetensors file: a JSON header, then the data.
fn safetensors(tensors: &BTreeMap<String, StoredTensor>, dtype: &str) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, tensor) in tensors {
        let start = data.len();
        match dtype {
            "F32" => data.extend_from_slice(&tensor.data),
            "BF16" => floats(tensor)
                .iter()
                .for_each(|&v| data.extend(half::bf16::from_f32(v).to_le_bytes())),
            _ => floats(tensor)
                .iter()
                .for_each(|&v| data.extend(half::f16::from_f32(v).to_le_bytes())),
        }
        let offsets = [start, data.len()];
        let entry =
            serde_json::json!({"dtype": dtype, "shape": tensor.shape, "data_offsets": offsets});
        header.insert(name.clone(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

fn write_checkpoint(dir: &Path, config: &serde_json::Value, weights: &[u8]) {
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    std::fs::write(dir.join("model.safetensors"), weights).unwrap();
}

fn open_dir(dir: &Path) -> Result<Program, String> {
    open(dir, None).map(|m| m.program).map_err(|e| e.to_string())
}

#[test]
fn both_formats_of_a_model_agree() {
    for arch in TinyArch::ALL {
        let gguf = tiny(arch);
        let wanted = gguf_logits(&gguf);
        let tensors = checkpoint_tensors(arch, &gguf);
        let dir = tempfile::tempdir().unwrap();
        for (dtype, tolerance) in [("F32", 1e-3), ("F16", 0.1), ("BF16", 0.5)] {
            write_checkpoint(dir.path(), &config_json(arch), &safetensors(&tensors, dtype));
            println!("{arch:?} {dtype}");
            assert_close(&logits(open_dir(dir.path()).unwrap()), &wanted, tolerance);
        }
    }
}

#[test]
fn shards_are_one_model() {
    let gguf = tiny(TinyArch::Qwen3);
    let mut first = checkpoint_tensors(TinyArch::Qwen3, &gguf);
    let second = first.split_off("model.layers.1");
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    write("config.json", config_json(TinyArch::Qwen3).to_string().as_bytes());
    let index = |other: &str| {
        let names = first.keys().map(|n| (n, "a.safetensors"));
        let map: BTreeMap<_, _> = names.chain(second.keys().map(|n| (n, other))).collect();
        serde_json::json!({"metadata": {}, "weight_map": map}).to_string()
    };
    write("a.safetensors", &safetensors(&first, "F32"));
    write("b.safetensors", &safetensors(&second, "F32"));
    write("model.safetensors.index.json", index("b.safetensors").as_bytes());
    assert_close(&logits(open_dir(dir.path()).unwrap()), &gguf_logits(&gguf), 1e-3);

    write("model.safetensors.index.json", index("../b.safetensors").as_bytes());
    let found = open_dir(dir.path()).unwrap_err();
    assert!(found.contains("shard `../b.safetensors` is not a plain file name"), "{found}");
    write("model.safetensors.index.json", index("a.safetensors").as_bytes());
    let found = open_dir(dir.path()).unwrap_err();
    assert!(found.contains("is not in `a.safetensors`, where the index puts it"), "{found}");
}

#[test]
fn text_models_inside_multimodal_checkpoints_are_found() {
    let gguf = tiny(TinyArch::Gemma3);
    let mut tensors: BTreeMap<String, StoredTensor> = checkpoint_tensors(TinyArch::Gemma3, &gguf)
        .into_iter()
        .map(|(name, tensor)| (format!("language_model.{name}"), tensor))
        .collect();
    tensors.insert("vision_tower.patch.weight".into(), stored(&[1], &[0.0]));
    let outer = serde_json::json!({
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": config_json(TinyArch::Gemma3),
        "hidden_size": 3,
    });
    let dir = tempfile::tempdir().unwrap();
    write_checkpoint(dir.path(), &outer, &safetensors(&tensors, "F32"));
    assert_close(&logits(open_dir(dir.path()).unwrap()), &gguf_logits(&gguf), 1e-3);
}

/// The built-in spec of tiny llama with some lines of its `[gguf]` part replaced.
fn changed_spec(changes: &[(&str, &str)]) -> ArchSpec {
    let mut text = include_str!("../arch/llama.toml").to_string();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    ArchSpec::from_toml("changed.toml", &text).unwrap()
}

fn lower_changed(spec: &ArchSpec, gguf: &Gguf) -> Result<Program, String> {
    let config = ModelConfig::from_gguf(spec, gguf).unwrap();
    lower("changed", spec, Format::Gguf, &config, &gguf.store).map_err(|e| e.to_string())
}

#[test]
fn permute_qk_turns_interleaved_heads_into_halves() {
    let mut gguf = tiny(TinyArch::Llama);
    // With biases, which are permuted alike.
    for layer in 0..2 {
        for (part, len) in [("q", 64), ("k", 32), ("v", 32)] {
            let values: Vec<f32> = (0..len).map(|i| (i as f32 * 0.7).sin()).collect();
            let name = format!("blk.{layer}.attn_{part}.bias");
            gguf.store.tensors.insert(name, stored(&[len], &values));
        }
    }
    let q = r#""blk.{layer}.attn_q.weight""#;
    let k = r#""blk.{layer}.attn_k.weight""#;
    let (qb, kb) = (r#""blk.{layer}.attn_q.bias""#, r#""blk.{layer}.attn_k.bias""#);
    let rule = |name: &str| format!(r#"{{ name = {name}, transforms = ["permute_qk"] }}"#);
    let spec = changed_spec(&[
        (r#"rope_style = "interleaved""#, r#"rope_style = "half""#),
        (q, &rule(q)),
        (k, &rule(k)),
        (qb, &rule(qb)),
        (kb, &rule(kb)),
    ]);
    let found = logits(lower_changed(&spec, &gguf).unwrap());
    assert_close(&found, &gguf_logits(&gguf), 1e-3);
}

#[test]
fn fused_stacked_and_transposed_weights_are_taken_apart() {
    let mut gguf = tiny(TinyArch::Llama);
    let wanted = gguf_logits(&gguf);
    let tensors = &mut gguf.store.tensors;
    for layer in 0..2 {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let mut take = |part: &str| tensors.remove(&name(part)).unwrap();
        let join = |parts: &[StoredTensor]| {
            let values: Vec<f32> = parts.iter().flat_map(floats).collect();
            let rows = parts.iter().map(|p| p.shape[0]).sum();
            stored(&[rows, parts[0].shape[1]], &values)
        };
        let qkv = join(&[take("attn_q"), take("attn_k"), take("attn_v")]);
        let gate_up = join(&[take("ffn_gate"), take("ffn_up")]);
        let down = take("ffn_down");
        let (rows, cols) = (down.shape[0], down.shape[1]);
        let values = floats(&down);
        let turned: Vec<f32> = (0..cols)
            .flat_map(|c| (0..rows).map(move |r| (r, c)))
            .map(|(r, c)| values[r * cols + c])
            .collect();
        let output = take("attn_output");
        let (top, bottom) =
            (floats(&output)[..32 * 64].to_vec(), floats(&output)[32 * 64..].to_vec());
        tensors.insert(name("qkv"), qkv);
        tensors.insert(name("gate_up"), gate_up);
        tensors.insert(name("down_t"), stored(&[cols, rows], &turned));
        tensors.insert(name("o_top"), stored(&[32, 64], &top));
        tensors.insert(name("o_bottom"), stored(&[32, 64], &bottom));
    }
    let fused = |old: &str, new: &str, part: &str| {
        let from = format!(r#""blk.{{layer}}.{old}.weight""#);
        let to = format!(r#"{{ name = "blk.{{layer}}.{new}.weight", split = "{part}" }}"#);
        (from, to)
    };
    let mut changes = vec![
        fused("attn_q", "qkv", "q"),
        fused("attn_k", "qkv", "k"),
        fused("attn_v", "qkv", "v"),
        fused("ffn_gate", "gate_up", "gate"),
        fused("ffn_up", "gate_up", "up"),
    ];
    changes.push((
        r#""blk.{layer}.ffn_down.weight""#.into(),
        r#"{ name = "blk.{layer}.down_t.weight", transforms = ["transpose"] }"#.into(),
    ));
    changes.push((
        r#""blk.{layer}.attn_output.weight""#.into(),
        r#"{ stack = ["blk.{layer}.o_top.weight", "blk.{layer}.o_bottom.weight"] }"#.into(),
    ));
    let changes: Vec<(&str, &str)> = changes.iter().map(|(a, b)| (&a[..], &b[..])).collect();
    let spec = changed_spec(&changes);
    assert_eq!(logits(lower_changed(&spec, &gguf).unwrap()), wanted);

    let short = gguf.store.tensors["blk.0.o_top.weight"].clone();
    gguf.store.tensors.insert("blk.0.qkv.weight".into(), short);
    let found = lower_changed(&spec, &gguf).unwrap_err();
    assert!(found.contains("`blk.0.qkv.weight` has 32 rows, expected 128"), "{found}");
}

#[test]
fn specs_with_mistakes_say_which() {
    let text = include_str!("../arch/llama.toml");
    let check = |from: &str, to: &str, wanted: &str| {
        assert!(text.contains(from), "{from}");
        let changed = text.replacen(from, to, 1);
        let found = ArchSpec::from_toml("mine.toml", &changed).unwrap_err().to_string();
        assert!(found.contains("mine.toml") && found.contains(wanted), "{found}\nwanted: {wanted}");
    };
    check("embed = \"token_embd.weight\"\n", "", "[gguf.tensors] has no `Embed`");
    check("embed = \"token_embd.weight\"", "embed = \"{layer}\"", "must not contain `{layer}`");
    check("blk.{layer}.attn_q.weight", "blk.0.attn_q.weight", "must contain `{layer}`");
    check("q_bias = ", "q_norm = ", "[gguf.tensors] has no `QBias`");
    check("[rope]", "[rope]\nbase = 3", "unknown field `base`");
    check("\"silu\"", "\"relu\"", "unknown variant `relu`");
    check("rope_factors = ", "k_norm = ", "`KNorm`, which [block] turns off");
    check("[gguf.tensors]", "[gguf.keys]\nwidth = \"w\"\n[gguf.tensors]", "unknown number `width`");
}

fn hf(changes: serde_json::Value) -> Result<ModelConfig, String> {
    let mut config = config_json(TinyArch::Llama);
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    let hf = HfConfig::parse("config.json", config.to_string().as_bytes()).unwrap();
    let spec =
        ArchSpec::for_architecture("config.json", Format::Safetensors, hf.architecture().unwrap());
    spec.and_then(|spec| ModelConfig::from_hf(&spec, &hf)).map_err(|e| e.to_string())
}

#[test]
fn config_json_spellings() {
    let llama3 = serde_json::json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_theta": 500000.0,
    });
    let wanted = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8192.0,
    };
    let old = hf(serde_json::json!({"rope_scaling": llama3, "rope_theta": 500000.0})).unwrap();
    let new = hf(serde_json::json!({"rope_parameters": llama3, "rope_theta": null})).unwrap();
    assert_eq!((old.rope_scaling, old.rope_theta), (wanted, 500_000.0));
    assert_eq!(old, new);
    let yarn = serde_json::json!({"type": "yarn", "factor": 4.0});
    let yarn = hf(serde_json::json!({"rope_scaling": yarn})).unwrap().rope_scaling;
    assert!(
        matches!(yarn, RopeScaling::Yarn { original_context, .. } if original_context == 2048.0)
    );

    let windows = |changes| hf(changes).unwrap().windows;
    let qwen = |uses: bool| {
        serde_json::json!({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 9,
            "use_sliding_window": uses, "max_window_layers": 1})
    };
    assert_eq!(windows(qwen(false)), [None, None]);
    assert_eq!(windows(qwen(true)), [None, Some(9)]);
    let mistral = serde_json::json!({"architectures": ["MistralForCausalLM"], "sliding_window": 9});
    assert_eq!(windows(mistral), [Some(9), Some(9)]);
    let partial = hf(serde_json::json!({"partial_rotary_factor": 0.5})).unwrap();
    assert_eq!(partial.rope_dims, 8);
}

#[test]
fn bad_config_fields_are_named() {
    for (changes, wanted) in [
        (serde_json::json!({"hidden_size": null}), "`hidden_size` is missing"),
        (serde_json::json!({"hidden_size": -4}), "`hidden_size` is `-4`, expected a whole number"),
        (serde_json::json!({"num_hidden_layers": 1e300}), "`num_hidden_layers` is `1e+300`"),
        (serde_json::json!({"num_key_value_heads": 3}), "which does not divide 4 heads"),
        (serde_json::json!({"hidden_act": "relu2"}), "`hidden_act` is `\"relu2\"`"),
        (serde_json::json!({"rope_scaling": {"type": "dynamic"}}), "is `dynamic`, which is not"),
        (
            serde_json::json!({"rope_scaling": {"type": "linear"}}),
            "`rope_scaling.factor` is missing",
        ),
        (serde_json::json!({"layer_types": ["full_attention"]}), "has 1 entries, expected 2"),
        (serde_json::json!({"quantization_config": {"bits": 4}}), "`quantization_config` is set"),
        (serde_json::json!({"num_local_experts": 8}), "`num_local_experts` is set"),
        (
            serde_json::json!({"architectures": ["MambaForCausalLM"]}),
            "`MambaForCausalLM` (built in",
        ),
    ] {
        let found = hf(changes).unwrap_err();
        assert!(
            found.contains(wanted) && found.contains("config.json"),
            "{found}\nwanted: {wanted}"
        );
    }
}

#[test]
fn unsupported_element_types_are_named() {
    let header = br#"{"w":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[0, 0]].concat();
    let found = tenon_model::safetensors::read("m.safetensors", Arc::new(bytes)).unwrap_err();
    assert!(found.to_string().contains("`w` is stored as F8_E4M3"), "{found}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1024,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    // Cut anywhere or changed anywhere: an error, or tensors inside the file.
    #[test]
    fn damaged_safetensors_never_panic(
        cut in any::<prop::sample::Index>(),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let tensors = BTreeMap::from([
            ("a".to_string(), stored(&[2, 3], &[1.0; 6])),
            ("b".to_string(), stored(&[4], &[2.0; 4])),
        ]);
        let mut bytes = safetensors(&tensors, "F32");
        for (at, value) in &flips {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        let len = cut.index(bytes.len() + 1);
        let is_whole = len == bytes.len();
        bytes.truncate(len);
        let found = tenon_model::safetensors::read("m.safetensors", Arc::new(bytes));
        prop_assert!(is_whole || !flips.is_empty() || found.is_err());
        for tensor in found.iter().flat_map(BTreeMap::values) {
            prop_assert!(tensor.data.len() <= len);
        }
    }

    #[test]
    fn damaged_config_never_panics(at in any::<prop::sample::Index>(), value in any::<u8>()) {
        let mut bytes = config_json(TinyArch::Gemma3).to_string().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = value;
        if let Ok(hf) = HfConfig::parse("config.json", &bytes) {
            let spec = ArchSpec::built_in("gemma3").unwrap();
            let _ = ModelConfig::from_hf(&spec, &hf);
        }
    }
}

#[test]
fn stores_may_be_lowered_directly() {
    let gguf = tiny(TinyArch::Gemma3);
    let tensors = checkpoint_tensors(TinyArch::Gemma3, &gguf);
    let store = TensorStore { file: "memory".into(), tensors };
    let hf = HfConfig::parse("c", config_json(TinyArch::Gemma3).to_string().as_bytes()).unwrap();
    let spec = ArchSpec::built_in("gemma3").unwrap();
    let config = ModelConfig::from_hf(&spec, &hf).unwrap();
    let program = lower("tiny", &spec, Format::Safetensors, &config, &store).unwrap();
    assert_close(&logits(program), &gguf_logits(&gguf), 1e-3);
}
