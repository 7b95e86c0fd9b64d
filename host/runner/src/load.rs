//! A path on disk → everything that serving a model needs: program, tokenizer, template, ends.
//!
//! Called once at start by whoever composes a server. Weights are only mapped here; a backend
//! reads them when it is prepared.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tenon_backend::Program;
use tenon_model::text_files::{TextFiles, read_template};
use tenon_model::{ArchChoice, Container, Metadata, ModelError, OpenedModel};
use tenon_text::{GgufVocab, TextError, Tokenizer};

/// What a person may say about a model beside its path.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Instead of the architecture that the file names.
    pub arch_override: Option<ArchChoice>,
    /// Instead of the chat template that the model carries.
    pub chat_template_path: Option<PathBuf>,
}

/// A model with its text side.
#[derive(Debug)]
pub struct LoadedModel {
    /// What a backend prepares.
    pub program: Program,
    /// Its own tokenizer.
    pub tokenizer: Tokenizer,
    /// Jinja source; `None` for a base model.
    pub chat_template: Option<String>,
    /// Every id that ends a generation, the main one first. All below the vocabulary's size.
    pub eos_token_ids: Vec<u32>,
    /// What prompts begin with, where the model has such a token.
    pub bos_token_id: Option<u32>,
    /// The file's or directory's name without `.gguf`: the default name for requests.
    pub name: String,
    /// Longest sequence that the model was made for.
    pub max_model_len: usize,
    /// One line for people: family, sizes, encodings.
    pub summary: String,
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Weights, numbers or text files.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The tokenizer.
    #[error("tokenizer of `{}`: {source}", path.display())]
    Tokenizer {
        /// Which model.
        path: PathBuf,
        /// What is wrong with it.
        source: TextError,
    },
}

/// Loads a GGUF file, or a directory with `config.json`, `tokenizer.json` and safetensors.
///
/// # Errors
/// [`LoadError`] naming the file and the key, tensor or vocabulary entry.
pub fn load_model(path: &Path, options: &LoadOptions) -> Result<LoadedModel, LoadError> {
    let model = tenon_model::open(path, options.arch_override.as_ref())?;
    let bad_tokenizer = |source| LoadError::Tokenizer { path: path.to_path_buf(), source };
    let (tokenizer, own_template, mut ends) = match &model.container {
        Container::Gguf(gguf) => {
            let tokenizer = Tokenizer::from_gguf(gguf_vocab(&gguf.metadata)?);
            let template = gguf.metadata.text("tokenizer.chat_template")?.map(String::from);
            (tokenizer.map_err(bad_tokenizer)?, template, Vec::new())
        }
        Container::HfDir(dir) => {
            let files = TextFiles::read(dir)?;
            let config = files.tokenizer_config.as_deref();
            let tokenizer = Tokenizer::from_hf_json(&files.tokenizer, config);
            (tokenizer.map_err(bad_tokenizer)?, files.chat_template, files.eos_token_ids)
        }
    };
    let vocab = model.program.vocab_size();
    for &id in tokenizer.end_tokens() {
        if !ends.contains(&id) {
            ends.push(id);
        }
    }
    ends.retain(|&id| (id as usize) < vocab);
    let chat_template = match &options.chat_template_path {
        Some(path) => Some(read_template(path)?),
        None => own_template,
    };
    Ok(LoadedModel {
        summary: summary(&model),
        max_model_len: model.program.max_position,
        bos_token_id: tokenizer.bos(),
        eos_token_ids: ends,
        name: name_of(path),
        program: model.program,
        tokenizer,
        chat_template,
    })
}

/// `tokenizer.ggml.*` as the tokenizer wants it.
fn gguf_vocab(metadata: &Metadata) -> Result<GgufVocab, ModelError> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let missing = |name: &str| ModelError::Key {
        file: metadata.file().into(),
        key: key(name),
        problem: "is missing".into(),
    };
    let id = |name: &str| -> Result<Option<u32>, ModelError> {
        // Some converters write -1 or 2^32 - 1 for "none".
        let value = metadata.f64(&key(name))?;
        Ok(value.filter(|&id| (0.0..f64::from(u32::MAX)).contains(&id)).map(|id| id as u32))
    };
    let text = |name: &str| metadata.text(&key(name)).map(|t| t.map(String::from));
    let types = metadata.ints(&key("token_type"))?;
    Ok(GgufVocab {
        model: text("model")?.ok_or_else(|| missing("model"))?,
        pre: text("pre")?,
        tokens: metadata.texts(&key("tokens"))?.ok_or_else(|| missing("tokens"))?,
        scores: metadata.floats(&key("scores"))?,
        token_types: types.map(|t| t.into_iter().map(|t| u32::try_from(t).unwrap_or(0)).collect()),
        merges: metadata.texts(&key("merges"))?,
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        eot: id("eot_token_id")?,
        eom: id("eom_token_id")?,
        unk: id("unknown_token_id")?,
        pad: id("padding_token_id")?,
        add_bos: metadata.bool(&key("add_bos_token"))?,
        add_eos: metadata.bool(&key("add_eos_token"))?,
        add_space_prefix: metadata.bool(&key("add_space_prefix"))?,
    })
}

fn name_of(path: &Path) -> String {
    // A path like `.` has a name only once it is resolved.
    let full = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let name = full.file_name().map_or("model".into(), |n| n.to_string_lossy().into_owned());
    name.strip_suffix(".gguf").map_or(name.clone(), String::from)
}

fn summary(model: &OpenedModel) -> String {
    let program = &model.program;
    let mut encodings: BTreeMap<String, usize> = BTreeMap::new();
    let mut parameters = 0u64;
    let mut bytes = 0;
    for weight in &program.weights {
        parameters += (weight.rows * weight.cols) as u64;
        bytes += weight.data.len();
        if weight.rows > 1 {
            *encodings.entry(format!("{:?}", weight.dtype)).or_default() += 1;
        }
    }
    let encodings: Vec<String> = encodings.into_iter().map(|(d, n)| format!("{n} {d}")).collect();
    format!(
        "{}, {} layers, width {}, {:.0}M parameters ({}), {:.0} MB, context {}",
        model.arch,
        model.config.num_layers,
        model.config.hidden,
        parameters as f64 / 1e6,
        encodings.join(", "),
        bytes as f64 / 1e6,
        program.max_position,
    )
}
