//! The GGUF reader against damaged and hostile files: an error that names what is wrong, never a
//! panic and never memory that the file does not have.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use proptest::prelude::*;
use tenon_backend::DType;
use tenon_model::gguf::{Gguf, GgufWriter, WriteValue};
use tenon_model::{ModelError, TinyArch, TinyModel, open::open_gguf};

fn read(bytes: Vec<u8>) -> Result<Gguf, ModelError> {
    Gguf::from_bytes("test.gguf", Arc::new(bytes))
}

/// A file with every kind of entry.
fn sample() -> Vec<u8> {
    let mut writer = GgufWriter::default();
    writer
        .key("general.architecture", WriteValue::Text("llama".into()))
        .key("a.number", WriteValue::U32(7))
        .key("a.float", WriteValue::F32(0.5))
        .key("a.flag", WriteValue::Bool(true))
        .key("a.texts", WriteValue::Texts(vec!["".into(), "ab".into(), "ü".into()]))
        .key("a.ints", WriteValue::I32s(vec![-1, 2, 3]))
        .key("a.floats", WriteValue::F32s(vec![1.5, -2.0]))
        .tensor("x", &[3], DType::F32, &[1; 12])
        .tensor("m", &[2, 32], DType::Q4_0, &[2; 36]);
    writer.finish()
}

#[test]
fn a_written_file_is_read_back() {
    let gguf = read(sample()).unwrap();
    let meta = &gguf.metadata;
    assert_eq!(gguf.architecture().unwrap(), "llama");
    assert_eq!(meta.u64("a.number").unwrap(), Some(7));
    assert_eq!(meta.f64("a.number").unwrap(), Some(7.0));
    assert_eq!(meta.f64("a.float").unwrap(), Some(0.5));
    assert_eq!(meta.bool("a.flag").unwrap(), Some(true));
    assert_eq!(meta.texts("a.texts").unwrap().unwrap(), ["", "ab", "ü"]);
    assert_eq!(meta.ints("a.ints").unwrap().unwrap(), [-1, 2, 3]);
    assert_eq!(meta.floats("a.floats").unwrap().unwrap(), [1.5, -2.0]);
    assert_eq!(meta.u64("a.missing").unwrap(), None);
    let matrix = &gguf.store.tensors["m"];
    assert_eq!((&matrix.shape[..], matrix.dtype), (&[2, 32][..], DType::Q4_0));
    assert_eq!(&matrix.data[..], [2; 36]);
    assert_eq!(&gguf.store.tensors["x"].data[..], [1; 12]);
}

#[test]
fn every_wrong_type_names_file_and_key() {
    let gguf = read(sample()).unwrap();
    let meta = &gguf.metadata;
    let errors = [
        meta.u64("a.float").unwrap_err(),
        meta.f64("a.flag").unwrap_err(),
        meta.bool("a.number").unwrap_err(),
        meta.text("a.number").unwrap_err(),
        meta.texts("a.ints").unwrap_err(),
        meta.ints("a.texts").unwrap_err(),
        meta.floats("a.ints").unwrap_err(),
        meta.u64("a.ints").unwrap_err(),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("test.gguf") && text.contains("`a."), "{text}");
    }
}

#[test]
fn every_prefix_of_a_file_is_an_error() {
    let bytes = sample();
    for len in 0..bytes.len() {
        assert!(read(bytes[..len].to_vec()).is_err(), "prefix of {len} bytes");
    }
    read(bytes).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4096,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    // Whatever happens to the bytes: an answer, and all that was accepted can be read.
    #[test]
    fn flipped_bytes_never_panic(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)
    ) {
        let mut bytes = sample();
        for (index, value) in flips {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(gguf) = read(bytes) {
            let keys: Vec<String> = gguf.metadata.keys().map(String::from).collect();
            for key in keys {
                let _ = gguf.metadata.u64(&key);
                let _ = gguf.metadata.f64(&key);
                let _ = gguf.metadata.text(&key);
                let _ = gguf.metadata.texts(&key);
                let _ = gguf.metadata.ints(&key);
                let _ = gguf.metadata.floats(&key);
                let _ = gguf.metadata.bools(&key);
            }
            for tensor in gguf.store.tensors.values() {
                prop_assert!(tensor.data.len() < 4096);
            }
        }
    }

    // Counts and lengths set to extreme values at any place.
    #[test]
    fn extreme_counts_never_panic(at in any::<prop::sample::Index>(), pick in 0usize..6) {
        let extreme = [u64::MAX, u64::MAX / 2, 1 << 62, 1 << 40, u64::from(u32::MAX), 0][pick];
        let mut bytes = sample();
        let at = at.index(bytes.len() - 8);
        bytes[at..at + 8].copy_from_slice(&extreme.to_le_bytes());
        let _ = read(bytes);
    }

    #[test]
    fn damaged_models_never_panic_when_lowered(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)
    ) {
        let mut bytes = tiny_bytes();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(gguf) = read(bytes) {
            let _ = open_gguf(gguf, None);
        }
    }
}

fn tiny_bytes() -> Vec<u8> {
    static BYTES: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    let small = TinyModel {
        num_layers: 1,
        hidden: 8,
        ffn: 8,
        num_heads: 2,
        num_kv_heads: 1,
        head_dim: 4,
        ..TinyModel::new(TinyArch::Gemma3, 1)
    };
    BYTES.get_or_init(|| small.gguf()).clone()
}

/// Raw entries, for files that the writer refuses to make.
#[derive(Default)]
struct Raw {
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn info(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut out = text(name);
    out.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
    out.extend(kind.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}

impl Raw {
    fn error(&self) -> String {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        self.keys.iter().chain(&self.tensors).for_each(|entry| out.extend(entry));
        out.resize(out.len().next_multiple_of(32) + 4096, 0);
        read(out).unwrap_err().to_string()
    }

    fn tensors(tensors: &[Vec<u8>]) -> String {
        Raw { keys: vec![], tensors: tensors.to_vec() }.error()
    }

    fn key(name: &str, value: &[u8]) -> String {
        Raw { keys: vec![[&text(name)[..], value].concat()], tensors: vec![] }.error()
    }
}

#[test]
fn hostile_tensors_are_named() {
    let check = |infos: &[Vec<u8>], wanted: &str| {
        let found = Raw::tensors(infos);
        assert!(found.contains(wanted), "{found}\nwanted: {wanted}");
    };
    check(&[info("a", &[8], 10, 0)], "`a` is stored as Q2_K");
    check(&[info("a", &[8], 999, 0)], "`a` is stored as an unknown type (type 999)");
    check(&[info("a", &[], 0, 0)], "`a` has 0 dimensions");
    check(&[info("a", &[1; 5], 0, 0)], "`a` has 5 dimensions");
    check(&[info("a", &[0, 4], 0, 0)], "`a` has an empty dimension");
    check(&[info("a", &[33], 2, 0)], "`a` has rows of 33, not a multiple of 32");
    check(&[info("a", &[1 << 40, 1 << 40], 0, 0)], "`a` is too large");
    check(&[info("a", &[1 << 62], 0, 0)], "`a` is too large");
    check(&[info("a", &[8], 0, 8)], "`a` lies at 8, not a multiple of 32");
    check(&[info("a", &[8], 0, u64::MAX - 31)], "`a` needs 32 bytes");
    check(&[info("a", &[2048], 0, 0)], "the file is cut short");
    check(&[info("a", &[8], 0, 0), info("a", &[8], 0, 32)], "`a` appears twice");
    check(&[info("a", &[9], 0, 0), info("b", &[8], 0, 32)], "`a` overlaps `b`");
    check(&[info(&"n".repeat(257), &[8], 0, 0)], "tensor name has 257 bytes");
}

#[test]
fn hostile_keys_are_named() {
    let array = |kind: u32, element: u32, len: u64| {
        let mut out = kind.to_le_bytes().to_vec();
        out.extend(element.to_le_bytes());
        out.extend(len.to_le_bytes());
        out
    };
    let check = |value: &[u8], wanted: &str| {
        let found = Raw::key("k", value);
        assert!(found.contains(wanted), "{found}\nwanted: {wanted}");
    };
    check(&13u32.to_le_bytes(), "key `k` has the unknown value type 13");
    check(&array(9, 4, u64::MAX), "array length is 18446744073709551615");
    check(&array(9, 8, 1 << 32), "array length is 4294967296");
    let mut deep = array(9, 9, 1);
    for _ in 0..8 {
        deep.extend(9u32.to_le_bytes());
        deep.extend(1u64.to_le_bytes());
    }
    check(&deep, "nests arrays deeper than 4");
    let pair = [&text("k")[..], &4u32.to_le_bytes(), &1u32.to_le_bytes()].concat();
    let twice = Raw { keys: vec![pair.clone(), pair], tensors: vec![] }.error();
    assert!(twice.contains("key `k` appears twice"), "{twice}");
    let alignment = [&4u32.to_le_bytes()[..], &3u32.to_le_bytes()].concat();
    let found = Raw::key("general.alignment", &alignment);
    assert!(found.contains("`general.alignment` is `3`, expected a power of two"), "{found}");
}

#[test]
fn other_versions_are_refused_by_number() {
    let with = |version: u32| {
        let mut bytes = sample();
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        read(bytes)
    };
    with(2).unwrap();
    for (version, wanted) in [(1, "version `1`"), (4, "version `4`"), (3 << 24, "big-endian")] {
        let found = with(version).unwrap_err().to_string();
        assert!(found.contains(wanted), "{found}");
    }
    let found = read(b"PK\x03\x04 and so on".to_vec()).unwrap_err().to_string();
    assert!(found.contains("does not begin with `GGUF`"), "{found}");
}

#[test]
fn split_files_open_from_any_part() {
    let dir = tempfile::tempdir().unwrap();
    let part = |no: u32| {
        let mut writer = GgufWriter::default();
        writer
            .key("general.architecture", WriteValue::Text("llama".into()))
            .key("split.no", WriteValue::U32(no))
            .key("split.count", WriteValue::U32(3))
            .tensor(&format!("t{no}"), &[1], DType::F32, &[no as u8; 4]);
        writer.finish()
    };
    let path = |no: u32| dir.path().join(format!("m-{:05}-of-00003.gguf", no + 1));
    (0..3).for_each(|no| std::fs::write(path(no), part(no)).unwrap());
    for no in 0..3 {
        let gguf = Gguf::open(&path(no)).unwrap();
        let names: Vec<&String> = gguf.store.tensors.keys().collect();
        assert_eq!(names, ["t0", "t1", "t2"]);
    }
    let alone = dir.path().join("alone.gguf");
    std::fs::write(&alone, part(0)).unwrap();
    let found = Gguf::open(&alone).unwrap_err().to_string();
    assert!(found.contains("`split.count` is `3`"), "{found}");
    std::fs::write(path(1), part(2)).unwrap();
    let found = Gguf::open(&path(0)).unwrap_err().to_string();
    assert!(found.contains("`split.no` must be `1`"), "{found}");
    std::fs::remove_file(path(2)).unwrap();
    std::fs::write(path(1), part(1)).unwrap();
    let found = Gguf::open(&path(0)).unwrap_err().to_string();
    assert!(found.contains("m-00003-of-00003.gguf"), "{found}");
}

/// Resident bytes of mapped files; none where the system does not say.
fn resident_file_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("RssFile:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<usize>().ok()? << 10)
}

#[test]
fn released_bytes_leave_memory_and_stay_readable() {
    const BYTES: usize = 32 << 20;
    let content: Vec<u8> = (0..BYTES).map(|i| ((i * 31) >> 7) as u8).collect();
    let mut writer = GgufWriter::default();
    writer.key("general.architecture", WriteValue::Text("llama".into()));
    writer.tensor("m", &[BYTES / 4096, 1024], DType::F32, &content);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), writer.finish()).unwrap();
    let gguf = Gguf::open(file.path()).unwrap();
    let data = gguf.store.tensors["m"].data.clone();
    assert!(data[..] == content);
    let Some(read) = resident_file_bytes() else {
        println!("skipped: this system does not tell resident memory");
        return;
    };
    data.release(0..BYTES / 2);
    data.release(BYTES / 2..BYTES);
    let released = resident_file_bytes().unwrap();
    assert!(released + BYTES * 9 / 10 < read, "{read} bytes resident, then {released}");
    assert!(data[..] == content);
}
