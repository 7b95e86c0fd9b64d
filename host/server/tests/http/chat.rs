//! `/v1/chat/completions`: bodies, chunks and what they hold.

use serde_json::{Value, json};

use crate::rig::{Setup, fold};

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}])
}

#[tokio::test]
async fn the_body() {
    let server = Setup::says("hello").start();
    let answer = server.chat("hi", json!({})).await;
    assert_eq!(answer.status, 200);
    let mut body = answer.json();
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(body["created"].as_u64().unwrap() > 1_700_000_000);
    body["id"] = json!("ID");
    body["created"] = json!(0);
    assert_eq!(
        body,
        json!({
            "id": "ID", "object": "chat.completion", "created": 0, "model": "tiny",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"},
                "logprobs": null, "finish_reason": "stop"}],
            // <|user|> h i <|assistant|> in, `hello` and the end token out.
            "usage": {"prompt_tokens": 4, "total_tokens": 10, "completion_tokens": 6,
                "prompt_tokens_details": {"cached_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0}},
        })
    );
}

#[tokio::test]
async fn the_stream() {
    let server = Setup::says("hé").start();
    let answer = server.chat("hi", json!({"stream": true})).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream; charset=utf-8");
    assert_eq!(answer.headers["cache-control"], "no-cache");
    let chunks = answer.chunks();
    let id = chunks[0]["id"].clone();
    assert!(chunks.iter().all(|c| c["id"] == id && c.get("usage").is_none()));
    let deltas: Vec<_> = chunks.iter().map(|c| c["choices"][0]["delta"].clone()).collect();
    assert_eq!(deltas[0], json!({"role": "assistant", "content": ""}));
    assert_eq!(deltas[1], json!({"content": "h"}));
    assert_eq!(deltas[2], json!({"content": "é"}));
    assert_eq!(deltas[3], json!({}));
    let finish: Vec<_> = chunks.iter().map(|c| c["choices"][0]["finish_reason"].clone()).collect();
    assert_eq!(finish, [Value::Null, Value::Null, Value::Null, json!("stop")]);
}

#[tokio::test]
async fn tool_calls() {
    let server = Setup::says("ok <call:ping>{\"a\": 1}</call><call:ping>{}</call>").start();
    let extra = json!({"tools": tools()});
    let body = server.chat("hi", extra.clone()).await.json();
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "ok ");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0]["function"], json!({"name": "ping", "arguments": "{\"a\": 1}"}));
    assert!(calls[0]["id"].as_str().unwrap().starts_with("call_"));
    assert_ne!(calls[0]["id"], calls[1]["id"]);

    let mut streamed = extra;
    streamed["stream"] = json!(true);
    let chunks = server.chat("hi", streamed).await.chunks();
    let (message, finish, _) = fold(&chunks, 0);
    assert_eq!(finish, "tool_calls");
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"a\": 1}");
}

#[tokio::test]
async fn only_a_call_has_null_content() {
    let server = Setup::says("<call:ping>{}</call>").start();
    let extra = json!({"tools": tools()});
    let body = server.chat("hi", extra.clone()).await.json();
    assert!(body["choices"][0]["message"]["content"].is_null());
    let mut streamed = extra;
    streamed["stream"] = json!(true);
    let chunks = server.chat("hi", streamed).await.chunks();
    let first = &chunks[0]["choices"][0]["delta"];
    assert_eq!(*first, json!({"role": "assistant", "content": null}));
}

#[tokio::test]
async fn reasoning_under_both_names_and_in_the_usage() {
    let server = Setup::says("<think>aa</think>bb").start();
    let body = server.chat("hi", json!({})).await.json();
    let message = &body["choices"][0]["message"];
    assert_eq!(message["reasoning"], "aa");
    assert_eq!(message["reasoning_content"], "aa");
    assert_eq!(message["content"], "bb");
    let details = &body["usage"]["completion_tokens_details"];
    assert!(details["reasoning_tokens"].as_u64().unwrap() >= 2);
    let hidden = server.chat("hi", json!({"include_reasoning": false})).await.json();
    assert!(hidden["choices"][0]["message"].get("reasoning").is_none());
    let raw = server.chat("hi", json!({"reasoning_parser": "none"})).await.json();
    assert_eq!(raw["choices"][0]["message"]["content"], "<think>aa</think>bb");
}

#[tokio::test]
async fn the_prompt_decides_where_the_stream_starts() {
    let server = Setup::says("aa</think>bb").start();
    let open = json!({"chat_template_kwargs": {"think": true}});
    let body = server.chat("hi", open).await.json();
    assert_eq!(body["choices"][0]["message"]["reasoning"], "aa");
    assert_eq!(body["choices"][0]["message"]["content"], "bb");
    let body = server.chat("hi", json!({})).await.json();
    assert_eq!(body["choices"][0]["message"]["content"], "aa</think>bb");
}

#[tokio::test]
async fn cut_in_reasoning() {
    let server = Setup::says("first I add the two").start();
    let extra = json!({"chat_template_kwargs": {"think": true}, "max_tokens": 7});
    let body = server.chat("hi", extra).await.json();
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["reasoning"], "first I");
    assert!(choice["message"]["content"].is_null());
}

#[tokio::test]
async fn several_choices() {
    let server = Setup::says("abc").start();
    let body = server.chat("hi", json!({"n": 3})).await.json();
    let choices = body["choices"].as_array().unwrap();
    let indices: Vec<_> = choices.iter().map(|c| c["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 2]);
    assert!(choices.iter().all(|c| c["message"]["content"] == "abc"));
    assert_eq!(body["usage"]["prompt_tokens"], 4);
    assert_eq!(body["usage"]["completion_tokens"], 12);
}

#[tokio::test]
async fn logprobs() {
    let server = Setup::says("\u{1f6f6}a").start();
    let extra = json!({"logprobs": true, "top_logprobs": 2});
    let body = server.chat("hi", extra).await.json();
    let content = body["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let bytes: Vec<u64> = content
        .iter()
        .flat_map(|t| t["bytes"].as_array().unwrap())
        .map(|b| b.as_u64().unwrap())
        .collect();
    assert_eq!(bytes[..5], [0xf0, 0x9f, 0x9b, 0xb6, b'a'.into()]);
    for token in content {
        assert!(!token["token"].as_str().unwrap().is_empty());
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn stop_strings() {
    let server = Setup::says("one STOP two").start();
    let body = server.chat("hi", json!({"stop": ["STOP"]})).await.json();
    let choice = &body["choices"][0];
    assert_eq!(choice["message"]["content"], "one ");
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["stop_reason"], "STOP");
    let kept = json!({"stop": "STOP", "include_stop_str_in_output": true});
    let body = server.chat("hi", kept).await.json();
    assert_eq!(body["choices"][0]["message"]["content"], "one STOP");
}

#[tokio::test]
async fn a_failing_parser_is_told() {
    let server = Setup::says("<think>a!!b").start();
    let answer = server.chat("hi", json!({})).await;
    assert_eq!(answer.headers["x-tenon-extension-fault"], "fake; kind=trap");
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "!!b");
    let chunks = server.chat("hi", json!({"stream": true})).await.chunks();
    let last = &chunks.last().unwrap()["choices"][0];
    assert_eq!(last["extension_fault"], json!({"extension": "fake", "kind": "trap"}));
    let page = server.get("/metrics").await;
    let page = String::from_utf8(page.body.to_vec()).unwrap();
    let labels = "model_name=\"tiny\",engine=\"0\",extension=\"fake\",kind=\"trap\"";
    assert!(page.contains(&format!("tenon_extension_faults_total{{{labels}}} 2")), "{page}");
}

#[tokio::test]
async fn which_parser() {
    let server = Setup { bound: None, ..Setup::says("<call:f>{}</call>") }.start();
    let answer = server.chat("hi", json!({"tools": tools()})).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.error_param(), "tools");
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("fake"));
    for name in ["fake", "fake_alias"] {
        let extra = json!({"tools": tools(), "tool_call_parser": name});
        let body = server.chat("hi", extra).await.json();
        assert_eq!(body["choices"][0]["finish_reason"], "tool_calls");
    }
    let raw = json!({"tools": tools(), "tool_call_parser": "none"});
    let body = server.chat("hi", raw).await.json();
    assert_eq!(body["choices"][0]["message"]["content"], "<call:f>{}</call>");
    let unknown = server.chat("hi", json!({"tool_call_parser": "hermez"})).await;
    assert_eq!(unknown.status, 400);
    assert_eq!(unknown.error_param(), "tool_call_parser");
    let unknown = server.chat("hi", json!({"reasoning_parser": "x"})).await;
    assert_eq!(unknown.error_param(), "reasoning_parser");
}

#[tokio::test]
async fn no_tools_no_calls() {
    let server = Setup::says("<call:f>{}</call>").start();
    for extra in [json!({}), json!({"tools": tools(), "tool_choice": "none"}), json!({"tools": []})]
    {
        let body = server.chat("hi", extra).await.json();
        assert_eq!(body["choices"][0]["message"]["content"], "<call:f>{}</call>");
    }
}

#[tokio::test]
async fn a_template_that_ignores_tools() {
    let ignores = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}";
    let server = Setup { template: Some(ignores), ..Setup::says("x") }.start();
    let refused = server.chat("hi", json!({"tools": tools()})).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.error_param(), "tools");
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("template"));
    let allowed = json!({"tools": tools(), "allow_ignored_tools": true});
    assert_eq!(server.chat("hi", allowed).await.status, 200);
    let mut setup = Setup { template: Some(ignores), ..Setup::says("x") };
    setup.config.allow_ignored_tools = true;
    assert_eq!(setup.start().chat("hi", json!({"tools": tools()})).await.status, 200);
}

#[tokio::test]
async fn without_a_template_or_with_one_that_fails() {
    let server = Setup { template: None, ..Setup::says("x") }.start();
    let answer = server.chat("hi", json!({})).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.error_param(), "messages");
    let raises = "{{ raise_exception('roles must alternate') }}";
    let server = Setup { template: Some(raises), ..Setup::says("x") }.start();
    let answer = server.chat("hi", json!({"stream": true})).await;
    assert_eq!(answer.status, 400);
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("roles must alternate"));
}

#[tokio::test]
async fn the_prefix_cache_shows_in_the_usage() {
    let server = Setup::says("x").start();
    let long = "a".repeat(100);
    for (round, cached) in [(0, 0), (1, 96)] {
        let body = server.chat(&long, json!({})).await.json();
        let details = &body["usage"]["prompt_tokens_details"];
        assert_eq!(details["cached_tokens"], cached, "round {round}");
    }
    let salted = server.chat(&long, json!({"cache_salt": "mine"})).await.json();
    assert_eq!(salted["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}
