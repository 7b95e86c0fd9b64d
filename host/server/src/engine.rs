//! The engine as the server sees it: requests in, figures out. `runner`'s handle is the
//! implementation; tests have a double. Aborts go through the output workers, which know what still
//! generates.

use tenon_engine::EngineStats;
use tenon_runner::handle::{GenerateRequest, RunnerHandle, SubmitError};

/// Takes requests; the outputs go to the output workers.
pub trait Engine: Send + Sync {
    /// Queues a request, or says why not. Never blocks.
    fn submit(&self, request: GenerateRequest) -> Result<(), SubmitError>;

    /// A recent snapshot.
    fn stats(&self) -> EngineStats;

    /// The first step has run (or warm-up is over).
    fn is_ready(&self) -> bool;

    /// None, or why the engine stopped.
    fn failure(&self) -> Option<String>;
}

impl Engine for RunnerHandle {
    fn submit(&self, request: GenerateRequest) -> Result<(), SubmitError> {
        RunnerHandle::submit(self, request)
    }

    fn stats(&self) -> EngineStats {
        RunnerHandle::stats(self)
    }

    fn is_ready(&self) -> bool {
        RunnerHandle::is_ready(self)
    }

    fn failure(&self) -> Option<String> {
        (!self.is_healthy()).then(|| "see the server's log".to_owned())
    }
}
