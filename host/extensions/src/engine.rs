//! The one wasmtime configuration of this project, and its clock.
//!
//! Whatever guests do not need is off: no threads, no GC, no exceptions, no async. The compiler's
//! process uses the same configuration without a pool, so its output fits the server's engine.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig, Strategy,
    WasmFeatures,
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

/// Threads, exceptions, stack switching and component async are not even compiled into our
/// wasmtime: it has no methods for them.
fn forbid_proposals(config: &mut Config) {
    config
        .wasm_features(WasmFeatures::FUNCTION_REFERENCES | WasmFeatures::GC, false)
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

/// Ticks without a user before the thread sleeps: streams come one after the other, and waking a
/// thread costs more than opening one.
const LINGER_TICKS: u32 = 50;

/// Advances the epoch while anything runs. Sleeps otherwise: an idle server wakes nobody.
pub(crate) struct Ticker {
    users: Arc<Users>,
    /// `None` only while dropping.
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread and its users tell each other. Each side writes its own part before it reads the
/// other's, in one total order, so no user is missed.
struct Users {
    num: AtomicUsize,
    is_asleep: AtomicBool,
}

impl Ticker {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub(crate) fn start(engine: Engine) -> Result<Ticker, HostError> {
        let (wake, woken) = sync_channel(1);
        let users = Arc::new(Users { num: AtomicUsize::new(0), is_asleep: AtomicBool::new(false) });
        let seen = users.clone();
        let thread = std::thread::Builder::new()
            .name("tenon-epoch".into())
            .spawn(move || tick(&engine, &seen, &woken))
            .map_err(|error| HostError::Engine { why: format!("no thread: {error}") })?;
        Ok(Ticker { users, wake: Some(wake), thread: Some(thread) })
    }

    /// While the guard lives, guests can be interrupted.
    pub(crate) fn enter(&self) -> TickGuard {
        self.users.num.fetch_add(1, Ordering::SeqCst);
        if self.users.is_asleep.load(Ordering::SeqCst)
            && let Some(wake) = &self.wake
            && let Err(TrySendError::Disconnected(())) = wake.try_send(())
        {
            tracing::error!("the epoch thread is gone; guests cannot be interrupted");
        }
        TickGuard(self.users.clone())
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
pub(crate) struct TickGuard(Arc<Users>);

impl Drop for TickGuard {
    fn drop(&mut self) {
        self.0.num.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Sleeps until there is a user, ticks until there was none for a while, sleeps again; ends when
/// the ticker is dropped.
fn tick(engine: &Engine, users: &Users, woken: &Receiver<()>) {
    loop {
        users.is_asleep.store(true, Ordering::SeqCst);
        if users.num.load(Ordering::SeqCst) == 0 && woken.recv().is_err() {
            return;
        }
        users.is_asleep.store(false, Ordering::SeqCst);
        let mut num_idle = 0;
        while num_idle < LINGER_TICKS {
            match woken.recv_timeout(TICK) {
                Err(RecvTimeoutError::Disconnected) => return,
                Ok(()) | Err(RecvTimeoutError::Timeout) => engine.increment_epoch(),
            }
            let is_used = users.num.load(Ordering::SeqCst) > 0;
            num_idle = if is_used { 0 } else { num_idle + 1 };
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// One tiny component or module per proposal that is off.
    const OFF: &[(&str, &str)] = &[
        ("tail-call", "(module (func return_call 0))"),
        ("memory64", "(module (memory i64 1))"),
        ("multi-memory", "(module (memory 1) (memory 1))"),
        ("custom-page-sizes", "(module (memory 1 (pagesize 1)))"),
        (
            "wide-arithmetic",
            "(module (func (param i64 i64) (result i64 i64)
                local.get 0 local.get 1 i64.mul_wide_u))",
        ),
        ("threads", "(module (memory 1 1 shared))"),
        ("gc", "(module (type (struct (field i32))))"),
        ("function-references", "(module (type $t (func)) (func (param (ref null $t))))"),
        ("exceptions", "(module (tag))"),
        ("stack-switching", "(module (type $f (func)) (type (cont $f)))"),
    ];

    /// The same for components.
    const COMPONENTS_OFF: &[(&str, &str)] = &[
        ("async", r#"(component (import "f" (func async)))"#),
        ("stream", "(component (type (stream u8)))"),
        ("future", "(component (type (future u8)))"),
        ("error-context", "(component (type error-context))"),
        ("map", "(component (type (map string u32)))"),
        ("fixed-length-list", "(component (type (list u32 4)))"),
        ("values", r#"(component (import "v" (value string)))"#),
    ];

    #[test]
    fn every_proposal_that_is_off_is_refused() {
        let engine = compiling_engine(&RunLimits::default()).unwrap();
        for (name, text) in OFF {
            let wasm = wat::parse_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(engine.precompile_module(&wasm).is_err(), "{name} is accepted");
        }
        for (name, text) in COMPONENTS_OFF {
            let wasm = wat::parse_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(engine.precompile_component(&wasm).is_err(), "{name} is accepted");
        }
    }

    #[test]
    fn what_toolchains_emit_is_accepted() {
        let engine = compiling_engine(&RunLimits::default()).unwrap();
        for text in [
            "(module (func (result v128) (v128.const i32x4 0 0 0 0)))",
            "(module (memory 1) (func (memory.fill (i32.const 0) (i32.const 0) (i32.const 0))))",
            "(module (func (param f32) (result i32) (i32.trunc_sat_f32_s (local.get 0))))",
            "(module (func (result i32 i32) (i32.const 0) (i32.const 0)))",
            "(module (table 1 funcref) (func (drop (ref.null func))))",
        ] {
            engine.precompile_module(&wat::parse_str(text).unwrap()).unwrap();
        }
    }

    #[test]
    fn the_epoch_moves_while_somebody_runs() {
        let engine = compiling_engine(&RunLimits::default()).unwrap();
        let wasm = wat::parse_str(r#"(module (func (export "spin") (loop (br 0))))"#).unwrap();
        let module = wasmtime::Module::new(&engine, &wasm).unwrap();
        let ticker = Ticker::start(engine.clone()).unwrap();
        for _ in 0..20 {
            // A guest that runs until the epoch moves; the guard is what makes it end.
            let _tick = ticker.enter();
            let mut store = wasmtime::Store::new(&engine, ());
            store.set_epoch_deadline(1);
            let instance = wasmtime::Instance::new(&mut store, &module, &[]).unwrap();
            let spin = instance.get_typed_func::<(), ()>(&mut store, "spin").unwrap();
            let error = spin.call(&mut store, ()).unwrap_err();
            assert_eq!(error.downcast_ref(), Some(&wasmtime::Trap::Interrupt));
        }
    }
}
