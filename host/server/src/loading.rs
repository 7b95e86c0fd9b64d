//! What answers while the model loads: `/health` says 503 `loading`, `/ping` that the process
//! lives, and everything else that it is too early.

use std::sync::Arc;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::error::ApiError;
use crate::serve::{END_TIMEOUT, accept};
use crate::{ops, request_id};

/// Answers on `listener` until `loading` resolves, and gives its value. [`serve`](crate::serve)
/// goes on with the same listener. None is turned away in between: a connection made here gets the
/// answer to its one request.
pub async fn serve_loading<T>(listener: &Arc<TcpListener>, loading: impl Future<Output = T>) -> T {
    let (stop, stopped) = watch::channel(false);
    let (close, closed) = watch::channel(false);
    let accepting = accept(listener.clone(), router(), END_TIMEOUT, stopped, closed);
    let accepting = tokio::spawn(accepting);
    let value = loading.await;
    stop.send_replace(true);
    match accepting.await {
        // They end by themselves, idle ones after a while.
        Ok(mut connections) => drop(tokio::spawn(async move {
            while connections.join_next().await.is_some() {}
            drop(close);
        })),
        Err(error) => tracing::error!(%error, "accepting failed"),
    }
    value
}

fn router() -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/ping", get(ops::ping).post(ops::ping))
        .fallback(too_early)
        .layer(axum::middleware::from_fn(request_id::echo))
        .layer(axum::middleware::map_response(last_of_its_connection))
}

/// The next request is for who serves by then.
async fn last_of_its_connection(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
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
        // An idle connection does not hold up the change, and one that was just made is answered.
        let idle = TcpStream::connect(address).await.unwrap();
        let mut late = TcpStream::connect(address).await.unwrap();
        // Accepted in order, so the two are by now.
        assert!(ask(address, "/ping").await.starts_with("HTTP/1.1 200"));
        loaded.send(7).unwrap();
        assert_eq!(server.await.unwrap(), Ok(7));
        late.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        late.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("loading"), "{answer}");
        drop(idle);
    }
}
