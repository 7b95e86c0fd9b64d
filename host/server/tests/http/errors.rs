//! What is refused, and how: status and field of every answer, before a byte of a stream.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::rig::{Setup, chat_body, post};

#[tokio::test]
async fn fields_of_chat() {
    let server = Setup::default().start();
    let vocab = crate::rig::tokenizer().vocab_size();
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let missing = json!({"type": "function", "function": {"name": "missing"}});
    let message = json!({"role": "user", "content": "a"});
    let rows = [
        (json!({"model": "other"}), 404, json!("model")),
        (json!({"model": 3}), 400, json!("model")),
        (json!({"messages": []}), 400, json!("messages")),
        (json!({"messages": [{"role": "robot", "content": "x"}]}), 400, json!("messages[0].role")),
        (json!({"messages": [{"role": "user"}]}), 400, json!("messages[0].content")),
        (json!({"temperature": "hot"}), 400, json!("temperature")),
        (json!({"n": 1000000000}), 400, json!("n")),
        (json!({"logit_bias": {vocab.to_string(): 1}}), 400, json!("logit_bias")),
        (json!({"stop_token_ids": [vocab]}), 400, json!("stop_token_ids[0]")),
        (json!({"min_tokens": 50, "max_tokens": 10}), 400, json!("min_tokens")),
        (json!({"stop": vec!["a"; 17]}), 400, json!("stop")),
        (json!({"stop": 5}), 400, json!("stop")),
        (json!({"max_tokens": "ten"}), 400, json!("max_tokens")),
        (json!({"messages": {}}), 400, json!("messages")),
        (json!({"n": 1.5}), 400, json!("n")),
        (json!({"tools": {"a": 1}}), 400, json!("tools")),
        (json!({"tools": [tool], "tool_choice": "sometimes"}), 400, json!("tool_choice")),
        (json!({"tools": [tool], "tool_choice": missing}), 400, json!("tool_choice")),
        (json!({"messages": vec![message; 200_000]}), 400, json!("messages")),
        (json!({"logprobs": true, "top_logprobs": -1}), 400, json!("top_logprobs")),
        (json!({"max_tokens": 4000}), 400, json!("messages")),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema":
                {"not": {}}}}}),
            400,
            json!("response_format"),
        ),
        (json!({"tool_choice": "required"}), 400, json!("tool_choice")),
        (json!({"stream_options": {}}), 400, json!("stream_options")),
    ];
    for (extra, status, param) in rows {
        for stream in [false, true] {
            let mut extra = extra.clone();
            if extra.get("stream_options").is_none() {
                extra["stream"] = json!(stream);
            }
            let answer = server.chat("hi", extra.clone()).await;
            assert_eq!(answer.status, status, "{extra}");
            assert_eq!(answer.error_param(), param, "{extra}");
        }
    }
    let five = json!({"stop": ["a", "b", "c", "d", "zz"]});
    assert_eq!(server.chat("hi", five).await.status, 200);
    assert_eq!(server.chat("hi", json!({"model": "org/tiny"})).await.status, 200);
    assert_eq!(server.chat("hi", json!({"model": null})).await.status, 200);
}

#[tokio::test]
async fn fields_of_completions() {
    let server = Setup::default().start();
    let rows = [
        (json!({}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": ["a", ""]}), "prompt[1]"),
        (json!({"prompt": [[]]}), "prompt"),
        (json!({"prompt": [100000]}), "prompt[0]"),
        (json!({"prompt": "a", "best_of": 4, "n": 5}), "best_of"),
        (json!({"prompt": "a", "best_of": 100000}), "best_of"),
        (json!({"prompt": vec!["a"; 20], "best_of": 100}), "best_of"),
        (json!({"prompt": vec!["a"; 20000]}), "prompt"),
        (json!({"prompt": "a", "stop": vec!["a"; 100_000]}), "stop"),
        (json!({"prompt": "a", "suffix": "b"}), "suffix"),
        (json!({"prompt": "a", "logprobs": 9}), "logprobs"),
        (json!({"prompt": vec!["a"; 20], "n": 100}), "n"),
        (json!({"prompt": "a".repeat(3000)}), "prompt"),
    ];
    for (body, param) in rows {
        let answer = server.post("/v1/completions", body.clone()).await;
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.error_param(), param, "{body}");
    }
}

#[tokio::test]
async fn context_boundaries() {
    let server = Setup { max_model_len: 128, ..Setup::says(&"x".repeat(200)) }.start();
    // `<|user|>`, the text, `<|assistant|>`.
    let text = |prompt_tokens: usize| "a".repeat(prompt_tokens - 2);
    for stream in [false, true] {
        for (prompt, max_tokens, needed) in [
            (127, Value::Null, 0),
            (127, json!(1), 0),
            (127, json!(2), 129),
            (128, json!(1), 129),
            (200, json!(1), 201),
        ] {
            let extra = json!({"max_tokens": max_tokens, "stream": stream});
            let answer = server.chat(&text(prompt), extra).await;
            if needed == 0 {
                assert_eq!(answer.status, 200, "{prompt} {max_tokens}");
                continue;
            }
            assert_eq!(answer.status, 400);
            assert_eq!(answer.error_param(), "messages");
            let error = &answer.json()["error"];
            assert_eq!(error["code"], "context_length_exceeded");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("128") && message.contains(&needed.to_string()), "{message}");
        }
    }
    // Twice 128 tokens of the longest text, `<|assistant|>`: not even tokenized.
    for (len, says) in [(2 * 128 * 13, "tokens"), (2 * 128 * 13 + 1, "bytes")] {
        let body = json!({"prompt": ["a", "a".repeat(len)]});
        let answer = server.post("/v1/completions", body).await;
        assert_eq!(answer.status, 400);
        let error = &answer.json()["error"];
        assert_eq!(error["param"], "prompt[1]");
        assert_eq!(error["code"], "context_length_exceeded");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    }
    let capped = json!({"prompt": "a".repeat(127), "temperature": 0});
    let body = server.post("/v1/completions", capped).await.json();
    assert_eq!(body["usage"]["completion_tokens"], 1);
}

/// en-001: below the context's length and above what the blocks hold. Nobody waits behind it.
#[tokio::test]
async fn a_prompt_that_can_never_fit_is_refused_at_once() {
    let setup = Setup { num_blocks: 64, max_model_len: 4096, ..Setup::says(&"x".repeat(50)) };
    let server = setup.start();
    let ask = |num_tokens: usize| {
        let body = json!({"prompt": vec![97; num_tokens], "max_tokens": 10, "temperature": 0});
        server.post("/v1/completions", body)
    };
    let big = ask(1500).await;
    assert_eq!((big.status.as_u16(), big.error_param()), (400, json!("prompt")));
    let error = &big.json()["error"];
    assert_eq!(error["type"], "invalid_request_error");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("1510") && message.contains("1024"), "{message}");
    let (a, b, c, d, e) = tokio::join!(ask(100), ask(100), ask(100), ask(100), ask(100));
    for small in [a, b, c, d, e] {
        assert_eq!(small.json()["usage"]["completion_tokens"], 10, "{small:?}");
    }
}

#[tokio::test]
async fn bodies_that_are_not_read() {
    let mut setup = Setup::default();
    setup.config.max_body_bytes = 1000;
    let server = setup.start();
    let path = "/v1/chat/completions";
    let answer = server.call(post(path, "not json")).await;
    assert_eq!((answer.status.as_u16(), answer.error_param()), (400, Value::Null));
    let answer = server.call(post(path, vec![b'"', 0xff, b'"'])).await;
    assert_eq!((answer.status.as_u16(), answer.error_param()), (400, Value::Null));
    let answer = server.call(post(path, "")).await;
    assert_eq!((answer.status.as_u16(), answer.error_param()), (400, Value::Null));

    let long = chat_body(&"a".repeat(2000), json!({})).to_string();
    let answer = server.call(post(path, long.clone())).await;
    assert_eq!((answer.status.as_u16(), answer.error_param()), (413, Value::Null));
    // Without a length, in pieces.
    let pieces: Vec<Result<Vec<u8>, std::io::Error>> =
        long.as_bytes().chunks(100).map(|piece| Ok(piece.to_vec())).collect();
    let body = Body::from_stream(tokio_stream::iter(pieces));
    let answer = server.call(post(path, body)).await;
    assert_eq!((answer.status.as_u16(), answer.error_param()), (413, Value::Null));

    let form = Request::post(path)
        .header("content-type", "application/x-www-form-urlencoded")
        .body(Body::from("{}"))
        .unwrap();
    let answer = server.call(form).await;
    assert_eq!((answer.status.as_u16(), answer.error_param()), (415, Value::Null));
    let untyped = Request::post(path).body(Body::from(chat_body("a", json!({})).to_string()));
    assert_eq!(server.call(untyped.unwrap()).await.status, 200);
}

#[tokio::test]
async fn routes_that_are_not_there() {
    let server = Setup::default().start();
    for path in ["/", "/v1", "/v1/embeddings", "/v1/chat/completions/", "//v1/models"] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(answer.error_param(), Value::Null);
    }
    let answer = server.get("/v1/chat/completions").await;
    assert_eq!((answer.status.as_u16(), answer.error_param()), (405, Value::Null));
    assert!(answer.headers["allow"].to_str().unwrap().contains("POST"));
    let answer = server.get("/v1/models/none").await;
    assert_eq!((answer.status.as_u16(), answer.error_param()), (404, json!("model")));
    let model = server.get("/v1/models/org/tiny").await.json();
    assert_eq!((&model["id"], &model["max_model_len"]), (&json!("org/tiny"), &json!(2048)));
    let models = server.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(models["object"], "list");
}

#[tokio::test]
async fn request_ids() {
    let server = Setup::default().start();
    let ask = |id: &'static str| {
        Request::get("/ping").header("x-request-id", id).body(Body::empty()).unwrap()
    };
    assert_eq!(server.call(ask("abc-1")).await.headers["x-request-id"], "abc-1");
    let made = server.call(ask("has a blank")).await;
    assert!(made.headers["x-request-id"].to_str().unwrap().starts_with("req-"));
    assert!(server.get("/nowhere").await.headers.contains_key("x-request-id"));
    assert_eq!(server.get("/version").await.json()["version"], env!("CARGO_PKG_VERSION"));
}
