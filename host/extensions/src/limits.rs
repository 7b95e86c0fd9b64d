//! Every limit that an extension meets, with its default and what it costs.
//!
//! Three groups, by the moment they act: before compilation (`ScanLimits`), in the compiler's
//! process (`CompileLimits`), and while a component runs (`RunLimits`).

use std::time::Duration;

use serde::{Deserialize, Serialize};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// All limits of one host.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// Before compilation.
    pub scan: ScanLimits,
    /// In the compiler's process.
    pub compile: CompileLimits,
    /// While a component runs.
    pub run: RunLimits,
}

/// What the pre-scan accepts. Sized for components from compiled languages (Rust, C).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ScanLimits {
    /// Bytes of the upload.
    pub wasm_bytes: usize,
    /// Functions with a body, over all core modules.
    pub num_functions: u32,
    /// Bytes of one function's body.
    pub body_bytes: usize,
    /// Locals of one function.
    pub num_locals: u32,
    /// Entries of one type, import, export, global, element, alias or canonical section.
    pub num_section_entries: u32,
    /// Data segments of one core module.
    pub num_data_segments: u32,
    /// Core modules.
    pub num_modules: u32,
    /// Core instances made of modules.
    pub num_core_instances: u32,
    /// Nested components (wit-component makes one per exported interface).
    pub num_components: u32,
    /// Bytes that a memory declares at least. Not more than `RunLimits::memory_bytes`.
    pub memory_bytes: usize,
    /// Elements that a table declares at least.
    pub table_elements: u64,
}

impl Default for ScanLimits {
    fn default() -> Self {
        ScanLimits {
            wasm_bytes: 2 * MIB,
            num_functions: 20_000,
            body_bytes: 256 * KIB,
            num_locals: 10_000,
            num_section_entries: 50_000,
            num_data_segments: 1_000,
            num_modules: 4,
            num_core_instances: 4,
            num_components: 4,
            memory_bytes: 16 * MIB,
            table_elements: 10_000,
        }
    }
}

/// Bounds of the process that compiles.
#[derive(Debug, Clone)]
pub struct CompileLimits {
    /// Address space. A 100 KB Rust guest needs under 100 MiB.
    pub memory_bytes: u64,
    /// CPU seconds; a 100 KB Rust guest needs 0.06.
    pub cpu_s: u64,
    /// Wall clock until the process is killed.
    pub wall: Duration,
    /// Bytes of native code.
    pub output_bytes: u64,
    /// Admissions that may wait for the one compiler; the next one is told to come back.
    pub num_waiting: usize,
}

impl Default for CompileLimits {
    fn default() -> Self {
        CompileLimits {
            memory_bytes: 1 << 30,
            cpu_s: 10,
            wall: Duration::from_secs(60),
            output_bytes: 64 << 20,
            num_waiting: 16,
        }
    }
}

/// Bounds of a running parser.
#[derive(Debug, Clone)]
pub struct RunLimits {
    /// Linear memory of one instance.
    pub memory_bytes: usize,
    /// Elements over all tables of one instance.
    pub table_elements: usize,
    /// Call stack of the guest. The thread's own stack must be larger.
    pub stack_bytes: usize,
    /// Live resource handles of one instance.
    pub num_handles: usize,
    /// Bytes that one call may hand back, beyond twice what it was given or still held.
    pub hostcall_bytes: usize,
    /// CPU of one `push` or `finish`.
    pub call_cpu: Duration,
    /// CPU of instantiation, a constructor, `describe` or `constraint`.
    pub setup_cpu: Duration,
    /// CPU of all calls of one stream, beyond `cpu_per_byte`.
    pub stream_cpu: Duration,
    /// More CPU for each byte of text; a JavaScript guest needs a fifth of the default.
    pub cpu_per_byte: Duration,
    /// Wall clock of a call, as a multiple of its CPU limit (at least half a second).
    pub wall_factor: u32,
    /// Bytes out per byte in, beyond `output_bytes`.
    pub output_ratio: u64,
    /// Bytes out that any stream may emit.
    pub output_bytes: u64,
    /// Bytes held back at once.
    pub held_bytes: u32,
    /// Calls in one message.
    pub num_calls: usize,
    /// Bytes of one call's arguments.
    pub args_bytes: usize,
    /// Bytes of a function name or call id.
    pub name_bytes: usize,
}

impl Default for RunLimits {
    fn default() -> Self {
        RunLimits {
            memory_bytes: 16 * MIB,
            table_elements: 10_000,
            stack_bytes: 512 * KIB,
            num_handles: 128,
            hostcall_bytes: 256 * KIB,
            call_cpu: Duration::from_millis(5),
            setup_cpu: Duration::from_millis(50),
            stream_cpu: Duration::from_millis(250),
            cpu_per_byte: Duration::from_micros(5),
            wall_factor: 20,
            output_ratio: 16,
            output_bytes: 64 << 10,
            held_bytes: 1 << 20,
            num_calls: 128,
            args_bytes: MIB,
            name_bytes: 256,
        }
    }
}
