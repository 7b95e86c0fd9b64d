//! Families that write a header, with the name in it, and then the arguments as one JSON object:
//! DeepSeek up to V3.1, Kimi K2, Mistral, Functionary 3.1.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

mod deepseek;
mod mistral;
mod tagged;

pub use deepseek::{DeepSeekV3, DeepSeekV31};
pub use mistral::Mistral;
pub use tagged::{FunctionaryV31, KimiK2};

#[cfg(feature = "deepseek_v3")]
tenon_guest::export_parser!(DeepSeekV3);
#[cfg(feature = "deepseek_v31")]
tenon_guest::export_parser!(DeepSeekV31);
#[cfg(feature = "functionary_v31")]
tenon_guest::export_parser!(FunctionaryV31);
#[cfg(feature = "kimi_k2")]
tenon_guest::export_parser!(KimiK2);
#[cfg(feature = "mistral")]
tenon_guest::export_parser!(Mistral);
