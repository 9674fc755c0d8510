//! [`TipCoins`]: the coins at the tip, which the chain manager moves from block to block.
//!
//! The seam to the engine that knows every rule about coins. The manager decides which block comes
//! next, and this says whether it is valid there.

use apus_chain::{Ancestry, CheckedBlock, KnownBlock};

/// Why coins did not move.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TipCoinsError {
    /// The block breaks a rule. The coins are as before.
    #[error("invalid: {reason}")]
    Invalid {
        /// Core's reject reason.
        reason: String,
    },
    /// Nothing is known about the block: the coins cannot be read, say. The work cannot go on.
    #[error("{0}")]
    Failed(String),
}

/// The set of coins at one block.
pub trait TipCoins: Send {
    /// The block that the coins are at, at first the genesis block.
    fn tip(&self) -> KnownBlock;

    /// Judges a block that follows the tip, and makes it the tip if it is valid. `below` is the
    /// chain up to the tip.
    fn connect(&mut self, block: CheckedBlock, below: &dyn Ancestry) -> Result<(), TipCoinsError>;

    /// Goes back to the block before the tip, which is `block`.
    fn disconnect(&mut self, block: &CheckedBlock) -> Result<(), TipCoinsError>;

    /// Makes the coins as durable as they can be.
    fn flush(&mut self) -> Result<(), TipCoinsError>;
}
