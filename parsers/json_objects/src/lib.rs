//! Families that write one JSON object a call behind a marker of their own, and differ from Hermes
//! in nothing but strings. The closer is optional once the object is whole.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

mod actions;
mod tags;

pub use actions::{GigaChat3, Granite20bFc, Internlm};
pub use tags::{Ernie45, Granite4, Trinity};

#[cfg(feature = "ernie45")]
tenon_guest::export_parser!(Ernie45);
#[cfg(feature = "gigachat3")]
tenon_guest::export_parser!(GigaChat3);
#[cfg(feature = "granite4")]
tenon_guest::export_parser!(Granite4);
#[cfg(feature = "granite-20b-fc")]
tenon_guest::export_parser!(Granite20bFc);
#[cfg(feature = "internlm")]
tenon_guest::export_parser!(Internlm);
#[cfg(feature = "trinity")]
tenon_guest::export_parser!(Trinity);
