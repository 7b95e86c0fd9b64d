//! Finds each weight of an architecture in a store: names, parts, transforms, and shapes checked.
//!
//! Matrices stay where they are in the file unless a transform moves them; vectors become F32.

use std::collections::BTreeSet;
use std::sync::Arc;

use half::{bf16, f16};
use tenon_backend::{BytesOwner, DType, Tensor, TensorBytes, WeightId};

use crate::arch::{ArchSpec, Format, FormatSpec, NameRule, Part, Presence, Slot, Transform};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::store::{StoredTensor, TensorStore};

/// Most names that a message about left-over tensors lists.
const MAX_LISTED: usize = 5;

/// Takes weights out of a store and remembers which names were used.
pub(crate) struct Binder<'a> {
    spec: &'a ArchSpec,
    table: &'a FormatSpec,
    store: &'a TensorStore,
    config: &'a ModelConfig,
    prefix: &'a str,
    used: BTreeSet<String>,
    weights: Vec<Tensor>,
}

impl<'a> Binder<'a> {
    pub(crate) fn new(
        spec: &'a ArchSpec,
        format: Format,
        store: &'a TensorStore,
        config: &'a ModelConfig,
    ) -> Result<Self, ModelError> {
        let table = spec.format(format)?;
        let embed = &table.tensors[&Slot::Embed].names[0];
        let has_embed = |prefix: &&String| store.tensors.contains_key(&format!("{prefix}{embed}"));
        let prefix = table.prefixes.iter().find(has_embed).map_or("", String::as_str);
        let (used, weights) = (BTreeSet::new(), Vec::new());
        Ok(Binder { spec, table, store, config, prefix, used, weights })
    }

    fn full_name(&self, name: &str, layer: usize) -> String {
        format!("{}{}", self.prefix, name.replace("{layer}", &layer.to_string()))
    }

    fn rule(&self, slot: Slot) -> Option<&'a NameRule> {
        self.table.tensors.get(&slot)
    }

    /// Whether the slot's weight is stored.
    pub(crate) fn is_stored(&self, slot: Slot, layer: usize) -> bool {
        self.rule(slot).is_some_and(|rule| {
            rule.names.iter().all(|n| self.store.tensors.contains_key(&self.full_name(n, layer)))
        })
    }

    /// Marks a slot's tensor as known without taking it.
    pub(crate) fn skip(&mut self, slot: Slot) {
        for name in self.rule(slot).iter().flat_map(|rule| &rule.names) {
            self.used.insert(self.full_name(name, 0));
        }
    }

    /// A bias by the family's rule: taken, absent, or an error.
    pub(crate) fn bias(
        &mut self,
        presence: Presence,
        slot: Slot,
        layer: usize,
        len: usize,
    ) -> Result<Option<WeightId>, ModelError> {
        match presence {
            Presence::No => Ok(None),
            Presence::IfStored if !self.is_stored(slot, layer) => Ok(None),
            Presence::Yes | Presence::IfStored => self.vector(slot, layer, len).map(Some),
        }
    }

    fn stored(&mut self, name: &str) -> Result<&'a StoredTensor, ModelError> {
        let store = self.store;
        let Some(tensor) = store.tensors.get(name) else {
            let problem = format!("is missing; a `{}` model needs it", self.spec.name);
            return Err(ModelError::tensor(&store.file, name, problem));
        };
        self.used.insert(name.to_string());
        Ok(tensor)
    }

    /// A matrix `[rows, cols]`; `rows` of `None` takes what is there (the vocabulary).
    pub(crate) fn matrix(
        &mut self,
        slot: Slot,
        layer: usize,
        rows: Option<usize>,
        cols: usize,
    ) -> Result<WeightId, ModelError> {
        let rule = self.rule(slot).expect("required slots are checked with the spec");
        let mut matrix: Option<Matrix> = None;
        for name in &rule.names {
            let name = self.full_name(name, layer);
            let part = Matrix::stored(&self.store.file, &name, self.stored(&name)?)?;
            matrix = Some(match matrix {
                None => part,
                Some(above) => above.stack(part).map_err(|e| self.tensor_error(&name, e))?,
            });
        }
        let mut matrix = matrix.expect("a rule has at least one name");
        let name = matrix.name.clone();
        if rule.transforms.contains(&Transform::Transpose) {
            matrix = matrix.transpose().map_err(|e| self.tensor_error(&name, e))?;
        }
        if let Some(part) = rule.split {
            matrix = self.split(matrix, part)?;
        }
        if matrix.cols != cols || rows.is_some_and(|rows| rows != matrix.rows) {
            let expected = rows.map_or("any".into(), |rows| rows.to_string());
            let problem = format!(
                "has shape [{}, {}], expected [{expected}, {cols}]",
                matrix.rows, matrix.cols
            );
            return Err(self.tensor_error(&name, problem));
        }
        if rule.transforms.contains(&Transform::PermuteQk) {
            let head_dim = self.config.head_dim;
            matrix = matrix.permute_qk(head_dim).map_err(|e| self.tensor_error(&name, e))?;
        }
        Ok(self.push(matrix.into_tensor()))
    }

    fn tensor_error(&self, name: &str, problem: String) -> ModelError {
        ModelError::tensor(&self.store.file, name, problem)
    }

    /// Rows of a fused matrix, by the model's own widths.
    fn split(&self, matrix: Matrix, part: Part) -> Result<Matrix, ModelError> {
        let config = self.config;
        let q = config.num_heads * config.head_dim;
        let kv = config.num_kv_heads * config.head_dim;
        let ffn = config.ffn;
        let (start, len, total) = match part {
            Part::Q => (0, q, q + 2 * kv),
            Part::K => (q, kv, q + 2 * kv),
            Part::V => (q + kv, kv, q + 2 * kv),
            Part::Gate => (0, ffn, 2 * ffn),
            Part::Up => (ffn, ffn, 2 * ffn),
        };
        if matrix.rows != total {
            let problem = format!("has {} rows, expected {total} for its parts", matrix.rows);
            return Err(self.tensor_error(&matrix.name, problem));
        }
        Ok(matrix.rows_of(start, len))
    }

    /// A vector of `len` elements as F32.
    pub(crate) fn vector(
        &mut self,
        slot: Slot,
        layer: usize,
        len: usize,
    ) -> Result<WeightId, ModelError> {
        let values = self.floats(slot, layer, len)?;
        let rule = self.rule(slot).expect("floats found it");
        let name = self.full_name(&rule.names[0], layer);
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let data = TensorBytes::owned(bytes);
        Ok(self.push(Tensor { name, dtype: DType::F32, rows: 1, cols: len, data }))
    }

    /// A vector's values, transforms applied. `expected` counts elements after `split`.
    pub(crate) fn floats(
        &mut self,
        slot: Slot,
        layer: usize,
        expected: usize,
    ) -> Result<Vec<f32>, ModelError> {
        let rule = self.rule(slot).expect("required slots are checked with the spec");
        let mut values = Vec::new();
        let mut last = String::new();
        for name in &rule.names {
            last = self.full_name(name, layer);
            let tensor = self.stored(&last)?;
            if tensor.shape.iter().filter(|&&dim| dim != 1).count() > 1 {
                let problem = format!("has shape {:?}, expected [{expected}]", tensor.shape);
                return Err(self.tensor_error(&last, problem));
            }
            values.extend(decode_floats(tensor).map_err(|e| self.tensor_error(&last, e))?);
        }
        if let Some(part) = rule.split {
            let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let data = TensorBytes::owned(bytes);
            let (rows, name) = (values.len(), last.clone());
            let column = Matrix { name, dtype: DType::F32, rows, cols: 1, data };
            values = f32s(&self.split(column, part)?.data);
        }
        if values.len() != expected {
            let problem = format!("has {} elements, expected {expected}", values.len());
            return Err(self.tensor_error(&last, problem));
        }
        for transform in &rule.transforms {
            match transform {
                Transform::AddOne => values.iter_mut().for_each(|v| *v += 1.0),
                Transform::PermuteQk => values = permute_values(&values, self.config.head_dim),
                Transform::Transpose => {}
            }
        }
        Ok(values)
    }

    fn push(&mut self, tensor: Tensor) -> WeightId {
        self.weights.push(tensor);
        WeightId(self.weights.len() as u32 - 1)
    }

    /// Rows of a weight that was taken.
    pub(crate) fn rows(&self, id: WeightId) -> usize {
        self.weights[id.0 as usize].rows
    }

    /// All weights.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] naming stored tensors that nothing used and no rule ignores.
    pub(crate) fn finish(self) -> Result<Vec<Tensor>, ModelError> {
        let left: Vec<&String> = self
            .store
            .tensors
            .keys()
            .filter(|name| !self.used.contains(*name) && !self.is_ignored(name))
            .collect();
        let Some(first) = left.first() else { return Ok(self.weights) };
        let others: Vec<String> =
            left.iter().skip(1).take(MAX_LISTED).map(|name| format!("`{name}`")).collect();
        let more = left.len().saturating_sub(1 + others.len());
        let mut problem = format!("is not part of a `{}` model", self.spec.name);
        if !others.is_empty() {
            problem.push_str(&format!(", nor is {}", others.join(", ")));
        }
        if more > 0 {
            problem.push_str(&format!(" and {more} more"));
        }
        problem.push_str("; the wrong architecture, or a missing `ignore` rule");
        Err(ModelError::tensor(&self.store.file, first, problem))
    }

    fn is_ignored(&self, name: &str) -> bool {
        let name = name.strip_prefix(self.prefix).unwrap_or(name);
        self.table.ignore.iter().any(|pattern| {
            if let Some(prefix) = pattern.strip_suffix('*') {
                return name.starts_with(prefix);
            }
            match pattern.split_once("{layer}") {
                None => name == pattern,
                Some((before, after)) => name
                    .strip_prefix(before)
                    .and_then(|rest| rest.strip_suffix(after))
                    .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())),
            }
        })
    }
}

/// Lets a part of some bytes keep them all alive.
struct View(TensorBytes);

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl BytesOwner for View {
    fn release(&self, range: std::ops::Range<usize>) {
        self.0.release(range);
    }
}

/// A matrix on its way to becoming a weight.
struct Matrix {
    name: String,
    dtype: DType,
    rows: usize,
    cols: usize,
    data: TensorBytes,
}

impl Matrix {
    fn stored(file: &str, name: &str, tensor: &StoredTensor) -> Result<Self, ModelError> {
        let [rows, cols] = tensor.shape[..] else {
            let problem = format!("has shape {:?}, expected a matrix", tensor.shape);
            return Err(ModelError::tensor(file, name, problem));
        };
        let (name, dtype, data) = (name.to_string(), tensor.dtype, tensor.data.clone());
        Ok(Matrix { name, dtype, rows, cols, data })
    }

    fn into_tensor(self) -> Tensor {
        let Matrix { name, dtype, rows, cols, data } = self;
        Tensor { name, dtype, rows, cols, data }
    }

    fn row_bytes(&self) -> usize {
        self.dtype.row_bytes(self.cols)
    }

    fn stack(self, below: Matrix) -> Result<Matrix, String> {
        if self.cols != below.cols || self.dtype != below.dtype {
            return Err(format!(
                "({:?}, {} columns) cannot be stacked under `{}` ({:?}, {} columns)",
                below.dtype, below.cols, self.name, self.dtype, self.cols
            ));
        }
        let data = TensorBytes::owned([&self.data[..], &below.data[..]].concat());
        Ok(Matrix { rows: self.rows + below.rows, data, ..self })
    }

    fn rows_of(self, start: usize, len: usize) -> Matrix {
        let bytes = self.row_bytes();
        let view = Arc::new(View(self.data.clone()));
        let data = TensorBytes::new(view, start * bytes..(start + len) * bytes);
        Matrix { rows: len, data, ..self }
    }

    fn transpose(self) -> Result<Matrix, String> {
        if self.dtype.block_len() != 1 {
            return Err(format!("is stored as {:?}, which cannot be transposed", self.dtype));
        }
        let size = self.dtype.block_bytes();
        let mut out = Vec::with_capacity(self.data.len());
        for col in 0..self.cols {
            for row in 0..self.rows {
                let at = (row * self.cols + col) * size;
                out.extend_from_slice(&self.data[at..at + size]);
            }
        }
        let (rows, cols) = (self.cols, self.rows);
        Ok(Matrix { rows, cols, data: TensorBytes::owned(out), ..self })
    }

    fn permute_qk(self, head_dim: usize) -> Result<Matrix, String> {
        if !self.rows.is_multiple_of(head_dim) {
            return Err(format!("has {} rows, no multiple of {head_dim}", self.rows));
        }
        let bytes = self.row_bytes();
        let mut out = Vec::with_capacity(self.data.len());
        for row in 0..self.rows {
            let from = interleaved_index(row, head_dim) * bytes;
            out.extend_from_slice(&self.data[from..from + bytes]);
        }
        Ok(Matrix { data: TensorBytes::owned(out), ..self })
    }
}

/// Where element `i` of the half layout is in the interleaved one: pair `p`'s first element goes
/// from `2p` to `p`, its second from `2p + 1` to `p + half`.
fn interleaved_index(i: usize, head_dim: usize) -> usize {
    let (head, at, half) = (i / head_dim * head_dim, i % head_dim, head_dim / 2);
    head + if at < half { 2 * at } else { 2 * (at - half) + 1 }
}

fn permute_values(values: &[f32], head_dim: usize) -> Vec<f32> {
    (0..values.len()).map(|i| values[interleaved_index(i, head_dim)]).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().expect("chunks of four")))
        .collect()
}

fn decode_floats(tensor: &StoredTensor) -> Result<Vec<f32>, String> {
    let halves = || tensor.data.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    match tensor.dtype {
        DType::F32 => Ok(f32s(&tensor.data)),
        DType::F16 => Ok(halves().map(|bits| f16::from_bits(bits).to_f32()).collect()),
        DType::BF16 => Ok(halves().map(|bits| bf16::from_bits(bits).to_f32()).collect()),
        other => Err(format!("is a vector stored as {other:?}, expected F32, F16 or BF16")),
    }
}
