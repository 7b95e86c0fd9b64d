//! Reading a request's body: type, size and time are checked before its content.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use tokio_stream::StreamExt;

use crate::error::ApiError;

/// A whole body must arrive within this time: a client that trickles holds a place.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Reserved before the first byte, at most.
const MAX_RESERVE_BYTES: usize = 1 << 20;

/// A JSON body of at most `limit` bytes. No content type passes as JSON.
pub(crate) async fn read_json(request: Request, limit: usize) -> Result<Vec<u8>, ApiError> {
    check_type(request.headers(), "application/json", is_json)?;
    read(request, limit).await
}

/// An uploaded component of at most `limit` bytes.
pub(crate) async fn read_wasm(request: Request, limit: usize) -> Result<Vec<u8>, ApiError> {
    let is_binary =
        |kind: &str| matches!(kind, "application/wasm" | "application/octet-stream" | "");
    check_type(request.headers(), "application/wasm", is_binary)?;
    read(request, limit).await
}

fn is_json(kind: &str) -> bool {
    kind == "application/json"
        || kind == "text/json"
        || (kind.starts_with("application/") && kind.ends_with("+json"))
}

fn check_type(
    headers: &HeaderMap,
    want: &'static str,
    accepts: impl Fn(&str) -> bool,
) -> Result<(), ApiError> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let text = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
    let kind = text.split(';').next().unwrap_or_default().trim();
    if accepts(kind) {
        return Ok(());
    }
    Err(ApiError::UnsupportedMediaType { got: kind.to_owned(), want })
}

async fn read(request: Request, limit: usize) -> Result<Vec<u8>, ApiError> {
    let declared = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if declared.is_some_and(|length| length > limit) {
        return Err(ApiError::BodyTooLarge { limit });
    }
    let bytes = Vec::with_capacity(declared.unwrap_or(0).min(MAX_RESERVE_BYTES));
    match tokio::time::timeout(BODY_TIMEOUT, collect(request.into_body(), bytes, limit)).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::BodyTimeout { seconds: BODY_TIMEOUT.as_secs() }),
    }
}

async fn collect(body: Body, mut bytes: Vec<u8>, limit: usize) -> Result<Vec<u8>, ApiError> {
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|e| ApiError::Invalid {
            message: format!("the body could not be read: {e}; send it again"),
            param: None,
        })?;
        if bytes.len() + chunk.len() > limit {
            return Err(ApiError::BodyTooLarge { limit });
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}
