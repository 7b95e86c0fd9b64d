//! One instance's store: memory limits, deadlines, and what failed.
//!
//! Knows nothing of any contract version; those modules run their calls through [`Guest::run`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tenon_chat::parser::FaultKind;
use wasmtime::{Engine, ResourceLimiter, Store, Trap, UpdateDeadline};

use crate::budget::{Budget, FIRST_SLICE_TICKS, Overrun};
use crate::limits::RunLimits;

/// Core instances, tables: a component with a stubbed language runtime has three.
const MAX_PARTS: usize = 4;

/// Bytes of a fault's message.
const MAX_MESSAGE_BYTES: usize = 512;

/// A guest's failure, without its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) message: String,
    /// The server is full: nothing that the guest did.
    pub(crate) is_ours: bool,
}

impl Fault {
    pub(crate) fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        let mut message: String = message.into();
        if message.len() > MAX_MESSAGE_BYTES {
            let cut = (0..=MAX_MESSAGE_BYTES).rev().find(|&i| message.is_char_boundary(i));
            message.truncate(cut.unwrap_or(0));
        }
        Fault { kind, message, is_ours: false }
    }

    pub(crate) fn bad_output(message: impl Into<String>) -> Self {
        Fault::new(FaultKind::BadOutput, message)
    }

    pub(crate) fn limit(message: impl Into<String>) -> Self {
        Fault::new(FaultKind::Limit, message)
    }
}

/// The data of every store.
pub(crate) struct StoreState {
    growth: Growth,
    budget: Budget,
}

/// Counts what an instance grew and remembers that it was refused more.
struct Growth {
    max_memory_bytes: usize,
    max_table_elements: usize,
    memory_bytes: usize,
    table_elements: usize,
    was_refused: bool,
}

impl Growth {
    fn allow(used: &mut usize, max: usize, current: usize, desired: usize) -> bool {
        let total = used.saturating_sub(current).saturating_add(desired);
        let is_allowed = total <= max;
        if is_allowed {
            *used = total;
        }
        is_allowed
    }
}

impl ResourceLimiter for Growth {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let ok = Self::allow(&mut self.memory_bytes, self.max_memory_bytes, current, desired);
        self.was_refused |= !ok;
        Ok(ok)
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let ok = Self::allow(&mut self.table_elements, self.max_table_elements, current, desired);
        self.was_refused |= !ok;
        Ok(ok)
    }

    fn instances(&self) -> usize {
        // Each core instance and the component's own.
        2 * MAX_PARTS
    }

    fn tables(&self) -> usize {
        MAX_PARTS
    }

    fn memories(&self) -> usize {
        1
    }
}

/// A store and the rules of its calls.
pub(crate) struct Guest {
    store: Store<StoreState>,
    wall_factor: u32,
}

impl Guest {
    pub(crate) fn new(engine: &Engine, limits: &RunLimits) -> Self {
        let state = StoreState {
            growth: Growth {
                max_memory_bytes: limits.memory_bytes,
                max_table_elements: limits.table_elements,
                memory_bytes: 0,
                table_elements: 0,
                was_refused: false,
            },
            budget: Budget::new(),
        };
        let mut store = Store::new(engine, state);
        store.limiter(|state| &mut state.growth);
        store.set_hostcall_fuel(limits.hostcall_bytes);
        store.set_max_component_handles(limits.num_handles);
        store.epoch_deadline_callback(|mut context| {
            context.data_mut().budget.on_epoch()?;
            Ok(UpdateDeadline::Continue(1))
        });
        Guest { store, wall_factor: limits.wall_factor }
    }

    /// Bytes that one call may hand back.
    pub(crate) fn set_hostcall_bytes(&mut self, bytes: usize) {
        self.store.set_hostcall_fuel(bytes);
    }

    /// Runs guest code under a CPU limit. Returns what it gave and the CPU that it is charged.
    /// After an error the guest must not be called again.
    pub(crate) fn run<T>(
        &mut self,
        cpu: Duration,
        call: impl FnOnce(&mut Store<StoreState>) -> wasmtime::Result<T>,
    ) -> (Result<T, Fault>, Duration) {
        let state = self.store.data_mut();
        state.growth.was_refused = false;
        state.budget.begin(cpu, self.wall_factor);
        self.store.set_epoch_deadline(FIRST_SLICE_TICKS);
        let outcome = catch_unwind(AssertUnwindSafe(|| call(&mut self.store)));
        let state = self.store.data_mut();
        let charged = state.budget.end();
        let result = match outcome {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(classify(&error, state.growth.was_refused)),
            Err(_) => {
                tracing::error!("the host panicked inside a guest's call");
                Err(Fault::new(FaultKind::Trap, "the host panicked inside the call"))
            }
        };
        (result, charged)
    }
}

/// Sorts an error of wasmtime into our six kinds.
fn classify(error: &wasmtime::Error, was_refused_memory: bool) -> Fault {
    let message = format!("{error:#}");
    if let Some(overrun) = error.downcast_ref::<Overrun>() {
        return Fault::new(FaultKind::Timeout, overrun.to_string());
    }
    if error.downcast_ref::<wasmtime::PoolConcurrencyLimitError>().is_some() {
        let fault = Fault::limit(format!("all instances are in use ({message})"));
        return Fault { is_ours: true, ..fault };
    }
    let trap = error.downcast_ref::<Trap>();
    let kind = match trap {
        Some(Trap::StackOverflow) => FaultKind::Stack,
        Some(Trap::AllocationTooLarge) => FaultKind::Memory,
        Some(trap) if is_canonical_abi(*trap) => FaultKind::BadOutput,
        _ if was_refused_memory => FaultKind::Memory,
        Some(_) => FaultKind::Trap,
        None if is_limit(&message) => FaultKind::Limit,
        None => FaultKind::BadOutput,
    };
    Fault::new(kind, message)
}

/// Traps that the component model raises for values which are none.
fn is_canonical_abi(trap: Trap) -> bool {
    matches!(
        trap,
        Trap::InvalidChar
            | Trap::StringOutOfBounds
            | Trap::ListOutOfBounds
            | Trap::InvalidDiscriminant
            | Trap::UnalignedPointer
    )
}

/// wasmtime has no public types for these two; `tests/hostile.rs` notices when the words change.
fn is_limit(message: &str) -> bool {
    message.contains("fuel allocated for hostcalls") || message.contains("handle limit exceeded")
}
