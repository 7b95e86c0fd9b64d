//! The engine thread's end of a tier: blocks are copied from and to the backend here, all else is
//! the keeper's, on a thread of its own.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tenon_backend::{Backend, BackendError};
use tenon_engine::{Engine, Transfer};

use super::KvTier;
use super::keeper::{End, Keeper, Note, failure};
use super::queue::Job;

/// Memory of blocks that wait to be stored: beyond, the tier is slower than eviction, and blocks
/// are given up instead. As much again is held while a step's blocks are handed over.
const MAX_QUEUED_BYTES: usize = 256 << 20;

/// How long the engine thread waits for a load before it looks for messages.
const PATIENCE: Duration = Duration::from_millis(2);

/// See the module's doc.
pub(crate) struct TierThread {
    notes: Sender<Note>,
    ends: Receiver<End>,
    keeper: Option<JoinHandle<()>>,
    // Noted and not begun.
    transfers: Vec<Transfer>,
    // The place was given up.
    is_broken: bool,
}

impl TierThread {
    /// A single store or load that takes longer than `timeout` is the tier's end.
    pub fn spawn(tier: Box<dyn KvTier>, timeout: Duration) -> std::io::Result<TierThread> {
        let (notes, inbox) = channel();
        let (said, ends) = channel();
        let keeper = Keeper::new(tier, (notes.clone(), inbox), said, MAX_QUEUED_BYTES, timeout)?;
        let run = move || keeper.run();
        let keeper = std::thread::Builder::new().name("tenon-kv-tier".into()).spawn(run)?;
        let transfers = Vec::new();
        Ok(TierThread { notes, ends, keeper: Some(keeper), transfers, is_broken: false })
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
        let is_store = |t: &&Transfer| matches!(t, Transfer::Store { .. });
        let num_stores = transfers.iter().filter(is_store).count();
        // Of the first ones, as the queue does: tails are evicted before their heads.
        let most = (MAX_QUEUED_BYTES / backend.block_bytes().max(1)).max(1);
        let mut num_given_up = num_stores.saturating_sub(if self.is_broken { 0 } else { most });
        let mut jobs = Vec::new();
        for transfer in transfers.drain(..) {
            jobs.push(match transfer {
                Transfer::Remove { hash } => Job::Remove(hash),
                Transfer::Load { block, hash } => Job::Load(block, hash, backend.block_bytes()),
                Transfer::Store { hash, .. } if num_given_up > 0 => {
                    num_given_up -= 1;
                    engine.store_failed(hash);
                    continue;
                }
                Transfer::Store { block, hash } => {
                    let mut bytes = vec![0; backend.block_bytes()];
                    backend.read_block(block.0, &mut bytes)?;
                    Job::Store(hash, bytes)
                }
            });
        }
        self.transfers = transfers;
        if !jobs.is_empty() {
            self.send(jobs, engine, backend)?;
        }
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
            self.settle(end, engine, backend)?;
            next = self.ends.try_recv().ok();
        }
        Ok(())
    }

    fn settle(
        &mut self,
        end: End,
        engine: &mut Engine,
        backend: &mut dyn Backend,
    ) -> Result<(), BackendError> {
        match end {
            End::StoreFailed(hash) => engine.store_failed(hash),
            End::Loaded(block, hash, bytes) => {
                if let Some(bytes) = &bytes {
                    backend.write_block(block.0, bytes)?;
                }
                engine.loaded(block, hash, bytes.is_some());
            }
            End::Broken => {
                self.is_broken = true;
                engine.tier_failed();
            }
        }
        Ok(())
    }

    /// A keeper that panicked brings nothing back.
    fn send(
        &mut self,
        jobs: Vec<Job>,
        engine: &mut Engine,
        backend: &mut dyn Backend,
    ) -> Result<(), BackendError> {
        let Err(refused) = self.notes.send(Note::Jobs(jobs)) else { return Ok(()) };
        let Note::Jobs(jobs) = refused.0 else { return Ok(()) };
        for end in jobs.iter().filter_map(failure) {
            self.settle(end, engine, backend)?;
        }
        Ok(())
    }
}

impl Drop for TierThread {
    fn drop(&mut self) {
        let _ = self.notes.send(Note::Stop);
        if let Some(keeper) = self.keeper.take() {
            // It waits for no longer than its timeout. A panic in there was printed.
            let _ = keeper.join();
        }
    }
}
