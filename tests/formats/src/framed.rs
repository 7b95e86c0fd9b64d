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
    Entry::of::<tenon_parser_muse::Muse>(
        "muse",
        &[("muse", Some("muse"))],
        Some(|calls| {
            let calls = each(calls, "", muse);
            let block = format!("<atem:function_calls>\n{calls}</atem:function_calls>");
            format!(" to=tools<|message|>{block}<|eom|>")
        }),
    )
    .unquoted(),
    Entry::of::<tenon_parser_solar_open::SolarOpen>(
        "solar_open",
        &[("solar_open", Some("solar_open"))],
        Some(|calls| format!("<|tool_calls|>{}<|calls|>", each(calls, "", solar_open))),
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

fn solar_open(name: &str, arguments: &Value) -> String {
    let head = format!("<|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>{name}");
    format!("{head}<|tool_call:args|>{arguments}<|tool_call:end|>")
}

fn muse(name: &str, arguments: &Value) -> String {
    let mut text = format!("<atem:invoke name=\"{name}\">\n");
    for (key, value) in arguments.as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| value.to_string(), String::from);
        text.push_str(&format!("<atem:parameter name=\"{key}\">{value}</atem:parameter>\n"));
    }
    text + "</atem:invoke>\n"
}
