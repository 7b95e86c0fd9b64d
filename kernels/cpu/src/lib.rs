//! CPU backend: AVX-512 and AVX2 kernels with run-time dispatch.
//!
//! Weights are packed at load (`packed`), linear operations run over panels of them (`linear`),
//! attention over a paged cache (`attention`), and threads share the work (`pool`). A token's
//! result is the same bit for bit alone, in any batch, for any cut of its prompt and any number of
//! threads.

#![allow(unsafe_code)]

mod activations;
mod attention;
mod backend;
mod elementwise;
mod isa;
mod linear;
mod math;
mod memory;
mod packed;
mod plan;
mod pool;
mod rotary;
mod steps;
#[cfg(test)]
mod testing;

pub use backend::CpuBackend;
pub use isa::Isa;
