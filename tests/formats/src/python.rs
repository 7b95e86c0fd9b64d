//! Families whose calls are Python, or have bare keys.

use crate::Entry;

pub(crate) const ENTRIES: &[Entry] = &[];
