//! The incremental JSON pieces against a whole-text implementation.

use proptest::prelude::*;
use serde_json::Value;
use tenon_guest::json::{Checked, Checker, Unescape, Unescaped, is_value, quoted};

/// JSON and near misses of it.
fn json_like() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"a\"",
        "\"\\u00e9\"",
        "\"\\x\"",
        "\"\\uD83D\\uDC1F\"",
        "0",
        "-1.5e+3",
        "01",
        "-",
        "1.",
        "true",
        "nul",
        "null",
        " ",
        "\n",
        "\"é\"",
        "\"",
        "{\"k\": ",
        "[1, 2]",
    ]);
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_checker_agrees_with_a_whole_text_parser(text in json_like()) {
        let parsed = serde_json::from_str::<Value>(&text);
        // A number too large for an f64 is JSON all the same.
        let is_too_large = |error: &serde_json::Error| error.to_string().contains("out of range");
        prop_assume!(!parsed.as_ref().is_err_and(is_too_large));
        prop_assert_eq!(is_value(&text), parsed.is_ok(), "{}", text);
    }

    #[test]
    fn strings_decode_the_same_in_any_pieces(text in "[a-zé🛶\"\\\\\n/]{0,12}", cut in 0usize..40) {
        let literal = serde_json::to_string(&text).expect("a string has a literal");
        for literal in [literal, quoted(&text), escaped_units(&text)] {
            let inside = &literal[1..];
            let cut = inside.floor_char_boundary(cut);
            let mut out = String::new();
            let mut decoder = Unescape::default();
            let first = decoder.feed(&inside[..cut], &mut out);
            let end = if first == Unescaped::More {
                decoder.feed(&inside[cut..], &mut out)
            } else {
                first
            };
            prop_assert!(matches!(end, Unescaped::Closed(_)), "{}", literal);
            prop_assert_eq!(&out, &text);
        }
    }
}

/// Every character as `\u` escapes.
fn escaped_units(text: &str) -> String {
    let units = text.encode_utf16().map(|unit| format!("\\u{unit:04x}"));
    format!("\"{}\"", units.collect::<String>())
}

#[test]
fn lone_surrogates_and_bad_escapes() {
    let decode = |mut decoder: Unescape, text: &str| {
        let mut out = String::new();
        let end = decoder.feed(text, &mut out);
        (out, end)
    };
    let (out, end) = decode(Unescape::default(), "\\ud83dx\\udc1f\"");
    assert_eq!((out.as_str(), end), ("\u{fffd}x\u{fffd}", Unescaped::Closed(14)));
    assert_eq!(decode(Unescape::default(), "a\\q").1, Unescaped::Bad(2));
    let (out, _) = decode(Unescape::lenient(), "a\\q\\u12z\n\"");
    assert_eq!(out, "a\\q\\u12z\n");
}

#[test]
fn nesting_is_bounded() {
    let mut checker = Checker::default();
    let last = (0..100_000).map(|_| checker.byte(b'[')).find(|done| *done == Checked::Bad);
    assert_eq!(last, Some(Checked::Bad));
}
