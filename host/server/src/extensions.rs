//! `/v1/extensions*`: upload, list, bind, activate, roll back, delete. Admin key only (`auth`).
//! The store compiles and writes: every call runs on a blocking thread.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::body::{read_json, read_wasm};
use crate::chat::on_blocking_thread;
use crate::error::ApiError;
use crate::extension_api::{ExtensionError, ExtensionRecord, Extensions};
use crate::path_name::PathName;
use crate::state::ServerState;
use crate::wire::fields::Fields;

/// Bytes of an extension's name, in URLs and queries.
const MAX_NAME_BYTES: usize = 64;

/// `?name=`
#[derive(Deserialize)]
pub(crate) struct UploadQuery {
    name: Option<String>,
}

/// `POST /v1/extensions?name=`: the body is the component.
pub(crate) async fn upload(
    State(state): State<Arc<ServerState>>,
    query: Result<Query<UploadQuery>, axum::extract::rejection::QueryRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    let Query(query) = query
        .map_err(|_| ApiError::invalid("name", "`name` is not in the query once; send it once"))?;
    if let Some(name) = &query.name {
        check_name(name)?;
    }
    let wasm = read_wasm(request, state.config.max_upload_bytes).await?;
    if wasm.is_empty() {
        let message = "the body is empty; send the component's bytes".to_owned();
        return Err(ApiError::Invalid { message, param: None });
    }
    let record = call(&state, move |e| e.upload(query.name.as_deref(), &wasm)).await?;
    tracing::info!(name = record.name, digest = record.digest, "extension installed");
    Ok((StatusCode::CREATED, Json(record)).into_response())
}

/// `GET /v1/extensions`
pub(crate) async fn list(State(state): State<Arc<ServerState>>) -> Result<Json<Value>, ApiError> {
    let all = call(&state, |e| e.list()).await?;
    Ok(Json(json!({ "object": "list", "data": all })))
}

/// `GET /v1/extensions/{name}`
pub(crate) async fn describe(
    State(state): State<Arc<ServerState>>,
    PathName(name): PathName,
) -> Result<Json<ExtensionRecord>, ApiError> {
    call(&state, move |e| e.describe(&name)).await.map(Json)
}

/// `PUT /v1/extensions/{name}/bind` with `{"model": …}`; no model means the served one.
pub(crate) async fn bind(
    State(state): State<Arc<ServerState>>,
    PathName(name): PathName,
    request: Request,
) -> Result<Json<ExtensionRecord>, ApiError> {
    let mut fields = read_fields(&state, request).await?;
    crate::models::check_model(&state.model, &mut fields)?;
    let model = state.model.id.clone();
    let record = call(&state, move |e| e.bind(&name, &model)).await?;
    tracing::info!(name = record.name, digest = record.digest, "extension bound");
    Ok(Json(record))
}

/// `POST /v1/extensions/{name}/activate` with `{"digest": "sha256:…"}`
pub(crate) async fn activate(
    State(state): State<Arc<ServerState>>,
    PathName(name): PathName,
    request: Request,
) -> Result<Json<ExtensionRecord>, ApiError> {
    let mut fields = read_fields(&state, request).await?;
    let Some(digest) = fields.take::<String>("digest")? else {
        return Err(ApiError::invalid(
            "digest",
            "`digest` is missing; send one of the extension's `versions`",
        ));
    };
    let record = call(&state, move |e| e.activate(&name, &digest)).await?;
    tracing::info!(name = record.name, digest = record.digest, "extension version activated");
    Ok(Json(record))
}

/// `POST /v1/extensions/{name}/rollback`
pub(crate) async fn rollback(
    State(state): State<Arc<ServerState>>,
    PathName(name): PathName,
) -> Result<Json<ExtensionRecord>, ApiError> {
    let record = call(&state, move |e| e.rollback(&name)).await?;
    tracing::info!(name = record.name, digest = record.digest, "extension rolled back");
    Ok(Json(record))
}

/// `DELETE /v1/extensions/{name}`
pub(crate) async fn delete(
    State(state): State<Arc<ServerState>>,
    PathName(name): PathName,
) -> Result<Json<Value>, ApiError> {
    let deleted = name.clone();
    call(&state, move |e| e.delete(&name)).await?;
    tracing::info!(name = deleted, "extension deleted");
    Ok(Json(json!({ "name": deleted, "deleted": true })))
}

/// Runs one call of the store.
pub(crate) async fn call<T: Send + 'static>(
    state: &Arc<ServerState>,
    work: impl FnOnce(&dyn Extensions) -> Result<T, ExtensionError> + Send + 'static,
) -> Result<T, ApiError> {
    let extensions = state.extensions.clone();
    on_blocking_thread(move || work(extensions.as_ref()).map_err(ApiError::from)).await
}

/// A JSON body; none is an empty object.
async fn read_fields(state: &ServerState, request: Request) -> Result<Fields, ApiError> {
    let body = read_json(request, state.config.max_body_bytes).await?;
    if body.is_empty() { Ok(Fields::default()) } else { Fields::parse(&body) }
}

fn check_name(name: &str) -> Result<(), ApiError> {
    let is_fit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    if (1..=MAX_NAME_BYTES).contains(&name.len()) && name.chars().all(is_fit) {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_NAME_BYTES).collect();
    Err(ApiError::invalid(
        "name",
        format!(
            "`{shown}` is no extension name; use 1 to {MAX_NAME_BYTES} of `a-z`, `0-9`, `_`, `-`"
        ),
    ))
}
