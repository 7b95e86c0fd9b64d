//! Families whose calls are Python, or have bare keys.

use serde_json::Value;

use crate::Entry;
use crate::json::each;

pub(crate) const ENTRIES: &[Entry] = &[
    Entry::of::<tenon_parser_pythonic::Pythonic>(
        "pythonic",
        &[("pythonic", None), ("gemma3_pythonic", None)],
        Some(|calls| format!("[{}]", each(calls, ", ", python_call))),
    )
    .with_pieces(PYTHON),
    Entry::of::<tenon_parser_olmo3::Olmo3>(
        "olmo3",
        &[("olmo3", Some("olmo3"))],
        Some(|calls| {
            format!("<function_calls>\n{}\n</function_calls>", each(calls, "\n", python_call))
        }),
    )
    .with_pieces(PYTHON),
    Entry::of::<tenon_parser_lfm2::Lfm2>(
        "lfm2",
        &[("lfm2", Some("qwen3"))],
        Some(|calls| {
            let calls = each(calls, ", ", python_call);
            format!("<|tool_call_start|>[{calls}]<|tool_call_end|>")
        }),
    )
    .with_pieces(PYTHON),
    Entry::of::<tenon_parser_gemma4::Gemma4>(
        "gemma4",
        &[("gemma4", Some("gemma4"))],
        Some(|calls| {
            each(calls, "", |name, arguments| {
                format!("<|tool_call>call:{name}{}<tool_call|>", bare(arguments, "<|\"|>"))
            })
        }),
    )
    .unquoted()
    .with_pieces(BARE),
    Entry::of::<tenon_parser_functiongemma::FunctionGemma>(
        "functiongemma",
        &[("functiongemma", None)],
        Some(|calls| {
            each(calls, "", |name, arguments| {
                let arguments = bare(arguments, "<escape>");
                format!("<start_function_call>call:{name}{arguments}<end_function_call>")
            })
        }),
    )
    .unquoted()
    .with_pieces(BARE),
];

const PYTHON: &[&str] =
    &["[f(", "f(a=", "x='", "'''", "\\x4", "\\ud83d", "\\\n", "r'", "True", "1_0", "{'k':", "it's"];

const BARE: &[&str] = &["call:f{", "call:", "a:", "x:[", "{k:", "108.", "nil"];

fn python_call(name: &str, arguments: &Value) -> String {
    let members = arguments.as_object().into_iter().flatten();
    let members: Vec<String> =
        members.map(|(key, value)| format!("{key}={}", python(value))).collect();
    format!("{name}({})", members.join(", "))
}

fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(python).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(members) => {
            let member =
                |(key, value): (&String, &Value)| format!("{}: {}", quoted(key), python(value));
            let members: Vec<String> = members.iter().map(member).collect();
            format!("{{{}}}", members.join(", "))
        }
    }
}

fn quoted(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n");
    format!("'{text}'")
}

/// Bare keys, strings between delimiters.
fn bare(value: &Value, delimiter: &str) -> String {
    match value {
        Value::String(text) => format!("{delimiter}{text}{delimiter}"),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| bare(item, delimiter)).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(members) => {
            let members = members.iter();
            let members: Vec<String> =
                members.map(|(key, value)| format!("{key}:{}", bare(value, delimiter))).collect();
            format!("{{{}}}", members.join(","))
        }
        _ => value.to_string(),
    }
}
