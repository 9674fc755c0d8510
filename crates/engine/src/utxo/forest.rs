//! [`ForestStore`]: the Utreexo forest on a disk, for a bridge that makes proofs block by block.
//!
//! Like a store of coins it is always *at a block*: it has the pages of the forest after it, its roots, and how many
//! leaves there are before each block up to it. A write moves it to another block as a whole.

mod memory;
mod places;

pub use crate::utxo::store::DiskForest;
pub use memory::MemoryForest;
pub use places::Places;

use crate::utxo::StoreError;
use apus_chain::KnownBlock;
use apus_utreexo::{PageId, Pages, Roots};

/// Where a store is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForestState {
    /// The last block that is in the forest.
    pub block: KnownBlock,
    /// The roots after it.
    pub roots: Roots,
    /// Where leaves of its blocks are.
    pub places: Places,
}

/// Takes changed pages one by one, by ascending key: the bytes of one, or none where there is to be none.
pub type EachPage<'a> = dyn FnMut(PageId, Option<&[u8]>) + 'a;

/// One step of a store to another block.
pub struct ForestWrite<'a> {
    /// The block.
    pub block: KnownBlock,
    /// The roots after it.
    pub roots: &'a Roots,
    /// How many leaves there are before each of the blocks that came, the last one `block`.
    pub leaves: &'a [u64],
    /// Gives all pages that changed.
    pub changes: &'a dyn Fn(&mut EachPage<'_>),
}

/// See the module.
pub trait ForestStore: Pages<Error = StoreError> + Send + Sync {
    /// Where it is; none where it is new.
    fn state(&self) -> Result<Option<ForestState>, StoreError>;

    /// What to call it in a message to people.
    fn describe(&self) -> String;

    /// Moves the store to another block, durably and as a whole.
    fn write(&self, write: &ForestWrite<'_>) -> Result<(), StoreError>;
}
