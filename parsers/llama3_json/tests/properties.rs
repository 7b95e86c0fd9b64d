//! What must hold for any text: the same events for any cut, and prose stays prose.

use proptest::prelude::*;
use tenon_guest::harness::{Stream, any_cut};
use tenon_guest::{Channel, FinishReason, RequestInfo, ToolChoice};
use tenon_parser_llama3_json::Llama3Json;

const TAG: &str = "<|python_tag|>";

fn request(strict_markers: bool) -> RequestInfo {
    RequestInfo {
        tools: "[{}]".into(),
        tool_choice: ToolChoice::Auto,
        tool_name: None,
        parallel: true,
        strict: false,
        reasoning_style: None,
        start: Channel::Content,
        strict_markers,
    }
}

/// The tag, parts of calls of both forms, near misses.
fn hostile() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        TAG,
        "<|py",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\\",
        ":",
        ",",
        ";",
        " ",
        "\n",
        "é",
        "🛶",
        "x",
        "{\"name\": \"f\", \"parameters\": {\"a\": \"\\u00e9}\"}}",
        "{\"name\": \"g\"",
        "\"name\": ",
        "\"parameters\": ",
        "\"{}\"",
        "null",
        "-1.5",
        "search.call(",
        "q=",
        "'a\\n\"'",
        "\"b, \\\"c\"",
        "True",
        ", n=12",
        ")",
        "{\"parameters\": {}, \"name\": \"h\"}",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn any_text_reads_the_same_for_any_cut(text in hostile(), strict in any::<bool>()) {
        let markers = if strict { &[TAG][..] } else { &[] };
        let stream = Stream::with_tokens(&text, markers);
        let folded = any_cut::<Llama3Json>(&request(strict), &stream, FinishReason::Stop);
        match folded {
            Err(violation) => prop_assert!(false, "{:?}: {}", text, violation),
            Ok(folded) => for call in folded.calls.iter().filter(|call| call.name == "search") {
                let is_json = serde_json::from_str::<serde_json::Value>(&call.arguments).is_ok();
                prop_assert!(is_json || !call.is_ended, "{:?}: {}", text, call.arguments);
            },
        }
    }

    #[test]
    fn behind_prose_nothing_is_a_call(text in hostile()) {
        let text = format!("So {text}");
        let stream = Stream::of(&text);
        match any_cut::<Llama3Json>(&request(false), &stream, FinishReason::Stop) {
            Err(violation) => prop_assert!(false, "{:?}: {}", text, violation),
            Ok(folded) => {
                prop_assert_eq!(folded.content, Some(text));
                prop_assert!(folded.calls.is_empty());
            }
        }
    }
}
