//! `tenon doctor`: what this machine has and what Tenon would use of it.

use anyhow::Result;
use serde_json::{Value, json};

use crate::args::DoctorArgs;
use crate::embedded;

/// Prints the report. Fails if something that serving needs is missing.
pub fn run(args: &DoctorArgs) -> Result<()> {
    let report = report()?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    for (name, value) in report.as_object().into_iter().flatten() {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Array(items) => {
                items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
            }
            other => other.to_string(),
        };
        println!("{name:22} {text}");
    }
    Ok(())
}

fn report() -> Result<Value> {
    let parsers: Vec<String> = embedded::all()?.into_iter().map(|e| e.name).collect();
    let cores = std::thread::available_parallelism()?.get();
    let mut report = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "cores": cores,
        "cpu_features": cpu_features(),
        "memory_available_mb": memory_available()? / (1 << 20),
        "built_in_parsers": parsers,
        "sandbox": sandbox(),
    });
    if let Some(warning) = overcommit_warning() {
        report["warning"] = json!(warning);
    }
    Ok(report)
}

/// The CPU's vector extensions that kernels are chosen by.
pub fn cpu_features() -> Vec<&'static str> {
    let mut found = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! probe {
            ($($name:tt),*) => {
                $(if is_x86_feature_detected!($name) { found.push($name); })*
            };
        }
        probe!("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vnni", "avx512bf16");
    }
    found
}

/// Bytes that new processes can have without swapping.
pub fn memory_available() -> Result<usize> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.trim().split(' ').next()?.parse::<usize>().ok());
    Ok(kib.unwrap_or(1 << 20) * 1024)
}

/// Compiles and describes one built-in component, as a start of the server would.
fn sandbox() -> String {
    let start = std::time::Instant::now();
    match crate::hub::probe() {
        Ok(name) => format!("ok: `{name}` admitted in {} ms", start.elapsed().as_millis()),
        Err(error) => format!("broken: {error:#}"),
    }
}

/// The sandbox reserves address space; strict overcommit or a limit on it gets in the way.
fn overcommit_warning() -> Option<String> {
    let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").ok()?;
    (mode.trim() == "2").then(|| {
        "vm.overcommit_memory is 2: the sandbox reserves terabytes of address space; set it to 0"
            .to_owned()
    })
}
