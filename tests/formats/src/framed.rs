//! Families whose output is a row of messages.

use serde_json::Value;

use crate::Entry;
use crate::json::each;

pub(crate) const ENTRIES: &[Entry] = &[
    Entry::of::<tenon_parser_openai::OpenAi>(
        "openai",
        &[("gpt_oss", Some("openai_gptoss"))],
        Some(|calls| each(calls, "<|start|>assistant", harmony)),
    ),
    Entry::of::<tenon_parser_inkling::Inkling>(
        "inkling",
        &[("inkling", Some("inkling"))],
        Some(|calls| each(calls, "", inkling)),
    ),
    Entry::of::<tenon_parser_functionary_v3::FunctionaryV3>(
        "functionary_v3",
        &[("functionary_v3", None)],
        Some(|calls| each(calls, ">>>", |name, arguments| format!("{name}\n{arguments}"))),
    ),
];

fn harmony(name: &str, arguments: &Value) -> String {
    let header = format!("<|channel|>commentary to=functions.{name} <|constrain|>json");
    format!("{header}<|message|>{arguments}<|call|>")
}

fn inkling(name: &str, arguments: &Value) -> String {
    let body = format!("{{\"name\":{},\"args\":{arguments}}}", Value::from(name));
    format!("<|message_model|>{name}<|content_invoke_tool_json|>{body}<|end_message|>")
}
