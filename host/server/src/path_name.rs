//! A name in a path, taken by the routes of models and extensions. Axum's own refusal would be
//! plain text.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use crate::error::ApiError;

/// The `{name}` of a route, percent-decoded.
pub(crate) struct PathName(pub String);

impl<S: Send + Sync> FromRequestParts<S> for PathName {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PathName, ApiError> {
        let taken = Path::<String>::from_request_parts(parts, state).await;
        taken.map(|Path(name)| PathName(name)).map_err(|_| {
            ApiError::invalid("name", "the name in the path is not UTF-8; send another name")
        })
    }
}
