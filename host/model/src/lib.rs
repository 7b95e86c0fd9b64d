//! Weight files and architectures: GGUF, safetensors, ArchSpec, lowering to a Program.
//!
//! The only crate that opens weight files. Files are untrusted: what is wrong in one is an error
//! that names the file and the key or tensor, never a panic.

pub mod arch;
pub mod config;
mod config_gguf;
pub mod config_hf;
pub mod error;
pub mod gguf;
pub mod lower;
pub mod mmap;
pub mod open;
pub mod rope;
pub mod safetensors;
pub mod store;
pub mod text_files;
pub mod tiny;
mod tiny_vocab;
mod weights;

pub use arch::{ArchSpec, Format};
pub use config::{ModelConfig, RopeScaling};
pub use error::ModelError;
pub use gguf::{Gguf, Metadata};
pub use open::{ArchChoice, Container, OpenedModel, open};
pub use tiny::{TinyArch, TinyModel};
