//! The admin routes and the playground.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::rig::{Answer, Server, Setup};

fn server() -> Server {
    let mut setup = Setup::says("<call:f>{}</call>");
    setup.config.admin_key = Some("admin".into());
    setup.config.max_upload_bytes = 100;
    setup.bound = None;
    setup.start()
}

async fn call(server: &Server, method: &str, path: &str, body: impl Into<Body>) -> Answer {
    let request = Request::builder().method(method).uri(path);
    let request = request.header("authorization", "Bearer admin").body(body.into()).unwrap();
    server.call(request).await
}

#[tokio::test]
async fn life_of_an_extension() {
    let server = server();
    let answer = call(&server, "POST", "/v1/extensions?name=acme", "wasm").await;
    assert_eq!(answer.status, 201);
    let record = answer.json();
    assert_eq!(record["name"], "acme");
    assert_eq!(record["bound"], json!([]));
    for key in ["digest", "kinds", "descriptor", "versions"] {
        assert!(!record[key].is_null(), "{key}");
    }
    let list = call(&server, "GET", "/v1/extensions", "").await.json();
    assert_eq!(list["data"].as_array().unwrap().len(), 2);
    let one = call(&server, "GET", "/v1/extensions/acme", "").await.json();
    assert_eq!(one["descriptor"]["name"], "acme");

    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let ask = json!({"tools": tools});
    assert_eq!(server.chat("hi", ask.clone()).await.status, 400);
    let body = json!({"model": "tiny"}).to_string();
    let bound = call(&server, "PUT", "/v1/extensions/acme/bind", body).await;
    assert_eq!(bound.json()["bound"], json!(["tiny"]));
    let answer = server.chat("hi", ask).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");

    let digest = json!({"digest": "sha256:00"}).to_string();
    let path = "/v1/extensions/acme/activate";
    assert_eq!(call(&server, "POST", path, digest).await.status, 200);
    let answer = call(&server, "POST", path, json!({"digest": "x"}).to_string()).await;
    assert_eq!((answer.status.as_u16(), answer.error_param()), (400, json!("digest")));
    assert_eq!(call(&server, "POST", path, "").await.error_param(), "digest");
    let answer = call(&server, "POST", "/v1/extensions/acme/rollback", "").await;
    assert_eq!((answer.status.as_u16(), answer.error_param()), (409, Value::Null));
    assert_eq!(call(&server, "DELETE", "/v1/extensions/acme", "").await.status, 200);
    let answer = call(&server, "DELETE", "/v1/extensions/acme", "").await;
    assert_eq!((answer.status.as_u16(), answer.error_param()), (404, Value::Null));
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("fake"));
}

#[tokio::test]
async fn refused_uploads() {
    let server = server();
    let path = "/v1/extensions";
    let answer = call(&server, "POST", path, vec![0xffu8]).await;
    assert_eq!((answer.status.as_u16(), answer.error_param()), (422, Value::Null));
    assert_eq!(answer.json()["reasons"].as_array().unwrap().len(), 2);
    let answer = call(&server, "POST", path, vec![b'a'; 101]).await;
    assert_eq!((answer.status.as_u16(), answer.error_param()), (413, Value::Null));
    assert_eq!(call(&server, "POST", path, "").await.status, 400);
    for query in ["name=..%2Fx", "name=a&name=b", "name="] {
        let answer = call(&server, "POST", &format!("{path}?{query}"), "wasm").await;
        assert_eq!((answer.status.as_u16(), answer.error_param()), (400, json!("name")));
    }
    let answer = call(&server, "PUT", "/v1/extensions/fake/bind", "{\"model\": \"x\"}").await;
    assert_eq!((answer.status.as_u16(), answer.error_param()), (404, json!("model")));
}

#[tokio::test]
async fn names_that_are_no_text() {
    let server = server();
    for (method, path) in [
        ("GET", "/v1/extensions/%ff"),
        ("DELETE", "/v1/extensions/%ff"),
        ("PUT", "/v1/extensions/%ff/bind"),
        ("POST", "/v1/extensions/%ff/parse"),
        ("GET", "/v1/models/%ff"),
    ] {
        let answer = call(&server, method, path, "{}").await;
        assert_eq!((answer.status.as_u16(), answer.error_param()), (400, json!("name")), "{path}");
    }
    let answer = call(&server, "GET", "/v1/extensions/a%00%2Fb", "").await;
    assert_eq!((answer.status.as_u16(), answer.error_param()), (404, Value::Null));
}

#[tokio::test]
async fn playground() {
    let server = server();
    let text = "<think>a</think>b<call:f>{}</call>";
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let path = "/v1/extensions/fake/parse";
    let body = json!({"text": text, "tools": tools, "chunk": 1}).to_string();
    let parsed = call(&server, "POST", path, body).await.json();
    assert_eq!(parsed["pieces"].as_array().unwrap().len(), text.len() + 1);
    assert_eq!(parsed["message"]["reasoning"], "a");
    assert_eq!(parsed["message"]["content"], "b");
    assert_eq!(parsed["message"]["tool_calls"][0]["arguments"], "{}");
    assert!(parsed["fault"].is_null());
    assert_eq!(parsed["pieces"][0]["held"], 1);

    let body = json!({"text": "a", "start": "reasoning", "finish": "length"}).to_string();
    let parsed = call(&server, "POST", path, body).await.json();
    assert_eq!(parsed["message"]["reasoning"], "a");
    let body = json!({"text": "ab!!", "cuts": [2]}).to_string();
    let parsed = call(&server, "POST", path, body).await.json();
    assert_eq!(parsed["fault"]["kind"], "trap");
    assert_eq!(parsed["message"]["content"], "ab");
    let rows = [
        (json!({}), "text"),
        (json!({"text": "a", "cuts": [5]}), "cuts[0]"),
        (json!({"text": "a", "reasoning_style": "x"}), "reasoning_style"),
        (json!({"text": "a", "start": "x"}), "start"),
    ];
    for (body, param) in rows {
        let answer = call(&server, "POST", path, body.to_string()).await;
        assert_eq!((answer.status.as_u16(), answer.error_param()), (400, json!(param)));
    }
    let answer = call(&server, "POST", "/v1/extensions/none/parse", "{\"text\": \"\"}").await;
    assert_eq!(answer.status, 404);
}
