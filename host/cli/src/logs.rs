//! Logs go to standard error: for people on a terminal, as JSON lines elsewhere.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Installs the subscriber. `TENON_LOG` filters as `RUST_LOG` does elsewhere.
pub fn init() {
    let filter = EnvFilter::try_from_env("TENON_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        builder.with_target(false).compact().init();
    } else {
        builder.json().flatten_event(true).with_ansi(false).init();
    }
}
