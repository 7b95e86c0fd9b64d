//! One fuzz target per part of the parser engine. Bytes become a family, a request, a text out of
//! the family's own markers and pieces, and cuts of it; what must hold is what the tests of all
//! families check: the same answer for every cut, no byte lost, no promise broken.

mod schema;
mod streams;

use std::path::Path;
use std::sync::OnceLock;

/// Environment variable that names the target.
pub const TARGET: &str = "TENON_FUZZ_TARGET";

/// Environment variable that names a folder for the seeds.
pub const SEEDS: &str = "TENON_FUZZ_SEEDS";

/// A target: checks what some bytes stand for, and panics if it does not hold.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// One run.
    pub check: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target {
        name: "families",
        check: |data| streams::check(streams::ALL, data),
        seeds: || streams::seeds(streams::ALL),
    },
    Target {
        name: "envelope",
        check: |data| streams::check(streams::ENVELOPE, data),
        seeds: || streams::seeds(streams::ENVELOPE),
    },
    Target {
        name: "headed",
        check: |data| streams::check(streams::HEADED, data),
        seeds: || streams::seeds(streams::HEADED),
    },
    Target {
        name: "tagged",
        check: |data| streams::check(streams::TAGGED, data),
        seeds: || streams::seeds(streams::TAGGED),
    },
    Target {
        name: "python",
        check: |data| streams::check(streams::PYTHON, data),
        seeds: || streams::seeds(streams::PYTHON),
    },
    Target {
        name: "bare-keys",
        check: |data| streams::check(streams::BARE_KEYS, data),
        seeds: || streams::seeds(streams::BARE_KEYS),
    },
    Target {
        name: "framed",
        check: |data| streams::check(streams::FRAMED, data),
        seeds: || streams::seeds(streams::FRAMED),
    },
    Target { name: "schema", check: schema::check, seeds: schema::seeds },
];

/// Runs the target that the environment names.
///
/// # Panics
/// If something does not hold, or the environment names no target.
pub fn check(data: &[u8]) {
    (target().check)(data);
}

/// Writes the target's seeds into the folder that the environment names, if it does.
///
/// # Panics
/// If that folder cannot be written.
pub fn write_seeds() {
    let Some(folder) = std::env::var_os(SEEDS) else { return };
    for (number, seed) in (target().seeds)().iter().enumerate() {
        let path = Path::new(&folder).join(number.to_string());
        std::fs::write(path, seed).expect("the folder of seeds can be written");
    }
}

fn target() -> &'static Target {
    static FOUND: OnceLock<&Target> = OnceLock::new();
    FOUND.get_or_init(|| {
        let wanted = std::env::var(TARGET).unwrap_or_default();
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        let found = TARGETS.iter().find(|target| target.name == wanted);
        found.unwrap_or_else(|| panic!("{TARGET} is `{wanted}`; name one of {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::TARGETS;

    #[test]
    fn every_target_has_seeds_that_hold() {
        for target in TARGETS {
            let seeds = (target.seeds)();
            assert!(!seeds.is_empty(), "{}", target.name);
            for seed in seeds {
                (target.check)(&seed);
            }
        }
    }
}
