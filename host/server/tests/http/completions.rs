//! `/v1/completions`: the four forms of a prompt, echo, log-probabilities.

use serde_json::{Value, json};

use crate::rig::{Server, Setup};

async fn complete(server: &Server, body: Value) -> Value {
    let mut whole = json!({"temperature": 0, "max_tokens": 50});
    for (key, value) in body.as_object().unwrap() {
        whole[key] = value.clone();
    }
    let answer = server.post("/v1/completions", whole).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()
}

fn texts(body: &Value) -> Vec<&str> {
    body["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect()
}

fn two() -> Setup {
    let script = [("a".to_owned(), "one".to_owned()), ("b".to_owned(), "two".to_owned())];
    Setup { script: script.into(), ..Setup::default() }
}

#[tokio::test]
async fn all_forms_of_a_prompt() {
    let server = two().start();
    let body = complete(&server, json!({"prompt": "a"})).await;
    assert_eq!(body["object"], "text_completion");
    assert!(body["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(texts(&body), ["one"]);
    assert_eq!(texts(&complete(&server, json!({"prompt": [97]})).await), ["one"]);
    for prompt in [json!(["a", "b"]), json!([[97], [98]])] {
        let body = complete(&server, json!({"prompt": prompt, "n": 2})).await;
        assert_eq!(texts(&body), ["one", "one", "two", "two"]);
        assert_eq!(body["usage"]["prompt_tokens"], 2);
        assert_eq!(body["usage"]["completion_tokens"], 16);
    }
}

#[tokio::test]
async fn the_default_limit_is_sixteen() {
    let server = Setup::says("0123456789abcdefXYZ").start();
    let answer = server.post("/v1/completions", json!({"prompt": "a", "temperature": 0})).await;
    let body = answer.json();
    assert_eq!(texts(&body), ["0123456789abcdef"]);
    assert_eq!(body["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn no_parser_reads_raw_completions() {
    let server = Setup::says("<think>a</think><call:f>{}</call>").start();
    let body = complete(&server, json!({"prompt": "a"})).await;
    assert_eq!(texts(&body), ["<think>a</think><call:f>{}</call>"]);
}

#[tokio::test]
async fn echo_and_nothing_to_generate() {
    let server = two().start();
    let body = complete(&server, json!({"prompt": ["xa", "xb"], "echo": true})).await;
    assert_eq!(texts(&body), ["xaone", "xbtwo"]);
    let body = complete(&server, json!({"prompt": [120, 97], "echo": true})).await;
    assert_eq!(texts(&body), ["xaone"]);
    for (echo, text) in [(true, "a"), (false, "")] {
        let body = complete(&server, json!({"prompt": "a", "echo": echo, "max_tokens": 0})).await;
        assert_eq!(texts(&body), [text]);
        assert_eq!(body["choices"][0]["finish_reason"], "length");
        assert_eq!(body["usage"]["completion_tokens"], 0);
        assert_eq!(body["usage"]["prompt_tokens"], 1);
    }
}

#[tokio::test]
async fn logprobs_in_both_modes() {
    let server = Setup::says("abcd").start();
    let request = json!({"prompt": "x", "max_tokens": 4, "logprobs": 2, "temperature": 0});
    let body = complete(&server, request.clone()).await;
    let whole = &body["choices"][0]["logprobs"];
    assert_eq!(whole["tokens"], json!(["a", "b", "c", "d"]));
    assert_eq!(whole["text_offset"], json!([0, 1, 2, 3]));
    for i in 0..4 {
        assert!(whole["token_logprobs"][i].as_f64().unwrap() <= 0.0);
        let top = whole["top_logprobs"][i].as_object().unwrap();
        assert!((2..=3).contains(&top.len()), "{top:?}");
    }
    let mut streamed = request;
    streamed["stream"] = json!(true);
    let chunks = server.post("/v1/completions", streamed).await.chunks();
    let mut text = String::new();
    let mut lists: [Vec<Value>; 4] = Default::default();
    let keys = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
    for chunk in &chunks {
        assert_eq!(chunk["object"], "text_completion");
        let choice = &chunk["choices"][0];
        text.push_str(choice["text"].as_str().unwrap());
        for (list, key) in lists.iter_mut().zip(keys) {
            list.extend(choice["logprobs"][key].as_array().cloned().unwrap_or_default());
        }
    }
    assert_eq!(text, "abcd");
    for (list, key) in lists.iter().zip(keys) {
        assert_eq!(*list, *whole[key].as_array().unwrap(), "{key}");
    }
}

#[tokio::test]
async fn streams_of_several_prompts() {
    let server = two().start();
    let request = json!({"prompt": ["a", "b"], "n": 2, "stream": true, "echo": true,
        "temperature": 0, "stream_options": {"include_usage": true}});
    let mut chunks = server.post("/v1/completions", request).await.chunks();
    let last = chunks.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 16);
    let mut texts = [const { String::new() }; 4];
    let mut ends = [0; 4];
    for chunk in &chunks {
        assert!(chunk["usage"].is_null() && chunk.get("usage").is_some());
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        texts[index].push_str(choice["text"].as_str().unwrap());
        ends[index] += u32::from(!choice["finish_reason"].is_null());
    }
    assert_eq!(texts, ["aone", "aone", "btwo", "btwo"]);
    assert_eq!(ends, [1; 4]);
}
