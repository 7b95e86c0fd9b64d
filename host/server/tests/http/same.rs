//! The main property: a stream, folded, says the same as the JSON body, whatever the model wrote.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::rig::{Setup, fold};

/// Pieces of model text: markers whole, halved and unclosed, and characters of every length.
fn model_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("<think>".to_owned()),
        Just("</think>".to_owned()),
        Just("<call:f>".to_owned()),
        Just("</call>".to_owned()),
        Just("<call:".to_owned()),
        Just("<".to_owned()),
        Just("{\"a\": 1}".to_owned()),
        Just("\u{1f6f6} é".to_owned()),
        Just("STOP".to_owned()),
        Just("\n".to_owned()),
        "[a-z ]{1,6}",
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

fn request() -> impl Strategy<Value = Value> {
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    (1..4u32, 0..60u32, any::<[bool; 6]>()).prop_map(move |(n, max_tokens, on)| {
        let mut extra = json!({"n": n});
        if max_tokens > 0 {
            extra["max_tokens"] = json!(max_tokens);
        }
        let optional = [
            ("logprobs", json!(true)),
            ("tools", tools.clone()),
            ("stop", json!("STOP")),
            ("include_reasoning", json!(false)),
            ("chat_template_kwargs", json!({"think": true})),
            ("include_stop_str_in_output", json!(true)),
        ];
        for ((key, value), on) in optional.into_iter().zip(on) {
            if on {
                extra[key] = value;
            }
        }
        extra
    })
}

/// Ids of calls and answers are random; everything else must agree.
fn without_ids(mut message: Value) -> Value {
    if let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) {
        calls.iter_mut().for_each(|call| call["id"] = json!("id"));
    }
    message
}

async fn compare(server: &crate::rig::Server, key: &str, extra: &Value) {
    let whole = server.chat(key, extra.clone()).await;
    assert_eq!(whole.status, 200, "{:?}", whole.body);
    let whole = whole.json();
    let mut streamed = extra.clone();
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let mut chunks = server.chat(key, streamed).await.chunks();
    let last = chunks.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    // The second request finds the prompt in the prefix cache.
    let mut usage = (whole["usage"].clone(), last["usage"].clone());
    usage.0["prompt_tokens_details"] = Value::Null;
    usage.1["prompt_tokens_details"] = Value::Null;
    assert_eq!(usage.0, usage.1);
    assert!(chunks.iter().all(|chunk| chunk["usage"].is_null()));
    for choice in whole["choices"].as_array().unwrap() {
        let index = choice["index"].as_u64().unwrap();
        let (message, finish, logprobs) = fold(&chunks, index);
        assert_eq!(without_ids(message), without_ids(choice["message"].clone()), "{extra}");
        assert_eq!(finish, choice["finish_reason"]);
        let want = choice["logprobs"]["content"].as_array().cloned().unwrap_or_default();
        assert_eq!(logprobs, want);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, max_shrink_iters: 20, ..Default::default() })]

    #[test]
    fn a_stream_folds_to_the_body(
        cases in proptest::collection::vec((model_text(), request()), 24),
    ) {
        let key = |i: usize| format!("key-{i:03}.");
        let script = cases.iter().enumerate().map(|(i, (text, _))| (key(i), text.clone()));
        let server = Setup { script: script.collect(), ..Setup::default() }.start();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for (i, (_, extra)) in cases.iter().enumerate() {
                compare(&server, &key(i), extra).await;
            }
        });
    }
}
