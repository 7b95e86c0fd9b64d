//! The `tenon` command: composition root. It reads flags and environment, puts the crates together
//! and prints for people; it decides nothing about requests.

mod args;
mod client;
mod doctor;
mod embedded;
mod extension;
mod hub;
mod launch;
mod logs;
mod run;
mod script;
mod serve;

use clap::Parser;

use args::{Cli, Command};

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Compile => tenon_extensions::compile_child_main(),
        Command::Serve(args) => serve::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Extension(command) => extension::run(&command),
        Command::Doctor(args) => doctor::run(&args),
    };
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
