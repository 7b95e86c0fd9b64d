//! Routes for machines that watch the server: health, metrics, version.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::metrics::CONTENT_TYPE;
use crate::state::ServerState;

/// 200 when requests are taken; else 503 with the reason. Readiness probes and routers ask here.
pub(crate) async fn health(State(state): State<Arc<ServerState>>) -> Response {
    let status = if state.engine.failure().is_some() {
        "failed"
    } else if state.lifecycle.is_draining() {
        "draining"
    } else if !state.engine.is_ready() {
        "loading"
    } else {
        return Json(json!({ "status": "ok" })).into_response();
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": status }))).into_response()
}

/// 200 while the process answers at all.
pub(crate) async fn ping() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// The program's version.
pub(crate) async fn version(State(state): State<Arc<ServerState>>) -> Json<Value> {
    Json(json!({ "version": state.config.version }))
}

/// Prometheus text format 0.0.4.
pub(crate) async fn metrics(State(state): State<Arc<ServerState>>) -> Response {
    let page = state.metrics.render(&state.engine.stats());
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], page).into_response()
}

/// Counts answers by status.
pub(crate) async fn count(
    State(state): State<Arc<ServerState>>,
    request: Request,
    next: Next,
) -> Response {
    let response = next.run(request).await;
    state.metrics.responded(response.status().as_u16());
    response
}
