//! Families whose calls are tagged parameters.

use crate::Entry;

pub(crate) const ENTRIES: &[Entry] = &[];
