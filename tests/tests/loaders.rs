//! Whole models on disk, as a person has them: a GGUF file, or a directory with safetensors, a
//! tokenizer and a template. Damaged ones give an error that names the file.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use tenon_model::{ArchChoice, TinyArch, TinyModel};
use tenon_runner::load::{LoadOptions, LoadedModel, load_model};
use tenon_text::{Bos, Specials};

fn load(path: &Path) -> Result<LoadedModel, String> {
    load_model(path, &LoadOptions::default()).map_err(|e| e.to_string())
}

fn tiny_file(dir: &Path, arch: TinyArch) -> std::path::PathBuf {
    let path = dir.join("tiny-chat.gguf");
    fs::write(&path, TinyModel::new(arch, 5).gguf()).unwrap();
    path
}

#[test]
fn a_gguf_file_brings_everything() {
    let dir = tempfile::tempdir().unwrap();
    for arch in TinyArch::ALL {
        let model = load(&tiny_file(dir.path(), arch)).unwrap();
        assert_eq!(model.name, "tiny-chat");
        assert_eq!(model.max_model_len, 2048);
        assert_eq!(model.eos_token_ids[0], TinyModel::IM_END);
        assert!(model.eos_token_ids.contains(&TinyModel::EOS));
        assert_eq!(model.program.vocab_size(), model.tokenizer.vocab_size());
        assert!(model.summary.starts_with(arch.name()), "{}", model.summary);
        assert!(model.chat_template.is_some_and(|t| t.contains("<|im_start|>")));
    }
}

#[test]
fn the_tiny_vocabulary_round_trips() {
    let dir = tempfile::tempdir().unwrap();
    let model = load(&tiny_file(dir.path(), TinyArch::Llama)).unwrap();
    let encode = |text: &str| model.tokenizer.encode(text, Specials::Parse, Bos::Skip).unwrap();
    assert!(encode("the station and the rain").len() < 16, "merges are used");
    for text in ["the station and the rain", "Grüße 🌍\n\t", "<|im_start|>user\nhi<|im_end|>"] {
        let ids = encode(text);
        assert_eq!(model.tokenizer.decode(&ids, false).unwrap(), text);
    }
}

#[test]
fn a_persons_template_wins() {
    let dir = tempfile::tempdir().unwrap();
    let path = tiny_file(dir.path(), TinyArch::Llama);
    let template = dir.path().join("mine.jinja");
    let options =
        LoadOptions { chat_template_path: Some(template.clone()), ..LoadOptions::default() };
    let found = load_model(&path, &options).unwrap_err().to_string();
    assert!(found.contains("mine.jinja"), "{found}");
    fs::write(&template, "{{ messages }}").unwrap();
    let model = load_model(&path, &options).unwrap();
    assert_eq!(model.chat_template.as_deref(), Some("{{ messages }}"));
}

#[test]
fn an_architecture_may_be_named_or_described() {
    let dir = tempfile::tempdir().unwrap();
    let path = tiny_file(dir.path(), TinyArch::Llama);
    let with = |arch: &str| {
        let arch_override = Some(ArchChoice::parse(arch));
        let options = LoadOptions { arch_override, ..LoadOptions::default() };
        load_model(&path, &options).map(|m| m.summary).map_err(|e| e.to_string())
    };
    with("llama").unwrap();
    let found = with("qwen3").unwrap_err();
    assert!(found.contains("`blk.0.attn_q_norm.weight` is missing"), "{found}");
    let found = with("mamba").unwrap_err();
    assert!(found.contains("`mamba`: is not built in (llama, "), "{found}");
    let spec = dir.path().join("mine.toml");
    let built_in = include_str!("../../host/model/arch/llama.toml");
    fs::write(&spec, built_in.replace("name = \"llama\"", "name = \"mine\"")).unwrap();
    assert!(with(spec.to_str().unwrap()).unwrap().starts_with("mine, 2 layers"));
    let found = with(dir.path().join("none.toml").to_str().unwrap()).unwrap_err();
    assert!(found.contains("none.toml"), "{found}");
}

/// The files of a checkpoint with a byte-level tokenizer of 256 bytes and two specials.
fn write_checkpoint(dir: &Path) {
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "num_hidden_layers": 1,
        "intermediate_size": 8, "num_attention_heads": 2, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64, "vocab_size": 260, "eos_token_id": 256,
    });
    let layer = "model.layers.0.";
    let mut names = vec![
        ("model.embed_tokens.weight".to_string(), vec![260, 8]),
        ("lm_head.weight".to_string(), vec![260, 8]),
        ("model.norm.weight".to_string(), vec![8]),
        (format!("{layer}input_layernorm.weight"), vec![8]),
        (format!("{layer}post_attention_layernorm.weight"), vec![8]),
    ];
    for part in ["self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o"] {
        names.push((format!("{layer}{part}_proj.weight"), vec![8, 8]));
    }
    for part in ["mlp.gate", "mlp.up", "mlp.down"] {
        names.push((format!("{layer}{part}_proj.weight"), vec![8, 8]));
    }
    let (mut header, mut end) = (serde_json::Map::new(), 0usize);
    for (name, shape) in names {
        let start = end;
        end += shape.iter().product::<usize>() * 2;
        let info =
            serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]});
        header.insert(name, info);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let weights = [&(header.len() as u64).to_le_bytes()[..], &header, &vec![0x3d; end]].concat();
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    fs::write(dir.join("model.safetensors"), weights).unwrap();
    fs::write(dir.join("tokenizer.json"), tokenizer_json().to_string()).unwrap();
}

fn tokenizer_json() -> serde_json::Value {
    // GPT-2's table: printable bytes stand for themselves, the others from U+0100 on.
    let mut next = 256;
    let symbol = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => {
            next += 1;
            char::from_u32(next - 1).unwrap()
        }
    };
    let vocab: serde_json::Map<String, serde_json::Value> =
        (0..=255u8).map(symbol).zip(0..).map(|(c, id)| (c.to_string(), id.into())).collect();
    let added = |id: u32, text: &str| {
        serde_json::json!({"id": id, "content": text, "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false})
    };
    let byte_level = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false,
        "trim_offsets": true, "use_regex": true});
    serde_json::json!({
        "version": "1.0",
        "added_tokens": [added(256, "<|end|>"), added(257, "<|turn|>")],
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

#[test]
fn a_checkpoint_directory_brings_everything() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write_checkpoint(dir.path());
    let model = load(dir.path()).unwrap();
    assert_eq!(model.eos_token_ids[0], 256, "of config.json");
    assert_eq!(model.chat_template, None);
    assert_eq!(model.max_model_len, 64);
    let ids = model.tokenizer.encode("hi<|turn|>", Specials::Parse, Bos::Default).unwrap();
    assert_eq!(ids, [u32::from(b'h'), u32::from(b'i'), 257]);

    write("generation_config.json", r#"{"eos_token_id": [257, 256, 9999]}"#);
    let named = r#"[{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]"#;
    write("tokenizer_config.json", &format!(r#"{{"chat_template": {named}}}"#));
    let model = load(dir.path()).unwrap();
    assert_eq!(model.eos_token_ids, [257, 256], "of generation_config.json, inside the vocabulary");
    assert_eq!(model.chat_template.as_deref(), Some("D"));
    write("chat_template.jinja", "J");
    assert_eq!(load(dir.path()).unwrap().chat_template.as_deref(), Some("J"));

    write("generation_config.json", r#"{"eos_token_id": "end"}"#);
    let found = load(dir.path()).unwrap_err();
    assert!(found.contains("generation_config.json`: `eos_token_id` is `\"end\"`"), "{found}");
}

#[test]
fn missing_and_damaged_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let found = load(&dir.path().join("none.gguf")).unwrap_err();
    assert!(found.contains("none.gguf"), "{found}");
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        write_checkpoint(dir.path());
        fs::write(dir.path().join(name), "{").unwrap();
        let found = load(dir.path()).unwrap_err();
        assert!(found.contains(name) || found.contains("tokenizer"), "{name}: {found}");
        fs::remove_file(dir.path().join(name)).unwrap();
        let found = load(dir.path()).unwrap_err();
        assert!(found.contains(name), "{name}: {found}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    // A damaged file either loads (the damage hit weights or texts) or says why not.
    #[test]
    fn damaged_files_never_panic(
        flips in proptest::collection::vec((0usize..12_000, any::<u8>()), 1..5)
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = TinyModel::new(TinyArch::Qwen2, 1).gguf();
        for (at, value) in flips {
            bytes[at] = value;
        }
        let path = dir.path().join("damaged.gguf");
        fs::write(&path, bytes).unwrap();
        if let Err(error) = load(&path) {
            prop_assert!(error.contains("damaged.gguf"), "{error}");
        }
    }
}
