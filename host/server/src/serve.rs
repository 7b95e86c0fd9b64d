//! Serving on a socket: connections with limits, and the order of a shutdown (refuse, wait, end,
//! close).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::router::router;
use crate::state::ServerState;
use crate::unread::{Lingering, Unread};

/// Open connections; more wait in the socket's backlog. One costs about 20 KB.
const MAX_CONNECTIONS: usize = 8192;
/// A request's head must arrive within this time, an idle connection ends after it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// After requests were told to end, how long their last bytes may take.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(5);
/// After an accept that failed (out of file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` resolves and the server has drained.
///
/// From then on new requests and `/health` answer 503; requests in flight go on for at most the
/// configured `drain_timeout`, then end with an error; then connections close. The caller stops
/// the engine afterwards.
///
/// # Errors
/// A panic of the accept loop.
pub async fn serve(
    listener: Arc<TcpListener>,
    state: Arc<ServerState>,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let (close, closed) = watch::channel(false);
    let unread_timeout = state.config.unread_timeout;
    let accepting = accept(listener, router(state.clone()), unread_timeout, closed.clone(), closed);
    let mut accepting = tokio::spawn(async move {
        let mut connections = accepting.await;
        while connections.join_next().await.is_some() {}
    });
    tokio::select! {
        result = &mut accepting => return result.map_err(std::io::Error::other),
        () = shutdown => {}
    }
    state.lifecycle.start_drain();
    tracing::info!(num_requests = state.lifecycle.num_inflight(), "draining");
    let drained = state.lifecycle.wait_idle();
    if tokio::time::timeout(state.config.drain_timeout, drained).await.is_err() {
        let num_requests = state.lifecycle.num_inflight();
        tracing::warn!(num_requests, "the drain timeout is over; ending what is in flight");
    }
    state.lifecycle.end_now();
    close.send_replace(true);
    match tokio::time::timeout(END_TIMEOUT, &mut accepting).await {
        Ok(result) => result.map_err(std::io::Error::other),
        Err(_) => {
            // A client that does not read holds its connection: it is cut with the others.
            accepting.abort();
            Ok(())
        }
    }
}

/// Accepts until stopped, and gives the connections that are open, which end when closed.
pub(crate) async fn accept(
    listener: Arc<TcpListener>,
    router: Router,
    unread_timeout: Duration,
    mut stopped: watch::Receiver<bool>,
    closed: watch::Receiver<bool>,
) -> JoinSet<()> {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = is_closed(&mut stopped) => return connections,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            (stream, place) = next(&listener, &places) => {
                let (router, closed) = (router.clone(), closed.clone());
                connections.spawn(async move {
                    set_options(&stream, unread_timeout);
                    connection(stream, router, closed).await;
                    drop(place);
                });
            }
        }
    }
}

/// Resolves when connections must close, or when nobody is left to say so.
async fn is_closed(closed: &mut watch::Receiver<bool>) {
    let _ = closed.wait_for(|closed| *closed).await;
}

/// The next connection, once there is a place for it.
async fn next(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A socket that is gone tells it on first use.
fn set_options(stream: &TcpStream, unread_timeout: Duration) {
    // Small events must not wait for each other.
    let _ = stream.set_nodelay(true);
    // Nobody else notices that a client takes nothing: while bytes wait, no body is asked for more.
    let timeout_ms = u32::try_from(unread_timeout.as_millis()).unwrap_or(u32::MAX);
    let _ = set_tcp_user_timeout(stream, timeout_ms);
}

async fn connection(stream: TcpStream, router: Router, mut closed: watch::Receiver<bool>) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let unread = Unread::default();
    let io = TokioIo::new(Lingering::new(stream, unread.clone()));
    let service = TowerToHyperService::new(router);
    let answer = service_fn(move |request| unread.clone().answer(service.clone(), request));
    let mut serving = pin!(builder.serve_connection(io, answer));
    let result = tokio::select! {
        result = serving.as_mut() => result,
        () = is_closed(&mut closed) => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        // Clients leave and time out: nothing to mend here.
        tracing::debug!(%error, "connection ended");
    }
}
