//! A sequence's blocks in one KV group.

use crate::pool::BlockId;

/// Shared prefix first; [`BlockId::NONE`] where the group's window has passed. Empty while the
/// sequence holds nothing.
#[derive(Debug, Default)]
pub(crate) struct BlockTable {
    pub blocks: Vec<BlockId>,
    /// Entries at the start that the window has passed; all of them are `NONE`.
    pub num_passed: usize,
    /// Entries at the start that the runner's row has.
    pub num_told: usize,
}

impl BlockTable {
    /// The blocks that are held.
    pub fn held(&self) -> impl DoubleEndedIterator<Item = BlockId> {
        self.blocks[self.num_passed.min(self.blocks.len())..].iter().copied()
    }
}
