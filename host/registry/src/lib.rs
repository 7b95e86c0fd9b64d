//! Extension blobs by content address, names with versions, and which model uses which name.
//!
//! Kept on disk or, without a directory, in memory. Used by `cli`; knows nothing of WebAssembly:
//! what is put here was admitted before.

mod error;
mod index;
mod registry;
mod storage;

pub use error::RegistryError;
pub use index::Version;
pub use registry::{Blob, Extension, MAX_EXTENSIONS, MAX_VERSIONS, Registry};
