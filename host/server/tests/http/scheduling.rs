//! Priority, tenants and deadlines over HTTP.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use tenon_engine::SchedulingPolicy;
use tenon_server::ServerConfig;

use crate::rig::{Setup, chat_body, post};

const CHAT: &str = "/v1/chat/completions";

fn timed(timeout_ms: &str, extra: Value) -> Request<Body> {
    let mut request = post(CHAT, chat_body("hi", extra).to_string());
    request.headers_mut().insert("x-request-timeout-ms", timeout_ms.parse().unwrap());
    request
}

#[tokio::test]
async fn a_priority_needs_a_policy_that_heeds_it() {
    let server = Setup::says("hello").start();
    for (priority, status) in [(json!(0), 200), (json!(null), 200), (json!(3), 400)] {
        let reply = server.chat("hi", json!({"priority": priority})).await;
        assert_eq!(reply.status, status, "{priority}");
        if status == 400 {
            assert_eq!(reply.json()["error"]["param"], "priority");
        }
    }
    let server = Setup {
        config: ServerConfig { has_priorities: true, ..ServerConfig::default() },
        policy: SchedulingPolicy::Priority,
        ..Setup::says("hello")
    }
    .start();
    assert_eq!(server.chat("hi", json!({"priority": -3})).await.status, 200);
    let reply = server.chat("hi", json!({"priority": 1_u64 << 40})).await;
    assert_eq!(reply.error_param(), "priority");
}

#[tokio::test]
async fn a_request_ends_when_its_time_is_over() {
    let slow = Setup { step_time: Duration::from_millis(5), ..Setup::says(&"word ".repeat(2000)) };
    let server = slow.start();
    let reply = server.call(timed("60", json!({}))).await;
    assert_eq!(reply.status, 504);
    assert_eq!(reply.json()["error"]["code"], "deadline_exceeded");
    // In a stream it is the last event.
    let reply = server.call(timed("60", json!({"stream": true}))).await;
    assert_eq!(reply.status, 200);
    let text = String::from_utf8_lossy(&reply.body);
    assert!(text.contains("\"w\"") && text.contains("deadline_exceeded"), "{text}");
    for bad in ["0", "soon", "-1", "1.5", "99999999999"] {
        let reply = server.call(timed(bad, json!({}))).await;
        assert_eq!(reply.status, 400, "{bad}");
        assert_eq!(reply.json()["error"]["param"], "x-request-timeout-ms");
    }
}

#[tokio::test]
async fn the_operator_can_bound_every_request() {
    let setup = Setup { step_time: Duration::from_millis(5), ..Setup::says(&"word ".repeat(2000)) };
    let timeout = Some(Duration::from_millis(60));
    let config = ServerConfig { request_timeout: timeout, ..ServerConfig::default() };
    let server = Setup { config, ..setup }.start();
    assert_eq!(server.call(timed("86400000", json!({}))).await.status, 504);
}
