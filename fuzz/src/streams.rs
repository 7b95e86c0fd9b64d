//! Streams of families: which families, how bytes become a stream, what must hold of it.

use tenon_formats::{Entry, GROUPS, all, request};
use tenon_guest::harness::cases::Case;
use tenon_guest::harness::{Delivery, Stream, chars, random};
use tenon_guest::{Channel, FinishReason, RequestInfo};

/// Does a target read this family?
pub(crate) type Group = fn(&Entry) -> bool;

pub(crate) const ALL: Group = |_| true;
/// Calls that are one JSON object.
pub(crate) const ENVELOPE: Group = |entry| is_in(entry, "json") && !HEADED(entry);
/// A name, then JSON.
pub(crate) const HEADED: Group = |entry| {
    let names = ["deepseek_v3", "deepseek_v31", "functionary_v31", "kimi_k2", "mistral"];
    names.contains(&entry.name)
};
pub(crate) const TAGGED: Group = |entry| is_in(entry, "tagged");
pub(crate) const PYTHON: Group = |entry| is_in(entry, "python") && !BARE_KEYS(entry);
pub(crate) const BARE_KEYS: Group = |entry| ["gemma4", "functiongemma"].contains(&entry.name);
pub(crate) const FRAMED: Group = |entry| is_in(entry, "framed");

fn is_in(entry: &Entry, group: &str) -> bool {
    let mut groups = GROUPS.into_iter().filter(|(name, _)| *name == group);
    groups.any(|(_, entries)| entries.iter().any(|other| other.name == entry.name))
}

const TOOLS: &str = r#"[{"type": "function", "function": {"name": "f", "parameters":
    {"type": "object", "properties": {"a": {"type": "integer"}, "x": {"type": "string"},
    "b": {"type": ["boolean", "null"]}, "k": {"type": "array", "items": {"type": "number"}}}}}}]"#;

const COMMON: &[&str] = &[
    "{\"name\": \"f\", \"arguments\": {",
    "\"arguments\": ",
    "\"name\": ",
    "\"f\"",
    "{\"a\": 1}",
    "}}",
    "null",
    "true",
    "é",
    "😀",
    "\u{2028}",
    "\\u00",
    "\\n",
    "f(a=1)",
    "f",
    "Hi.",
    "\r\n",
    "</",
    "0.5",
];

/// Bytes in front of the text.
const HEADER: usize = 6;

/// Reads bytes as a stream, runs it in several ways and compares.
pub(crate) fn check(group: Group, data: &[u8]) {
    let entries: Vec<&Entry> = all().filter(|entry| group(entry)).collect();
    let Some((header, text)) = data.split_at_checked(HEADER) else { return };
    let entry = entries[usize::from(header[0]) % entries.len()];
    let (request, reason) = setting(entry, header[1], header[2]);
    let (text, markers) = text_of(entry, text);
    let stream = match header[2] & 64 {
        0 => Stream::of(&text),
        _ => Stream::with_tokens(&text, &markers.iter().map(String::as_str).collect::<Vec<_>>()),
    };
    let read = |cuts: &[usize], delivery| {
        (entry.run)(&request, &stream, cuts, reason, delivery).unwrap_or_else(|violation| {
            panic!("{}: {violation}\n{text:?} cut at {cuts:?}, {request:?}", entry.name)
        })
    };
    let whole = read(&[], Delivery::Pushed);
    let seed = u64::from(header[3]) << 8 | u64::from(header[4]);
    let keep = usize::from(header[5] % 23);
    let cuts = random(&text, keep + 1, seed).pop().unwrap_or_default();
    for (cuts, delivery) in [(cuts, Delivery::Watched), (chars(&text), Delivery::Pushed)] {
        let folded = read(&cuts, delivery);
        assert!(
            folded == whole,
            "{}: {text:?} cut at {cuts:?} reads {folded:?}, not {whole:?}, {request:?}",
            entry.name,
        );
    }
}

fn setting(entry: &Entry, style: u8, flags: u8) -> (RequestInfo, FinishReason) {
    let styles = (entry.describe)().reasoning_styles;
    let style = styles.get(usize::from(style) % (styles.len() + 1));
    let start = match flags & 3 {
        0 | 1 => Channel::Content,
        2 => Channel::Reasoning,
        _ => Channel::Tools,
    };
    let tools = if flags & 12 == 4 { "[]" } else { TOOLS };
    let strict_markers = flags & 128 != 0;
    let request = request(tools, style.map(|style| style.name.as_str()), start);
    let reason = if flags & 16 == 0 { FinishReason::Stop } else { FinishReason::Length };
    (RequestInfo { strict_markers, ..request }, reason)
}

/// ASCII as it is; a byte beyond it stands for a piece of the family's format.
fn text_of(entry: &Entry, bytes: &[u8]) -> (String, Vec<String>) {
    let markers = (entry.describe)().added_tokens;
    let mut pieces: Vec<&str> = markers.iter().map(String::as_str).collect();
    pieces.extend(entry.pieces);
    pieces.extend(COMMON);
    let mut text = String::new();
    for byte in bytes {
        match byte {
            0..128 => text.push(char::from(*byte)),
            _ => text.push_str(pieces[usize::from(byte - 128) % pieces.len()]),
        }
    }
    (text, markers)
}

/// The conformance cases of the group's families, as far as they are ASCII.
pub(crate) fn seeds(group: Group) -> Vec<Vec<u8>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/cases/formats.jsonl");
    let cases = Case::load(path).expect("the case file is part of the project");
    let mut seeds = Vec::new();
    for (number, entry) in all().filter(|entry| group(entry)).enumerate() {
        let own = |case: &&Case| entry.cases.iter().any(|(family, _)| *family == case.family);
        for case in cases.iter().filter(own) {
            let start = if case.starts_in_reasoning { 2 } else { 0 };
            let mut seed = vec![number as u8, 0, start, 0, 7, 3];
            seed.extend(case.text.bytes().filter(u8::is_ascii));
            seeds.push(seed);
        }
    }
    seeds
}
