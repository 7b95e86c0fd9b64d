//! Tokenizers of real models against reference ids from another engine. A model that is not in
//! `~/.cache/tenon/models` is skipped with a message (`cargo xtask fetch-models` gets them).
#![allow(clippy::unwrap_used)]

mod token_groups;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tenon_model::Gguf;
use tenon_text::{
    Bos, Detokenized, Detokenizer, DetokenizerOptions, GgufVocab, Specials, Tokenizer,
};

fn models() -> PathBuf {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    std::env::var_os("TENON_MODELS").map_or_else(|| home.join(".cache/tenon/models"), PathBuf::from)
}

/// Every tokenizer key of a GGUF file.
fn vocab(gguf: &Gguf) -> GgufVocab {
    let meta = &gguf.metadata;
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let text = |name: &str| meta.text(&key(name)).unwrap().map(String::from);
    let id = |name: &str| meta.u64(&key(name)).unwrap().map(|id| id as u32);
    let flag = |name: &str| meta.bool(&key(name)).unwrap();
    let types = meta.ints(&key("token_type")).unwrap();
    GgufVocab {
        model: text("model").unwrap(),
        pre: text("pre"),
        tokens: meta.texts(&key("tokens")).unwrap().unwrap(),
        scores: meta.floats(&key("scores")).unwrap(),
        token_types: types.map(|types| types.iter().map(|&t| t as u32).collect()),
        merges: meta.texts(&key("merges")).unwrap(),
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        eot: id("eot_token_id"),
        eom: id("eom_token_id"),
        unk: id("unknown_token_id"),
        pad: id("padding_token_id"),
        add_bos: flag("add_bos_token"),
        add_eos: flag("add_eos_token"),
        add_space_prefix: flag("add_space_prefix"),
    }
}

fn ids(case: &serde_json::Value, name: &str) -> Vec<u32> {
    let list = case[name].as_array().unwrap_or_else(|| panic!("`{name}` of {case}"));
    list.iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn decode_in_pieces(tokenizer: &Arc<Tokenizer>, ids: &[u32], at_text_start: bool) -> String {
    let options = DetokenizerOptions { at_text_start, ..Default::default() };
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), options);
    let mut text = String::new();
    let mut piece = Detokenized::default();
    for &id in ids {
        piece.clear();
        detokenizer.push(id, &mut piece).unwrap();
        text.push_str(&piece.text);
    }
    piece.clear();
    detokenizer.flush(&mut piece);
    text + &piece.text
}

/// The file, or another quantization of the model: the vocabulary is the same.
fn find(file: &str) -> Option<PathBuf> {
    let stem = file.strip_suffix(".F32deq.gguf").unwrap_or(file);
    let names = std::fs::read_dir(models()).ok()?.filter_map(|entry| entry.ok());
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(stem) && name.ends_with(".gguf")
    };
    names.map(|entry| entry.path()).find(is_it)
}

fn check(reference: &Path) {
    let reference: serde_json::Value =
        serde_json::from_slice(&std::fs::read(reference).unwrap()).unwrap();
    let file = reference["model_file"].as_str().unwrap();
    let Some(path) = find(file) else {
        println!("skipped: `{file}` is not in `{}`", models().display());
        return;
    };
    let vocab = vocab(&Gguf::open(&path).unwrap());
    let begin = Instant::now();
    let tokenizer = Arc::new(Tokenizer::from_gguf(vocab).unwrap());
    println!("{file}: {tokenizer:?} in {:?}", begin.elapsed());
    for case in reference["tokenizer_cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let plain = tokenizer.encode(text, Specials::AsText, Bos::Skip).unwrap();
        assert_eq!(plain, ids(case, "ids_plain"), "{file}: as text: {text:?}");
        let special = tokenizer.encode(text, Specials::Parse, Bos::Default).unwrap();
        assert_eq!(special, ids(case, "ids_special"), "{file}: with specials: {text:?}");
        assert_eq!(tokenizer.decode(&plain, false).unwrap(), text, "{file}");
        assert_eq!(decode_in_pieces(&tokenizer, &plain, true), text, "{file}");
    }
    for prompt in reference["prompts"].as_array().unwrap() {
        let output = ids(prompt, "generated_ids");
        let (text, prompt_ids) = (prompt["text_out"].as_str(), ids(prompt, "prompt_ids"));
        let start = Detokenizer::starts_text(&tokenizer, &prompt_ids);
        let got = decode_in_pieces(&tokenizer, &output, start);
        if let Some(text) = text {
            // The reference stops before a character that the token limit cut.
            let got = got.strip_suffix('\u{fffd}').unwrap_or(&got);
            assert_eq!(got, text.trim_end_matches('\u{fffd}'), "{file}");
        }
    }
}

#[test]
fn ids_are_those_of_the_reference() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases/reference");
    let mut num = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "json") {
            check(&path);
            num += 1;
        }
    }
    assert!(num >= 7, "`{num}` reference files");
}
