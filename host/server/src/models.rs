//! `GET /v1/models`, and the `model` field of requests.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::path_name::PathName;
use crate::state::{ModelCard, ServerState};
use crate::wire::fields::Fields;

/// The served model under each of its names.
pub(crate) async fn list(State(state): State<Arc<ServerState>>) -> Json<Value> {
    let model = &state.model;
    let names = std::iter::once(&model.id).chain(&model.aliases);
    let data: Vec<Value> = names.map(|name| card(model, name)).collect();
    Json(json!({ "object": "list", "data": data }))
}

/// One of them. Names may hold slashes.
pub(crate) async fn one(
    State(state): State<Arc<ServerState>>,
    PathName(name): PathName,
) -> Result<Json<Value>, ApiError> {
    if !state.model.is_named(&name) {
        return Err(not_found(&state.model, name));
    }
    Ok(Json(card(&state.model, &name)))
}

/// Takes `model`: absent means the served one, another name is a 404.
pub(crate) fn check_model(model: &ModelCard, fields: &mut Fields) -> Result<(), ApiError> {
    match fields.take::<String>("model")? {
        Some(name) if !model.is_named(&name) => Err(not_found(model, name)),
        _ => Ok(()),
    }
}

fn not_found(model: &ModelCard, name: String) -> ApiError {
    let mut served = model.id.clone();
    for alias in &model.aliases {
        served.push_str(", ");
        served.push_str(alias);
    }
    ApiError::ModelNotFound { model: name, served }
}

fn card(model: &ModelCard, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "tenon",
        "root": model.root,
        "parent": null,
        "max_model_len": model.max_model_len,
    })
}
