//! Tokenizers, incremental detokenizer, stop strings, vocabulary as bytes.
