//! The vocabulary of tiny models: byte-level BPE with a few English merges and ChatML specials.

use crate::gguf::{GgufWriter, WriteValue};

/// Pairs in merge order; `Ġ` is a blank in the byte-level alphabet.
const MERGES: [(&str, &str); 40] = [
    ("Ġ", "t"),
    ("h", "e"),
    ("Ġ", "a"),
    ("i", "n"),
    ("r", "e"),
    ("o", "n"),
    ("Ġt", "he"),
    ("e", "r"),
    ("Ġ", "s"),
    ("a", "t"),
    ("Ġ", "w"),
    ("Ġ", "o"),
    ("e", "n"),
    ("Ġ", "c"),
    ("i", "t"),
    ("i", "s"),
    ("a", "n"),
    ("o", "r"),
    ("e", "s"),
    ("Ġ", "b"),
    ("e", "d"),
    ("Ġ", "f"),
    ("in", "g"),
    ("Ġ", "p"),
    ("o", "u"),
    ("Ġa", "n"),
    ("a", "l"),
    ("a", "r"),
    ("Ġt", "o"),
    ("Ġ", "m"),
    ("Ġo", "f"),
    ("Ġ", "in"),
    ("Ġ", "d"),
    ("Ġ", "h"),
    ("Ġan", "d"),
    ("i", "c"),
    ("a", "s"),
    ("l", "e"),
    ("Ġt", "h"),
    ("i", "on"),
];

const SPECIALS: [&str; 4] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"];

/// Entries of the vocabulary.
pub(crate) const VOCAB: usize = 256 + MERGES.len() + SPECIALS.len();
const FIRST_SPECIAL: u32 = (256 + MERGES.len()) as u32;
/// `<|endoftext|>`.
pub(crate) const EOS: u32 = FIRST_SPECIAL;
/// `<|im_end|>`.
pub(crate) const IM_END: u32 = FIRST_SPECIAL + 2;

const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + \
    message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Writes tokens, merges, types, specials and the chat template.
pub(crate) fn write(writer: &mut GgufWriter) {
    let bytes = (0..=255u8).map(|byte| byte_symbol(byte).to_string());
    let merged = MERGES.iter().map(|(left, right)| format!("{left}{right}"));
    let specials = SPECIALS.iter().map(|s| s.to_string());
    let tokens: Vec<String> = bytes.chain(merged).chain(specials).collect();
    // 1: normal, 3: control.
    let types = (0..tokens.len()).map(|id| if id < FIRST_SPECIAL as usize { 1 } else { 3 });
    let merges = MERGES.iter().map(|(left, right)| format!("{left} {right}"));
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    writer
        .key(&key("model"), WriteValue::Text("gpt2".into()))
        .key(&key("pre"), WriteValue::Text("smollm".into()))
        .key(&key("token_type"), WriteValue::I32s(types.collect()))
        .key(&key("tokens"), WriteValue::Texts(tokens))
        .key(&key("merges"), WriteValue::Texts(merges.collect()))
        .key(&key("bos_token_id"), WriteValue::U32(EOS))
        .key(&key("eos_token_id"), WriteValue::U32(IM_END))
        .key(&key("padding_token_id"), WriteValue::U32(FIRST_SPECIAL + 3))
        .key(&key("add_bos_token"), WriteValue::Bool(false))
        .key("tokenizer.chat_template", WriteValue::Text(TEMPLATE.into()));
}

/// The printable character that stands for a byte in byte-level BPE (GPT-2's table).
fn byte_symbol(byte: u8) -> char {
    let is_printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&b| !is_printable(b)).count() as u32;
    char::from_u32(256 + rank).expect("at most 256 + 67")
}
