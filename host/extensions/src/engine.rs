//! The one wasmtime configuration of this project, and its clock.
//!
//! Whatever guests do not need is off: no threads, no GC, no exceptions, no async. The compiler's
//! process uses the same configuration without a pool, so its output fits the server's engine.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig, Strategy,
};

use crate::error::HostError;
use crate::limits::RunLimits;

/// Period of the epoch: how late a deadline may be seen.
pub(crate) const TICK: Duration = Duration::from_millis(1);

/// Frames kept of a guest's backtrace.
const MAX_BACKTRACE_FRAMES: usize = 16;

/// Bytes of each memory that are cleared by hand, not given back, when an instance ends. More than
/// a parser dirties costs more than it saves.
const KEEP_RESIDENT: usize = 64 << 10;

/// Per component. A component without imports has one core instance and one table; one whose
/// language runtime was stubbed has three.
const CORE_INSTANCES: u32 = 4;

/// Where instances live.
pub(crate) enum Allocation {
    /// Slots for this many sessions at once.
    Pool { num_sessions: u32 },
    /// Nothing is ever instantiated: the compiler.
    CompileOnly,
}

/// The configuration, with the limits that are part of it.
pub(crate) fn engine_config(limits: &RunLimits, allocation: &Allocation) -> Config {
    let mut config = Config::new();
    config
        .strategy(Strategy::Cranelift)
        .cranelift_opt_level(OptLevel::Speed)
        .concurrency_support(false)
        .epoch_interruption(true)
        .consume_fuel(false)
        .memory_init_cow(true)
        .native_unwind_info(false)
        .generate_address_map(true)
        .max_wasm_stack(limits.stack_bytes)
        .wasm_backtrace_max_frames(NonZeroUsize::new(MAX_BACKTRACE_FRAMES))
        .relaxed_simd_deterministic(true)
        .shared_memory(false);
    forbid_proposals(&mut config);
    match allocation {
        Allocation::Pool { num_sessions } => {
            config.allocation_strategy(pool(limits, *num_sessions));
        }
        Allocation::CompileOnly => {
            // One thread: memory and time of a compilation stay predictable.
            config.parallel_compilation(false);
        }
    }
    config
}

/// Threads, exceptions, function references, stack switching and component async are not even
/// compiled into our wasmtime: it has no methods for them.
fn forbid_proposals(config: &mut Config) {
    config
        .wasm_tail_call(false)
        .wasm_memory64(false)
        .wasm_multi_memory(false)
        .wasm_custom_page_sizes(false)
        .wasm_wide_arithmetic(false)
        .wasm_component_model_map(false)
        .wasm_component_model_memory64(false)
        .wasm_component_model_fixed_length_lists(false)
        .wasm_component_model_implements(false);
}

fn pool(limits: &RunLimits, num_sessions: u32) -> InstanceAllocationStrategy {
    let cores = num_sessions.saturating_mul(CORE_INSTANCES);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(num_sessions)
        .total_core_instances(cores)
        .total_memories(num_sessions)
        .total_tables(cores)
        .max_core_instances_per_component(CORE_INSTANCES)
        .max_memories_per_component(1)
        .max_tables_per_component(CORE_INSTANCES)
        .max_memory_size(limits.memory_bytes)
        .table_elements(limits.table_elements)
        .linear_memory_keep_resident(KEEP_RESIDENT)
        .table_keep_resident(KEEP_RESIDENT);
    InstanceAllocationStrategy::Pooling(pool)
}

/// The engine of a server: slots for `num_sessions`.
///
/// # Errors
/// When the address space for the pool cannot be reserved.
pub(crate) fn serving_engine(limits: &RunLimits, num_sessions: u32) -> Result<Engine, HostError> {
    let config = engine_config(limits, &Allocation::Pool { num_sessions });
    Engine::new(&config).map_err(|error| HostError::Engine { why: format!("{error:#}") })
}

/// The engine of the compiler's process.
///
/// # Errors
/// In wasmtime's words.
pub(crate) fn compiling_engine(limits: &RunLimits) -> wasmtime::Result<Engine> {
    Engine::new(&engine_config(limits, &Allocation::CompileOnly))
}

/// Advances the epoch while anything runs. Sleeps otherwise: an idle server wakes nobody.
pub(crate) struct Ticker {
    num_users: Arc<AtomicUsize>,
    /// `None` only while dropping.
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub(crate) fn start(engine: Engine) -> Result<Ticker, HostError> {
        let (wake, woken) = sync_channel(1);
        let num_users = Arc::new(AtomicUsize::new(0));
        let seen = num_users.clone();
        let thread = std::thread::Builder::new()
            .name("tenon-epoch".into())
            .spawn(move || tick(&engine, &seen, &woken))
            .map_err(|error| HostError::Engine { why: format!("no thread: {error}") })?;
        Ok(Ticker { num_users, wake: Some(wake), thread: Some(thread) })
    }

    /// While the guard lives, guests can be interrupted.
    pub(crate) fn enter(&self) -> TickGuard {
        if self.num_users.fetch_add(1, Ordering::SeqCst) == 0
            && let Some(wake) = &self.wake
            && let Err(TrySendError::Disconnected(())) = wake.try_send(())
        {
            tracing::error!("the epoch thread is gone; guests cannot be interrupted");
        }
        TickGuard(self.num_users.clone())
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the epoch thread panicked");
        }
    }
}

/// See [`Ticker::enter`].
pub(crate) struct TickGuard(Arc<AtomicUsize>);

impl Drop for TickGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for a user, ticks until there is none, waits again; ends when the ticker is dropped.
fn tick(engine: &Engine, num_users: &AtomicUsize, woken: &Receiver<()>) {
    while woken.recv().is_ok() {
        loop {
            match woken.recv_timeout(TICK) {
                Err(RecvTimeoutError::Disconnected) => return,
                Ok(()) | Err(RecvTimeoutError::Timeout) => engine.increment_epoch(),
            }
            if num_users.load(Ordering::SeqCst) == 0 {
                break;
            }
        }
    }
}
