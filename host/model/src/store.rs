//! Tensors as they lie in a file, whatever the format: what loaders make and lowering reads.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenon_backend::{BytesOwner, DType, TensorBytes};

/// Bytes that tensors share: a mapped file or an owned buffer.
pub type SharedBytes = Arc<dyn BytesOwner>;

/// One stored tensor, bounds already checked.
#[derive(Debug, Clone)]
pub struct StoredTensor {
    /// Outermost dimension first: a matrix is `[rows, cols]` whatever the file's own order.
    pub shape: Vec<usize>,
    /// How each row is encoded; the last dimension is a multiple of its block length.
    pub dtype: DType,
    /// Exactly the bytes that `shape` and `dtype` ask for.
    pub data: TensorBytes,
}

/// All tensors of a model by name.
#[derive(Debug, Clone)]
pub struct TensorStore {
    /// The file or directory, for messages.
    pub file: String,
    /// By the name in the file.
    pub tensors: BTreeMap<String, StoredTensor>,
}

/// Bytes of a tensor, or why there is no such tensor.
///
/// # Errors
/// A zero or overflowing dimension, or a row that is no whole number of blocks.
pub(crate) fn byte_len(shape: &[usize], dtype: DType) -> Result<usize, String> {
    let (Some(&cols), outer) = (shape.last(), &shape[..shape.len().saturating_sub(1)]) else {
        return Err("has no dimensions".into());
    };
    if shape.contains(&0) {
        return Err(format!("has an empty dimension: {shape:?}"));
    }
    if cols % dtype.block_len() != 0 {
        let block = dtype.block_len();
        return Err(format!("has rows of {cols}, not a multiple of {block} as {dtype:?} needs"));
    }
    let row = (cols / dtype.block_len()).checked_mul(dtype.block_bytes());
    outer
        .iter()
        .try_fold(row, |bytes, &dim| Some(bytes?.checked_mul(dim)))
        .flatten()
        .ok_or_else(|| format!("is too large: {shape:?}"))
}
