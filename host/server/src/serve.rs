//! Serving on a socket, and the order of a shutdown: refuse, wait, end, close.

use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::router::router;
use crate::state::ServerState;

/// After requests were told to end, how long their last bytes may take.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves until `shutdown` resolves and the server has drained.
///
/// From then on new requests and `/health` answer 503; requests in flight go on for at most the
/// configured `drain_timeout`, then end with an error; then connections close. The caller stops
/// the engine afterwards.
///
/// # Errors
/// Those of the listener.
pub async fn serve(
    listener: TcpListener,
    state: Arc<ServerState>,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let listener = listener.tap_io(|stream| {
        // Small events must not wait for each other. A socket that is gone tells it on first use.
        let _ = stream.set_nodelay(true);
    });
    let (close, closed) = oneshot::channel::<()>();
    let service = router(state.clone()).into_make_service();
    let server = axum::serve(listener, service).with_graceful_shutdown(async move {
        // A dropped sender means the same.
        let _ = closed.await;
    });
    let mut server = tokio::spawn(server.into_future());
    tokio::select! {
        result = &mut server => return flatten(result),
        () = shutdown => {}
    }
    let drain = state.config.drain_timeout;
    state.lifecycle.start_drain();
    tracing::info!(num_requests = state.lifecycle.num_inflight(), "draining");
    if tokio::time::timeout(drain, state.lifecycle.wait_idle()).await.is_err() {
        let num_requests = state.lifecycle.num_inflight();
        tracing::warn!(num_requests, "the drain timeout is over; ending what is in flight");
    }
    state.lifecycle.end_now();
    let _ = close.send(());
    match tokio::time::timeout(END_TIMEOUT, &mut server).await {
        Ok(result) => flatten(result),
        Err(_) => {
            // A client that does not read holds its connection: it is cut.
            server.abort();
            Ok(())
        }
    }
}

fn flatten(result: Result<std::io::Result<()>, tokio::task::JoinError>) -> std::io::Result<()> {
    result.unwrap_or_else(|error| Err(std::io::Error::other(error)))
}
