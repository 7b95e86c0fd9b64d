//! What this machine can do, to judge kernels by: `peaks [threads] [seconds]` prints as JSON the
//! DRAM read bandwidth and the rates of f32, bfloat16 and 8-bit multiplications with additions.
#![allow(clippy::unwrap_used, unsafe_code)]

#[path = "../benches/peaks/mod.rs"]
mod peaks;

fn main() {
    let mut args = std::env::args().skip(1);
    let threads: usize = args.next().map_or(2, |a| a.parse().unwrap());
    let seconds: f64 = args.next().map_or(0.5, |a| a.parse().unwrap());
    let peaks = peaks::Peaks::measure(threads, seconds);
    let mut figures = vec![format!("\"dram_read_gb_per_s\": {:.1}", peaks.dram / 1e9)];
    let rates = [("f32", peaks.f32), ("bf16", peaks.bf16), ("int8", peaks.int8)];
    for (name, rate) in rates.into_iter().filter(|(_, rate)| *rate > 0.0) {
        figures.push(format!("\"{name}_gop_per_s\": {:.0}", rate / 1e9));
    }
    println!("{{\"threads\": {threads}, {}}}", figures.join(", "));
}
