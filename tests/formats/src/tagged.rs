//! Families whose calls are tagged parameters.

use serde_json::{Map, Value};

use crate::Entry;

pub(crate) const ENTRIES: &[Entry] = &[
    Entry::of::<tenon_parser_qwen3_coder::Qwen3Coder>(
        "qwen3_coder",
        &[("qwen3_coder", Some("qwen3")), ("nemotron_v3", Some("nemotron_v3"))],
        Some(qwen),
    )
    .unquoted()
    .with_pieces(QWEN),
    Entry::of::<tenon_parser_qwen3_coder::Mimo>(
        "mimo",
        &[("mimo", Some("mimo"))],
        Some(|calls| one_line(calls, "tool_call")),
    )
    .unquoted()
    .with_pieces(QWEN),
    Entry::of::<tenon_parser_qwen3_coder::Step3p5>(
        "step3p5",
        &[("step3p5", Some("step3p5"))],
        Some(qwen),
    )
    .unquoted()
    .with_pieces(QWEN),
    Entry::of::<tenon_parser_qwen3_coder::SeedOss>(
        "seed_oss",
        &[("seed_oss", Some("seed_oss"))],
        Some(|calls| one_line(calls, "seed:tool_call")),
    )
    .unquoted()
    .with_pieces(QWEN),
    Entry::of::<tenon_parser_glm45::Glm45>("glm45", &[("glm45", Some("glm45"))], Some(glm45))
        .unquoted()
        .with_pieces(PAIRS),
    Entry::of::<tenon_parser_glm45::Glm47>("glm47", &[("glm47", Some("glm47"))], Some(glm47))
        .unquoted()
        .with_pieces(PAIRS),
    Entry::of::<tenon_parser_glm45::PoolsideV1>(
        "poolside_v1",
        &[("poolside_v1", Some("poolside_v1"))],
        Some(glm45),
    )
    .unquoted()
    .with_pieces(PAIRS),
    Entry::of::<tenon_parser_glm45::Ling3>("ling3", &[("ling3", Some("qwen3"))], Some(glm45))
        .unquoted()
        .with_pieces(PAIRS),
    Entry::of::<tenon_parser_glm45::Spark25>("spark25", &[("spark25", Some("qwen3"))], Some(glm45))
        .unquoted()
        .with_pieces(PAIRS),
    Entry::of::<tenon_parser_hy_v3::HyV3>("hy_v3", &[("hy_v3", Some("hy_v3"))], Some(hy_v3))
        .unquoted()
        .with_pieces(PAIRS),
    Entry::of::<tenon_parser_solar_open2::SolarOpen2>(
        "solar_open2",
        &[("solar_open2", Some("solar_open2"))],
        Some(solar),
    )
    .unquoted()
    .with_pieces(PAIRS),
    Entry::of::<tenon_parser_deepseek_v32::DeepseekV32>(
        "deepseek_v32",
        &[("deepseek_v32", Some("deepseek_v3"))],
        Some(|calls| dsml(calls, "｜DSML｜", "function_calls")),
    )
    .unquoted()
    .with_pieces(DSML),
    Entry::of::<tenon_parser_deepseek_v32::DeepseekV4>(
        "deepseek_v4",
        &[("deepseek_v4", Some("deepseek_v4"))],
        Some(|calls| dsml(calls, "｜DSML｜", "tool_calls")),
    )
    .unquoted()
    .with_pieces(DSML),
    Entry::of::<tenon_parser_deepseek_v32::Gigachat35>(
        "gigachat35",
        &[("gigachat35", None)],
        Some(|calls| dsml(calls, "｜GCML｜", "tool_calls")),
    )
    .unquoted()
    .with_pieces(GCML),
    Entry::of::<tenon_parser_minimax_m2::MinimaxM2>(
        "minimax_m2",
        &[("minimax_m2", Some("minimax_m2"))],
        Some(|calls| invokes(calls, "minimax:tool_call")),
    )
    .unquoted()
    .with_pieces(INVOKE),
    Entry::of::<tenon_parser_minimax_m3::MinimaxM3>(
        "minimax_m3",
        &[("minimax_m3", Some("minimax_m3"))],
        Some(minimax_m3),
    )
    .unquoted()
    .with_pieces(TREE),
    Entry::of::<tenon_parser_step3::Step3>("step3", &[("step3", Some("step3"))], Some(step3))
        .unquoted()
        .with_pieces(STEP),
    Entry::of::<tenon_parser_minicpm5::Minicpm5>(
        "minicpm5",
        &[("minicpm5", Some("qwen3"))],
        Some(minicpm5),
    )
    .unquoted()
    .with_pieces(FUNCTION),
    Entry::of::<tenon_parser_dots::Dots>(
        "dots",
        &[("dots", None)],
        Some(|calls| invokes(calls, "dots_function_call")),
    )
    .unquoted()
    .with_pieces(INVOKE),
    Entry::of::<tenon_parser_longcat::Longcat>(
        "longcat",
        &[("longcat", Some("longcat"))],
        Some(longcat),
    )
    .unquoted()
    .with_pieces(PAIRS),
    Entry::of::<tenon_parser_k2_horizon::K2Horizon>(
        "k2_horizon",
        &[("k2_horizon", Some("k2_horizon"))],
        Some(k2_horizon),
    )
    .unquoted()
    .with_pieces(PAIRS),
];

// Parts of calls for hostile texts.
const QWEN: &[&str] = &[
    "<function=f>",
    "<function=",
    "<parameter=x>",
    "\n<parameter=a>\n",
    "</parameter>",
    "\n</parameter>\n",
    "</function>",
];
const INVOKE: &[&str] = &[
    "<invoke name=\"f\">",
    "<invoke name=",
    "<parameter name=\"x\">",
    "<parameter name='a' string=\"false\">",
    "</parameter>",
    "</invoke>",
];
const FUNCTION: &[&str] = &[
    "<function name=\"f\">",
    "<param name=\"x\">",
    "<param name=a>",
    "<![CDATA[",
    "]]>",
    "</param>",
    "</function>",
];
const STEP: &[&str] = &[
    "function",
    "<steptml:invoke name=\"f\">",
    "<steptml:parameter name=\"x\">",
    "<steptml:parameter name=\"a\">",
    "</steptml:parameter>",
    "</steptml:invoke>",
];
const DSML: &[&str] = &[
    "<｜DSML｜invoke name=\"f\">",
    "<｜DSML｜parameter name=\"x\" string=\"true\">",
    "<｜DSML｜parameter name=\"a\" string=\"false\">",
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
];
const GCML: &[&str] = &[
    "<｜GCML｜invoke name=\"f\">",
    "<｜GCML｜parameter name=\"x\">",
    "</｜GCML｜parameter>",
    "</｜GCML｜invoke>",
];
const TREE: &[&str] = &[
    "]<]minimax[>[<invoke name=\"f\">",
    "]<]minimax[>[<x>",
    "]<]minimax[>[</x>",
    "]<]minimax[>[<a>",
    "]<]minimax[>[</a>",
    "]<]minimax[>[<item>",
    "]<]minimax[>[</item>",
    "]<]minimax[>[</invoke>",
];
/// The other markers of pairs are tokens, and so among the markers.
const PAIRS: &[&str] = &["f\n", "a", "x", "<arg_key>x</arg_key><arg_value>"];

type Calls<'a> = &'a [(String, Value)];

/// A value as it stands in a tag: strings as they are, anything else as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

/// Each call: `call` with `NAME`, and for each argument `argument` with `KEY` and `VALUE`, at the
/// `*`. What stands in a value is not looked at again.
fn fill(calls: Calls<'_>, call: &str, argument: &str) -> String {
    let (before, after) = call.split_once('*').expect("a call has a place for arguments");
    let mut text = String::new();
    for (name, arguments) in calls {
        text.push_str(&before.replace("NAME", name));
        for (key, value) in arguments.as_object().unwrap_or(&Map::new()) {
            let (begin, end) = argument.split_once("VALUE").expect("an argument has a value");
            text.push_str(&begin.replace("KEY", key));
            text.push_str(&plain(value));
            text.push_str(end);
        }
        text.push_str(after);
    }
    text
}

fn qwen(calls: Calls<'_>) -> String {
    let call = "<tool_call>\n<function=NAME>\n*</function>\n</tool_call>\n";
    fill(calls, call, "<parameter=KEY>\nVALUE\n</parameter>\n")
}

/// Values without newlines around them; one that has its own at an edge would lose it.
fn one_line(calls: Calls<'_>, wrapper: &str) -> String {
    let call = format!("<{wrapper}>\n<function=NAME>\n*</function>\n</{wrapper}>\n");
    let argument = match needs_framing(calls) {
        true => "<parameter=KEY>\nVALUE\n</parameter>\n",
        false => "<parameter=KEY>VALUE</parameter>\n",
    };
    fill(calls, &call, argument)
}

fn needs_framing(calls: Calls<'_>) -> bool {
    let mut values = calls.iter().filter_map(|(_, all)| all.as_object()).flat_map(Map::values);
    values.any(|value| plain(value).starts_with('\n') || plain(value).ends_with('\n'))
}

fn glm45(calls: Calls<'_>) -> String {
    let argument = "<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n";
    fill(calls, "<tool_call>NAME\n*</tool_call>\n", argument)
}

fn glm47(calls: Calls<'_>) -> String {
    let argument = "<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>";
    fill(calls, "<tool_call>NAME*</tool_call>", argument)
}

fn hy_v3(calls: Calls<'_>) -> String {
    let argument = "<arg_key:opensource>KEY</arg_key:opensource>\n\
                    <arg_value:opensource>VALUE</arg_value:opensource>\n";
    let call = "<tool_call:opensource>NAME<tool_sep:opensource>\n*</tool_call:opensource>\n";
    let calls = fill(calls, call, argument);
    format!("<tool_calls:opensource>\n{calls}</tool_calls:opensource>")
}

fn solar(calls: Calls<'_>) -> String {
    let argument = "<|tool_arg:start|>KEY<|tool_arg:value|>VALUE<|tool_arg:end|>\n";
    fill(calls, "<|tool_call:start|>NAME\n*<|tool_call:end|>\n", argument)
}

fn dsml(calls: Calls<'_>, token: &str, section: &str) -> String {
    let mut text = format!("<{token}{section}>\n");
    for (name, arguments) in calls {
        text.push_str(&format!("<{token}invoke name=\"{name}\">\n"));
        for (key, value) in arguments.as_object().unwrap_or(&Map::new()) {
            let is_string = value.is_string();
            text.push_str(&format!("<{token}parameter name=\"{key}\" string=\"{is_string}\">"));
            text.push_str(&plain(value));
            text.push_str(&format!("</{token}parameter>\n"));
        }
        text.push_str(&format!("</{token}invoke>\n"));
    }
    format!("{text}</{token}{section}>")
}

fn invokes(calls: Calls<'_>, section: &str) -> String {
    // M2's parser takes one newline on each side for framing, which the template writes none of.
    let argument = match section == "minimax:tool_call" && needs_framing(calls) {
        true => "<parameter name=\"KEY\">\nVALUE\n</parameter>\n",
        false => "<parameter name=\"KEY\">VALUE</parameter>\n",
    };
    let calls = fill(calls, "<invoke name=\"NAME\">\n*</invoke>\n", argument);
    format!("<{section}>\n{calls}</{section}>")
}

fn step3(calls: Calls<'_>) -> String {
    let call = "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"NAME\">\n*\
                </steptml:invoke><｜tool_call_end｜>\n";
    let argument = "<steptml:parameter name=\"KEY\">VALUE</steptml:parameter>\n";
    let calls = fill(calls, call, argument);
    format!("<｜tool_calls_begin｜>\n{calls}<｜tool_calls_end｜>")
}

fn minicpm5(calls: Calls<'_>) -> String {
    let call = "<function name=\"NAME\">*</function>";
    fill(calls, call, "<param name=\"KEY\"><![CDATA[VALUE]]></param>")
}

fn longcat(calls: Calls<'_>) -> String {
    let argument = "<longcat_arg_key>KEY</longcat_arg_key>\n\
                    <longcat_arg_value>VALUE</longcat_arg_value>\n";
    fill(calls, "<longcat_tool_call>NAME\n*</longcat_tool_call>", argument)
}

fn k2_horizon(calls: Calls<'_>) -> String {
    let argument = "<ifm|arg_key>KEY</ifm|arg_key>\n<ifm|arg_value>VALUE</ifm|arg_value>\n";
    let calls = fill(calls, "<ifm|tool_call>NAME\n*</ifm|tool_call>\n", argument);
    format!("<ifm|tool_calls>\n{calls}</ifm|tool_calls>")
}

fn minimax_m3(calls: Calls<'_>) -> String {
    const TOKEN: &str = "]<]minimax[>[";
    let mut text = format!("{TOKEN}<tool_call>\n");
    for (name, arguments) in calls {
        text.push_str(&format!("{TOKEN}<invoke name=\"{name}\">"));
        for (key, value) in arguments.as_object().unwrap_or(&Map::new()) {
            text.push_str(&format!("{TOKEN}<{key}>{}{TOKEN}</{key}>", plain(value)));
        }
        text.push_str(&format!("{TOKEN}</invoke>\n"));
    }
    format!("{text}{TOKEN}</tool_call>")
}
