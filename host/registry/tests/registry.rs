//! The registry from outside: life of an extension, and what happens on a damaged disk.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use tenon_registry::{MAX_VERSIONS, Registry, RegistryError};

fn on_both(check: impl Fn(&Registry)) {
    check(&Registry::in_memory());
    let dir = tempfile::tempdir().unwrap();
    check(&Registry::open(dir.path()).unwrap());
}

#[test]
fn versions_come_go_and_come_back() {
    on_both(|registry| {
        let one = registry.put("hermes", b"one").unwrap();
        let two = registry.put("hermes", b"two").unwrap();
        assert_ne!(one, two);
        assert_eq!(&*registry.get("hermes").unwrap().bytes, b"two");
        assert_eq!(&*registry.get(&one).unwrap().bytes, b"one");

        assert_eq!(registry.rollback("hermes").unwrap(), one);
        assert_eq!(&*registry.get("hermes").unwrap().bytes, b"one");
        assert_eq!(registry.rollback("hermes").unwrap(), two, "a rollback can be undone");
        registry.activate("hermes", &one).unwrap();
        let record = registry.describe("hermes").unwrap();
        assert_eq!((record.current, record.previous), (one.clone(), Some(two)));

        // The same bytes again are no new version.
        assert_eq!(registry.put("hermes", b"one").unwrap(), one);
        assert_eq!(registry.describe("hermes").unwrap().versions.len(), 2);
    });
}

#[test]
fn a_bound_extension_stays() {
    on_both(|registry| {
        registry.put("acme", b"wasm").unwrap();
        registry.bind("model", "acme").unwrap();
        assert_eq!(registry.bound("model").as_deref(), Some("acme"));
        let error = registry.delete("acme").unwrap_err();
        assert!(matches!(&error, RegistryError::Bound { models, .. } if models == &["model"]));
        assert_eq!(registry.list()[0].bound, ["model"]);
        assert_eq!(registry.unbind("model").unwrap().as_deref(), Some("acme"));
        registry.delete("acme").unwrap();
        assert_eq!(registry.list(), []);
        assert!(registry.bind("model", "acme").is_err());
    });
}

#[test]
fn what_is_unknown_is_named_with_what_there_is() {
    on_both(|registry| {
        registry.put("hermes", b"one").unwrap();
        let error = registry.get("hermez").unwrap_err().to_string();
        assert_eq!(error, "unknown extension `hermez` (installed: hermes)");
        let error = registry.rollback("hermes").unwrap_err().to_string();
        assert!(error.contains("no previous version"), "{error}");
        let error = registry.activate("hermes", "sha256:00").unwrap_err().to_string();
        assert!(error.contains("has no version `sha256:00`"), "{error}");
        for bad in ["", "../x", "a/b", "A", ".hidden", &"x".repeat(65)] {
            let error = registry.put(bad, b"x").unwrap_err();
            assert!(matches!(error, RegistryError::BadName { .. }), "{bad}");
        }
    });
}

#[test]
fn old_versions_are_forgotten_but_not_those_in_use() {
    on_both(|registry| {
        let first = registry.put("a", b"0").unwrap();
        for i in 1..20_u8 {
            registry.put("a", &[i]).unwrap();
            registry.activate("a", &first).unwrap();
        }
        let record = registry.describe("a").unwrap();
        assert_eq!(record.versions.len(), MAX_VERSIONS);
        assert_eq!(&*registry.get("a").unwrap().bytes, b"0");
        assert_eq!(&*registry.get(&record.previous.unwrap()).unwrap().bytes, [19]);
    });
}

#[test]
fn two_names_may_share_a_blob() {
    on_both(|registry| {
        registry.put("a", b"same").unwrap();
        registry.put("b", b"same").unwrap();
        registry.delete("a").unwrap();
        assert_eq!(&*registry.get("b").unwrap().bytes, b"same");
    });
}

fn filled(dir: &Path) -> String {
    let registry = Registry::open(dir).unwrap();
    registry.put("a", b"old").unwrap();
    let digest = registry.put("a", b"new").unwrap();
    registry.bind("m", "a").unwrap();
    digest
}

fn blob(dir: &Path, digest: &str) -> std::path::PathBuf {
    dir.join("blobs").join(digest.strip_prefix("sha256:").unwrap())
}

#[test]
fn it_is_there_again_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let registry = Registry::open(dir.path()).unwrap();
    assert_eq!(&*registry.get("a").unwrap().bytes, b"new");
    assert_eq!(registry.bound("m").as_deref(), Some("a"));
    registry.rollback("a").unwrap();
    assert_eq!(&*registry.get("a").unwrap().bytes, b"old");
}

#[test]
fn one_process_owns_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let first = Registry::open(dir.path()).unwrap();
    assert!(matches!(Registry::open(dir.path()), Err(RegistryError::InUse { .. })));
    drop(first);
    Registry::open(dir.path()).unwrap();
}

#[test]
fn deleted_blobs_leave_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let digest = filled(dir.path());
    let registry = Registry::open(dir.path()).unwrap();
    registry.unbind("m").unwrap();
    registry.delete("a").unwrap();
    assert!(!blob(dir.path(), &digest).exists());
    assert_eq!(fs::read_dir(dir.path().join("blobs")).unwrap().count(), 0);
}

#[test]
fn damage_is_named() {
    let broken = |damage: &dyn Fn(&Path, &str)| {
        let dir = tempfile::tempdir().unwrap();
        let digest = filled(dir.path());
        damage(dir.path(), &digest);
        Registry::open(dir.path()).unwrap_err().to_string()
    };
    let edit = |from: &'static str, to: &'static str| {
        move |dir: &Path, _: &str| {
            let path = dir.join("index.json");
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains(from), "{text}");
            fs::write(&path, text.replace(from, to)).unwrap();
        }
    };
    for (damage, words) in [
        (&edit("\"format\": 1", "\"format\": 9") as &dyn Fn(&Path, &str), "format `9`"),
        (&edit("\"a\": {", "\"../a\": {"), "no extension name"),
        (&edit("\"m\": \"a\"", "\"m\": \"b\""), "model `m` uses `b`"),
        (&edit("\"format\"", "\"fromat\""), "unknown field `fromat`"),
        (&edit("{", ""), "is damaged"),
        (&edit("sha256:", "sha256:../"), "is no digest"),
        (&|dir, digest| fs::remove_file(blob(dir, digest)).unwrap(), "whose file is missing"),
    ] {
        let error = broken(damage);
        assert!(error.contains(words), "{words}: {error}");
        assert!(error.contains("index.json"), "{error}");
    }
}

#[test]
fn changed_bytes_are_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let digest = filled(dir.path());
    fs::write(blob(dir.path(), &digest), b"evil").unwrap();
    let registry = Registry::open(dir.path()).unwrap();
    assert!(matches!(registry.get("a"), Err(RegistryError::Corrupt { .. })));
    registry.put("a", b"new").unwrap();
    assert_eq!(&*registry.get("a").unwrap().bytes, b"new");
}

#[test]
fn a_write_that_fails_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let registry = Registry::open(dir.path()).unwrap();
    // A directory where the index's partial file belongs: every save fails.
    fs::create_dir(dir.path().join("index.partial")).unwrap();
    assert!(matches!(registry.rollback("a"), Err(RegistryError::Io { .. })));
    assert_eq!(&*registry.get("a").unwrap().bytes, b"new");
    fs::remove_dir(dir.path().join("index.partial")).unwrap();
    registry.rollback("a").unwrap();
}
