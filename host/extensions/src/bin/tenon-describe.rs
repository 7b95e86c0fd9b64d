//! `tenon-describe FILE…`: admits components and prints `{file name: descriptor}` as JSON. The
//! build of the parsers uses it; as `tenon-describe __compile` it is its own compiler.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use tenon_chat::parser::{Descriptor, ParserFactory};
use tenon_extensions::{ExtensionHost, HostConfig, compile_child_main};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "__compile") {
        compile_child_main();
    }
    match describe(&args) {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn describe(files: &[String]) -> Result<String, Box<dyn Error>> {
    let cache = std::env::temp_dir().join(format!("tenon-describe-{}", std::process::id()));
    let answer = describe_with(&cache, files);
    std::fs::remove_dir_all(&cache)?;
    answer
}

fn describe_with(cache: &Path, files: &[String]) -> Result<String, Box<dyn Error>> {
    let mut config = HostConfig::new(cache.to_path_buf())?;
    config.num_sessions = 1;
    let host = ExtensionHost::new(config)?;
    let mut answers: BTreeMap<String, Descriptor> = BTreeMap::new();
    for file in files {
        let wasm = std::fs::read(file).map_err(|error| format!("cannot read `{file}`: {error}"))?;
        let parser = host.admit(&wasm).map_err(|error| format!("`{file}`: {error}"))?;
        let name = Path::new(file).file_name().ok_or_else(|| format!("`{file}` has no name"))?;
        answers.insert(name.to_string_lossy().into_owned(), parser.descriptor().clone());
    }
    Ok(serde_json::to_string_pretty(&answers)?)
}
