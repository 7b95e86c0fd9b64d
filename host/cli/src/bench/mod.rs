//! `tenon bench`: how fast a model runs here (`offline`), how fast a server answers (`serve`), and
//! whether one saved result is worse than another (`compare`).

mod args;
mod chart;
mod compare;
mod goodput;
mod html;
mod load;
mod machine;
mod offline;
mod prompts;
mod serve;
mod stream;
mod summary;

pub use args::BenchCommand;

use anyhow::Result;

/// Measures or compares, and prints.
pub fn run(command: &BenchCommand) -> Result<()> {
    match command {
        BenchCommand::Offline(args) => offline::run(args),
        BenchCommand::Serve(args) => serve::run(args),
        BenchCommand::Compare(args) => compare::run(args),
    }
}

/// One line of a table for people.
fn print_row(name: &str, value: f64) {
    println!("{name:<32} {:>12}", figure(value));
}

/// A figure as people read it: counts are whole.
fn figure(value: f64) -> String {
    let places = if value.fract() == 0.0 { 0 } else { 2 };
    format!("{value:.places$}")
}
