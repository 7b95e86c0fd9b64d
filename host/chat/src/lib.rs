//! Messages to prompt and text to events. Output workers are OS threads that own each stream's
//! detokenizer, stop strings and parser session.

pub mod cases;
pub mod choose;
pub mod driver;
#[cfg(test)]
mod fake;
pub mod fold;
mod ids;
mod inbox;
pub mod parser;
mod stop_cut;
pub mod stream;
pub mod template;
mod text_side;
mod watch;
pub mod worker;
