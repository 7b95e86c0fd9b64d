//! The shape of `tokenizer.json` and `tokenizer_config.json`, borrowing from the file's bytes: the
//! largest have 34 MB of vocabulary and merges.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::added::AddedToken;

#[derive(serde::Deserialize)]
pub(super) struct TokenizerJson<'f> {
    #[serde(default)]
    pub(super) added_tokens: Vec<Added>,
    #[serde(default)]
    pub(super) normalizer: Value,
    #[serde(default)]
    pub(super) pre_tokenizer: Value,
    #[serde(default)]
    pub(super) post_processor: Value,
    #[serde(default)]
    pub(super) decoder: Value,
    #[serde(borrow)]
    pub(super) model: Model<'f>,
}

#[derive(serde::Deserialize)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    pub(super) special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
}

impl Added {
    pub(super) fn to_added(&self) -> AddedToken {
        AddedToken {
            id: self.id,
            text: self.content.clone(),
            special: self.special,
            lstrip: self.lstrip,
            rstrip: self.rstrip,
            single_word: self.single_word,
        }
    }
}

#[derive(serde::Deserialize)]
pub(super) struct Model<'f> {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default, borrow)]
    pub(super) vocab: Entries<'f>,
    #[serde(default, borrow)]
    pub(super) merges: Rules<'f>,
    #[serde(default)]
    pub(super) dropout: Option<f32>,
    #[serde(default)]
    pub(super) unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub(super) fuse_unk: bool,
    #[serde(default)]
    pub(super) byte_fallback: bool,
    #[serde(default)]
    pub(super) ignore_merges: bool,
}

impl Model<'_> {
    pub(super) fn is_bpe(&self) -> bool {
        self.kind.as_deref().is_none_or(|k| k == "BPE") && !self.merges.0.is_empty()
    }

    pub(super) fn has_affixes(&self) -> bool {
        let set = |affix: &Option<String>| affix.as_deref().is_some_and(|a| !a.is_empty());
        set(&self.continuing_subword_prefix) || set(&self.end_of_word_suffix)
    }
}

/// `{"text": id, …}`; a list (of another kind of model) reads as empty.
#[derive(Default)]
pub(super) struct Entries<'f>(pub(super) Vec<(Cow<'f, str>, u32)>);

/// `["left right", …]` or `[["left", "right"], …]`.
#[derive(Default)]
pub(super) struct Rules<'f>(pub(super) Vec<(Cow<'f, str>, Cow<'f, str>)>);

/// A string that borrows where it has no escapes.
struct Text<'f>(Cow<'f, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.into())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

impl<'de: 'f, 'f> Deserialize<'de> for Entries<'f> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of texts to ids")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<'de>, A::Error> {
                let mut entries = Vec::new();
                while let Some((Text(text), id)) = map.next_entry()? {
                    entries.push((text, id));
                }
                Ok(Entries(entries))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Entries<'de>, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Entries::default())
            }
        }
        deserializer.deserialize_any(EntriesVisitor)
    }
}

impl<'de: 'f, 'f> Deserialize<'de> for Rules<'f> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RulesVisitor;
        impl<'de> Visitor<'de> for RulesVisitor {
            type Value = Rules<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of merges")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Rules<'de>, A::Error> {
                let mut rules = Vec::new();
                while let Some(Rule(left, right)) = seq.next_element()? {
                    rules.push((left, right));
                }
                Ok(Rules(rules))
            }
        }
        deserializer.deserialize_seq(RulesVisitor)
    }
}

struct Rule<'f>(Cow<'f, str>, Cow<'f, str>);

impl<'de> Deserialize<'de> for Rule<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RuleVisitor;
        impl<'de> Visitor<'de> for RuleVisitor {
            type Value = Rule<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge: `left right` or [left, right]")
            }
            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Rule<'de>, E> {
                let pair = text.split_once(' ').filter(|(_, right)| !right.contains(' '));
                let (left, right) = pair.ok_or_else(|| E::custom(format!("merge `{text}`")))?;
                Ok(Rule(left.into(), right.into()))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Rule<'de>, E> {
                let pair = text.split_once(' ').filter(|(_, right)| !right.contains(' '));
                let (left, right) = pair.ok_or_else(|| E::custom(format!("merge `{text}`")))?;
                Ok(Rule(left.to_string().into(), right.to_string().into()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Rule<'de>, A::Error> {
                let missing = || de::Error::custom("a merge has two sides");
                let left: Text<'de> = seq.next_element()?.ok_or_else(missing)?;
                let right: Text<'de> = seq.next_element()?.ok_or_else(missing)?;
                Ok(Rule(left.0, right.0))
            }
        }
        deserializer.deserialize_any(RuleVisitor)
    }
}

/// `tokenizer_config.json`, as far as it matters here.
#[derive(Default, serde::Deserialize)]
pub(super) struct TokenizerConfig {
    #[serde(default)]
    pub(super) bos_token: Option<TokenName>,
    #[serde(default)]
    pub(super) eos_token: Option<TokenName>,
    #[serde(default)]
    pub(super) unk_token: Option<TokenName>,
    #[serde(default)]
    pub(super) pad_token: Option<TokenName>,
    #[serde(default)]
    pub(super) add_bos_token: Option<bool>,
    #[serde(default)]
    pub(super) add_eos_token: Option<bool>,
}

/// `"<s>"` or `{"content": "<s>", …}`.
#[derive(serde::Deserialize)]
#[serde(transparent)]
pub(super) struct TokenName(Value);

impl TokenName {
    pub(super) fn text(&self) -> Option<&str> {
        self.0.as_str().or_else(|| self.0.get("content").and_then(Value::as_str))
    }
}
