//! GGUF metadata: key-value pairs, kept as ranges of the file and decoded when asked for.
//!
//! Nothing is copied at load, so a hostile count cannot make the reader allocate.

use std::collections::BTreeMap;
use std::ops::Range;

use super::cursor::Cursor;
use crate::error::ModelError;
use crate::store::SharedBytes;

/// Arrays of arrays deeper than this are refused (no known file nests at all).
const MAX_ARRAY_DEPTH: usize = 4;

/// The type of a value, by GGUF's own numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum ValueKind {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    Text = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueKind {
    fn from_id(id: u32) -> Result<Self, String> {
        use ValueKind::*;
        const ALL: [ValueKind; 13] =
            [U8, I8, U16, I16, U32, I32, F32, Bool, Text, Array, U64, I64, F64];
        ALL.get(id as usize).copied().ok_or_else(|| format!("has the unknown value type {id}"))
    }

    /// Bytes of a scalar; `None` for text and arrays.
    fn size(self) -> Option<usize> {
        use ValueKind::*;
        match self {
            U8 | I8 | Bool => Some(1),
            U16 | I16 => Some(2),
            U32 | I32 | F32 => Some(4),
            U64 | I64 | F64 => Some(8),
            Text | Array => None,
        }
    }
}

/// Where a value lies.
#[derive(Debug, Clone)]
struct RawValue {
    kind: ValueKind,
    /// Of the elements, for an array.
    element: ValueKind,
    /// Elements of an array; 1 otherwise.
    len: usize,
    /// Its bytes: a scalar, a text without its length, or all elements.
    range: Range<usize>,
}

/// A scalar, decoded.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scalar {
    Int(i128),
    Float(f64),
    Bool(bool),
}

/// The metadata of a file, by key. Accessors return `None` for a missing key and an error that
/// names file and key for a value of another type.
#[derive(Clone)]
pub struct Metadata {
    file: String,
    bytes: SharedBytes,
    values: BTreeMap<String, RawValue>,
}

impl std::fmt::Debug for Metadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Metadata({}, {} keys)", self.file, self.values.len())
    }
}

impl Metadata {
    pub(super) fn new(file: &str, bytes: SharedBytes) -> Self {
        Metadata { file: file.into(), bytes, values: BTreeMap::new() }
    }

    /// Reads one pair's value; the cursor stands behind the key.
    pub(super) fn read_value(&mut self, key: &str, cursor: &mut Cursor<'_>) -> Result<(), String> {
        let value = read_raw(cursor).map_err(|problem| format!("key `{key}` {problem}"))?;
        if self.values.insert(key.to_string(), value).is_some() {
            return Err(format!("key `{key}` appears twice"));
        }
        Ok(())
    }

    /// The file, for messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// All keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Whether the key is there, whatever its type.
    pub fn contains(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    fn wrong_type(&self, key: &str, wanted: &str, value: &RawValue) -> ModelError {
        let kind = value.kind;
        ModelError::key(&self.file, key, format!("is of type {kind:?}, expected {wanted}"))
    }

    fn scalar(&self, key: &str, wanted: &str) -> Result<Option<Scalar>, ModelError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        if value.kind.size().is_none() {
            return Err(self.wrong_type(key, wanted, value));
        }
        Ok(Some(decode(value.kind, &(*self.bytes).as_ref()[value.range.clone()])))
    }

    /// A whole number that is not negative, of any integer type. An array with one value for
    /// every layer is taken when all are equal.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, ModelError> {
        let wanted = "a whole number";
        if self.values.get(key).is_some_and(|v| v.kind == ValueKind::Array) {
            let all = self.ints(key)?.unwrap_or_default();
            return match all.first() {
                Some(&first) if first >= 0 && all.iter().all(|&v| v == first) => {
                    Ok(Some(first as u64))
                }
                _ => Err(ModelError::key(
                    &self.file,
                    key,
                    "differs between layers, which no architecture here supports",
                )),
            };
        }
        match self.scalar(key, wanted)? {
            None => Ok(None),
            Some(Scalar::Int(value)) => u64::try_from(value).map(Some).map_err(|_| {
                ModelError::key(&self.file, key, format!("is `{value}`, expected {wanted}"))
            }),
            Some(_) => Err(self.wrong_type(key, wanted, &self.values[key])),
        }
    }

    /// A number of any type.
    pub fn f64(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.scalar(key, "a number")? {
            None => Ok(None),
            Some(Scalar::Int(value)) => Ok(Some(value as f64)),
            Some(Scalar::Float(value)) => Ok(Some(value)),
            Some(Scalar::Bool(_)) => Err(self.wrong_type(key, "a number", &self.values[key])),
        }
    }

    /// A truth value.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        match self.scalar(key, "a truth value")? {
            None => Ok(None),
            Some(Scalar::Bool(value)) => Ok(Some(value)),
            Some(_) => Err(self.wrong_type(key, "a truth value", &self.values[key])),
        }
    }

    /// A text in UTF-8.
    pub fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        if value.kind != ValueKind::Text {
            return Err(self.wrong_type(key, "a text", value));
        }
        let bytes = &(*self.bytes).as_ref()[value.range.clone()];
        let text = std::str::from_utf8(bytes)
            .map_err(|_| ModelError::key(&self.file, key, "is not UTF-8"))?;
        Ok(Some(text))
    }

    fn array(
        &self,
        key: &str,
        wanted: &str,
        takes: impl Fn(ValueKind) -> bool,
    ) -> Result<Option<(&RawValue, &[u8])>, ModelError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        if value.kind != ValueKind::Array {
            return Err(self.wrong_type(key, wanted, value));
        }
        if !takes(value.element) && value.len > 0 {
            let found = value.element;
            let problem = format!("is an array of {found:?}, expected {wanted}");
            return Err(ModelError::key(&self.file, key, problem));
        }
        Ok(Some((value, &(*self.bytes).as_ref()[value.range.clone()])))
    }

    /// An array of texts.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<String>>, ModelError> {
        let wanted = "an array of texts";
        let Some((value, bytes)) = self.array(key, wanted, |k| k == ValueKind::Text)? else {
            return Ok(None);
        };
        let mut cursor = Cursor::new(bytes, 0);
        let mut out = Vec::with_capacity(value.len);
        for index in 0..value.len {
            let range = cursor.text("text").expect("checked when the file was opened");
            let text = std::str::from_utf8(&bytes[range]).map_err(|_| {
                ModelError::key(&self.file, key, format!("has a text that is not UTF-8: {index}"))
            })?;
            out.push(text.to_string());
        }
        Ok(Some(out))
    }

    fn scalars(&self, value: &RawValue, bytes: &[u8]) -> impl Iterator<Item = Scalar> {
        let kind = value.element;
        let size = kind.size().unwrap_or(1);
        let scalars: Vec<Scalar> = bytes.chunks_exact(size).map(|b| decode(kind, b)).collect();
        scalars.into_iter()
    }

    /// An array of whole numbers.
    pub fn ints(&self, key: &str) -> Result<Option<Vec<i64>>, ModelError> {
        use ValueKind::*;
        let takes = |k| matches!(k, U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64);
        let Some((value, bytes)) = self.array(key, "an array of whole numbers", takes)? else {
            return Ok(None);
        };
        let ints = self.scalars(value, bytes).map(|scalar| match scalar {
            Scalar::Int(int) => i64::try_from(int).unwrap_or(i64::MAX),
            Scalar::Float(_) | Scalar::Bool(_) => unreachable!("element type was checked"),
        });
        Ok(Some(ints.collect()))
    }

    /// An array of truth values.
    pub fn bools(&self, key: &str) -> Result<Option<Vec<bool>>, ModelError> {
        let takes = |k| k == ValueKind::Bool;
        let Some((_, bytes)) = self.array(key, "an array of truth values", takes)? else {
            return Ok(None);
        };
        Ok(Some(bytes.iter().map(|&b| b != 0).collect()))
    }

    /// Whether the key holds an array.
    pub fn is_array(&self, key: &str) -> bool {
        self.values.get(key).is_some_and(|v| v.kind == ValueKind::Array)
    }

    /// An array of floats.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, ModelError> {
        let takes = |k| matches!(k, ValueKind::F32 | ValueKind::F64);
        let Some((value, bytes)) = self.array(key, "an array of floats", takes)? else {
            return Ok(None);
        };
        let floats = self.scalars(value, bytes).map(|scalar| match scalar {
            Scalar::Float(float) => float as f32,
            Scalar::Int(_) | Scalar::Bool(_) => unreachable!("element type was checked"),
        });
        Ok(Some(floats.collect()))
    }
}

fn read_raw(cursor: &mut Cursor<'_>) -> Result<RawValue, String> {
    let kind = ValueKind::from_id(cursor.u32("value type")?)?;
    match kind {
        ValueKind::Text => {
            Ok(RawValue { kind, element: kind, len: 1, range: cursor.text("text")? })
        }
        ValueKind::Array => {
            let element = ValueKind::from_id(cursor.u32("element type")?)?;
            let (len, range) = skip_elements(cursor, element, 1)?;
            Ok(RawValue { kind, element, len, range })
        }
        scalar => {
            let size = scalar.size().expect("text and arrays are matched above");
            let range = cursor.skip(size as u64, "value")?;
            Ok(RawValue { kind, element: kind, len: 1, range })
        }
    }
}

/// Steps over an array's length and elements, checking each.
fn skip_elements(
    cursor: &mut Cursor<'_>,
    element: ValueKind,
    depth: usize,
) -> Result<(usize, Range<usize>), String> {
    if depth > MAX_ARRAY_DEPTH {
        return Err(format!("nests arrays deeper than {MAX_ARRAY_DEPTH}"));
    }
    let min_bytes = match element {
        ValueKind::Text => 8,
        ValueKind::Array => 12,
        scalar => scalar.size().expect("text and arrays are matched above"),
    };
    let len = cursor.count(min_bytes, "array length")?;
    let start = cursor.position();
    match element {
        ValueKind::Text => {
            for _ in 0..len {
                cursor.text("text")?;
            }
        }
        ValueKind::Array => {
            for _ in 0..len {
                let inner = ValueKind::from_id(cursor.u32("element type")?)?;
                skip_elements(cursor, inner, depth + 1)?;
            }
        }
        _ => {
            cursor.skip((len * min_bytes) as u64, "array")?;
        }
    }
    Ok((len, start..cursor.position()))
}

/// Decodes one scalar; `bytes` has the kind's size.
fn decode(kind: ValueKind, bytes: &[u8]) -> Scalar {
    let mut wide = [0u8; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(wide);
    match kind {
        ValueKind::U8 | ValueKind::U16 | ValueKind::U32 | ValueKind::U64 => {
            Scalar::Int(bits.into())
        }
        ValueKind::I8 => Scalar::Int((bits as i8).into()),
        ValueKind::I16 => Scalar::Int((bits as i16).into()),
        ValueKind::I32 => Scalar::Int((bits as i32).into()),
        ValueKind::I64 => Scalar::Int((bits as i64).into()),
        ValueKind::F32 => Scalar::Float(f32::from_bits(bits as u32).into()),
        ValueKind::F64 => Scalar::Float(f64::from_bits(bits)),
        ValueKind::Bool => Scalar::Bool(bits != 0),
        ValueKind::Text | ValueKind::Array => unreachable!("not a scalar"),
    }
}
