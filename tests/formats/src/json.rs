//! Families whose calls are JSON.

use serde_json::Value;

use crate::Entry;

pub(crate) const ENTRIES: &[Entry] = &[
    Entry::of::<tenon_parser_hermes::Hermes>(
        "hermes",
        &[("hermes", Some("qwen3"))],
        Some(|calls| {
            each(calls, "", |name, arguments| {
                format!(
                    "<tool_call>\n{{\"name\": {}, \"arguments\": {arguments}}}\n</tool_call>",
                    Value::from(name)
                )
            })
        }),
    ),
    Entry::of::<tenon_parser_llama3_json::Llama3Json>(
        "llama3_json",
        &[("llama3_json", None)],
        Some(|calls| {
            each(calls, "; ", |name, arguments| {
                format!("{{\"name\": {}, \"parameters\": {arguments}}}", Value::from(name))
            })
        }),
    ),
    Entry::of::<tenon_parser_think::Think>("think", &[], None),
];

/// Each call by itself, with `between` between them.
pub(crate) fn each(
    calls: &[(String, Value)],
    between: &str,
    write: fn(&str, &Value) -> String,
) -> String {
    let calls: Vec<String> = calls.iter().map(|(name, value)| write(name, value)).collect();
    calls.join(between)
}
