//! Safetensors checkpoints: one file, or shards with an index, over memory maps.
//!
//! The `safetensors` crate checks the header (sizes, offsets, overlaps); this turns tensors into
//! our own form and resolves shards.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ::safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use tenon_backend::{DType, TensorBytes};

use crate::error::ModelError;
use crate::mmap::MappedFile;
use crate::store::{SharedBytes, StoredTensor, TensorStore, byte_len};

/// The single file of a small checkpoint.
const SINGLE: &str = "model.safetensors";
/// The index of a sharded one.
const INDEX: &str = "model.safetensors.index.json";
/// Most shards of a checkpoint.
const MAX_SHARDS: usize = 1024;
/// Most tensors of a checkpoint.
const MAX_TENSORS: usize = 1 << 20;

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Opens the weights of a checkpoint directory.
///
/// # Errors
/// [`ModelError::Io`] for a missing file, [`ModelError::Malformed`] for a damaged one,
/// [`ModelError::Tensor`] for a tensor of an unsupported type or one that is in no shard.
pub fn open_dir(dir: &Path) -> Result<TensorStore, ModelError> {
    let file = dir.display().to_string();
    let mut tensors = BTreeMap::new();
    let index_path = dir.join(INDEX);
    if !index_path.exists() {
        add_file(&dir.join(SINGLE), &mut tensors)?;
        return Ok(TensorStore { file, tensors });
    }
    let index_name = index_path.display().to_string();
    let malformed =
        |problem| ModelError::Malformed { file: index_name.clone(), format: "JSON", problem };
    let text = std::fs::read(&index_path)
        .map_err(|source| ModelError::Io { path: index_path.clone(), source })?;
    let index: Index = serde_json::from_slice(&text).map_err(|e| malformed(e.to_string()))?;
    let mut shards: Vec<&String> = index.weight_map.values().collect();
    shards.sort();
    shards.dedup();
    if shards.len() > MAX_SHARDS || index.weight_map.len() > MAX_TENSORS {
        let (shards, tensors) = (shards.len(), index.weight_map.len());
        return Err(malformed(format!("it names {shards} files and {tensors} tensors")));
    }
    for shard in shards {
        if Path::new(shard).file_name().and_then(|n| n.to_str()) != Some(shard.as_str()) {
            return Err(malformed(format!("shard `{shard}` is not a plain file name")));
        }
        add_file(&dir.join(shard), &mut tensors)?;
    }
    for (name, shard) in &index.weight_map {
        if !tensors.contains_key(name) {
            let problem = format!("is not in `{shard}`, where the index puts it");
            return Err(ModelError::tensor(&index_name, name, problem));
        }
    }
    Ok(TensorStore { file, tensors })
}

fn add_file(path: &Path, out: &mut BTreeMap<String, StoredTensor>) -> Result<(), ModelError> {
    let file = path.display().to_string();
    let bytes: SharedBytes = Arc::new(MappedFile::open(path)?);
    for (name, tensor) in read(&file, bytes)? {
        if out.insert(name.clone(), tensor).is_some() {
            return Err(ModelError::tensor(&file, &name, "is already in another shard"));
        }
    }
    Ok(())
}

/// Reads one whole file from memory; `file` is its name in messages.
///
/// # Errors
/// As [`open_dir`].
pub fn read(file: &str, bytes: SharedBytes) -> Result<BTreeMap<String, StoredTensor>, ModelError> {
    let (header_len, metadata) = SafeTensors::read_metadata((*bytes).as_ref()).map_err(|e| {
        ModelError::Malformed { file: file.into(), format: "safetensors", problem: e.to_string() }
    })?;
    let data_start = 8 + header_len; // a u64 before the header
    let mut tensors = BTreeMap::new();
    for (name, info) in metadata.tensors() {
        let error = |problem: String| ModelError::tensor(file, &name, problem);
        let dtype = match info.dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            other => {
                return Err(error(format!(
                    "is stored as {other:?}; F32, F16 and BF16 are supported"
                )));
            }
        };
        let shape = if info.shape.is_empty() { vec![1] } else { info.shape.clone() };
        let len = byte_len(&shape, dtype).map_err(&error)?;
        let (start, end) = (data_start + info.data_offsets.0, data_start + info.data_offsets.1);
        if end > (*bytes).as_ref().len() || end - start != len {
            return Err(error(format!("has {} bytes, expected {len}", end - start)));
        }
        let data = TensorBytes::new(Arc::clone(&bytes), start..end);
        tensors.insert(name, StoredTensor { shape, dtype, data });
    }
    Ok(tensors)
}
