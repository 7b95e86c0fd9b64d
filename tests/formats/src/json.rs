//! Families whose calls are JSON.

use serde_json::Value;
use tenon_parser_headed_json::{DeepSeekV3, DeepSeekV31, FunctionaryV31, KimiK2, Mistral};
use tenon_parser_hermes::Hermes;
use tenon_parser_json_lists::{
    Apertus, Apriel, CohereCommand3, CohereCommand4, Granite, HunyuanA13b, Jamba, Minimax,
    NemotronDeci, Phi4MiniJson, Xlam,
};
use tenon_parser_json_objects::{Ernie45, GigaChat3, Granite4, Granite20bFc, Internlm, Trinity};

use crate::{Entry, Render};

type Calls<'a> = &'a [(String, Value)];

/// Hermes' own form.
const TAGS: Option<Render> =
    Some(|calls| each(calls, "\n", |n, a| format!("<tool_call>\n{}\n</tool_call>", object(n, a))));
const TOOL_CALLS: Option<Render> =
    Some(|calls| format!("<tool_calls>[\n{}\n]</tool_calls>", each(calls, ", ", object)));
const ACTION: Option<Render> = Some(|calls| {
    let one = |(index, (name, arguments)): (usize, &(String, Value))| {
        let name = Value::from(name.as_str());
        format!(
            "{{\"tool_call_id\": \"{index}\", \"tool_name\": {name}, \"parameters\": {arguments}}}"
        )
    };
    let calls: Vec<String> = calls.iter().enumerate().map(one).collect();
    format!("<|START_ACTION|>[\n    {}\n]<|END_ACTION|>", calls.join(",\n    "))
});

pub(crate) const ENTRIES: &[Entry] = &[
    Entry::of::<Hermes>(
        "hermes",
        &[
            ("hermes", Some("qwen3")),
            ("baichuan_m2", Some("qwen3")),
            ("exaone4", Some("deepseek_r1")),
            ("holo2", Some("holo2")),
            ("ling", Some("deepseek_r1")),
        ],
        TAGS,
    ),
    Entry::of::<Granite4>("granite4", &[("granite4", None)], TAGS),
    Entry::of::<Ernie45>("ernie45", &[("ernie45", Some("ernie45"))], TAGS),
    Entry::of::<Trinity>("trinity", &[("trinity", Some("qwen3"))], TAGS),
    Entry::of::<tenon_parser_llama3_json::Llama3Json>(
        "llama3_json",
        &[("llama3_json", None)],
        Some(|calls| {
            each(calls, "; ", |name, arguments| {
                format!("{{\"name\": {}, \"parameters\": {arguments}}}", Value::from(name))
            })
        }),
    ),
    Entry::of::<Internlm>(
        "internlm",
        &[("internlm2", None), ("interns1", Some("interns1"))],
        Some(|calls| {
            let one = |name: &str, arguments: &Value| {
                format!("<|action_start|><|plugin|>\n{}<|action_end|>\n", object(name, arguments))
            };
            each(calls, "", one)
        }),
    ),
    Entry::of::<GigaChat3>(
        "gigachat3",
        &[("gigachat3", None)],
        Some(|calls| each(calls, "", |n, a| format!("<|function_call|>{}</s>", object(n, a)))),
    ),
    Entry::of::<Granite20bFc>(
        "granite-20b-fc",
        &[("granite-20b-fc", None)],
        Some(|calls| each(calls, " ", |n, a| format!("<function_call> {}", object(n, a)))),
    ),
    Entry::of::<Jamba>("jamba", &[("jamba", None)], TOOL_CALLS),
    Entry::of::<HunyuanA13b>("hunyuan_a13b", &[("hunyuan_a13b", Some("hunyuan_a13b"))], TOOL_CALLS),
    Entry::of::<Minimax>(
        "minimax",
        &[],
        Some(|calls| format!("<tool_calls>\n{}\n</tool_calls>", each(calls, "\n", object))),
    ),
    Entry::of::<Apriel>(
        "apriel",
        &[],
        Some(|calls| format!("<tool_calls>[{}]</tool_calls>", each(calls, ", ", object))),
    ),
    Entry::of::<NemotronDeci>(
        "nemotron_deci",
        &[("nemotron_v2", Some("nemotron_deci"))],
        Some(|calls| format!("<TOOLCALL>[{}]</TOOLCALL>", each(calls, ", ", object))),
    ),
    Entry::of::<Apertus>(
        "apertus",
        &[("apertus", Some("apertus2509"))],
        Some(|calls| {
            let calls = each(calls, ", ", |n, a| format!("{{{}: {a}}}", Value::from(n)));
            format!("<|tools_prefix|>[{calls}]<|tools_suffix|>")
        }),
    ),
    Entry::of::<CohereCommand3>(
        "cohere_command3",
        &[("cohere_command3", Some("cohere_command3"))],
        ACTION,
    ),
    Entry::of::<CohereCommand4>(
        "cohere_command4",
        &[("cohere_command4", Some("cohere_command4"))],
        ACTION,
    ),
    Entry::of::<Granite>(
        "granite",
        &[("granite", Some("granite"))],
        Some(|calls| format!("<|tool_call|>[{}]", each(calls, ", ", object))),
    ),
    Entry::of::<Phi4MiniJson>(
        "phi4_mini_json",
        &[("phi4_mini", None), ("firefunction", None)],
        Some(|calls| format!("functools[{}]", each(calls, ", ", object))),
    ),
    Entry::of::<Xlam>(
        "xlam",
        &[("xlam", Some("deepseek_r1"))],
        Some(|calls| format!("```json\n[{}]\n```", each(calls, ", ", object))),
    ),
    Entry::of::<DeepSeekV3>(
        "deepseek_v3",
        &[("deepseek_v3", Some("deepseek_r1"))],
        Some(|calls| {
            section(calls, "\n", |n, a| format!("function<｜tool▁sep｜>{n}\n```json\n{a}\n```"))
        }),
    ),
    Entry::of::<DeepSeekV31>(
        "deepseek_v31",
        &[("deepseek_v31", Some("deepseek_v3"))],
        Some(|calls| section(calls, "", |n, a| format!("{n}<｜tool▁sep｜>{a}"))),
    ),
    Entry::of::<KimiK2>(
        "kimi_k2",
        &[("kimi_k2", Some("kimi_k2"))],
        Some(|calls| {
            let calls = each(calls, "", |name, arguments| {
                let id = format!("functions.{name}:7");
                let head = format!("<|tool_call_begin|>{id}<|tool_call_argument_begin|>");
                format!("{head}{arguments}<|tool_call_end|>")
            });
            format!("<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>")
        }),
    ),
    Entry::of::<tenon_parser_kimi_k3::KimiK3>(
        "kimi_k3",
        &[("kimi_k3", Some("kimi_k3"))],
        Some(xtml),
    )
    .unquoted(),
    Entry::of::<Mistral>(
        "mistral",
        &[("mistral", Some("mistral"))],
        Some(|calls| each(calls, "", |n, a| format!("[TOOL_CALLS]{n}[ARGS]{a}"))),
    ),
    Entry::of::<FunctionaryV31>(
        "functionary_v31",
        &[],
        Some(|calls| each(calls, "", |n, a| format!("<function={n}>{a}</function>"))),
    ),
    Entry::of::<tenon_parser_think::Think>("think", &[("telechat4", Some("telechat4"))], None),
];

fn object(name: &str, arguments: &Value) -> String {
    format!("{{\"name\": {}, \"arguments\": {arguments}}}", Value::from(name))
}

/// Kimi K3: each argument says its type.
fn xtml(calls: Calls<'_>) -> String {
    let argument = |(key, value): (&String, &Value)| {
        let (kind, text) = match value {
            Value::Null => ("null", value.to_string()),
            Value::Bool(_) => ("boolean", value.to_string()),
            Value::Number(_) => ("number", value.to_string()),
            Value::String(text) => ("string", text.clone()),
            Value::Array(_) => ("array", value.to_string()),
            Value::Object(_) => ("object", value.to_string()),
        };
        format!(
            "<|open|>argument key=\"{key}\" type=\"{kind}\"<|sep|>{text}<|close|>argument<|sep|>"
        )
    };
    let call = |(index, (name, arguments)): (usize, &(String, Value))| {
        let arguments = arguments.as_object().into_iter().flatten().map(argument);
        let arguments: String = arguments.collect();
        format!(
            "<|open|>call tool=\"{name}\" index=\"{index}\"<|sep|>{arguments}<|close|>call<|sep|>"
        )
    };
    let calls: String = calls.iter().enumerate().map(call).collect();
    format!("<|open|>tools<|sep|>{calls}<|close|>tools<|sep|>")
}

/// DeepSeek's tokens.
fn section(calls: Calls<'_>, between: &str, write: impl Fn(&str, &Value) -> String) -> String {
    let calls = each(calls, between, |name, arguments| {
        format!("<｜tool▁call▁begin｜>{}<｜tool▁call▁end｜>", write(name, arguments))
    });
    format!("<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>")
}

/// Each call by itself, with `between` between them.
pub(crate) fn each(
    calls: Calls<'_>,
    between: &str,
    write: impl Fn(&str, &Value) -> String,
) -> String {
    let calls: Vec<String> = calls.iter().map(|(name, value)| write(name, value)).collect();
    calls.join(between)
}
