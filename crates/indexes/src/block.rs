//! [`IndexBlock`]: what an index is made from.

use apus_chain::{BlockHash, BlockUndo, BlockView, Height};

/// Where a block is in a node's block files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockPlace {
    /// Number of the file.
    pub(crate) file: u32,
    /// Offset of the block's header in the file, in bytes.
    pub(crate) offset: u32,
}

/// A block of the chain with the coins that it spends. Neither is checked beyond its form: the caller proves
/// them right, or the index's own sums do.
#[derive(Clone, Copy)]
pub struct IndexBlock<'b> {
    /// Its height; 0 is genesis.
    pub height: Height,
    /// Its hash.
    pub hash: BlockHash,
    /// Its bytes.
    pub view: BlockView<'b>,
    /// The coins that each transaction but the coinbase spends, one for each input. `None` if the index needs
    /// none, and for genesis.
    pub undo: Option<&'b BlockUndo<'b>>,
}
