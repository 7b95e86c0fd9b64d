//! The `tenon` command: composition root. It reads flags and environment, puts the crates together
//! and prints for people; it decides nothing about requests.

mod args;
mod bench;
mod client;
mod doctor;
mod embedded;
mod extension;
mod hub;
mod launch;
mod logs;
mod new_file;
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
        Command::Bench(command) => bench::run(&command),
    };
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", explain(&error));
            std::process::ExitCode::FAILURE
        }
    }
}

/// An error and its causes in one line, each said once: many messages end with their cause's.
fn explain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn causes_are_said_once() {
        let error = anyhow::anyhow!("no such file").context("cannot read `x`: no such file");
        let text = super::explain(&error.context("cannot load `x`"));
        assert_eq!(text, "cannot load `x`: cannot read `x`: no such file");
    }
}
