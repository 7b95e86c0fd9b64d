//! `X-Request-Id`: taken from the client or made here, on every answer.

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;

use crate::state::random_id;

/// Longer ids are replaced.
const MAX_ID_BYTES: usize = 128;
const HEADER: &str = "x-request-id";

/// The outermost layer.
pub(crate) async fn echo(request: Request, next: Next) -> Response {
    let given = request.headers().get(HEADER).filter(|id| is_fit(id)).cloned();
    let id = given.unwrap_or_else(|| {
        HeaderValue::from_str(&random_id("req-")).expect("hexadecimal digits are legal in a header")
    });
    let mut response = next.run(request).await;
    response.headers_mut().insert(HEADER, id);
    response
}

fn is_fit(id: &HeaderValue) -> bool {
    (1..=MAX_ID_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
}
