//! A vocabulary with tokens that cut across the parts of a JSON text, and walks through a grammar.
#![allow(dead_code, clippy::unwrap_used)]

use std::sync::{Arc, OnceLock};

use tenon_grammar::{Compiler, Constraint, GrammarError, GrammarSpec, Limits, Starts};
use tenon_text::{GgufVocab, Tokenizer};

/// Beyond single bytes.
const PIECES: &[&str] = &[
    "{\"", "\":", "\": ", "\": \"", "\",", "\", \"", "\"}", "\"}}", "}}", "}]", "]}", "[{", "[]",
    "{}", "\"a", "a\"", "ab", "abc", "name", "true", "false", "null", "tru", "fal", "10", "123",
    "00", " {", " [", " \"", "  ", "    ", "\n  ", ", ", "é", "日本", "<", "think", ">", ">\n\n",
    ">x", "</", "hello", " world", "}\n", "\\n", "\\\"", "\\u00", "-", "1.", ".5", "e5", "}<",
    "<tool", "_call>",
];
/// Added tokens; the first two end a sequence.
const ADDED: &[&str] = &[
    "<|end|>",
    "<|eot|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[CALL_ID]",
    "[ARGS]",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|\"|>",
    "｜DSML｜",
    "<｜calls▁begin｜>",
    "<｜call▁begin｜>",
    "<｜sep｜>",
    "<｜call▁end｜>",
    "<｜calls▁end｜>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|stop|>",
    "<|start|>",
];

/// The id of an added token.
pub fn added(text: &str) -> u32 {
    tokenizer().token_id(text).unwrap()
}

/// The tokens of a vocabulary whose markers share a suffix.
pub fn suffixed(tokens: &[String]) -> Vec<String> {
    let heads = tokens.iter().filter_map(|token| token.strip_suffix('>'));
    heads.map(|head| format!("{head}:opensource>")).collect()
}

pub fn tokenizer() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    TOKENIZER
        .get_or_init(|| {
            let bytes = (0..=255u8).map(|byte| symbol(byte).to_string());
            let pieces = PIECES.iter().map(|text| text.bytes().map(symbol).collect());
            let mut tokens: Vec<String> = bytes.chain(pieces).collect();
            let first_added = tokens.len();
            tokens.extend(ADDED.iter().map(|text| text.to_string()));
            let formats = tenon_formats::all().map(|entry| (entry.describe)().added_tokens);
            for token in formats.flat_map(|tokens| [suffixed(&tokens), tokens].concat()) {
                if !tokens[first_added..].contains(&token) {
                    tokens.push(token);
                }
            }
            let types = (0..tokens.len()).map(|id| if id < first_added { 1 } else { 3 });
            let vocab = GgufVocab {
                model: "gpt2".into(),
                pre: Some("gpt-2".into()),
                token_types: Some(types.collect()),
                merges: Some(Vec::new()),
                eos: Some(first_added as u32),
                tokens,
                ..GgufVocab::default()
            };
            Arc::new(Tokenizer::from_gguf(vocab).unwrap())
        })
        .clone()
}

fn symbol(byte: u8) -> char {
    let is_printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&b| !is_printable(b)).count() as u32;
    char::from_u32(256 + rank).unwrap()
}

pub fn compiler() -> &'static Compiler {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    COMPILER.get_or_init(|| {
        let eos = vec![added("<|end|>"), added("<|eot|>")];
        Compiler::new(tokenizer(), eos, Limits::default())
    })
}

pub fn constraint(spec: &GrammarSpec) -> Constraint {
    started(spec, &Starts::AtOnce)
}

pub fn started(spec: &GrammarSpec, starts: &Starts) -> Constraint {
    compiler().compile(spec, starts).unwrap().start()
}

pub fn refusal(spec: &GrammarSpec) -> GrammarError {
    compiler().compile(spec, &Starts::AtOnce).expect_err("a refusal")
}

/// Tokens that may come next.
pub fn allowed(constraint: &mut Constraint) -> Vec<u32> {
    let mut logits = vec![0.0; tokenizer().vocab_size() + 7];
    constraint.mask(&mut logits).unwrap();
    assert!(logits[tokenizer().vocab_size()..].iter().all(|&x| x == 0.0 || x == f32::NEG_INFINITY));
    (0..tokenizer().vocab_size() as u32).filter(|&t| logits[t as usize] == 0.0).collect()
}

/// One byte per token, as long as each is allowed: how many, and whether it may end there.
pub fn walk(constraint: &mut Constraint, text: &str) -> (usize, bool) {
    for (at, byte) in text.bytes().enumerate() {
        if constraint.is_complete() || !allowed(constraint).contains(&u32::from(byte)) {
            return (at, false);
        }
        constraint.commit(byte.into()).unwrap();
    }
    let may_end = constraint.is_complete() || allowed(constraint).contains(&added("<|eot|>"));
    (text.len(), may_end)
}

/// Does the grammar take exactly this text?
pub fn accepts(spec: &GrammarSpec, text: &str) -> bool {
    walk(&mut constraint(spec), text) == (text.len(), true)
}

/// A generator without state to share (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// A random output: its tokens, and whether it ended by itself within `max_tokens`.
pub fn random_output(
    constraint: &mut Constraint,
    random: &mut Random,
    max_tokens: usize,
) -> (Vec<u32>, bool) {
    let mut tokens = Vec::new();
    while tokens.len() < max_tokens {
        if constraint.is_complete() {
            return (tokens, true);
        }
        let allowed = allowed(constraint);
        assert!(!allowed.is_empty(), "nothing is allowed behind {tokens:?}");
        let token = allowed[random.below(allowed.len())];
        constraint.commit(token).unwrap();
        if token == added("<|end|>") || token == added("<|eot|>") {
            return (tokens, true);
        }
        tokens.push(token);
    }
    (tokens, constraint.is_complete())
}

/// The bytes of tokens, added ones as text.
pub fn bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|&t| tokenizer().token_bytes(t).unwrap().to_vec()).collect()
}
