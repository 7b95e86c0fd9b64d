//! The text side of a checkpoint directory: tokenizer files, chat template, end tokens.
//!
//! Only reads and picks; what the bytes mean is for the crate that tokenizes.

use std::path::Path;

use serde_json::Value;

use crate::error::ModelError;

/// Largest text file taken; the largest known `tokenizer.json` has 35 MB.
const MAX_TEXT_FILE_BYTES: u64 = 256 << 20;

/// Files beside the weights.
#[derive(Debug, Clone)]
pub struct TextFiles {
    /// `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<Vec<u8>>,
    /// `chat_template.jinja`, else `chat_template` of `tokenizer_config.json` (`default` where
    /// there are several).
    pub chat_template: Option<String>,
    /// `eos_token_id` of `generation_config.json`, else of `config.json`.
    pub eos_token_ids: Vec<u32>,
}

impl TextFiles {
    /// Reads the files of a checkpoint.
    ///
    /// # Errors
    /// [`ModelError::Io`] when `tokenizer.json` is missing, [`ModelError::Malformed`] for JSON that
    /// is none, [`ModelError::Key`] for an end token that is no id.
    pub fn read(dir: &Path) -> Result<Self, ModelError> {
        let tokenizer_path = dir.join("tokenizer.json");
        let tokenizer = read_optional(&tokenizer_path)?.ok_or_else(|| ModelError::Io {
            path: tokenizer_path,
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        let config_path = dir.join("tokenizer_config.json");
        let tokenizer_config = read_optional(&config_path)?;
        let chat_template = match read_optional(&dir.join("chat_template.jinja"))? {
            Some(bytes) => Some(utf8(&dir.join("chat_template.jinja"), bytes)?),
            None => match &tokenizer_config {
                Some(bytes) => template_of(&json(&config_path, bytes)?),
                None => None,
            },
        };
        let eos_token_ids = match eos_of(&dir.join("generation_config.json"))? {
            Some(ids) => ids,
            None => eos_of(&dir.join("config.json"))?.unwrap_or_default(),
        };
        Ok(TextFiles { tokenizer, tokenizer_config, chat_template, eos_token_ids })
    }
}

/// Reads a chat template that a person named.
///
/// # Errors
/// [`ModelError::Io`], or [`ModelError::Malformed`] when it is not UTF-8.
pub fn read_template(path: &Path) -> Result<String, ModelError> {
    let missing =
        || ModelError::Io { path: path.to_path_buf(), source: std::io::ErrorKind::NotFound.into() };
    utf8(path, read_optional(path)?.ok_or_else(missing)?)
}

fn read_optional(path: &Path) -> Result<Option<Vec<u8>>, ModelError> {
    let io = |source| ModelError::Io { path: path.to_path_buf(), source };
    let len = match std::fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    if len > MAX_TEXT_FILE_BYTES {
        let problem = format!("has {len} bytes, the most is {MAX_TEXT_FILE_BYTES}");
        return Err(ModelError::unsupported(&path.display().to_string(), problem));
    }
    std::fs::read(path).map(Some).map_err(io)
}

fn utf8(path: &Path, bytes: Vec<u8>) -> Result<String, ModelError> {
    String::from_utf8(bytes).map_err(|_| ModelError::Malformed {
        file: path.display().to_string(),
        format: "UTF-8 text",
        problem: "it has other bytes".into(),
    })
}

fn json(path: &Path, bytes: &[u8]) -> Result<Value, ModelError> {
    serde_json::from_slice(bytes).map_err(|e| ModelError::Malformed {
        file: path.display().to_string(),
        format: "JSON",
        problem: e.to_string(),
    })
}

fn template_of(config: &Value) -> Option<String> {
    match config.get("chat_template")? {
        Value::String(template) => Some(template.clone()),
        Value::Array(named) => {
            let is_default = |t: &&Value| t.get("name").and_then(Value::as_str) == Some("default");
            let template = named.iter().find(is_default).or_else(|| named.first())?;
            template.get("template").and_then(Value::as_str).map(String::from)
        }
        _ => None,
    }
}

/// `eos_token_id`: one id or a list; `None` when the file or the field is missing.
fn eos_of(path: &Path) -> Result<Option<Vec<u32>>, ModelError> {
    let Some(bytes) = read_optional(path)? else { return Ok(None) };
    let config = json(path, &bytes)?;
    let field = config.get("text_config").and_then(|t| t.get("eos_token_id"));
    let Some(field) = config.get("eos_token_id").or(field).filter(|v| !v.is_null()) else {
        return Ok(None);
    };
    let list = match field {
        Value::Array(ids) => ids.as_slice(),
        one => std::slice::from_ref(one),
    };
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids: Option<Vec<u32>> = list.iter().map(id).collect();
    match ids {
        Some(ids) => Ok(Some(ids)),
        None => {
            let problem = format!("is `{field}`, expected a token id or a list of them");
            Err(ModelError::key(&path.display().to_string(), "eos_token_id", problem))
        }
    }
}
