//! The thread that owns a tier: jobs in, ends of loads and failures out. Everything is bounded by
//! the engine's pool, which has one job per block at most; stores beyond the queue are given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tenon_backend::{Backend, BackendError};
use tenon_engine::{BlockHash, BlockId, Engine, Transfer};

use super::KvTier;

/// Stores that may wait: beyond, the tier is slower than eviction, and blocks are given up instead
/// of memory.
const MAX_QUEUED_STORES: usize = 256;

/// How long the engine thread waits for a load before it looks for messages.
const PATIENCE: Duration = Duration::from_millis(2);

enum Job {
    Store(BlockHash, Vec<u8>),
    Load(BlockId, BlockHash, usize),
    Remove(BlockHash),
}

enum End {
    Loaded(BlockId, BlockHash, Option<Vec<u8>>),
    StoreFailed(BlockHash),
}

/// The engine thread's end.
pub(crate) struct TierThread {
    jobs: Option<Sender<Job>>,
    ends: Receiver<End>,
    num_stores: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
    // Noted and not begun.
    transfers: Vec<Transfer>,
}

impl TierThread {
    pub fn spawn(mut tier: Box<dyn KvTier>) -> std::io::Result<TierThread> {
        let (jobs, todo) = channel();
        let (said, ends) = channel();
        let num_stores = Arc::new(AtomicUsize::new(0));
        let counted = num_stores.clone();
        let work = move || {
            for job in todo {
                let end = match job {
                    Job::Remove(hash) => {
                        tier.remove(hash.0);
                        None
                    }
                    Job::Store(hash, bytes) => {
                        counted.fetch_sub(1, SeqCst);
                        let failed = tier.store(hash.0, &bytes).err();
                        failed.map(|error| {
                            tracing::warn!(%error, "a KV block could not be stored");
                            End::StoreFailed(hash)
                        })
                    }
                    Job::Load(block, hash, len) => {
                        let mut bytes = vec![0; len];
                        let loaded = tier.load(hash.0, &mut bytes);
                        if let Err(error) = &loaded {
                            tracing::warn!(%error, "a KV block could not be loaded");
                        }
                        Some(End::Loaded(block, hash, loaded.ok().map(|()| bytes)))
                    }
                };
                if end.is_some_and(|end| said.send(end).is_err()) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("tenon-kv-tier".into()).spawn(work)?;
        Ok(TierThread {
            jobs: Some(jobs),
            ends,
            num_stores,
            thread: Some(thread),
            transfers: Vec::new(),
        })
    }

    /// Notes what a plan wants moved, for [`TierThread::begin`].
    pub fn note(&mut self, transfers: &[Transfer]) {
        self.transfers.extend_from_slice(transfers);
    }

    /// Begins what was noted and what the engine wants moved beside plans. No step is in flight.
    pub fn begin(
        &mut self,
        engine: &mut Engine,
        backend: &mut dyn Backend,
    ) -> Result<(), BackendError> {
        let mut transfers = std::mem::take(&mut self.transfers);
        engine.take_transfers(&mut transfers);
        for transfer in transfers.drain(..) {
            let job = match transfer {
                Transfer::Remove { hash } => Job::Remove(hash),
                Transfer::Load { block, hash } => Job::Load(block, hash, backend.block_bytes()),
                Transfer::Store { hash, .. }
                    if self.num_stores.load(SeqCst) >= MAX_QUEUED_STORES =>
                {
                    engine.store_failed(hash);
                    continue;
                }
                Transfer::Store { block, hash } => {
                    let mut bytes = vec![0; backend.block_bytes()];
                    backend.read_block(block.0, &mut bytes)?;
                    self.num_stores.fetch_add(1, SeqCst);
                    Job::Store(hash, bytes)
                }
            };
            self.send(job, engine);
        }
        self.transfers = transfers;
        Ok(())
    }

    /// Takes in what ended; waits a moment for it when nothing else can be done.
    pub fn end(
        &mut self,
        engine: &mut Engine,
        backend: &mut dyn Backend,
    ) -> Result<(), BackendError> {
        let mut next = match engine.waits_for_loads() {
            false => self.ends.try_recv().ok(),
            true => match self.ends.recv_timeout(PATIENCE) {
                Ok(end) => Some(end),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(BackendError::Failed("the KV tier's thread ended".into()));
                }
            },
        };
        while let Some(end) = next {
            match end {
                End::StoreFailed(hash) => engine.store_failed(hash),
                End::Loaded(block, hash, bytes) => {
                    if let Some(bytes) = &bytes {
                        backend.write_block(block.0, bytes)?;
                    }
                    engine.loaded(block, hash, bytes.is_some());
                }
            }
            next = self.ends.try_recv().ok();
        }
        Ok(())
    }

    fn send(&self, job: Job, engine: &mut Engine) {
        let jobs = self.jobs.as_ref().expect("it is taken at the end");
        // Its thread panicked: nothing comes back from there.
        if let Err(refused) = jobs.send(job) {
            match refused.0 {
                Job::Store(hash, _) => engine.store_failed(hash),
                Job::Load(block, hash, _) => engine.loaded(block, hash, false),
                Job::Remove(_) => {}
            }
        }
    }
}

impl Drop for TierThread {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A panic in there was printed; there is nothing left to do.
            let _ = thread.join();
        }
    }
}
