//! The tokenizer of a model: text to ids, ids to bytes. Built by `gguf` and `hf`.

use crate::TextError;
use crate::added::{AddedToken, AddedTokens, Part};
use crate::bpe::Bpe;
use crate::char_bpe::CharBpe;
use crate::detokenizer::{Detokenizer, DetokenizerOptions};
use crate::library::Library;
use crate::merge::{Merges, Scratch};
use crate::pretokenize::Preset;
use crate::sentencepiece::SentencePiece;
use crate::vocab::{Kind, Vocab};

/// Longest text of one call. Merging takes about 24 bytes of memory per byte of the longest word.
pub const MAX_TEXT_BYTES: usize = 64 << 20;

/// What to do with the text of special tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// `<|im_end|>` in the text becomes that token: for rendered templates.
    Parse,
    /// It stays text, so that a user's words cannot close a turn. User-defined tokens that are not
    /// special are still found, as in every other engine.
    AsText,
}

/// Whether to begin with the beginning-of-sequence token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bos {
    /// As the model's files say (this may also append the end token).
    Default,
    /// Begin with it if the vocabulary has one; append nothing.
    Add,
    /// Only what the text has: for rendered templates that write it themselves.
    Skip,
}

pub(crate) enum Engine {
    Bpe(Bpe),
    CharBpe(CharBpe),
    SentencePiece(SentencePiece),
    Library(Box<Library>),
}

/// Text to token ids and back. Shared by all threads; no locks.
pub struct Tokenizer {
    pub(crate) vocab: Vocab,
    pub(crate) added: AddedTokens,
    pub(crate) engine: Engine,
    pub(crate) roles: Roles,
    /// A whole decoded text loses one leading space (the tokenizer put it there).
    pub(crate) strips_prefix: bool,
}

/// Ids with a role, and what `Bos::Default` puts around a text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Roles {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) unk: Option<u32>,
    pub(crate) pad: Option<u32>,
    pub(crate) ends: Vec<u32>,
    pub(crate) prefix: Vec<u32>,
    pub(crate) suffix: Vec<u32>,
}

/// Texts of control tokens that end a turn or a generation, in the families that exist.
pub(crate) const END_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|eom|>",
    "<|end_of_text|>",
    "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
    "<EOT>",
    "_<EOT>",
    "</s>",
];

impl Tokenizer {
    /// 256 bytes as ids 0 to 255, then the given special tokens. The first of them is the end of
    /// sequence. For scripted backends and tests: every text round-trips, one id per byte.
    pub fn byte_level_for_scripts(special_tokens: &[String]) -> Tokenizer {
        let mut vocab = Vocab::with_capacity(256 + special_tokens.len());
        let mut added = Vec::new();
        for byte in 0..=255u8 {
            vocab.push(&[byte], Kind::Normal).expect("256 bytes fit");
        }
        for text in special_tokens {
            let id = vocab.len() as u32;
            vocab.push(text.as_bytes(), Kind::Special).expect("a few texts fit");
            added.push(AddedToken::new(id, text.clone(), true));
        }
        vocab.build_index(|_, kind| kind == Kind::Normal);
        let eos = added.first().map(|t| t.id);
        let engine = Engine::Bpe(Bpe {
            merges: Merges::default(),
            bytes: Box::new(std::array::from_fn(|b| b as u32)),
            splitter: Preset::named("gpt-2").and_then(Preset::splitter).expect("a built-in name"),
            ignore_merges: false,
            nfc: false,
            unk: None,
        });
        let added = AddedTokens::new(added).expect("a few texts can be searched");
        let roles = Roles { eos, ends: eos.into_iter().collect(), ..Roles::default() };
        Tokenizer { vocab, added, engine, roles, strips_prefix: false }
    }

    /// Encodes a text. The result decodes to the text, except where the model's normalization or
    /// unknown token loses something.
    ///
    /// # Errors
    /// [`TextError::TooLong`]; [`TextError::Unencodable`] if a byte has no token and the vocabulary
    /// no unknown token.
    pub fn encode(&self, text: &str, specials: Specials, bos: Bos) -> Result<Vec<u32>, TextError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(TextError::TooLong { len: text.len(), limit: MAX_TEXT_BYTES });
        }
        let mut out = Vec::with_capacity(text.len() / 3 + 4);
        match bos {
            Bos::Default => out.extend_from_slice(&self.roles.prefix),
            Bos::Add => out.extend(self.roles.bos),
            Bos::Skip => {}
        }
        let parse = specials == Specials::Parse;
        if let Engine::Library(library) = &self.engine {
            library.encode(text, parse, &mut out)?;
        } else {
            self.encode_parts(text, parse, &mut out)?;
        }
        if bos == Bos::Default {
            out.extend_from_slice(&self.roles.suffix);
        }
        Ok(out)
    }

    fn encode_parts(&self, text: &str, parse: bool, out: &mut Vec<u32>) -> Result<(), TextError> {
        let mut scratch = Scratch::default();
        let mut at_start = true;
        self.added.split(text, parse, &mut |part| {
            let section = match part {
                Part::Token(id) => {
                    out.push(id);
                    at_start = true;
                    return Ok(());
                }
                Part::Text(section) => section,
            };
            let scratch = &mut scratch;
            match &self.engine {
                Engine::Bpe(bpe) => bpe.encode(&self.vocab, section, scratch, out)?,
                Engine::CharBpe(bpe) => bpe.encode(section, scratch, out)?,
                Engine::SentencePiece(spm) => {
                    spm.encode(&self.vocab, section, at_start, scratch, out)?;
                }
                Engine::Library(_) => unreachable!("the library cuts texts itself"),
            }
            at_start = false;
            Ok(())
        })
    }

    /// Decodes whole ids. Invalid UTF-8 becomes U+FFFD.
    ///
    /// # Errors
    /// [`TextError::OutOfVocabulary`].
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TextError> {
        let options = DetokenizerOptions { skip_special_tokens, ..Default::default() };
        Detokenizer::decode_all(self, &options, ids)
    }

    /// The bytes that a token stands for in text; `None` outside the vocabulary. Special tokens
    /// give their text, holes nothing.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.vocab.bytes(id)
    }

    /// Is this a control token (or the unknown token)?
    pub fn is_special(&self, id: u32) -> bool {
        self.vocab.kind(id) == Some(Kind::Special)
    }

    /// Was this added as a whole text (special or user-defined)?
    pub fn is_added(&self, id: u32) -> bool {
        matches!(self.vocab.kind(id), Some(Kind::Special | Kind::Added))
    }

    /// Tokens that were added as whole texts, by id.
    pub fn added_tokens(&self) -> &[AddedToken] {
        self.added.tokens()
    }

    /// The id of this text as one token: an added token, else one of the vocabulary.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.added.id(text).or_else(|| self.vocab.lookup(text.as_bytes()))
    }

    /// Number of ids; all ids are below it.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// Beginning of sequence.
    pub fn bos(&self) -> Option<u32> {
        self.roles.bos
    }

    /// End of sequence.
    pub fn eos(&self) -> Option<u32> {
        self.roles.eos
    }

    /// Unknown.
    pub fn unk(&self) -> Option<u32> {
        self.roles.unk
    }

    /// Padding.
    pub fn pad(&self) -> Option<u32> {
        self.roles.pad
    }

    /// All ids that end a generation: the end of sequence first, then ends of turn.
    pub fn end_tokens(&self) -> &[u32] {
        &self.roles.ends
    }

    /// Does [`Bos::Default`] begin with the beginning-of-sequence token?
    pub fn adds_bos(&self) -> bool {
        self.roles.bos.is_some_and(|bos| self.roles.prefix.contains(&bos))
    }

    /// Fails for an id outside the vocabulary.
    pub fn check_id(&self, id: u32) -> Result<(), TextError> {
        if (id as usize) < self.vocab.len() {
            return Ok(());
        }
        Err(TextError::OutOfVocabulary { id, last: (self.vocab.len() as u32).saturating_sub(1) })
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let engine = match &self.engine {
            Engine::Bpe(_) => "byte-level BPE",
            Engine::CharBpe(_) => "character BPE",
            Engine::SentencePiece(_) => "sentencepiece",
            Engine::Library(_) => "tokenizers library",
        };
        f.debug_struct("Tokenizer")
            .field("engine", &engine)
            .field("vocab_size", &self.vocab.len())
            .field("num_added", &self.added.tokens().len())
            .field("roles", &self.roles)
            .finish()
    }
}
