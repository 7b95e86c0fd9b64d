//! Sees when the engine thread makes no progress, and says so.
//!
//! The engine thread notes when it begins a round of its loop and when it parks; this thread looks
//! at the note. A stuck device cannot be interrupted: the engine is declared unhealthy, and whoever
//! started it is told, so that streams can be ended and the process replaced.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::shared::Shared;

/// Looks per timeout: it is noticed at most a quarter late.
const NUM_LOOKS: u32 = 4;

/// Called once, with the reason, on the watchdog's thread.
pub type OnStuck = Box<dyn FnOnce(&str) + Send>;

/// Starts the watchdog; it ends when `ended`'s sender is dropped.
pub(crate) fn spawn(
    shared: Arc<Shared>,
    timeout: Duration,
    ended: Receiver<()>,
    on_stuck: OnStuck,
) -> std::io::Result<JoinHandle<()>> {
    let watch = move || {
        loop {
            match ended.recv_timeout(timeout / NUM_LOOKS) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => return,
            }
            let Some(busy) = shared.busy_for() else { continue };
            if busy >= timeout {
                let reason = format!("no progress for {:.1} s", busy.as_secs_f64());
                tracing::error!(reason, "the engine is stuck");
                shared.close(Some(&reason));
                on_stuck(&reason);
                return;
            }
        }
    };
    std::thread::Builder::new().name("tenon-watchdog".into()).spawn(watch)
}
