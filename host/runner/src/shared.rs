//! What the engine thread and its handles share: atomics only, no locks.

use std::hash::Hasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use siphasher::sip::SipHasher24;
use tenon_engine::{EngineConfig, EngineStats, RequestId};

use crate::handle::SubmitError;

/// Where the engine thread is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifecycle {
    Starting,
    Ready,
    Draining,
    Stopped,
    Unhealthy,
}

const LIFECYCLES: [Lifecycle; 5] = [
    Lifecycle::Starting,
    Lifecycle::Ready,
    Lifecycle::Draining,
    Lifecycle::Stopped,
    Lifecycle::Unhealthy,
];

pub(crate) struct Shared {
    config: EngineConfig,
    vocab_size: u32,
    lifecycle: AtomicU8,
    // Set before the lifecycle becomes `Unhealthy`.
    reason: OnceLock<String>,
    // Sequences that were submitted and have not ended, those in the channel included.
    num_live: AtomicUsize,
    stats: [AtomicU64; NUM_CELLS],
    started: Instant,
    // Milliseconds from `started` to the begin of the engine thread's round, plus 1; 0: parked.
    busy_since: AtomicU64,
}

impl Shared {
    pub fn new(config: EngineConfig, vocab_size: u32) -> Self {
        let stats = EngineStats {
            num_blocks: config.num_blocks as u64,
            block_size: config.block_size as u64,
            ..EngineStats::default()
        };
        let shared = Shared {
            config,
            vocab_size,
            lifecycle: AtomicU8::new(Lifecycle::Starting as u8),
            reason: OnceLock::new(),
            num_live: AtomicUsize::new(0),
            stats: [const { AtomicU64::new(0) }; NUM_CELLS],
            started: Instant::now(),
            busy_since: AtomicU64::new(0),
        };
        shared.publish(&stats);
        shared
    }

    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    pub fn max_live(&self) -> usize {
        self.config.max_live_seqs()
    }

    pub fn lifecycle(&self) -> Lifecycle {
        LIFECYCLES[self.lifecycle.load(SeqCst) as usize]
    }

    /// The warm-up is done; unless somebody wants it drained already.
    pub fn begin_serving(&self) {
        self.advance(Lifecycle::Ready, &[Lifecycle::Starting]);
    }

    pub fn begin_drain(&self) {
        self.advance(Lifecycle::Draining, &[Lifecycle::Starting, Lifecycle::Ready]);
    }

    /// The engine thread begins a round of its loop.
    pub fn begin_round(&self) {
        self.busy_since.store(self.started.elapsed().as_millis() as u64 + 1, SeqCst);
    }

    /// The engine thread waits for messages.
    pub fn park(&self) {
        self.busy_since.store(0, SeqCst);
    }

    /// How long the engine thread has been in its round; none while it is parked.
    pub fn busy_for(&self) -> Option<Duration> {
        let since = self.busy_since.load(SeqCst).checked_sub(1)?;
        Some(self.started.elapsed().saturating_sub(Duration::from_millis(since)))
    }

    /// Nothing is taken any more; with a reason when that is a failure. What failed stays so.
    pub fn close(&self, failure: Option<&str>) {
        if let Some(reason) = failure {
            self.reason.get_or_init(|| reason.to_owned());
        }
        let end = match self.failure() {
            None => Lifecycle::Stopped,
            Some(_) => Lifecycle::Unhealthy,
        };
        self.lifecycle.store(end as u8, SeqCst);
    }

    pub fn failure(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    pub fn closed_error(&self) -> SubmitError {
        match self.failure() {
            None => SubmitError::ShuttingDown,
            Some(reason) => SubmitError::Unhealthy { reason: reason.to_owned() },
        }
    }

    /// Counts `n` sequences as alive unless that is too many.
    pub fn reserve(&self, n: usize) -> Result<(), SubmitError> {
        let limit = self.max_live();
        let add = |live: usize| live.checked_add(n).filter(|&sum| sum <= limit);
        match self.num_live.fetch_update(SeqCst, SeqCst, add) {
            Ok(_) => Ok(()),
            Err(_) => Err(SubmitError::QueueFull { limit }),
        }
    }

    /// `n` sequences ended.
    pub fn give_back(&self, n: usize) {
        let before = self.num_live.fetch_sub(n, SeqCst);
        assert!(before >= n, "more sequences ended than began");
    }

    /// A seed for a request that names none: unpredictable, and the same for the same id.
    pub fn draw_seed(&self, request: RequestId) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.config.hash_key);
        hasher.write(b"seed");
        hasher.write(&request.0.to_le_bytes());
        hasher.finish()
    }

    pub fn publish(&self, stats: &EngineStats) {
        for (cell, value) in self.stats.iter().zip(to_cells(stats)) {
            cell.store(value, SeqCst);
        }
    }

    pub fn stats(&self) -> EngineStats {
        let mut stats = from_cells(std::array::from_fn(|i| self.stats[i].load(SeqCst)));
        // Those in the channel wait as well.
        let num_live = self.num_live.load(SeqCst) as u64;
        stats.num_requests_waiting = num_live.saturating_sub(stats.num_requests_running);
        stats
    }

    fn advance(&self, to: Lifecycle, from: &[Lifecycle]) {
        for &from in from {
            let _ = self.lifecycle.compare_exchange(from as u8, to as u8, SeqCst, SeqCst);
        }
    }
}

const NUM_SCALARS: usize = 20;
const WASTE: usize = NUM_SCALARS - 1;
const NUM_BUCKETS: usize = tenon_engine::stats::STEP_TOKEN_BOUNDS.len() + 1;
const NUM_CELLS: usize = NUM_SCALARS + NUM_BUCKETS;

fn to_cells(s: &EngineStats) -> [u64; NUM_CELLS] {
    let scalars: [u64; NUM_SCALARS] = [
        s.num_requests_running,
        s.num_requests_waiting,
        s.num_requests_deferred,
        s.num_blocks,
        s.block_size,
        s.num_used_blocks,
        s.num_cached_blocks,
        s.prefix_cache_queries,
        s.prefix_cache_hits,
        s.num_preemptions,
        s.prompt_tokens,
        s.generation_tokens,
        s.num_steps,
        s.num_step_tokens,
        s.num_steps_ahead,
        s.num_tier_blocks,
        s.num_tier_stores,
        s.num_tier_loads,
        s.num_tier_failures,
        s.kv_cache_waste.to_bits(),
    ];
    let mut cells = [0; NUM_CELLS];
    cells[..NUM_SCALARS].copy_from_slice(&scalars);
    cells[NUM_SCALARS..].copy_from_slice(&s.step_tokens);
    cells
}

fn from_cells(cells: [u64; NUM_CELLS]) -> EngineStats {
    let mut step_tokens = [0; NUM_BUCKETS];
    step_tokens.copy_from_slice(&cells[NUM_SCALARS..]);
    EngineStats {
        num_requests_running: cells[0],
        num_requests_waiting: cells[1],
        num_requests_deferred: cells[2],
        kv_cache_usage: cells[5] as f64 / cells[3].max(1) as f64,
        kv_cache_waste: f64::from_bits(cells[WASTE]),
        num_blocks: cells[3],
        block_size: cells[4],
        num_used_blocks: cells[5],
        num_cached_blocks: cells[6],
        prefix_cache_queries: cells[7],
        prefix_cache_hits: cells[8],
        num_preemptions: cells[9],
        prompt_tokens: cells[10],
        generation_tokens: cells[11],
        num_steps: cells[12],
        num_step_tokens: cells[13],
        num_steps_ahead: cells[14],
        num_tier_blocks: cells[15],
        num_tier_stores: cells[16],
        num_tier_loads: cells[17],
        num_tier_failures: cells[18],
        step_tokens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_carry_every_field() {
        let cells: [u64; NUM_CELLS] = std::array::from_fn(|i| i as u64 + 1);
        assert_eq!(to_cells(&from_cells(cells)), cells);
    }
}
