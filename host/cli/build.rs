//! Embeds the components that `cargo xtask guests` built. Never builds them itself: a build script
//! that calls cargo deadlocks on its lock.
//!
//! `cargo xtask guests` itself sets `TENON_BOOTSTRAP`, since it needs the sandbox to describe the
//! components that it has just built: the program of that pass has no parsers built in.

use std::fmt::Write as _;
use std::path::Path;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guests = root.join("target/guests");
    let index = guests.join("index.json");
    println!("cargo:rerun-if-changed={}", index.display());
    println!("cargo:rerun-if-env-changed=TENON_BOOTSTRAP");
    if std::env::var_os("TENON_BOOTSTRAP").is_some() {
        return write(
            "pub const INDEX: &str = \"[]\";\n\
                      pub const COMPONENTS: &[(&str, &[u8])] = &[];\n",
        );
    }
    let Ok(text) = std::fs::read_to_string(&index) else {
        println!("cargo:warning=no components at target/guests");
        eprintln!("error: no components at target/guests: run `cargo xtask guests`");
        std::process::exit(1);
    };
    let entries: serde_json::Value = serde_json::from_str(&text).expect("xtask writes JSON");
    let mut code = format!("pub const INDEX: &str = include_str!({:?});\n", index);
    code.push_str("pub const COMPONENTS: &[(&str, &[u8])] = &[\n");
    for entry in entries.as_array().expect("the index is a list") {
        let name = entry["name"].as_str().expect("an entry has a name");
        let file = guests.join(entry["file"].as_str().expect("an entry has a file"));
        println!("cargo:rerun-if-changed={}", file.display());
        writeln!(code, "    ({name:?}, include_bytes!({file:?})),").expect("writes to memory");
    }
    code.push_str("];\n");
    write(&code);
}

fn write(code: &str) {
    let out = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    std::fs::write(Path::new(&out).join("guests.rs"), code).expect("OUT_DIR can be written");
}
