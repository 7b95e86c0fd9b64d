//! Tokenizers, the incremental detokenizer, stop strings, and the vocabulary as bytes.
//!
//! `server` and `chat` turn text into ids and back here; `runner` reads the byte vocabulary.
//! Nothing here knows weights, requests or HTTP. Formats: Hugging Face `tokenizer.json` and the
//! `tokenizer.ggml.*` metadata of GGUF files.

mod added;
mod bpe;
mod char_bpe;
mod detokenizer;
mod error;
mod gguf;
mod hf;
mod library;
mod merge;
mod pretokenize;
mod sentencepiece;
mod stop;
mod tokenizer;
mod vocab;

pub use added::AddedToken;
pub use detokenizer::{Detokenized, Detokenizer, DetokenizerOptions, SpecialSpan};
pub use error::TextError;
pub use gguf::GgufVocab;
pub use stop::{StopMatch, StopMatcher, StopStrings};
pub use tokenizer::{Bos, Specials, Tokenizer};

#[cfg(test)]
mod tests;
