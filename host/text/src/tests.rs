//! Every kind of tokenizer over random text: round trips, chunk-free detokenizing, bounds.
#![allow(clippy::unwrap_used)]
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use crate::*;

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|t| t.to_string()).collect()
}

fn scripts() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::byte_level_for_scripts(&texts(&["<|end|>", "<tool>"])))
}

/// Sentencepiece as a GGUF file has it: `<unk>`, `<s>`, `</s>`, bytes, words; ` ` stands for `▁`.
fn sentencepiece() -> GgufVocab {
    let mut tokens = texts(&["<unk>", "<s>", "</s>"]);
    let mut types = vec![2, 3, 3];
    tokens.extend((0..256).map(|b| format!("<0x{b:02X}>")));
    types.extend([6; 256]);
    for word in ["▁", "a", "b", "ab", "▁a", "▁ab", "▁▁", "é"] {
        tokens.push(word.into());
        types.push(1);
    }
    tokens.push("<tool>".into());
    types.push(4);
    let scores = (0..tokens.len()).map(|i| -(i as f32)).collect();
    GgufVocab {
        model: "llama".into(),
        tokens,
        scores: Some(scores),
        token_types: Some(types),
        bos: Some(1),
        eos: Some(2),
        unk: Some(0),
        ..GgufVocab::default()
    }
}

fn in_pieces(tokenizer: &Arc<Tokenizer>, ids: &[u32], options: DetokenizerOptions) -> Detokenized {
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), options);
    let (mut all, mut piece) = (Detokenized::default(), Detokenized::default());
    for &id in ids {
        piece.clear();
        detokenizer.push(id, &mut piece).unwrap();
        let base = all.text.len() as u32;
        all.text.push_str(&piece.text);
        all.specials
            .extend(piece.specials.iter().map(|s| SpecialSpan { start: s.start + base, ..*s }));
    }
    piece.clear();
    detokenizer.flush(&mut piece);
    all.text.push_str(&piece.text);
    all
}

/// Ids of the script vocabulary, with many lead and continuation bytes.
fn any_token() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..256, 0xe2u32..0xf5, 0x80u32..0xc0, 256u32..258]
}

proptest! {
    #[test]
    fn every_text_round_trips(text in any::<String>()) {
        let tokenizer = scripts();
        let ids = tokenizer.encode(&text, Specials::AsText, Bos::Default).unwrap();
        prop_assert_eq!(ids.len(), text.len());
        prop_assert_eq!(tokenizer.decode(&ids, true).unwrap(), text.clone());
        let spm = Tokenizer::from_gguf(sentencepiece()).unwrap();
        let ids = spm.encode(&text, Specials::AsText, Bos::Skip).unwrap();
        prop_assert_eq!(spm.decode(&ids, false).unwrap(), text.replace('\u{2581}', " "));
    }

    /// Any ids, valid UTF-8 or not: the pieces are the lossy text of all bytes.
    #[test]
    fn pieces_are_the_text_of_all_bytes(
        ids in prop::collection::vec(any_token(), 0..24),
        skip in any::<bool>(),
        keep in any::<bool>(),
    ) {
        let tokenizer = scripts();
        let shown = |id: &u32| *id < 256 || !skip || keep && *id == 257;
        let kept: Vec<u32> = ids.iter().copied().filter(shown).collect();
        let bytes: Vec<u8> =
            kept.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap().to_vec()).collect();
        let keep = if keep { vec![257] } else { vec![] };
        let options = DetokenizerOptions { skip_special_tokens: skip, keep, at_text_start: true };
        let got = in_pieces(&tokenizer, &ids, options);
        prop_assert_eq!(&got.text, &String::from_utf8_lossy(&bytes));
        let spans: Vec<u32> = got.specials.iter().map(|s| s.id).collect();
        prop_assert_eq!(spans, kept.into_iter().filter(|&id| id >= 256).collect::<Vec<_>>());
        for span in &got.specials {
            let text = &got.text[span.start as usize..(span.start + span.len) as usize];
            prop_assert_eq!(text.as_bytes(), tokenizer.token_bytes(span.id).unwrap());
        }
    }

    #[test]
    fn arbitrary_ids_are_decoded_or_refused(ids in prop::collection::vec(any::<u32>(), 0..8)) {
        let error = scripts().decode(&ids, false).err().map(|e| e.to_string());
        let bad = ids.iter().find(|&&id| id >= 258);
        prop_assert_eq!(error.is_some(), bad.is_some());
        if let (Some(error), Some(bad)) = (error, bad) {
            prop_assert!(error.contains(&format!("`{bad}`")), "{}", error);
        }
    }
}

#[test]
fn special_tokens_are_parsed_only_when_asked() {
    let tokenizer = scripts();
    let parsed = tokenizer.encode("a<tool>b<|end|>", Specials::Parse, Bos::Default).unwrap();
    assert_eq!(parsed, [97, 257, 98, 256]);
    let text = tokenizer.encode("<tool>", Specials::AsText, Bos::Default).unwrap();
    assert_eq!(text.len(), 6);
    assert_eq!(tokenizer.token_id("<tool>"), Some(257));
    assert_eq!((tokenizer.eos(), tokenizer.end_tokens()), (Some(256), &[256][..]));
    assert_eq!(tokenizer.decode(&parsed, true).unwrap(), "ab");
}

#[test]
fn sentencepiece_prefers_scores_and_falls_back_to_bytes() {
    let tokenizer = Arc::new(Tokenizer::from_gguf(sentencepiece()).unwrap());
    let id = |text: &str| tokenizer.token_id(text).unwrap();
    let encode = |text: &str| tokenizer.encode(text, Specials::Parse, Bos::Default).unwrap();
    // `ab` has a better score than ` a`; then both join.
    assert_eq!(encode("ab"), [1, id(" ab")]);
    assert_eq!(encode("é中"), [1, id(" "), id("é"), 3 + 0xe4, 3 + 0xb8, 3 + 0xad]);
    // User-defined tokens are found in any text, and a section begins behind them.
    let tool = id("<tool>");
    let plain = tokenizer.encode("a<tool>b", Specials::AsText, Bos::Skip).unwrap();
    assert_eq!(plain, [id(" a"), tool, id(" "), id("b")]);
    // The leading space goes only where the text starts.
    let begin = DetokenizerOptions { at_text_start: true, ..DetokenizerOptions::default() };
    assert_eq!(in_pieces(&tokenizer, &encode("ab")[1..], begin).text, "ab");
    let later = DetokenizerOptions::default();
    assert_eq!(in_pieces(&tokenizer, &encode("ab")[1..], later).text, " ab");
    assert!(Detokenizer::starts_text(&tokenizer, &[1]));
    assert!(!Detokenizer::starts_text(&tokenizer, &[1, id("a")]));
}

#[test]
fn damaged_vocabularies_are_named() {
    let change = |change: &dyn Fn(&mut GgufVocab)| {
        let mut vocab = sentencepiece();
        change(&mut vocab);
        Tokenizer::from_gguf(vocab).unwrap_err().to_string()
    };
    assert!(change(&|v| v.model = "rwkv".into()).contains("`rwkv`"));
    assert!(change(&|v| v.scores = None).contains("`scores` is missing"));
    assert!(change(&|v| v.scores.as_mut().unwrap()[7] = f32::NAN).contains("token 7"));
    assert!(change(&|v| v.tokens.clear()).contains("0 entries"));
    assert!(change(&|v| v.eos = Some(1 << 30)).contains("`eos_token_id`"));
    assert!(change(&|v| v.token_types.as_mut().unwrap().push(1)).contains("`token_type`"));
    let bpe = |v: &mut GgufVocab| (v.model, v.pre) = ("gpt2".into(), Some("gpt-2".into()));
    assert!(change(&|v| (v.model, v.pre) = ("gpt2".into(), None)).contains("tokenizer.ggml.pre"));
    assert!(change(&bpe).contains("`merges` is missing"));
    let rule = |v: &mut GgufVocab| {
        bpe(v);
        v.merges = Some(texts(&["a b", "a zz"]));
    };
    assert!(change(&rule).contains("merge 1"), "{}", change(&rule));
}

/// A tokenizer.json of 256 byte tokens and two merges.
fn byte_level_json(pre_tokenizer: serde_json::Value) -> serde_json::Value {
    let letters: Vec<char> = (0..0x144u32)
        .filter_map(char::from_u32)
        .filter(|&c| vocab::byte_of_char(c).is_some())
        .collect();
    let mut ids = serde_json::Map::new();
    for letter in &letters {
        ids.insert(letter.to_string(), ids.len().into());
    }
    ids.insert("ab".into(), 256.into());
    ids.insert("Ġab".into(), 257.into());
    json!({
        "added_tokens": [
            {"id": 258, "content": "<s>", "special": true},
            {"id": 260, "content": "<tool>", "special": false},
        ],
        "pre_tokenizer": pre_tokenizer,
        "decoder": {"type": "ByteLevel"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
            "special_tokens": {"<s>": {"ids": [258]}}},
        "model": {"type": "BPE", "vocab": ids, "merges": ["a b", ["Ġ", "ab"]]},
    })
}

#[test]
fn tokenizer_json_with_bos_and_a_hole() {
    let json = byte_level_json(json!({"type": "ByteLevel", "add_prefix_space": false}));
    let config = br#"{"bos_token": {"content": "<s>"}, "eos_token": "<s>"}"#;
    let tokenizer = Tokenizer::from_hf_json(json.to_string().as_bytes(), Some(config)).unwrap();
    let ids = tokenizer.encode("ab ab<tool>", Specials::AsText, Bos::Default).unwrap();
    assert_eq!(ids, [258, 256, 257, 260]);
    assert!(tokenizer.adds_bos());
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(258), Some(258)));
    assert_eq!((tokenizer.vocab_size(), tokenizer.token_bytes(259)), (261, Some(&b""[..])));
    assert_eq!(tokenizer.decode(&[259, 257, 258], true).unwrap(), " ab");
    let cut = &json.to_string()[..200];
    let error = Tokenizer::from_hf_json(cut.as_bytes(), None).unwrap_err();
    assert!(matches!(error, TextError::Json { .. }), "{error}");
    let mut huge = json;
    huge["added_tokens"][0]["id"] = 4_000_000_000u32.into();
    let error = Tokenizer::from_hf_json(huge.to_string().as_bytes(), None).unwrap_err();
    assert!(matches!(error, TextError::Vocabulary(_)), "{error}");
}
