//! Writes GGUF version 3: for tests and for the tiny seeded models, which are real files.

use tenon_backend::DType;

use super::ValueKind;

/// A metadata value to write.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum WriteValue {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
}

/// Collects metadata and tensors; [`GgufWriter::finish`] lays the file out.
#[derive(Debug, Default)]
pub struct GgufWriter {
    num_keys: u64,
    keys: Vec<u8>,
    num_tensors: u64,
    infos: Vec<u8>,
    data: Vec<u8>,
}

/// The alignment of tensor data; the default, so that it needs no key.
const ALIGNMENT: usize = 32;

impl GgufWriter {
    /// Adds a metadata pair.
    pub fn key(&mut self, key: &str, value: WriteValue) -> &mut Self {
        self.num_keys += 1;
        put_text(&mut self.keys, key);
        let out = &mut self.keys;
        let kind = |out: &mut Vec<u8>, kind: ValueKind| out.extend((kind as u32).to_le_bytes());
        let array = |out: &mut Vec<u8>, element: ValueKind, len: usize| {
            kind(out, ValueKind::Array);
            kind(out, element);
            out.extend((len as u64).to_le_bytes());
        };
        match value {
            WriteValue::U32(v) => {
                kind(out, ValueKind::U32);
                out.extend(v.to_le_bytes());
            }
            WriteValue::F32(v) => {
                kind(out, ValueKind::F32);
                out.extend(v.to_le_bytes());
            }
            WriteValue::Bool(v) => {
                kind(out, ValueKind::Bool);
                out.push(v.into());
            }
            WriteValue::Text(v) => {
                kind(out, ValueKind::Text);
                put_text(out, &v);
            }
            WriteValue::Texts(v) => {
                array(out, ValueKind::Text, v.len());
                v.iter().for_each(|text| put_text(out, text));
            }
            WriteValue::I32s(v) => {
                array(out, ValueKind::I32, v.len());
                v.iter().for_each(|n| out.extend(n.to_le_bytes()));
            }
            WriteValue::F32s(v) => {
                array(out, ValueKind::F32, v.len());
                v.iter().for_each(|n| out.extend(n.to_le_bytes()));
            }
        }
        self
    }

    /// Adds a tensor; `shape` has the outermost dimension first, `data` is already encoded.
    ///
    /// # Panics
    /// When `data` is not what `shape` and `dtype` ask for.
    pub fn tensor(&mut self, name: &str, shape: &[usize], dtype: DType, data: &[u8]) -> &mut Self {
        let expected = crate::store::byte_len(shape, dtype);
        assert_eq!(expected, Ok(data.len()), "bytes of tensor `{name}`");
        self.num_tensors += 1;
        put_text(&mut self.infos, name);
        self.infos.extend((shape.len() as u32).to_le_bytes());
        for &dim in shape.iter().rev() {
            self.infos.extend((dim as u64).to_le_bytes());
        }
        self.infos.extend(dtype_id(dtype).to_le_bytes());
        self.data.resize(self.data.len().next_multiple_of(ALIGNMENT), 0);
        self.infos.extend((self.data.len() as u64).to_le_bytes());
        self.data.extend_from_slice(data);
        self
    }

    /// The whole file.
    pub fn finish(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(b"GGUF");
        out.extend(3u32.to_le_bytes());
        out.extend(self.num_tensors.to_le_bytes());
        out.extend(self.num_keys.to_le_bytes());
        out.extend(&self.keys);
        out.extend(&self.infos);
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out.extend(&self.data);
        out
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn dtype_id(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q4_1 => 3,
        DType::Q5_0 => 6,
        DType::Q5_1 => 7,
        DType::Q8_0 => 8,
        DType::Q4K => 12,
        DType::Q5K => 13,
        DType::Q6K => 14,
        DType::BF16 => 30,
    }
}
