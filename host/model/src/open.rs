//! A path on disk → an opened model: format, architecture, numbers and weights, lowered.

use std::path::{Path, PathBuf};

use tenon_backend::Program;

use crate::arch::{ArchSpec, Format};
use crate::config::ModelConfig;
use crate::config_hf::HfConfig;
use crate::error::ModelError;
use crate::gguf::Gguf;
use crate::lower::lower;
use crate::safetensors;
use crate::store::TensorStore;

/// Largest `config.json` or architecture file taken.
const MAX_TEXT_BYTES: u64 = 16 << 20;

/// Which architecture to use instead of the one that the file names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArchChoice {
    /// A built-in family by name.
    BuiltIn(String),
    /// A TOML file.
    File(PathBuf),
}

impl ArchChoice {
    /// Reads a command-line value: a path when it ends in `.toml`, else a family's name.
    pub fn parse(text: &str) -> Self {
        match text.ends_with(".toml") {
            true => ArchChoice::File(text.into()),
            false => ArchChoice::BuiltIn(text.into()),
        }
    }

    fn load(&self) -> Result<ArchSpec, ModelError> {
        match self {
            ArchChoice::BuiltIn(name) => ArchSpec::built_in(name).ok_or_else(|| {
                let known: Vec<&str> = ArchSpec::built_in_names().collect();
                let problem = format!("is not built in ({} are)", known.join(", "));
                ModelError::Spec { spec: name.clone(), problem }
            }),
            ArchChoice::File(path) => {
                let text = read_text(path)?;
                ArchSpec::from_toml(&path.display().to_string(), &text)
            }
        }
    }
}

/// Where the text side (tokenizer, template) of a model is.
#[derive(Debug, Clone)]
pub enum Container {
    /// In the GGUF metadata.
    Gguf(Gguf),
    /// In files beside the weights, in this directory.
    HfDir(PathBuf),
}

/// A model that is ready for a backend.
#[derive(Debug, Clone)]
pub struct OpenedModel {
    /// What a backend prepares.
    pub program: Program,
    /// Its numbers.
    pub config: ModelConfig,
    /// The family's name.
    pub arch: String,
    /// Where its tokenizer is.
    pub container: Container,
}

/// Opens a GGUF file or a directory with `config.json` and safetensors.
///
/// # Errors
/// [`ModelError`] naming the file and the key or tensor.
pub fn open(path: &Path, arch: Option<&ArchChoice>) -> Result<OpenedModel, ModelError> {
    if path.is_dir() {
        return open_checkpoint(path, arch);
    }
    if !path.exists() {
        return Err(missing(path));
    }
    open_gguf(Gguf::open(path)?, arch)
}

/// Lowers a GGUF model that is already open.
///
/// # Errors
/// As [`open`].
pub fn open_gguf(gguf: Gguf, arch: Option<&ArchChoice>) -> Result<OpenedModel, ModelError> {
    let spec = match arch {
        Some(choice) => choice.load()?,
        None => {
            let architecture = gguf.architecture()?;
            ArchSpec::for_architecture(gguf.metadata.file(), Format::Gguf, architecture)?
        }
    };
    let config = ModelConfig::from_gguf(&spec, &gguf)?;
    let program = lower(&spec.name, &spec, Format::Gguf, &config, &gguf.store)?;
    Ok(OpenedModel { program, config, arch: spec.name, container: Container::Gguf(gguf) })
}

/// Nothing is there: what may have been meant.
fn missing(path: &Path) -> ModelError {
    let text = path.display().to_string();
    let is_hub_name = !path.is_absolute() && text.matches('/').count() == 1;
    let problem = match is_hub_name {
        true => {
            "no such file or directory; if this is a model's name on a hub: models are read \
             offline, from a path, so fetch it first"
        }
        false => "no such file or directory; give a GGUF file or a directory of safetensors",
    };
    ModelError::unsupported(&text, problem)
}

fn open_checkpoint(dir: &Path, arch: Option<&ArchChoice>) -> Result<OpenedModel, ModelError> {
    let config_path = dir.join("config.json");
    let file = config_path.display().to_string();
    let hf = HfConfig::parse(&file, read_text(&config_path)?.as_bytes())?;
    let spec = match arch {
        Some(choice) => choice.load()?,
        None => ArchSpec::for_architecture(&file, Format::Safetensors, hf.architecture()?)?,
    };
    let store = safetensors::open_dir(dir)?;
    open_parts(dir, spec, &hf, &store)
}

fn open_parts(
    dir: &Path,
    spec: ArchSpec,
    hf: &HfConfig,
    store: &TensorStore,
) -> Result<OpenedModel, ModelError> {
    let config = ModelConfig::from_hf(&spec, hf)?;
    let program = lower(&spec.name, &spec, Format::Safetensors, &config, store)?;
    let container = Container::HfDir(dir.to_path_buf());
    Ok(OpenedModel { program, config, arch: spec.name, container })
}

fn read_text(path: &Path) -> Result<String, ModelError> {
    let io = |source| ModelError::Io { path: path.to_path_buf(), source };
    let len = std::fs::metadata(path).map_err(io)?.len();
    if len > MAX_TEXT_BYTES {
        let problem = format!("has {len} bytes, the most is {MAX_TEXT_BYTES}");
        return Err(ModelError::unsupported(&path.display().to_string(), problem));
    }
    std::fs::read_to_string(path).map_err(io)
}
