//! GGUF files, versions 2 and 3, single or split, over a memory map.
//!
//! Follows the GGUF specification. Files are untrusted: every count, length and offset is checked
//! against the bytes that are there before it is used, and nothing is allocated from a claim.

mod cursor;
mod metadata;
mod write;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenon_backend::{DType, TensorBytes};

pub use self::metadata::{Metadata, ValueKind};
pub use self::write::{GgufWriter, WriteValue};

use self::cursor::Cursor;
use crate::error::ModelError;
use crate::mmap::MappedFile;
use crate::store::{SharedBytes, StoredTensor, TensorStore, byte_len};

/// Most keys or tensors in one file; known files have under 3,000.
const MAX_ENTRIES: usize = 65_536;
/// Most bytes of a key (the specification's limit).
const MAX_KEY_LEN: usize = 65_535;
/// Most bytes of a tensor's name; the specification says 64.
const MAX_TENSOR_NAME_LEN: usize = 256;
/// Most dimensions of a tensor.
const MAX_DIMS: u32 = 4;
/// Largest alignment taken; files use 32.
const MAX_ALIGNMENT: u64 = 1 << 16;
/// Most files of a split model.
const MAX_SPLITS: usize = 1024;

/// An opened GGUF model: metadata of the first file, tensors of all.
#[derive(Debug, Clone)]
pub struct Gguf {
    /// Key-value pairs of the first (or only) file.
    pub metadata: Metadata,
    /// Every tensor.
    pub store: TensorStore,
}

impl Gguf {
    /// Maps and checks `path`. Any file of a split set (`…-00001-of-00003.gguf`) opens all.
    ///
    /// # Errors
    /// [`ModelError::Io`], [`ModelError::Malformed`], or [`ModelError::Unsupported`] naming the
    /// tensor and its type.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let paths = split_paths(path)?;
        let mut gguf = Self::open_one(&paths[0])?;
        let declared = gguf.metadata.u64("split.count")?.unwrap_or(1).max(1);
        if declared != paths.len() as u64 {
            return Err(ModelError::key(
                gguf.metadata.file(),
                "split.count",
                format!(
                    "is `{declared}`, but the file name says {}; name split files \
                     `NAME-00001-of-{declared:05}.gguf`",
                    paths.len()
                ),
            ));
        }
        for (index, path) in paths.iter().enumerate().skip(1) {
            let part = Self::open_one(path)?;
            if part.metadata.u64("split.no")? != Some(index as u64) {
                let problem = format!("must be `{index}` as in the file name");
                return Err(ModelError::key(part.metadata.file(), "split.no", problem));
            }
            for (name, tensor) in part.store.tensors {
                if gguf.store.tensors.insert(name.clone(), tensor).is_some() {
                    let problem = "is already in another file of the split model";
                    return Err(ModelError::tensor(part.metadata.file(), &name, problem));
                }
            }
        }
        Ok(gguf)
    }

    fn open_one(path: &Path) -> Result<Self, ModelError> {
        Self::from_bytes(&path.display().to_string(), Arc::new(MappedFile::open(path)?))
    }

    /// Reads one whole file from memory; `file` is its name in messages.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_bytes(file: &str, bytes: SharedBytes) -> Result<Self, ModelError> {
        let malformed =
            |problem| ModelError::Malformed { file: file.into(), format: "GGUF", problem };
        let data = (*bytes).as_ref();
        let mut cursor = Cursor::new(data, 0);
        check_version(file, &mut cursor)?;
        let (num_tensors, num_keys) = read_counts(&mut cursor).map_err(malformed)?;
        let mut metadata = Metadata::new(file, Arc::clone(&bytes));
        for _ in 0..num_keys {
            let key = cursor.name(MAX_KEY_LEN, "key").map_err(malformed)?;
            metadata.read_value(key, &mut cursor).map_err(malformed)?;
        }
        let alignment = metadata.u64("general.alignment")?.unwrap_or(32);
        if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
            let problem =
                format!("is `{alignment}`, expected a power of two up to {MAX_ALIGNMENT}");
            return Err(ModelError::key(file, "general.alignment", problem));
        }
        let mut infos = Vec::new();
        for _ in 0..num_tensors {
            infos.push(read_info(file, &mut cursor)?);
        }
        let data_start = cursor.position().next_multiple_of(alignment as usize);
        let tensors = place(file, infos, &bytes, data_start, alignment)?;
        Ok(Gguf { metadata, store: TensorStore { file: file.into(), tensors } })
    }

    /// `general.architecture`.
    ///
    /// # Errors
    /// [`ModelError::Key`] when it is missing or no text.
    pub fn architecture(&self) -> Result<&str, ModelError> {
        let key = "general.architecture";
        self.metadata
            .text(key)?
            .ok_or_else(|| ModelError::key(self.metadata.file(), key, "is missing"))
    }
}

/// What a file says about one tensor.
struct Info {
    name: String,
    shape: Vec<usize>,
    dtype: DType,
    /// From the start of the data section.
    offset: u64,
}

fn check_version(file: &str, cursor: &mut Cursor<'_>) -> Result<(), ModelError> {
    let malformed = |problem| ModelError::Malformed { file: file.into(), format: "GGUF", problem };
    let magic = cursor.u32("magic").map_err(malformed)?;
    if magic != u32::from_le_bytes(*b"GGUF") {
        let problem = "it does not begin with `GGUF`, and is not a directory of safetensors";
        return Err(malformed(format!("{problem} (first bytes {magic:#010x})")));
    }
    let version = cursor.u32("version").map_err(malformed)?;
    match version {
        2 | 3 => Ok(()),
        _ if version.swap_bytes() <= 3 && version != 0 => {
            Err(ModelError::unsupported(file, "big-endian GGUF is not supported; convert it"))
        }
        _ => Err(ModelError::unsupported(
            file,
            format!("GGUF version `{version}` is not supported (2 and 3 are); convert it"),
        )),
    }
}

/// Tensors and keys, bounded by what the file can hold.
fn read_counts(cursor: &mut Cursor<'_>) -> Result<(usize, usize), String> {
    // Least bytes: name length, dims, type, offset; key length, value type, one byte.
    let num_tensors = cursor.count(8 + 4 + 8 + 4 + 8, "tensor count")?;
    let num_keys = cursor.count(8 + 4 + 1, "key count")?;
    for (count, what) in [(num_tensors, "tensor"), (num_keys, "key")] {
        if count > MAX_ENTRIES {
            return Err(format!("{what} count is {count}, the most is {MAX_ENTRIES}"));
        }
    }
    Ok((num_tensors, num_keys))
}

fn read_info(file: &str, cursor: &mut Cursor<'_>) -> Result<Info, ModelError> {
    let malformed = |problem| ModelError::Malformed { file: file.into(), format: "GGUF", problem };
    let name = cursor.name(MAX_TENSOR_NAME_LEN, "tensor name").map_err(malformed)?;
    let num_dims = cursor.u32("dimension count").map_err(malformed)?;
    if num_dims == 0 || num_dims > MAX_DIMS {
        let problem = format!("has {num_dims} dimensions, expected 1 to {MAX_DIMS}");
        return Err(ModelError::tensor(file, name, problem));
    }
    let mut shape = Vec::with_capacity(num_dims as usize);
    for _ in 0..num_dims {
        let dim = cursor.u64("dimension").map_err(malformed)?;
        let dim = usize::try_from(dim).map_err(|_| malformed(format!("`{name}` is too large")))?;
        shape.push(dim);
    }
    shape.reverse(); // the file has the innermost dimension first
    let dtype = dtype_from_id(file, name, cursor.u32("tensor type").map_err(malformed)?)?;
    let offset = cursor.u64("tensor offset").map_err(malformed)?;
    Ok(Info { name: name.into(), shape, dtype, offset })
}

fn dtype_from_id(file: &str, tensor: &str, id: u32) -> Result<DType, ModelError> {
    let other = match id {
        0 => return Ok(DType::F32),
        1 => return Ok(DType::F16),
        2 => return Ok(DType::Q4_0),
        3 => return Ok(DType::Q4_1),
        6 => return Ok(DType::Q5_0),
        7 => return Ok(DType::Q5_1),
        8 => return Ok(DType::Q8_0),
        12 => return Ok(DType::Q4K),
        13 => return Ok(DType::Q5K),
        14 => return Ok(DType::Q6K),
        30 => return Ok(DType::BF16),
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => "an unknown type",
    };
    Err(ModelError::tensor(
        file,
        tensor,
        format!(
            "is stored as {other} (type {id}); F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, \
             Q5_K and Q6_K are supported: use a file quantized to one of these"
        ),
    ))
}

/// Checks where each tensor lies and takes its bytes.
fn place(
    file: &str,
    infos: Vec<Info>,
    bytes: &SharedBytes,
    data_start: usize,
    alignment: u64,
) -> Result<BTreeMap<String, StoredTensor>, ModelError> {
    let file_len = (**bytes).as_ref().len();
    let mut tensors = BTreeMap::new();
    let mut ranges = Vec::with_capacity(infos.len());
    for info in infos {
        let len = byte_len(&info.shape, info.dtype)
            .map_err(|problem| ModelError::tensor(file, &info.name, problem))?;
        if info.offset % alignment != 0 {
            let problem = format!("lies at {}, not a multiple of {alignment}", info.offset);
            return Err(ModelError::tensor(file, &info.name, problem));
        }
        let start = usize::try_from(info.offset).ok().and_then(|o| data_start.checked_add(o));
        let end = start.and_then(|start| start.checked_add(len));
        let (Some(start), Some(end)) = (start, end.filter(|&end| end <= file_len)) else {
            let problem = format!(
                "needs {len} bytes at {} of the data, which starts at byte {data_start} of \
                 {file_len}: the file is cut short; fetch it again",
                info.offset
            );
            return Err(ModelError::tensor(file, &info.name, problem));
        };
        let data = TensorBytes::new(Arc::clone(bytes), start..end);
        let tensor = StoredTensor { shape: info.shape, dtype: info.dtype, data };
        ranges.push((start, end, info.name.clone()));
        if tensors.insert(info.name.clone(), tensor).is_some() {
            return Err(ModelError::tensor(file, &info.name, "appears twice"));
        }
    }
    ranges.sort();
    for pair in ranges.windows(2) {
        if pair[0].1 > pair[1].0 {
            let problem = format!("overlaps `{}`", pair[1].2);
            return Err(ModelError::tensor(file, &pair[0].2, problem));
        }
    }
    Ok(tensors)
}

/// All files of a split set in order, or the one path.
fn split_paths(path: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let single = || Ok(vec![path.to_path_buf()]);
    let Some(name) = path.file_name().and_then(|n| n.to_str()) else { return single() };
    let Some((prefix, count)) = split_name(name) else { return single() };
    if count == 0 || count > MAX_SPLITS {
        let problem = format!("it names {count} files, expected 1 to {MAX_SPLITS}");
        return Err(ModelError::unsupported(&path.display().to_string(), problem));
    }
    let part = |no: usize| path.with_file_name(format!("{prefix}-{no:05}-of-{count:05}.gguf"));
    Ok((1..=count).map(part).collect())
}

/// `NAME-00001-of-00003.gguf` → (`NAME`, 3).
fn split_name(name: &str) -> Option<(&str, usize)> {
    let stem = name.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, no) = rest.rsplit_once('-')?;
    let five_digits = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
    (five_digits(no) && five_digits(count)).then_some(())?;
    Some((prefix, count.parse().ok()?))
}
