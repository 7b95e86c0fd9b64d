//! What a result was measured on, and the peak memory of this process (Linux's /proc).

use serde_json::{Value, json};

use crate::doctor::cpu_features;

/// CPU model, cores and vector extensions.
pub fn describe() -> Value {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    json!({
        "cpu": field(&text, "model name").unwrap_or(std::env::consts::ARCH),
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "features": cpu_features(),
    })
}

/// VmHWM: the most memory that this process ever had resident; None where that is not known.
pub fn peak_rss_mb() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib: f64 = field(&text, "VmHWM")?.split(' ').next()?.parse().ok()?;
    Some(kib / 1024.0)
}

/// The value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found() {
        let text = "VmPeak:\t  20 kB\nVmHWM:\t    1536 kB\nmodel name\t: A: B\n";
        assert_eq!(field(text, "VmHWM"), Some("1536 kB"));
        assert_eq!(field(text, "model name"), Some("A: B"));
        assert_eq!(field(text, "Vm"), None);
    }
}
