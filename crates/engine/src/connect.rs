//! Connecting a block, as functions of the block and the coins that it spends.
//!
//! The modules cover what is known about a block before its coins ([`PreparedBlock`]), the rules
//! once the coins are known, the block's effect on a set of coins ([`CoinsDelta`]) and on its sum,
//! and how to undo it. Engines decide where the coins come from and whether blocks come in order.

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

/// The chain around a block, supplied by the caller.
#[derive(Clone, Copy)]
pub struct ConnectContext<'a> {
    /// The blocks below it.
    pub ancestry: &'a dyn Ancestry,
    /// Whether its scripts must be run.
    pub check_scripts: bool,
}

/// A block that was connected, with the coins that it spent.
#[derive(Debug, Clone)]
pub struct ConnectedBlock {
    /// The block.
    pub block: Arc<PreparedBlock>,
    /// Its undo data (Core `undo.h`, `CBlockUndo`).
    pub undo: UndoBytes,
    /// The sum of all coins that it spent, including its own, if the caller wants sums.
    pub spent: CoinSum,
}
