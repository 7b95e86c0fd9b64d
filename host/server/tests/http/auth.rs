//! Keys: every route but the open ones, in every spelling.

use axum::body::Body;
use axum::http::{Method, Request};
use serde_json::json;

use crate::rig::{Server, Setup, chat_body};

fn keyed(admin: bool) -> Server {
    let mut setup = Setup::default();
    setup.config.api_keys = vec!["user-key".into(), "other-key".into()];
    setup.config.admin_key = admin.then(|| "admin-key".into());
    setup.start()
}

fn request(method: Method, path: &str, key: Option<&str>) -> Request<Body> {
    let mut builder = Request::builder().method(method).uri(path);
    if let Some(key) = key {
        builder = builder.header("authorization", format!("Bearer {key}"));
    }
    builder.body(Body::from(chat_body("hi", json!({})).to_string())).unwrap()
}

#[tokio::test]
async fn deny_by_default() {
    let server = keyed(true);
    let paths = [
        "/v1/models",
        "/v1/models/tiny",
        "/v1/chat/completions",
        "/v1/completions",
        "/version",
        "/v1/extensions",
        "/v1/extensions/fake",
        "/nowhere",
        "//v1/models",
        "/v1/models/",
        "/v1%2fmodels",
        "/V1/models",
        "/health/",
        "/health/../v1/models",
        "/metrics/x",
        "/",
    ];
    for path in paths {
        for method in [Method::GET, Method::POST, Method::HEAD, Method::OPTIONS, Method::DELETE] {
            for key in [None, Some("wrong"), Some(""), Some("user-ke"), Some("user-key2")] {
                let answer = server.call(request(method.clone(), path, key)).await;
                assert_eq!(answer.status, 401, "{method} {path} {key:?}");
                if method != Method::HEAD {
                    answer.error_param();
                }
            }
        }
    }
    for path in ["/health", "/ping", "/metrics"] {
        assert_eq!(server.call(request(Method::GET, path, None)).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn each_key_opens_its_doors() {
    let server = keyed(true);
    for key in ["user-key", "other-key", "admin-key"] {
        let chat = request(Method::POST, "/v1/chat/completions", Some(key));
        assert_eq!(server.call(chat).await.status, 200, "{key}");
        let admin = request(Method::GET, "/v1/extensions", Some(key));
        let want = if key == "admin-key" { 200 } else { 401 };
        assert_eq!(server.call(admin).await.status, want, "{key}");
    }
    let header = Request::get("/v1/models").header("x-api-key", "user-key");
    assert_eq!(server.call(header.body(Body::empty()).unwrap()).await.status, 200);
}

#[tokio::test]
async fn no_admin_key_no_admin_routes() {
    let server = keyed(false);
    for path in ["/v1/extensions", "/v1/extensions/fake"] {
        let answer = server.call(request(Method::GET, path, Some("user-key"))).await;
        assert_eq!(answer.status, 403);
        answer.error_param();
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains("--admin-key"));
    }
    // Open for all, but not for admins.
    let server = Setup::default().start();
    assert_eq!(server.get("/v1/models").await.status, 200);
    assert_eq!(server.get("/v1/extensions").await.status, 403);
}

#[tokio::test]
async fn metrics_can_be_closed() {
    let mut setup = Setup::default();
    setup.config.api_keys = vec!["k".into()];
    setup.config.metrics_auth = true;
    let server = setup.start();
    assert_eq!(server.get("/metrics").await.status, 401);
    assert_eq!(server.get("/health").await.status, 200);
}
