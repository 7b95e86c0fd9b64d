//! Where evicted KV blocks are kept on: host memory or a directory.
//!
//! The engine says which blocks go and come; the engine thread only copies bytes from and to the
//! backend (`thread`). A second thread decides what is done next and gives up what hangs
//! (`keeper`, `queue`); a third one does it and may block (`disk`, `memory`). Keys are the engine's
//! keyed block hashes, a secret of this process, so what a directory held before is useless and is
//! removed at start.

mod disk;
mod keeper;
mod memory;
mod queue;
mod thread;

pub use disk::DiskTier;
pub use memory::MemoryTier;
pub(crate) use thread::TierThread;

use std::io;

/// A place for blocks. It is asked from one thread, which may be left behind in a call that does
/// not return.
pub trait KvTier: Send {
    /// Keeps `bytes` under `key`, replacing what was there.
    fn store(&mut self, key: u128, bytes: &[u8]) -> io::Result<()>;

    /// Fills `bytes`, which has the length that was stored. An error when nothing is there or it is
    /// not what was stored; what `bytes` holds then is not to be used.
    fn load(&mut self, key: u128, bytes: &mut [u8]) -> io::Result<()>;

    /// Forgets the key.
    fn remove(&mut self, key: u128);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[derive(Debug, Clone)]
    enum Action {
        Store(u8, Vec<u8>),
        Load(u8),
        Remove(u8),
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            (0u8..6, prop::collection::vec(any::<u8>(), 32)).prop_map(|(k, b)| Action::Store(k, b)),
            (0u8..6).prop_map(Action::Load),
            (0u8..6).prop_map(Action::Remove),
        ]
    }

    fn check(tier: &mut dyn KvTier, actions: &[Action]) {
        let mut model: HashMap<u8, Vec<u8>> = HashMap::new();
        for action in actions {
            match action {
                Action::Store(key, bytes) => {
                    tier.store(u128::from(*key), bytes).unwrap();
                    model.insert(*key, bytes.clone());
                }
                Action::Load(key) => {
                    let mut bytes = vec![0; 32];
                    let is_there = tier.load(u128::from(*key), &mut bytes).is_ok();
                    assert_eq!(is_there.then_some(&bytes), model.get(key));
                }
                Action::Remove(key) => {
                    tier.remove(u128::from(*key));
                    model.remove(key);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn both_kinds_give_back_what_was_stored(actions in prop::collection::vec(action(), 0..40)) {
            check(&mut MemoryTier::default(), &actions);
            let folder = tempfile::tempdir().unwrap();
            check(&mut DiskTier::open(folder.path()).unwrap(), &actions);
        }
    }
}
