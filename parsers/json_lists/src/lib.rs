//! Families that write their calls as a list of JSON objects between two markers, or behind one.
//! An object without its list is read, too; the closer is optional once an object is whole.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

mod marked;
mod unmarked;

pub use marked::{
    Apertus, Apriel, CohereCommand3, CohereCommand4, HunyuanA13b, Jamba, Minimax, NemotronDeci,
};
pub use unmarked::{Granite, Phi4MiniJson, Xlam};

use tenon_guest::{CallFormat, CallReader, Opened};

/// Objects behind an opener, with what stands between them and behind the last one.
const fn lists(
    openers: &'static [&'static str],
    closers: &'static [&'static str],
    reader: fn(&Opened<'_>) -> Box<dyn CallReader>,
) -> CallFormat {
    CallFormat { again: &["{"], closers, separators: ",;]", ..CallFormat::new(openers, reader) }
}

#[cfg(feature = "apertus")]
tenon_guest::export_parser!(Apertus);
#[cfg(feature = "apriel")]
tenon_guest::export_parser!(Apriel);
#[cfg(feature = "cohere_command3")]
tenon_guest::export_parser!(CohereCommand3);
#[cfg(feature = "cohere_command4")]
tenon_guest::export_parser!(CohereCommand4);
#[cfg(feature = "granite")]
tenon_guest::export_parser!(Granite);
#[cfg(feature = "hunyuan_a13b")]
tenon_guest::export_parser!(HunyuanA13b);
#[cfg(feature = "jamba")]
tenon_guest::export_parser!(Jamba);
#[cfg(feature = "minimax")]
tenon_guest::export_parser!(Minimax);
#[cfg(feature = "nemotron_deci")]
tenon_guest::export_parser!(NemotronDeci);
#[cfg(feature = "phi4_mini_json")]
tenon_guest::export_parser!(Phi4MiniJson);
#[cfg(feature = "xlam")]
tenon_guest::export_parser!(Xlam);
