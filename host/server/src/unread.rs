//! What a client still sends when its answer is ready. Who closes a connection under a client's
//! write takes the answer from it (RFC 9112, section 9.6).
//!
//! A short rest of the body is read and dropped, and the connection goes on. What is too long for
//! that ends the connection: the answer says so, and what comes is dropped until the client closes.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, Request, header};
use axum::response::Response;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep, timeout};
use tokio_stream::StreamExt;

/// Most of a body that is read for nothing: that of the largest upload.
const MAX_DISCARD_BYTES: u64 = 16 << 20;
/// How long an answer waits for that.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a client may go on to send once its answer is out. It costs the connection's place.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether a connection ends although its client may still send.
#[derive(Clone, Default)]
pub(crate) struct Unread(Arc<AtomicBool>);

impl Unread {
    /// Asks for the answer. Afterwards the body was read to its end, or the answer is the last one
    /// of its connection.
    pub async fn answer(
        self,
        service: TowerToHyperService<Router>,
        request: Request<Incoming>,
    ) -> Result<Response, Infallible> {
        // Such a client asks before it sends: the answer is a no.
        let asks = request.headers().contains_key(header::EXPECT);
        let (left, mut rest) = oneshot::channel();
        let body = |body| RequestBody { body: Some(body), left: Some(left) };
        let mut response = service.call(request.map(body)).await?;
        let Ok(rest) = rest.try_recv() else { return Ok(response) };
        let is_last = response.headers().contains_key(header::CONNECTION);
        if is_last || asks || !discard(rest).await {
            self.0.store(true, Ordering::Relaxed);
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }
}

/// Reads to the end, if that comes soon.
async fn discard(body: Incoming) -> bool {
    if body.size_hint().lower() > MAX_DISCARD_BYTES {
        return false;
    }
    let reading = async {
        let mut chunks = Body::new(body).into_data_stream();
        let mut num_bytes = 0;
        while let Some(chunk) = chunks.next().await {
            num_bytes += chunk.map_or(u64::MAX, |chunk| chunk.len() as u64);
            if num_bytes > MAX_DISCARD_BYTES {
                return false;
            }
        }
        true
    };
    timeout(DISCARD_TIMEOUT, reading).await.unwrap_or(false)
}

/// A body that goes back when it is dropped before its end.
struct RequestBody {
    // None at its end.
    body: Option<Incoming>,
    left: Option<oneshot::Sender<Incoming>>,
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if !self.is_end_stream()
            && let (Some(body), Some(left)) = (self.body.take(), self.left.take())
        {
            // The connection may be gone.
            let _ = left.send(body);
        }
    }
}

/// A socket that is read on after its last answer, if the client may still send.
pub(crate) struct Lingering {
    stream: TcpStream,
    unread: Unread,
    ends: Option<Pin<Box<Sleep>>>,
}

impl Lingering {
    /// Reads on when `unread` says so.
    pub fn new(stream: TcpStream, unread: Unread) -> Lingering {
        Lingering { stream, unread, ends: None }
    }
}

impl AsyncRead for Lingering {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Lingering {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        if !self.unread.0.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let ends = self.ends.get_or_insert_with(|| Box::pin(sleep(LINGER_TIMEOUT)));
        if ends.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        // Tokio's budget ends this loop for a client that does not.
        loop {
            let mut bytes = [0; 8192];
            let mut buffer = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
