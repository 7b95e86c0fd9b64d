//! Who sends a request and how long they wait: what the scheduler is told beside the sampling.
//!
//! A tenant is an API key, by its place in the configuration; without keys all are one tenant.

use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use tenon_engine::Tenant;

use crate::auth::key_of;
use crate::error::ApiError;
use crate::state::ServerState;

/// Milliseconds until the request may end unfinished.
const TIMEOUT_HEADER: &str = "x-request-timeout-ms";

/// Largest value of that header: a day.
const MAX_TIMEOUT_MS: u64 = 24 * 60 * 60 * 1000;

/// The sender of a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Caller {
    /// For fair sharing.
    pub tenant: Tenant,
    /// The earlier of what the client and the operator allow.
    pub deadline: Option<Instant>,
}

impl Caller {
    /// Reads key and timeout. A timeout that is no number is a 400 that names the header.
    pub fn of(state: &ServerState, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let place = key_of(headers).and_then(|key| state.api_keys.place(key));
        let weight = |place: usize| state.config.tenant_weights.get(place).copied().unwrap_or(1);
        let tenant = place.map_or_else(Tenant::default, |place| Tenant {
            // 0 is everybody without a key.
            id: place as u64 + 1,
            weight: weight(place),
        });
        let own = timeout(headers)?;
        let timeout = own.into_iter().chain(state.config.request_timeout).min();
        Ok(Caller { tenant, deadline: timeout.map(|timeout| Instant::now() + timeout) })
    }
}

fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    let Some(value) = headers.get(TIMEOUT_HEADER) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim();
    match text.parse() {
        Ok(ms @ 1..=MAX_TIMEOUT_MS) => Ok(Some(Duration::from_millis(ms))),
        _ => Err(ApiError::invalid(
            TIMEOUT_HEADER,
            format!("`{TIMEOUT_HEADER}` is `{text}`; send milliseconds from 1 to {MAX_TIMEOUT_MS}"),
        )),
    }
}
