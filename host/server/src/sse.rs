//! Server-sent events by hand: a body that turns a generation's events into `data:` lines.
//!
//! All events that are there go out as one piece. A failure behind the first byte is one `data:`
//! line with the error body, and the end. Dropping the body (the client left) drops the generation.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tenon_chat::stream::StreamEvent;
use tokio::time::{Instant, Sleep, sleep};
use tokio_stream::Stream;

use crate::error::ApiError;
use crate::generation::{ChoiceEvent, Generation, MAX_EVENTS_PER_POLL, failure};
use crate::state::ServerState;

/// Bytes after which a piece goes out though more events are there.
const MAX_PIECE_BYTES: usize = 64 << 10;

/// Writes one endpoint's chunks.
pub(crate) trait Render: Send + Unpin + 'static {
    /// Chunks for one event, appended to `out`.
    fn event(&mut self, event: ChoiceEvent, out: &mut Vec<u8>);

    /// What stands between the last chunk and `[DONE]`.
    fn end(&mut self, out: &mut Vec<u8>);
}

/// Appends `data: …` and the blank line.
pub(crate) fn data(out: &mut Vec<u8>, value: &impl Serialize) {
    out.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut *out, value).expect("wire types have string keys only");
    out.extend_from_slice(b"\n\n");
}

/// An answer that streams.
pub(crate) fn response(
    state: Arc<ServerState>,
    generation: Generation,
    render: impl Render,
) -> Response {
    let keep_alive = state.config.keep_alive;
    let ended = Box::pin(async move { state.lifecycle.ended().await });
    let body = EventBody {
        generation: Some(generation),
        render,
        keep_alive,
        silence: Box::pin(sleep(keep_alive)),
        ended,
    };
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(body)).into_response()
}

struct EventBody<R> {
    /// None: the stream is over.
    generation: Option<Generation>,
    render: R,
    keep_alive: Duration,
    silence: Pin<Box<Sleep>>,
    /// The server ends what is in flight.
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<R: Render> EventBody<R> {
    /// Takes what is there. True: the stream is over.
    fn take_events(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> bool {
        let Some(generation) = &mut self.generation else { return true };
        for _ in 0..MAX_EVENTS_PER_POLL {
            let event = match generation.poll_next(cx) {
                Poll::Pending => return false,
                Poll::Ready(None) => {
                    self.render.end(out);
                    out.extend_from_slice(b"data: [DONE]\n\n");
                    return true;
                }
                Poll::Ready(Some(event)) => event,
            };
            if let StreamEvent::Finished(finished) = &event.event
                && let Some(error) = failure(finished)
            {
                data(out, &error.body());
                return true;
            }
            self.render.event(event, out);
            if out.len() >= MAX_PIECE_BYTES {
                break;
            }
        }
        // More may be there: come back after this piece.
        cx.waker().wake_by_ref();
        false
    }
}

impl<R: Render> Stream for EventBody<R> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.generation.is_none() {
            return Poll::Ready(None);
        }
        let this = &mut *self;
        let mut out = Vec::new();
        let mut is_over = this.take_events(cx, &mut out);
        if !is_over && this.ended.as_mut().poll(cx).is_ready() {
            let error = ApiError::Unavailable("the server is shutting down".to_owned());
            data(&mut out, &error.body());
            is_over = true;
        }
        if is_over {
            this.generation = None;
        }
        let keep_alive = this.keep_alive;
        if !out.is_empty() {
            this.silence.as_mut().reset(Instant::now() + keep_alive);
            return Poll::Ready(Some(Ok(out.into())));
        }
        if is_over {
            return Poll::Ready(None);
        }
        if this.silence.as_mut().poll(cx).is_ready() {
            this.silence.as_mut().reset(Instant::now() + keep_alive);
            return Poll::Ready(Some(Ok(Bytes::from_static(b": keep-alive\n\n"))));
        }
        Poll::Pending
    }
}
