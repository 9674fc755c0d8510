//! What connecting a block is, as functions of the block and the coins that it spends.
//!
//! What can be known of a block before its coins are ([`PreparedBlock`]), the rules once they are there,
//! what the block does to a set of coins ([`CoinsDelta`]), to its sum, and how it is undone. Where the
//! coins come from, and whether blocks come in order, is the business of engines.

mod delta;
mod prepared;
pub mod rules;
pub mod undo;

pub use delta::{CoinChange, CoinsDelta};
pub use prepared::{
    BlockChange, BlockCounts, Place, PreparedBlock, RunningSum, coins_of, created, wanted_of,
};
pub use rules::ConnectError;
pub use undo::UndoBytes;

use apus_chain::{Ancestry, CoinSum};
use std::sync::Arc;

/// What the caller knows of a block's surroundings.
#[derive(Clone, Copy)]
pub struct ConnectContext<'a> {
    /// The blocks below it.
    pub ancestry: &'a dyn Ancestry,
    /// Whether its scripts are to be run.
    pub check_scripts: bool,
}

/// A block that was connected, with the coins that it spent.
#[derive(Debug, Clone)]
pub struct Connected {
    /// The block.
    pub block: Arc<PreparedBlock>,
    /// Its undo data (Core `undo.h`, `CBlockUndo`).
    pub undo: UndoBytes,
    /// The sum of all coins that it spent, those that it created itself among them, where the caller
    /// wants sums.
    pub spent: CoinSum,
}
