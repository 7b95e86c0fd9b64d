//! What answers while the model loads: `/health` says 503 `loading`, `/ping` that the process
//! lives, and everything else that it is too early.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::error::ApiError;
use crate::serve::{END_TIMEOUT, accept};
use crate::{ops, request_id};

/// Answers on `listener` until `loading` resolves, then closes these connections and gives its
/// value. [`serve`](crate::serve) goes on with the same listener: none is turned away in between.
pub async fn serve_loading<T>(listener: &Arc<TcpListener>, loading: impl Future<Output = T>) -> T {
    let (close, closed) = watch::channel(false);
    let accepting = tokio::spawn(accept(listener.clone(), router(), END_TIMEOUT, closed));
    let value = loading.await;
    close.send_replace(true);
    // A client that does not read is cut off with the task.
    let mut accepting = accepting;
    if tokio::time::timeout(END_TIMEOUT, &mut accepting).await.is_err() {
        accepting.abort();
    }
    value
}

fn router() -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/ping", get(ops::ping).post(ops::ping))
        .fallback(too_early)
        .layer(axum::middleware::from_fn(request_id::echo))
}

async fn health() -> (StatusCode, Json<Value>) {
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": "loading" })))
}

async fn too_early() -> ApiError {
    ApiError::Unavailable("the model is loading; try again when `/health` answers 200".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;

    use super::*;

    async fn ask(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn it_is_too_early_until_it_is_loaded() {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap();
        let (loaded, loading) = oneshot::channel();
        let serving = listener.clone();
        let server = tokio::spawn(async move { serve_loading(&serving, loading).await });
        let health = ask(address, "/health").await;
        assert!(health.starts_with("HTTP/1.1 503") && health.contains("loading"), "{health}");
        let chat = ask(address, "/v1/chat/completions").await;
        assert!(chat.starts_with("HTTP/1.1 503") && chat.contains("is loading"), "{chat}");
        assert!(ask(address, "/ping").await.starts_with("HTTP/1.1 200"));
        // An idle connection does not hold up the change.
        let idle = TcpStream::connect(address).await.unwrap();
        loaded.send(7).unwrap();
        assert_eq!(server.await.unwrap(), Ok(7));
        drop(idle);
    }
}
