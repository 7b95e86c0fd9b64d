//! What a parser did, for metrics. Sessions add their own counts when they end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenon_chat::parser::FaultKind;

/// In the order of `Stats::faults`.
const KINDS: [FaultKind; 6] = [
    FaultKind::Timeout,
    FaultKind::Memory,
    FaultKind::Stack,
    FaultKind::Trap,
    FaultKind::BadOutput,
    FaultKind::Limit,
];

/// Counts since admission.
#[derive(Debug, Default)]
pub struct Stats {
    num_sessions: AtomicU64,
    num_calls: AtomicU64,
    cpu_ns: AtomicU64,
    faults: [AtomicU64; 6],
}

impl Stats {
    /// Sessions opened.
    pub fn num_sessions(&self) -> u64 {
        self.num_sessions.load(Ordering::Relaxed)
    }

    /// Calls into guests, of sessions that ended.
    pub fn num_calls(&self) -> u64 {
        self.num_calls.load(Ordering::Relaxed)
    }

    /// CPU that these calls were charged.
    pub fn cpu(&self) -> Duration {
        Duration::from_nanos(self.cpu_ns.load(Ordering::Relaxed))
    }

    /// Faults by kind.
    pub fn faults(&self) -> [(FaultKind, u64); 6] {
        std::array::from_fn(|i| (KINDS[i], self.faults[i].load(Ordering::Relaxed)))
    }

    pub(crate) fn count_session(&self) {
        self.num_sessions.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_calls(&self, num: u64, cpu: Duration) {
        let nanos = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        self.num_calls.fetch_add(num, Ordering::Relaxed);
        self.cpu_ns.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(crate) fn count_fault(&self, kind: FaultKind) {
        if let Some(i) = KINDS.iter().position(|&known| known == kind) {
            self.faults[i].fetch_add(1, Ordering::Relaxed);
        }
    }
}
