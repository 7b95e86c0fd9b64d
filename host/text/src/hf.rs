//! Tokenizers from `tokenizer.json` and `tokenizer_config.json`.
//!
//! Byte-level BPE and character BPE with byte fallback (nearly all language models) run in our own
//! engines, which load several times faster; everything else runs in the tokenizers library.

mod file;

use std::collections::HashMap;

use serde_json::Value;

use crate::added::{AddedToken, AddedTokens};
use crate::bpe::Bpe;
use crate::char_bpe::CharBpe;
use crate::gguf::{MAX_VOCAB, merges};
use crate::library::Library;
use crate::pretokenize::{GPT2, Splitter};
use crate::tokenizer::{END_TEXTS, Engine, Roles};
use crate::vocab::{Kind, NONE, Vocab, byte_token, decode_byte_level};
use crate::{TextError, Tokenizer};

use file::{Model, TokenizerConfig, TokenizerJson};

/// How the model writes text.
enum Shape {
    ByteLevel { patterns: Vec<String>, nfc: bool },
    Chars { add_prefix: bool },
    Other,
}

/// How ids become text.
#[derive(Clone, Copy, PartialEq)]
enum Writing {
    ByteLevel,
    Sentencepiece { strips_prefix: bool },
}

impl Tokenizer {
    /// Builds a tokenizer from the bytes of `tokenizer.json`; `tokenizer_config.json` names the
    /// special tokens and says whether prompts begin with BOS.
    ///
    /// # Errors
    /// [`TextError::Json`] for files of another shape; [`TextError::Unsupported`] for a decoder
    /// that is not byte-level or sentencepiece; [`TextError::Vocabulary`] for contradictions.
    pub fn from_hf_json(json: &[u8], config: Option<&[u8]>) -> Result<Tokenizer, TextError> {
        let file: TokenizerJson = serde_json::from_slice(json)
            .map_err(|source| TextError::Json { file: "tokenizer.json", source })?;
        let config: TokenizerConfig = match config {
            None => TokenizerConfig::default(),
            Some(bytes) => serde_json::from_slice(bytes)
                .map_err(|source| TextError::Json { file: "tokenizer_config.json", source })?,
        };
        let writing = writing(&file.decoder)?;
        let shape = shape(&file, writing);
        let library = match shape {
            Shape::Other => Some(Box::new(Library::new(json)?)),
            _ => None,
        };
        let entries = entries(&file, library.as_deref());
        let (vocab, texts) = vocabulary(&file, &entries, writing)?;
        let engine = match (shape, library) {
            (_, Some(library)) => Engine::Library(library),
            (Shape::ByteLevel { patterns, nfc }, None) => {
                Engine::Bpe(byte_level(&file.model, &vocab, &texts, &patterns, nfc)?)
            }
            (Shape::Chars { add_prefix }, None) => {
                Engine::CharBpe(chars(&file.model, &texts, add_prefix)?)
            }
            (Shape::Other, None) => unreachable!("other shapes have the library"),
        };
        let added: Vec<AddedToken> = file.added_tokens.iter().map(|t| t.to_added()).collect();
        let added = AddedTokens::new(added)?;
        let roles = roles(&file, &config, &added, &vocab);
        let strips_prefix = matches!(writing, Writing::Sentencepiece { strips_prefix: true });
        Ok(Tokenizer { vocab, added, engine, roles, strips_prefix })
    }
}

/// Flattens `{"type": "Sequence", "<list>": [..]}`.
fn steps<'v>(value: &'v Value, list: &str, out: &mut Vec<&'v Value>) {
    match value.get("type").and_then(Value::as_str) {
        Some("Sequence") => {
            for step in value.get(list).and_then(Value::as_array).into_iter().flatten() {
                steps(step, list, out);
            }
        }
        Some(_) => out.push(value),
        None => {}
    }
}

fn kind_of(value: &Value) -> &str {
    value.get("type").and_then(Value::as_str).unwrap_or("")
}

fn flag(value: &Value, name: &str, default: bool) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or(default)
}

fn writing(decoder: &Value) -> Result<Writing, TextError> {
    let mut list = Vec::new();
    steps(decoder, "decoders", &mut list);
    let kinds: Vec<&str> = list.iter().map(|d| kind_of(d)).collect();
    if kinds == ["ByteLevel"] {
        return Ok(Writing::ByteLevel);
    }
    let replaces = list.iter().any(|d| {
        kind_of(d) == "Replace" && d["pattern"]["String"] == "\u{2581}" && d["content"] == " "
    });
    let metaspace = list.iter().find(|d| kind_of(d) == "Metaspace");
    let known = ["Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"];
    if (replaces || metaspace.is_some()) && kinds.iter().all(|k| known.contains(k)) {
        let strips_prefix = kinds.contains(&"Strip")
            || metaspace.is_some_and(|m| {
                m["prepend_scheme"] != "never" && flag(m, "add_prefix_space", true)
            });
        return Ok(Writing::Sentencepiece { strips_prefix });
    }
    Err(TextError::Unsupported {
        what: "the decoder of tokenizer.json",
        value: kinds.join(", "),
        next: "byte-level and sentencepiece decoders are; use such a model".into(),
    })
}

fn shape(file: &TokenizerJson, writing: Writing) -> Shape {
    let model = &file.model;
    let plain = model.is_bpe() && !model.has_affixes() && model.dropout.unwrap_or(0.0) == 0.0;
    if !plain {
        return Shape::Other;
    }
    let (mut normalizers, mut cuts) = (Vec::new(), Vec::new());
    steps(&file.normalizer, "normalizers", &mut normalizers);
    steps(&file.pre_tokenizer, "pretokenizers", &mut cuts);
    match writing {
        Writing::ByteLevel if !model.byte_fallback => {
            let nfc = normalizers.len() == 1 && kind_of(normalizers[0]) == "NFC";
            let patterns = if normalizers.is_empty() || nfc { patterns(&cuts) } else { None };
            patterns.map_or(Shape::Other, |patterns| Shape::ByteLevel { patterns, nfc })
        }
        Writing::Sentencepiece { .. } if model.byte_fallback => {
            let add_prefix = match normalizers.as_slice() {
                [replace] if is_space_mark(replace) => false,
                [prepend, replace] if is_space_mark(replace) => {
                    if kind_of(prepend) != "Prepend" || prepend["prepend"] != "\u{2581}" {
                        return Shape::Other;
                    }
                    true
                }
                _ => return Shape::Other,
            };
            // Behind the normalizer no space is left to cut at.
            let idle = cuts.iter().all(|c| kind_of(c) == "Split" && c["pattern"]["String"] == " ");
            if idle { Shape::Chars { add_prefix } } else { Shape::Other }
        }
        _ => Shape::Other,
    }
}

fn is_space_mark(step: &Value) -> bool {
    kind_of(step) == "Replace" && step["pattern"]["String"] == " " && step["content"] == "\u{2581}"
}

/// The patterns of a byte-level pre-tokenizer, or none if it does something else as well.
fn patterns(cuts: &[&Value]) -> Option<Vec<String>> {
    let (last, others) = cuts.split_last()?;
    if kind_of(last) != "ByteLevel" || flag(last, "add_prefix_space", true) {
        return None;
    }
    let mut patterns = Vec::new();
    for cut in others {
        match kind_of(cut) {
            "Split" if cut["behavior"] == "Isolated" && !flag(cut, "invert", false) => {
                let pattern = &cut["pattern"];
                let literal =
                    pattern["String"].as_str().map(|s| fancy_regex::escape(s).into_owned());
                patterns.push(literal.or_else(|| pattern["Regex"].as_str().map(String::from))?);
            }
            "Digits" if flag(cut, "individual_digits", false) => patterns.push(r"\p{N}".into()),
            "Digits" => patterns.push(r"\p{N}+".into()),
            _ => return None,
        }
    }
    if flag(last, "use_regex", true) {
        patterns.push(GPT2.into());
    }
    Some(patterns)
}

/// Texts and ids of the model's vocabulary.
fn entries<'f>(
    file: &'f TokenizerJson,
    library: Option<&Library>,
) -> Vec<(std::borrow::Cow<'f, str>, u32)> {
    match library {
        Some(library) => library.vocab().into_iter().map(|(t, id)| (t.into(), id)).collect(),
        None => file.model.vocab.0.clone(),
    }
}

/// The vocabulary by id, and the model's own texts (without tokens that were only added).
#[allow(clippy::type_complexity)]
fn vocabulary<'e>(
    file: &TokenizerJson,
    entries: &'e [(std::borrow::Cow<'_, str>, u32)],
    writing: Writing,
) -> Result<(Vocab, Vec<(&'e str, u32)>), TextError> {
    let ids = entries.iter().map(|&(_, id)| id).chain(file.added_tokens.iter().map(|t| t.id));
    let size = ids.max().map_or(0, |id| id as usize + 1);
    if size == 0 || size > MAX_VOCAB {
        let what = format!("it has {size} ids (1 to {MAX_VOCAB} are possible)");
        return Err(TextError::Vocabulary(what));
    }
    let mut by_id: Vec<(&str, Kind)> = vec![("", Kind::Unused); size];
    for (text, id) in entries {
        by_id[*id as usize] = (text, Kind::Normal);
    }
    let texts = entries.iter().map(|(text, id)| (text.as_ref(), *id)).collect();
    let mut in_model = vec![false; size];
    entries.iter().for_each(|&(_, id)| in_model[id as usize] = true);
    let added: HashMap<u32, &file::Added> = file.added_tokens.iter().map(|t| (t.id, t)).collect();
    let mut vocab = Vocab::with_capacity(size);
    let mut bytes = Vec::new();
    for (id, (text, kind)) in by_id.into_iter().enumerate() {
        bytes.clear();
        let added = added.get(&(id as u32));
        let byte = byte_token(text).filter(|_| writing != Writing::ByteLevel && added.is_none());
        let kind = match (added, byte) {
            (Some(a), _) if a.special => Kind::Special,
            (Some(_), _) => Kind::Added,
            (None, Some(byte)) => {
                bytes.push(byte);
                Kind::Byte
            }
            (None, None) => kind,
        };
        let text = added.map_or(text, |a| a.content.as_str());
        match writing {
            _ if kind == Kind::Byte => {}
            Writing::ByteLevel if kind == Kind::Normal && decode_byte_level(text, &mut bytes) => {}
            Writing::Sentencepiece { .. } if kind != Kind::Special => {
                bytes.extend_from_slice(text.replace('\u{2581}', " ").as_bytes());
            }
            _ => bytes.extend_from_slice(text.as_bytes()),
        }
        vocab.push(&bytes, kind)?;
    }
    // An added token of the model's own vocabulary can also come out of merges.
    vocab.build_index(|id, kind| {
        kind == Kind::Normal || kind == Kind::Added && in_model[id as usize]
    });
    Ok((vocab, texts))
}

fn byte_level(
    model: &Model,
    vocab: &Vocab,
    texts: &[(&str, u32)],
    patterns: &[String],
    nfc: bool,
) -> Result<Bpe, TextError> {
    let mut bytes = Box::new([NONE; 256]);
    for byte in 0..=255u8 {
        bytes[byte as usize] = vocab.lookup(&[byte]).unwrap_or(NONE);
    }
    let rules = &model.merges.0;
    let pairs = rules.iter().map(|(a, b)| (a.as_ref(), b.as_ref()));
    Ok(Bpe {
        merges: merges(texts.iter().copied(), pairs, rules.len())?,
        bytes,
        splitter: Splitter::new(patterns)?,
        ignore_merges: model.ignore_merges,
        nfc,
        unk: unk(model, texts),
    })
}

fn unk(model: &Model, texts: &[(&str, u32)]) -> Option<u32> {
    let unk = model.unk_token.as_deref()?;
    texts.iter().find(|(text, _)| *text == unk).map(|&(_, id)| id)
}

fn chars(model: &Model, texts: &[(&str, u32)], add_prefix: bool) -> Result<CharBpe, TextError> {
    let mut bytes = Box::new([NONE; 256]);
    let mut chars = HashMap::new();
    for &(text, id) in texts {
        if let Some(byte) = byte_token(text) {
            bytes[byte as usize] = id;
        }
        let mut letters = text.chars();
        if let (Some(c), None) = (letters.next(), letters.next()) {
            chars.insert(if c == '\u{2581}' { ' ' } else { c }, id);
        }
    }
    let rules = &model.merges.0;
    let pairs = rules.iter().map(|(a, b)| (a.as_ref(), b.as_ref()));
    Ok(CharBpe {
        merges: merges(texts.iter().copied(), pairs, rules.len())?,
        chars,
        bytes,
        unk: unk(model, texts),
        fuse_unk: model.fuse_unk,
        add_prefix,
    })
}

fn roles(
    file: &TokenizerJson,
    config: &TokenizerConfig,
    added: &AddedTokens,
    vocab: &Vocab,
) -> Roles {
    let id = |token: &Option<file::TokenName>| {
        let text = token.as_ref()?.text()?;
        added.id(text).or_else(|| vocab.lookup(text.as_bytes()))
    };
    let (around, found) = template(&file.post_processor);
    let mut prefix = around.0;
    let mut suffix = around.1;
    let bos = id(&config.bos_token).or(prefix.first().copied());
    let is_end = |&id: &u32| vocab.kind(id) == Some(Kind::Special);
    let ends_by_text = || END_TEXTS.iter().filter_map(|text| added.id(text)).filter(is_end);
    let eos = id(&config.eos_token).or_else(|| ends_by_text().next());
    if !found {
        prefix.extend(bos.filter(|_| config.add_bos_token.unwrap_or(false)));
        suffix.extend(eos.filter(|_| config.add_eos_token.unwrap_or(false)));
    }
    let mut ends: Vec<u32> = eos.into_iter().collect();
    for id in ends_by_text() {
        if !ends.contains(&id) {
            ends.push(id);
        }
    }
    let unk = id(&config.unk_token);
    Roles { bos, eos, unk, pad: id(&config.pad_token), ends, prefix, suffix }
}

/// Ids that a `TemplateProcessing` puts before and behind a single text, and whether there is one.
fn template(post_processor: &Value) -> ((Vec<u32>, Vec<u32>), bool) {
    let mut list = Vec::new();
    steps(post_processor, "processors", &mut list);
    let (mut prefix, mut suffix) = (Vec::new(), Vec::new());
    let Some(template) = list.iter().find(|p| kind_of(p) == "TemplateProcessing") else {
        return ((prefix, suffix), false);
    };
    let mut behind = false;
    for piece in template["single"].as_array().into_iter().flatten() {
        if piece.get("Sequence").is_some() {
            behind = true;
        } else if let Some(name) = piece["SpecialToken"]["id"].as_str() {
            let ids = template["special_tokens"][name]["ids"].as_array();
            let ids = ids.into_iter().flatten().filter_map(Value::as_u64);
            let ids = ids.filter_map(|id| u32::try_from(id).ok());
            if behind { suffix.extend(ids) } else { prefix.extend(ids) }
        }
    }
    ((prefix, suffix), true)
}
