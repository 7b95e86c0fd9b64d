//! Every answer that is not a success: one enum, one table from its variants to HTTP.
//!
//! The body is always OpenAI's `{"error": {message, type, param, code}}` with all four keys. After
//! the first byte of a stream the same body travels as one `data:` line (`sse`).

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tenon_runner::handle::SubmitError;

/// Seconds a client should wait after a 429 or 503.
const RETRY_AFTER_SECS: u64 = 1;
/// Longest message sent, in bytes; serde's messages quote the offending value whole.
const MAX_MESSAGE_BYTES: usize = 600;

/// What a client did wrong, or what the server cannot do for it now. One HTTP answer each.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ApiError {
    /// 400: a field is ill-formed or out of range.
    #[error("{message}")]
    Invalid {
        /// Names the value and the limit.
        message: String,
        /// Path of the field; none when the body as a whole is at fault.
        param: Option<String>,
    },
    /// 400: a field that OpenAI or other servers know and this one does not support.
    #[error("{message}")]
    Unsupported {
        /// Names the field and what to do instead.
        message: String,
        /// Path of the field.
        param: String,
    },
    /// 504: its time was over before it ended.
    #[error("the request's time is over; allow more with `x-request-timeout-ms` or ask for less")]
    DeadlineExceeded,
    /// 400 `context_length_exceeded`.
    #[error(
        "the model's context is {limit} tokens, the request needs {needed} ({prompt} in `{param}` \
         and {output} to generate); shorten the prompt or lower `max_tokens`"
    )]
    ContextLength {
        /// `messages` or `prompt`.
        param: String,
        /// Tokens of context.
        limit: u64,
        /// `prompt + output`.
        needed: u64,
        /// Tokens of the prompt.
        prompt: u64,
        /// Tokens asked for; 1 when none were named.
        output: u64,
    },
    /// 400: a prompt that cannot fit, whatever its tokens are.
    #[error(
        "`{param}` makes a prompt of {bytes} bytes; the model's context holds at most {limit}; \
         shorten it"
    )]
    PromptBytes {
        /// `messages` or `prompt`.
        param: String,
        /// Of the prompt.
        bytes: usize,
        /// Bytes that a context of the longest tokens has.
        limit: usize,
    },
    /// 401: no key, or one that is not known.
    #[error("{0}; send a valid key as `Authorization: Bearer KEY`")]
    Unauthorized(&'static str),
    /// 403: admin routes without a configured admin key.
    #[error("admin routes are off; start the server with `--admin-key KEY` to use them")]
    AdminDisabled,
    /// 404: no such model.
    #[error("the model `{model}` does not exist (served: {served})")]
    ModelNotFound {
        /// As asked.
        model: String,
        /// Names that do exist.
        served: String,
    },
    /// 404: no such extension.
    #[error("unknown extension `{name}` (installed: {installed})")]
    ExtensionNotFound {
        /// As asked.
        name: String,
        /// Names that do exist.
        installed: String,
    },
    /// 404: no such route.
    #[error("no route `{path}`; see `/v1/models` and `/v1/chat/completions`")]
    NoRoute {
        /// As asked.
        path: String,
    },
    /// 405.
    #[error("`{method}` is not allowed on `{path}`; see the `Allow` header")]
    MethodNotAllowed {
        /// As asked.
        method: String,
        /// As asked.
        path: String,
    },
    /// 408: the body did not arrive in time.
    #[error("the body did not arrive within {seconds} s; send it faster or smaller")]
    BodyTimeout {
        /// The limit.
        seconds: u64,
    },
    /// 409: the state of an extension does not allow this.
    #[error("{0}")]
    Conflict(String),
    /// 413.
    #[error("the body is larger than {limit} bytes; send less or raise `--max-body-bytes`")]
    BodyTooLarge {
        /// The limit.
        limit: usize,
    },
    /// 415.
    #[error("content type `{got}` is not supported here; send `{want}`")]
    UnsupportedMediaType {
        /// As sent.
        got: String,
        /// What this route reads.
        want: &'static str,
    },
    /// 422: an uploaded component was refused.
    #[error("the extension was refused: {}", reasons.join("; "))]
    Rejected {
        /// All of them, each with its fix.
        reasons: Vec<String>,
    },
    /// 429.
    #[error("the queue is full ({limit} {counted}, running ones included); try again later")]
    QueueFull {
        /// The bound.
        limit: usize,
        /// Of what, in the plural: a request has `n` sequences per prompt.
        counted: &'static str,
    },
    /// 500. The details are in the log.
    #[error("{0}")]
    Internal(String),
    /// 503: not ready yet, draining, or the engine stopped.
    #[error("{0}")]
    Unavailable(String),
}

impl ApiError {
    /// A 400 that names `param`.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::Invalid { message: message.into(), param: Some(param.into()) }
    }

    /// A 400 for a field that is known but not supported.
    pub fn unsupported(param: impl Into<String>, hint: &str) -> ApiError {
        let param = param.into();
        ApiError::Unsupported { message: format!("`{param}` is not supported yet; {hint}"), param }
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        match self {
            ApiError::Invalid { .. }
            | ApiError::Unsupported { .. }
            | ApiError::ContextLength { .. }
            | ApiError::PromptBytes { .. } => StatusCode::BAD_REQUEST,
            ApiError::Unauthorized(_) => StatusCode::UNAUTHORIZED,
            ApiError::AdminDisabled => StatusCode::FORBIDDEN,
            ApiError::ModelNotFound { .. }
            | ApiError::ExtensionNotFound { .. }
            | ApiError::NoRoute { .. } => StatusCode::NOT_FOUND,
            ApiError::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            ApiError::BodyTimeout { .. } => StatusCode::REQUEST_TIMEOUT,
            ApiError::Conflict(_) => StatusCode::CONFLICT,
            ApiError::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            ApiError::UnsupportedMediaType { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ApiError::Rejected { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            ApiError::QueueFull { .. } => StatusCode::TOO_MANY_REQUESTS,
            ApiError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
            ApiError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            ApiError::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// OpenAI's `type` and `code`.
    fn kind(&self) -> (&'static str, Option<&'static str>) {
        const INVALID: &str = "invalid_request_error";
        match self {
            ApiError::Invalid { .. } => (INVALID, None),
            ApiError::Unsupported { .. } => (INVALID, Some("unsupported_parameter")),
            ApiError::ContextLength { .. } | ApiError::PromptBytes { .. } => {
                (INVALID, Some("context_length_exceeded"))
            }
            ApiError::Unauthorized(_) => (INVALID, Some("invalid_api_key")),
            ApiError::AdminDisabled => ("permission_error", Some("admin_disabled")),
            ApiError::ModelNotFound { .. } => (INVALID, Some("model_not_found")),
            ApiError::ExtensionNotFound { .. } => (INVALID, Some("extension_not_found")),
            ApiError::NoRoute { .. } => (INVALID, Some("not_found")),
            ApiError::MethodNotAllowed { .. } => (INVALID, Some("method_not_allowed")),
            ApiError::BodyTimeout { .. } => (INVALID, Some("request_timeout")),
            ApiError::Conflict(_) => (INVALID, Some("conflict")),
            ApiError::BodyTooLarge { .. } => (INVALID, Some("body_too_large")),
            ApiError::UnsupportedMediaType { .. } => (INVALID, Some("unsupported_media_type")),
            ApiError::Rejected { .. } => (INVALID, Some("extension_rejected")),
            ApiError::QueueFull { .. } => ("rate_limit_error", Some("rate_limit_exceeded")),
            ApiError::Internal(_) => ("server_error", Some("internal_error")),
            ApiError::Unavailable(_) => ("server_error", Some("service_unavailable")),
            ApiError::DeadlineExceeded => ("server_error", Some("deadline_exceeded")),
        }
    }

    /// OpenAI's `param`.
    fn param(&self) -> Option<&str> {
        match self {
            ApiError::Invalid { param, .. } => param.as_deref(),
            ApiError::Unsupported { param, .. }
            | ApiError::ContextLength { param, .. }
            | ApiError::PromptBytes { param, .. } => Some(param),
            ApiError::ModelNotFound { .. } => Some("model"),
            _ => None,
        }
    }

    /// The whole body, `reasons` beside the four keys for a refused extension.
    pub fn body(&self) -> Value {
        let (kind, code) = self.kind();
        let mut error = json!({
            "message": clipped(&self.to_string()),
            "type": kind,
            "param": self.param(),
            "code": code,
        });
        if let ApiError::Rejected { reasons } = self {
            error["reasons"] = json!(reasons);
            return json!({ "error": error, "reasons": reasons });
        }
        json!({ "error": error })
    }
}

/// At most [`MAX_MESSAGE_BYTES`], cut at a character.
fn clipped(message: &str) -> String {
    if message.len() <= MAX_MESSAGE_BYTES {
        return message.to_owned();
    }
    let mut end = MAX_MESSAGE_BYTES;
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &message[..end])
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.body())).into_response();
        let headers = response.headers_mut();
        match self {
            ApiError::QueueFull { .. } | ApiError::Unavailable(_) => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECS));
            }
            ApiError::Unauthorized(_) => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            ApiError::BodyTooLarge { .. } | ApiError::BodyTimeout { .. } => {
                // The rest of the body is not read.
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

impl ApiError {
    /// What a refused submission means to the client. `prompt_param` is the field that the prompt
    /// came from (`messages` or `prompt`).
    pub fn from_submit(error: SubmitError, prompt_param: &'static str) -> ApiError {
        match error {
            SubmitError::QueueFull { limit } => ApiError::QueueFull { limit, counted: "sequences" },
            SubmitError::Invalid { param, message } => {
                let param = if param == "prompt" { prompt_param } else { param };
                ApiError::invalid(param, message)
            }
            error @ (SubmitError::ShuttingDown | SubmitError::Unhealthy { .. }) => {
                ApiError::Unavailable(error.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Error, status, type, param, code.
    type Row = (ApiError, u16, &'static str, Option<&'static str>, Option<&'static str>);

    /// The table that clients program against.
    #[test]
    fn error_table() {
        let context = ApiError::ContextLength {
            param: "messages".into(),
            limit: 128,
            needed: 129,
            prompt: 127,
            output: 2,
        };
        let not_found = ApiError::ModelNotFound { model: "x".into(), served: "m".into() };
        let extension = ApiError::ExtensionNotFound { name: "x".into(), installed: "none".into() };
        let method = ApiError::MethodNotAllowed { method: "PUT".into(), path: "/ping".into() };
        let media = ApiError::UnsupportedMediaType { got: "a/b".into(), want: "application/json" };
        let rows: Vec<Row> = vec![
            (ApiError::invalid("n", "bad"), 400, "invalid_request_error", Some("n"), None),
            (
                ApiError::unsupported("suffix", "leave it out"),
                400,
                "invalid_request_error",
                Some("suffix"),
                Some("unsupported_parameter"),
            ),
            (
                context,
                400,
                "invalid_request_error",
                Some("messages"),
                Some("context_length_exceeded"),
            ),
            (
                ApiError::PromptBytes { param: "prompt[1]".into(), bytes: 9, limit: 8 },
                400,
                "invalid_request_error",
                Some("prompt[1]"),
                Some("context_length_exceeded"),
            ),
            (
                ApiError::Unauthorized("no key"),
                401,
                "invalid_request_error",
                None,
                Some("invalid_api_key"),
            ),
            (ApiError::AdminDisabled, 403, "permission_error", None, Some("admin_disabled")),
            (not_found, 404, "invalid_request_error", Some("model"), Some("model_not_found")),
            (extension, 404, "invalid_request_error", None, Some("extension_not_found")),
            (
                ApiError::NoRoute { path: "/x".into() },
                404,
                "invalid_request_error",
                None,
                Some("not_found"),
            ),
            (method, 405, "invalid_request_error", None, Some("method_not_allowed")),
            (
                ApiError::BodyTimeout { seconds: 30 },
                408,
                "invalid_request_error",
                None,
                Some("request_timeout"),
            ),
            (ApiError::Conflict("c".into()), 409, "invalid_request_error", None, Some("conflict")),
            (
                ApiError::BodyTooLarge { limit: 9 },
                413,
                "invalid_request_error",
                None,
                Some("body_too_large"),
            ),
            (media, 415, "invalid_request_error", None, Some("unsupported_media_type")),
            (
                ApiError::Rejected { reasons: vec!["r".into()] },
                422,
                "invalid_request_error",
                None,
                Some("extension_rejected"),
            ),
            (
                ApiError::QueueFull { limit: 4, counted: "requests" },
                429,
                "rate_limit_error",
                None,
                Some("rate_limit_exceeded"),
            ),
            (ApiError::Internal("i".into()), 500, "server_error", None, Some("internal_error")),
            (ApiError::DeadlineExceeded, 504, "server_error", None, Some("deadline_exceeded")),
            (
                ApiError::Unavailable("u".into()),
                503,
                "server_error",
                None,
                Some("service_unavailable"),
            ),
        ];
        for (error, status, kind, param, code) in rows {
            assert_eq!(error.status().as_u16(), status, "{error:?}");
            let body = error.body();
            let fields = body["error"].as_object().unwrap();
            for key in ["message", "type", "param", "code"] {
                assert!(fields.contains_key(key), "{error:?} lacks `{key}`");
            }
            assert!(!fields["message"].as_str().unwrap().is_empty());
            assert_eq!(fields["type"], kind, "{error:?}");
            assert_eq!(fields["param"].as_str(), param, "{error:?}");
            assert_eq!(fields["code"].as_str(), code, "{error:?}");
            let response = error.clone().into_response();
            assert_eq!(response.headers()["content-type"], "application/json");
            assert_eq!(
                response.headers().contains_key("retry-after"),
                status == 429 || status == 503,
                "{error:?}"
            );
        }
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let long = "é".repeat(MAX_MESSAGE_BYTES);
        let body = ApiError::invalid("x", long).body();
        assert!(body["error"]["message"].as_str().unwrap().len() <= MAX_MESSAGE_BYTES + 3);
    }

    #[test]
    fn submit_errors() {
        let invalid = SubmitError::Invalid { param: "prompt", message: "m".into() };
        let error = ApiError::from_submit(invalid, "messages");
        assert_eq!(error.body()["error"]["param"], "messages");
        let full = ApiError::from_submit(SubmitError::QueueFull { limit: 3 }, "prompt");
        assert_eq!(full.status().as_u16(), 429);
        let down = ApiError::from_submit(SubmitError::ShuttingDown, "prompt");
        assert_eq!(down.status().as_u16(), 503);
    }
}
