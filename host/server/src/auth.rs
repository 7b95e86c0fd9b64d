//! Keys: who may call the API, who may change extensions.
//!
//! Deny by default: once a key is configured, every path but the few open ones needs it, unknown
//! paths included. Keys are kept as SHA-256 digests and compared in constant time.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use crate::error::ApiError;
use crate::state::ServerState;

/// Paths that never need a key.
const OPEN_PATHS: [&str; 2] = ["/health", "/ping"];

/// A set of keys, as digests.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyRing(Vec<[u8; 32]>);

impl KeyRing {
    /// Hashes the keys. Empty ones are left out: they would open the door to an empty header.
    pub fn new(keys: impl IntoIterator<Item = String>) -> KeyRing {
        let keys = keys.into_iter().filter(|key| !key.is_empty());
        KeyRing(keys.map(|key| Sha256::digest(key.as_bytes()).into()).collect())
    }

    /// No key is configured.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Is `key` one of them? Takes the same time for every key of a length.
    pub fn holds(&self, key: &str) -> bool {
        self.place(key).is_some()
    }

    /// Which of them it is, in the order in which they were given.
    pub fn place(&self, key: &str) -> Option<usize> {
        let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let mut found = None;
        for (place, known) in self.0.iter().enumerate() {
            let difference = known.iter().zip(&digest).fold(0, |sum, (a, b)| sum | (a ^ b));
            if std::hint::black_box(difference) == 0 {
                found = found.or(Some(place));
            }
        }
        found
    }
}

/// The key of a request: `Authorization: Bearer KEY`, or `x-api-key` as some clients send it.
pub(crate) fn key_of(headers: &HeaderMap) -> Option<&str> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| key.trim());
    }
    headers.get("x-api-key")?.to_str().ok()
}

/// Around the whole router: 401 before any route is looked at.
pub(crate) async fn require_key(
    State(state): State<Arc<ServerState>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let is_open = OPEN_PATHS.contains(&path) || (path == "/metrics" && !state.config.metrics_auth);
    if state.api_keys.is_empty() || is_open {
        return next.run(request).await;
    }
    match key_of(request.headers()) {
        None => ApiError::Unauthorized("no API key was sent").into_response(),
        Some(key) if state.api_keys.holds(key) | state.admin_keys.holds(key) => {
            next.run(request).await
        }
        Some(_) => ApiError::Unauthorized("the API key is not valid").into_response(),
    }
}

/// Around the admin routes: only the admin key, and only if there is one.
pub(crate) async fn require_admin(
    State(state): State<Arc<ServerState>>,
    request: Request,
    next: Next,
) -> Response {
    if state.admin_keys.is_empty() {
        return ApiError::AdminDisabled.into_response();
    }
    match key_of(request.headers()) {
        None => ApiError::Unauthorized("no admin key was sent").into_response(),
        Some(key) if state.admin_keys.holds(key) => next.run(request).await,
        Some(_) => ApiError::Unauthorized("this key is not the admin key").into_response(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rings() {
        let ring = KeyRing::new(["a".to_owned(), String::new(), "b".to_owned()]);
        assert!(ring.holds("a") && ring.holds("b"));
        assert!(!ring.holds("") && !ring.holds("c") && !ring.holds("ab"));
        assert!(KeyRing::new(Some(String::new())).is_empty());
        assert!(!KeyRing::default().holds(""));
    }

    #[test]
    fn where_keys_are_read_from() {
        let headers = |name: &'static str, value: &'static str| {
            HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())])
        };
        assert_eq!(key_of(&headers("authorization", "Bearer k")), Some("k"));
        assert_eq!(key_of(&headers("authorization", "bearer k")), Some("k"));
        assert_eq!(key_of(&headers("authorization", "Basic k")), None);
        assert_eq!(key_of(&headers("authorization", "k")), None);
        assert_eq!(key_of(&headers("x-api-key", "k")), Some("k"));
        assert_eq!(key_of(&HeaderMap::new()), None);
    }
}
