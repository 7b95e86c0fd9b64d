//! Whether the server takes requests, and how many it has: admission of HTTP requests and the
//! order of a shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::http::HeaderMap;
use tokio::sync::Notify;

use crate::caller::Caller;
use crate::error::ApiError;
use crate::state::ServerState;

/// Counts generation requests from their first header to their last byte.
pub(crate) struct Lifecycle {
    limit: usize,
    num_inflight: AtomicUsize,
    is_draining: AtomicBool,
    /// Set when the rest of the requests in flight must end now.
    is_ending: AtomicBool,
    idle: Notify,
    ending: Notify,
}

impl Lifecycle {
    /// At most `limit` requests at a time.
    pub fn new(limit: usize) -> Lifecycle {
        Lifecycle {
            limit,
            num_inflight: AtomicUsize::new(0),
            is_draining: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            idle: Notify::new(),
            ending: Notify::new(),
        }
    }

    /// New requests get a 503 from now on.
    pub fn start_drain(&self) {
        self.is_draining.store(true, Ordering::SeqCst);
    }

    /// Has a drain started?
    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::SeqCst)
    }

    /// Requests in flight end with an error now.
    pub fn end_now(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
        self.ending.notify_waiters();
    }

    /// Resolves once [`Lifecycle::end_now`] was called.
    pub async fn ended(&self) {
        let mut notified = std::pin::pin!(self.ending.notified());
        notified.as_mut().enable();
        if !self.is_ending.load(Ordering::SeqCst) {
            notified.await;
        }
    }

    /// Requests in flight.
    pub fn num_inflight(&self) -> usize {
        self.num_inflight.load(Ordering::SeqCst)
    }

    /// Resolves when no request is in flight.
    pub async fn wait_idle(&self) {
        loop {
            let mut notified = std::pin::pin!(self.idle.notified());
            notified.as_mut().enable();
            if self.num_inflight() == 0 {
                return;
            }
            notified.await;
        }
    }
}

/// One request in flight; its end is the drop.
pub(crate) struct InFlight {
    state: Arc<ServerState>,
    /// Who it is for.
    pub caller: Caller,
}

impl InFlight {
    /// Takes a place, or says why not: 503 while loading, draining or after a failure, 429 when
    /// full.
    pub fn enter(state: &Arc<ServerState>, headers: &HeaderMap) -> Result<InFlight, ApiError> {
        let lifecycle = &state.lifecycle;
        if let Some(reason) = state.engine.failure() {
            return Err(ApiError::Unavailable(format!("the engine stopped: {reason}")));
        }
        // Counted first: a drain that starts now waits for this request or turns it away.
        let before = lifecycle.num_inflight.fetch_add(1, Ordering::SeqCst);
        let mut entered = InFlight { state: state.clone(), caller: Caller::default() };
        if lifecycle.is_draining() {
            return Err(ApiError::Unavailable("the server is shutting down".to_owned()));
        }
        if before >= lifecycle.limit {
            let limit = lifecycle.limit;
            return Err(ApiError::QueueFull { limit, counted: "requests" });
        }
        entered.caller = Caller::of(state, headers)?;
        Ok(entered)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.state.lifecycle.num_inflight.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.state.lifecycle.idle.notify_waiters();
        }
    }
}
