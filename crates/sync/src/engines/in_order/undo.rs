//! Blocks that are kept for a node, and have no undo data.
//!
//! Undo data comes of connecting a block. Blocks that hints prove are not connected, and those that an
//! earlier start connected without keeping blocks are not connected again. That is said as soon as it
//! is known, before the rest of the work is done: a user who needs them starts anew. The
//! [last ones](crate::request::LAST_BLOCKS), which every node needs, have undo data in any case.

use super::keeper::KeptBlock;
use crate::error::SyncError;
use crate::progress::Event;
use crate::request::RunEnv;
use crate::source::ChainSource;
use crate::warning::Warning;
use apus_chain::{CoinSumKey, HeightRange};

/// Warns of blocks of `done` that will have no undo data in the folder of blocks that are kept.
pub(crate) fn warn_of_missing(env: &RunEnv<'_>, dir: &dyn ChainSource, done: HeightRange) {
    let ranges = dir.without_undo(done);
    if !ranges.is_empty() {
        env.observer.event(Event::Warning(Warning::NoUndo { ranges }));
    }
}

/// Gives the undo data of a block to the source, which keeps the block.
pub(crate) fn put_undo(
    dir: &dyn ChainSource,
    block: &KeptBlock,
    key: CoinSumKey,
) -> Result<(), SyncError> {
    dir.put_undo(&block.id.hash, &block.prev(), block.spends(key))
}
