//! A worker's inbox: one first-in first-out queue for steps of the engine and for what the server
//! says, so that a request is opened before its first token comes. The worker takes all there is
//! at once; a sender wakes it only when it sleeps.

use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use tenon_engine::{RequestId, StepOutput};
use tenon_text::StopStrings;

use crate::stream::StreamSpec;

/// Steps that may wait for one worker before the engine waits for it: about five seconds of a fast
/// engine. A waiting step costs 100 bytes per sequence of that worker.
pub const MAX_QUEUED_STEPS: usize = 1024;

/// What a worker is told.
pub(crate) enum Message {
    Open(Box<StreamSpec>, StopStrings),
    /// The client left.
    Close(RequestId),
    Output(StepOutput),
    /// The engine will say nothing more.
    FailAll(String),
}

/// The worker is gone or going.
#[derive(Debug)]
pub(crate) struct Closed;

#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    filled: Condvar,
    taken: Condvar,
}

#[derive(Default)]
struct State {
    messages: Vec<Message>,
    num_steps: usize,
    is_closed: bool,
    is_worker_asleep: bool,
}

impl Inbox {
    /// Never waits: requests bound it, with at most one `Open` and one `Close` each.
    pub fn push(&self, message: Message) -> Result<(), Closed> {
        self.add(self.lock(), message)
    }

    /// Waits while [`MAX_QUEUED_STEPS`] are queued, until the worker takes them. Once the queue has
    /// grown to what is usual, it allocates nothing.
    pub fn push_step(&self, outputs: impl Iterator<Item = StepOutput>) -> Result<(), Closed> {
        let mut state = self.lock();
        while state.num_steps >= MAX_QUEUED_STEPS && !state.is_closed {
            state = self.taken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_closed {
            return Err(Closed);
        }
        state.num_steps += 1;
        state.messages.extend(outputs.map(Message::Output));
        self.wake(state);
        Ok(())
    }

    /// Waits for messages and swaps them for the empty `batch`. False: closed and empty.
    pub fn take(&self, batch: &mut Vec<Message>) -> bool {
        let mut state = self.lock();
        while state.messages.is_empty() && !state.is_closed {
            state.is_worker_asleep = true;
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_worker_asleep = false;
        mem::swap(&mut state.messages, batch);
        let was_full = state.num_steps >= MAX_QUEUED_STEPS;
        state.num_steps = 0;
        drop(state);
        if was_full {
            self.taken.notify_all();
        }
        !batch.is_empty()
    }

    /// Nothing more comes in; what is there is still taken.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.filled.notify_all();
        self.taken.notify_all();
    }

    fn add(&self, mut state: MutexGuard<'_, State>, message: Message) -> Result<(), Closed> {
        if state.is_closed {
            return Err(Closed);
        }
        state.messages.push(message);
        self.wake(state);
        Ok(())
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let wake = mem::take(&mut state.is_worker_asleep);
        drop(state);
        if wake {
            self.filled.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    fn step() -> impl Iterator<Item = StepOutput> {
        std::iter::once(StepOutput {
            request: RequestId(1),
            index: 0,
            token: Some(1),
            logprobs: None,
            prompt_logprobs: Vec::new(),
            finish: None,
            error: None,
            num_cached_tokens: 0,
        })
    }

    #[test]
    fn a_full_inbox_waits_for_its_worker_and_a_closed_one_for_nobody() {
        let inbox = Arc::new(Inbox::default());
        for _ in 0..MAX_QUEUED_STEPS {
            inbox.push_step(step()).unwrap();
        }
        inbox.push(Message::Close(RequestId(1))).unwrap();
        let (sender, pushed) = mpsc::channel();
        let engine = thread::spawn({
            let inbox = inbox.clone();
            move || {
                inbox.push_step(step()).unwrap();
                sender.send(()).unwrap();
            }
        });
        assert!(pushed.try_recv().is_err());
        let mut batch = Vec::new();
        let mut num_taken = 0;
        // The step that waits may come with the first batch or behind it.
        while num_taken < MAX_QUEUED_STEPS + 2 {
            assert!(inbox.take(&mut batch));
            num_taken += batch.drain(..).count();
        }
        pushed.recv().unwrap();
        engine.join().unwrap();

        inbox.push_step(step()).unwrap();
        inbox.close();
        assert!(inbox.push_step(step()).is_err());
        assert!(inbox.push(Message::Close(RequestId(1))).is_err());
        assert!(inbox.take(&mut batch));
        batch.clear();
        assert!(!inbox.take(&mut batch));
    }
}
