//! All routes and what stands around them. From the outside in: request id, counting, keys, routes.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post, put};

use crate::error::ApiError;
use crate::state::ServerState;
use crate::{auth, chat, completions, extensions, models, ops, playground, request_id};

/// The whole service.
pub fn router(state: Arc<ServerState>) -> Router {
    let admin = Router::new()
        .route("/v1/extensions", get(extensions::list).post(extensions::upload))
        .route("/v1/extensions/{name}", get(extensions::describe).delete(extensions::delete))
        .route("/v1/extensions/{name}/bind", put(extensions::bind))
        .route("/v1/extensions/{name}/activate", post(extensions::activate))
        .route("/v1/extensions/{name}/rollback", post(extensions::rollback))
        .route("/v1/extensions/{name}/parse", post(playground::parse))
        .route_layer(from_fn_with_state(state.clone(), auth::require_admin));
    Router::new()
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::one))
        .route("/health", get(ops::health))
        .route("/ping", get(ops::ping).post(ops::ping))
        .route("/version", get(ops::version))
        .route("/metrics", get(ops::metrics))
        .merge(admin)
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(no_route)
        .layer(from_fn_with_state(state.clone(), auth::require_key))
        .layer(from_fn_with_state(state.clone(), ops::count))
        .layer(from_fn(request_id::echo))
        .with_state(state)
}

async fn no_route(request: Request) -> ApiError {
    ApiError::NoRoute { path: shown(request.uri().path()) }
}

async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::MethodNotAllowed {
        method: request.method().to_string(),
        path: shown(request.uri().path()),
    }
}

/// A path for a message.
fn shown(path: &str) -> String {
    path.chars().take(200).collect()
}
