//! The fuzzer's program. Built by `cargo xtask fuzz` it is libFuzzer around the target that the
//! environment names; built as usual it replays files that libFuzzer has written.
#![cfg_attr(fuzzing, no_main, allow(unsafe_code, missing_docs))]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(init: tenon_fuzz::write_seeds(), |data: &[u8]| tenon_fuzz::check(data));

#[cfg(not(fuzzing))]
fn main() {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.is_empty() {
        println!(
            "usage: {}=NAME tenon-fuzz FILE ...   replays what the fuzzer found",
            tenon_fuzz::TARGET
        );
    }
    for file in files {
        match std::fs::read(&file) {
            Ok(data) => tenon_fuzz::check(&data),
            Err(error) => eprintln!("cannot read `{file}`: {error}; name a file"),
        }
    }
}
