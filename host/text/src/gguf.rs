//! Tokenizers from the metadata of a GGUF file (`tokenizer.ggml.*`).

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::added::{AddedToken, AddedTokens};
use crate::bpe::Bpe;
use crate::merge::{Merges, PairHasher};
use crate::pretokenize::Preset;
use crate::sentencepiece::{SentencePiece, priority};
use crate::tokenizer::{END_TEXTS, Engine, Roles};
use crate::vocab::{Kind, NONE, Vocab, byte_token, decode_byte_level};
use crate::{TextError, Tokenizer};

/// Largest vocabulary that is believed.
pub(crate) const MAX_VOCAB: usize = 4 << 20;

/// Token texts to ids, built at load.
pub(crate) type Texts<'a> = HashMap<&'a str, u32, BuildHasherDefault<PairHasher>>;

/// `tokenizer.ggml.*`, field by field.
#[derive(Debug, Clone, Default)]
pub struct GgufVocab {
    /// `model`: `gpt2` (byte-level BPE) or `llama` (sentencepiece).
    pub model: String,
    /// `pre`: which pre-tokenizer; needed for `gpt2`.
    pub pre: Option<String>,
    /// `tokens`, by id.
    pub tokens: Vec<String>,
    /// `scores`, by id; needed for `llama`.
    pub scores: Option<Vec<f32>>,
    /// `token_type`, by id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Option<Vec<u32>>,
    /// `merges`: `left right`, best first; needed for `gpt2`.
    pub merges: Option<Vec<String>>,
    /// `bos_token_id`
    pub bos: Option<u32>,
    /// `eos_token_id`
    pub eos: Option<u32>,
    /// `eot_token_id`
    pub eot: Option<u32>,
    /// `eom_token_id`
    pub eom: Option<u32>,
    /// `unknown_token_id`
    pub unk: Option<u32>,
    /// `padding_token_id`
    pub pad: Option<u32>,
    /// `add_bos_token`
    pub add_bos: Option<bool>,
    /// `add_eos_token`
    pub add_eos: Option<bool>,
    /// `add_space_prefix`
    pub add_space_prefix: Option<bool>,
}

impl Tokenizer {
    /// Builds the tokenizer of a GGUF file.
    ///
    /// # Errors
    /// [`TextError::Unsupported`] for an unknown `model` or `pre`; [`TextError::Vocabulary`] if the
    /// lists contradict each other.
    pub fn from_gguf(vocab: GgufVocab) -> Result<Tokenizer, TextError> {
        check(&vocab)?;
        match vocab.model.as_str() {
            "gpt2" => byte_level(&vocab),
            "llama" => sentencepiece(&vocab),
            other => Err(TextError::Unsupported {
                what: "tokenizer `tokenizer.ggml.model`",
                value: other.into(),
                next: "supported: gpt2, llama; or give the model's tokenizer.json".into(),
            }),
        }
    }
}

fn damaged<T>(what: String) -> Result<T, TextError> {
    Err(TextError::Vocabulary(what))
}

fn check(vocab: &GgufVocab) -> Result<(), TextError> {
    let num = vocab.tokens.len();
    if num == 0 || num > MAX_VOCAB {
        return damaged(format!("`tokens` has {num} entries (1 to {MAX_VOCAB} are possible)"));
    }
    let lengths = [
        ("scores", vocab.scores.as_ref().map(Vec::len)),
        ("token_type", vocab.token_types.as_ref().map(Vec::len)),
    ];
    for (name, len) in lengths {
        if let Some(len) = len.filter(|&len| len != num) {
            return damaged(format!("`{name}` has {len} entries for {num} tokens"));
        }
    }
    let roles = [
        ("bos", vocab.bos),
        ("eos", vocab.eos),
        ("eot", vocab.eot),
        ("eom", vocab.eom),
        ("unknown", vocab.unk),
        ("padding", vocab.pad),
    ];
    for (name, id) in roles {
        if let Some(id) = id.filter(|&id| id as usize >= num) {
            return damaged(format!("`{name}_token_id` is `{id}`, beyond {num} tokens"));
        }
    }
    Ok(())
}

fn kinds(vocab: &GgufVocab) -> Vec<Kind> {
    let types = vocab.token_types.as_deref();
    let mut kinds: Vec<Kind> = (0..vocab.tokens.len())
        .map(|i| match types.map_or(1, |t| t[i]) {
            2 | 3 => Kind::Special,
            4 => Kind::Added,
            5 => Kind::Unused,
            6 => Kind::Byte,
            _ => Kind::Normal,
        })
        .collect();
    let roles = [vocab.bos, vocab.eos, vocab.eot, vocab.eom, vocab.unk];
    for id in roles.into_iter().flatten() {
        // Some bases reuse an ordinary token as a role; only marked-up texts are control tokens.
        let text = &vocab.tokens[id as usize];
        if kinds[id as usize] == Kind::Normal && is_markup(text) {
            kinds[id as usize] = Kind::Special;
        }
    }
    for (i, text) in vocab.tokens.iter().enumerate() {
        // A known flaw of converted files: ends of turn that are not marked as control. `</s>` and
        // the like are also ordinary tokens of HTML, and stay what the file says.
        let unmistakable = text.starts_with("<|") || text == "<end_of_turn>";
        let open = matches!(kinds[i], Kind::Normal | Kind::Added);
        if open && unmistakable && END_TEXTS.contains(&text.as_str()) {
            kinds[i] = Kind::Special;
        }
    }
    kinds
}

fn is_markup(text: &str) -> bool {
    text.starts_with(['<', '[']) && text.ends_with(['>', ']']) && text.len() > 2
}

fn added(vocab: &GgufVocab, kinds: &[Kind]) -> Result<AddedTokens, TextError> {
    let tokens = vocab.tokens.iter().zip(kinds).enumerate();
    let tokens = tokens.filter(|(_, (text, kind))| {
        matches!(kind, Kind::Special | Kind::Added) && !text.is_empty()
    });
    AddedTokens::new(
        tokens
            .map(|(id, (text, &kind))| {
                AddedToken::new(id as u32, text.clone(), kind == Kind::Special)
            })
            .collect(),
    )
}

fn roles(vocab: &GgufVocab, kinds: &[Kind], add_bos: bool) -> Roles {
    let mut ends: Vec<u32> = [vocab.eos, vocab.eot, vocab.eom].into_iter().flatten().collect();
    for (i, text) in vocab.tokens.iter().enumerate() {
        if kinds[i] == Kind::Special && END_TEXTS.contains(&text.as_str()) {
            ends.push(i as u32);
        }
    }
    let mut seen = std::collections::HashSet::new();
    ends.retain(|&id| seen.insert(id));
    let prefix = vocab.bos.filter(|_| vocab.add_bos.unwrap_or(add_bos));
    let suffix = vocab.eos.filter(|_| vocab.add_eos.unwrap_or(false));
    Roles {
        bos: vocab.bos,
        eos: vocab.eos,
        unk: vocab.unk,
        pad: vocab.pad,
        ends,
        prefix: prefix.into_iter().collect(),
        suffix: suffix.into_iter().collect(),
    }
}

fn byte_level(file: &GgufVocab) -> Result<Tokenizer, TextError> {
    let Some(pre) = &file.pre else {
        return Err(TextError::Unsupported {
            what: "a byte-level vocabulary without `tokenizer.ggml.pre`",
            value: file.model.clone(),
            next: "convert the model again, or give its tokenizer.json".into(),
        });
    };
    let preset = Preset::named(pre)?;
    let kinds = kinds(file);
    let mut vocab = Vocab::with_capacity(file.tokens.len());
    let mut bytes = Box::new([NONE; 256]);
    let mut decoded = Vec::new();
    for (id, (text, &kind)) in file.tokens.iter().zip(&kinds).enumerate() {
        decoded.clear();
        if kind != Kind::Normal || !decode_byte_level(text, &mut decoded) {
            decoded.extend_from_slice(text.as_bytes());
        }
        if let (Kind::Normal, &[byte]) = (kind, decoded.as_slice())
            && bytes[byte as usize] == NONE
        {
            bytes[byte as usize] = id as u32;
        }
        vocab.push(&decoded, kind)?;
    }
    vocab.build_index(|_, kind| kind == Kind::Normal);
    let Some(list) = &file.merges else {
        return damaged("`merges` is missing".into());
    };
    let pairs = list.iter().map(|rule| rule.split_once(' ').unwrap_or((rule, "")));
    let texts = file.tokens.iter().enumerate().map(|(id, t)| (t.as_str(), id as u32));
    let merges = merges(texts, pairs, list.len())?;
    let engine = Engine::Bpe(Bpe {
        merges,
        bytes,
        splitter: preset.splitter()?,
        ignore_merges: preset.ignore_merges,
        nfc: false,
        unk: file.unk,
    });
    let (added, roles) = (added(file, &kinds)?, roles(file, &kinds, preset.add_bos));
    Ok(Tokenizer { vocab, added, engine, roles, strips_prefix: false })
}

/// Resolves merge rules to ids. `texts` in order of preference: the first of equal texts wins.
pub(crate) fn merges<'a>(
    texts: impl Iterator<Item = (&'a str, u32)>,
    pairs: impl Iterator<Item = (&'a str, &'a str)>,
    num: usize,
) -> Result<Merges, TextError> {
    if num > MAX_VOCAB {
        return damaged(format!("`merges` has {num} entries (at most {MAX_VOCAB} are possible)"));
    }
    let mut ids = Texts::with_capacity_and_hasher(texts.size_hint().0, Default::default());
    for (text, id) in texts {
        ids.entry(text).or_insert(id);
    }
    let mut merges = Merges::with_capacity(num);
    let mut joined = String::new();
    for (rank, (left, right)) in pairs.enumerate() {
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let id = |text: &str| match ids.get(text) {
            Some(&id) => Ok(id),
            None => damaged(format!("merge {rank} (`{left}` and `{right}`) needs token `{text}`")),
        };
        merges.insert(id(left)?, id(right)?, rank as u32, id(&joined)?);
    }
    Ok(merges)
}

fn sentencepiece(file: &GgufVocab) -> Result<Tokenizer, TextError> {
    let Some(scores) = &file.scores else {
        return damaged("`scores` is missing".into());
    };
    if let Some(id) = scores.iter().position(|s| s.is_nan()) {
        return damaged(format!("the score of token {id} is not a number"));
    }
    let mut kinds = kinds(file);
    let mut vocab = Vocab::with_capacity(file.tokens.len());
    let mut bytes = Box::new([NONE; 256]);
    for (id, text) in file.tokens.iter().enumerate() {
        let byte = byte_token(text).filter(|_| kinds[id] != Kind::Added);
        if let Some(byte) = byte {
            kinds[id] = Kind::Byte;
            bytes[byte as usize] = id as u32;
            vocab.push(&[byte], Kind::Byte)?;
        } else if matches!(kinds[id], Kind::Normal | Kind::Added) && text.contains('\u{2581}') {
            vocab.push(text.replace('\u{2581}', " ").as_bytes(), kinds[id])?;
        } else {
            vocab.push(text.as_bytes(), kinds[id])?;
        }
    }
    vocab.build_index(|_, kind| kind == Kind::Normal);
    let add_prefix = file.add_space_prefix.unwrap_or(true);
    let engine = Engine::SentencePiece(SentencePiece {
        priorities: scores.iter().map(|&s| priority(s)).collect(),
        bytes,
        unk: file.unk,
        add_prefix,
    });
    let (added, roles) = (added(file, &kinds)?, roles(file, &kinds, true));
    Ok(Tokenizer { vocab, added, engine, roles, strips_prefix: add_prefix })
}
