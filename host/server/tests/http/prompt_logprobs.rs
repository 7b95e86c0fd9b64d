//! Log-probabilities of prompts: `prompt_logprobs` of both endpoints, and echoes with `logprobs`.

use serde_json::{Value, json};

use crate::rig::{Server, Setup};

async fn complete(server: &Server, body: Value) -> Value {
    let answer = server.post("/v1/completions", body).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()
}

/// `null`, then one map per token that holds the token.
fn check_prompt(list: &Value, prompt: &str, k: usize) {
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), prompt.len());
    assert!(list[0].is_null());
    for (entry, byte) in list.iter().zip(prompt.bytes()).skip(1) {
        let token = &entry[byte.to_string()];
        assert_eq!(token["decoded_token"], char::from(byte).to_string());
        assert!(token["logprob"].as_f64().unwrap() <= 0.0 && token["rank"].as_u64().unwrap() > 0);
        assert!((k.max(1)..=k + 1).contains(&entry.as_object().unwrap().len()), "{entry}");
    }
}

#[tokio::test]
async fn both_endpoints_have_them() {
    let server = Setup::says("hello").start();
    // Longer than the rows of a step.
    let long = "a long prompt, then ".repeat(10);
    for k in [0, 3] {
        for prompt in ["q", "two", &long] {
            let asked = json!({"prompt": [prompt, "other"], "n": 2, "prompt_logprobs": k});
            let body = complete(&server, asked).await;
            for (choice, prompt) in [(0, prompt), (1, prompt), (2, "other"), (3, "other")] {
                check_prompt(&body["choices"][choice]["prompt_logprobs"], prompt, k);
                assert!(body["choices"][choice]["logprobs"].is_null());
            }
            assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        }
        let chat = server.chat("hi", json!({"prompt_logprobs": k, "n": 2})).await.json();
        let list = chat["prompt_logprobs"].as_array().unwrap();
        assert_eq!(list.len() as u64, chat["usage"]["prompt_tokens"].as_u64().unwrap());
        assert!(list[0].is_null() && list[1][u32::from(b'h').to_string()].is_object());
        assert_eq!(chat["choices"][1]["message"]["content"], "hello");
    }
    let chat = server.chat("hi", json!({})).await.json();
    assert!(chat.get("prompt_logprobs").is_none());
}

#[tokio::test]
async fn an_echo_has_log_probabilities_of_everything() {
    let server = Setup::says("abcd").start();
    let prompt = "Verdict: no, as always, and not yes";
    let len = prompt.len();
    for (max_tokens, said) in [(0, ""), (1, "a"), (4, "abcd")] {
        let asked = json!({"prompt": prompt, "echo": true, "logprobs": 1, "temperature": 0,
            "max_tokens": max_tokens, "n": 2});
        let body = complete(&server, asked.clone()).await;
        assert_eq!(body["usage"]["completion_tokens"], 2 * max_tokens);
        for index in 0..2 {
            let choice = &body["choices"][index];
            assert_eq!(choice["text"], format!("{prompt}{said}"));
            assert_eq!(choice["finish_reason"], "length");
            let lists = &choice["logprobs"];
            let tokens: Vec<&str> =
                lists["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
            assert_eq!(tokens.len(), len + max_tokens);
            assert_eq!(tokens.concat(), format!("{prompt}{said}"));
            let offsets: Vec<usize> = (0..len + max_tokens).collect();
            assert_eq!(lists["text_offset"], json!(offsets));
            for key in ["token_logprobs", "top_logprobs"] {
                let list = lists[key].as_array().unwrap();
                assert_eq!(list.len(), len + max_tokens);
                assert!(list[0].is_null() && list[1..].iter().all(|x| !x.is_null()), "{list:?}");
            }
            assert!(choice.get("prompt_logprobs").is_none());
        }
        check_stream(&server, asked, &body).await;
    }
}

/// What the chunks add up to is what the body says.
async fn check_stream(server: &Server, mut asked: Value, body: &Value) {
    asked["stream"] = json!(true);
    let chunks = server.post("/v1/completions", asked).await.chunks();
    let keys = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
    for index in 0..2 {
        let of = || chunks.iter().map(|c| &c["choices"][0]).filter(|c| c["index"] == index);
        let text: String = of().map(|c| c["text"].as_str().unwrap()).collect();
        assert_eq!(text, body["choices"][index]["text"].as_str().unwrap());
        for key in keys {
            let list: Vec<Value> = of()
                .flat_map(|c| c["logprobs"][key].as_array().cloned().unwrap_or_default())
                .collect();
            assert_eq!(json!(list), body["choices"][index]["logprobs"][key], "{key}");
        }
    }
}

#[tokio::test]
async fn echo_and_prompt_logprobs_have_their_own_k() {
    let server = Setup::says("ab").start();
    let asked = json!({"prompt": "xyz", "echo": true, "logprobs": 1, "prompt_logprobs": 4,
        "max_tokens": 1, "temperature": 0});
    let choice = complete(&server, asked).await["choices"][0].clone();
    check_prompt(&choice["prompt_logprobs"], "xyz", 4);
    for top in choice["logprobs"]["top_logprobs"].as_array().unwrap().iter().skip(1) {
        assert!((1..=2).contains(&top.as_object().unwrap().len()), "{top}");
    }
    // One token, nothing to generate: nothing but its place.
    let one = json!({"prompt": "x", "echo": true, "logprobs": 1, "max_tokens": 0});
    let one = complete(&server, one).await["choices"][0].clone();
    assert_eq!(one["text"], "x");
    assert_eq!(
        one["logprobs"],
        json!({"tokens": ["x"], "token_logprobs": [null], "top_logprobs": [null],
            "text_offset": [0]})
    );
    let ids = json!({"prompt": [120, 121], "prompt_logprobs": 0, "max_tokens": 0,
        "return_tokens_as_token_ids": true});
    let ids = complete(&server, ids).await["choices"][0]["prompt_logprobs"].clone();
    assert_eq!(ids[1]["121"]["decoded_token"], "token_id:121");
}

#[tokio::test]
async fn special_tokens_of_a_prompt_have_their_text() {
    let server = Setup::says("a").start();
    let asked = json!({"prompt": "<|user|>b", "echo": true, "logprobs": 0, "max_tokens": 0});
    let choice = complete(&server, asked).await["choices"][0].clone();
    assert_eq!(choice["logprobs"]["tokens"], json!(["<|user|>", "b"]));
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 8]));
}

#[tokio::test]
async fn a_cached_prompt_is_computed_again() {
    let server = Setup::says("hello").start();
    let prompt = "the same forty tokens, again and again..".repeat(2);
    let plain = json!({"prompt": prompt, "temperature": 0, "max_tokens": 3});
    complete(&server, plain.clone()).await;
    let cached = complete(&server, plain.clone()).await;
    assert_ne!(cached["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let mut asked = plain;
    asked["prompt_logprobs"] = json!(1);
    let scored = complete(&server, asked).await;
    assert_eq!(scored["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    check_prompt(&scored["choices"][0]["prompt_logprobs"], &prompt, 1);
}
