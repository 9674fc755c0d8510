//! [`ChainManager`]: raw blocks in any order in, the most-work valid chain out.
//!
//! What Core's `ChainstateManager` does (`validation.cpp`): it keeps the tree of headers and
//! blocks, chooses among the chains that are whole and did not fail the one of most work (of equal
//! work the one that was whole first), and connects and disconnects blocks until that one is the
//! active chain. Between two calls the active chain always is the best one. Rules about coins are
//! not its own: [`TipCoins`] judges them.
//!
//! What differs from Core: a block that comes before its parent waits for it ([`ORPHANS_MAX`]), once,
//! and a block is told apart from the chain that it would have completed only where that chain's
//! verdict came from another block ([`SubmitOutcome::Rejected`]).

use apus_chain::{
    Ancestry, BlockChecker, BlockHash, CheckedBlock, HeaderId, KnownBlock, Params, ScriptVerifier,
};
use blocks::BlockFolder;
pub use error::ChainManagerError;
use orphans::Orphans;
pub use orphans::{ORPHANS_BYTES_MAX, ORPHANS_MAX};
pub use replay::{LogSync, Resumed};
use std::time::{SystemTime, UNIX_EPOCH};
use tree::BlockTree;
pub use validated::ValidatedCoins;

mod accept;
mod activate;
mod blocks;
mod error;
mod log;
mod orphans;
mod replay;
mod tree;
mod validated;

/// What became of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubmitOutcome {
    /// It is valid and part of the active chain.
    Accepted,
    /// It is invalid, or the chain is that it would have completed; or these bytes are a damaged
    /// copy, and another may still be good.
    Rejected {
        /// Core's reject reason.
        reason: String,
    },
    /// It was here before, and nothing is known against it.
    Duplicate,
    /// It is kept, but its chain has no more work than the active one, or a block before it is
    /// missing: whether it is valid is not known.
    Inconclusive,
    /// Its parent is not known. It is kept until the parent comes.
    Orphan,
}

/// The answer to a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// Its hash; none for bytes too short to have a header.
    pub hash: Option<BlockHash>,
    /// What became of it.
    pub outcome: SubmitOutcome,
}

/// A block that was found invalid while chains were tried.
#[derive(Debug, Clone)]
struct ActivationFailure {
    id: HeaderId,
    reason: String,
}

/// Keeps blocks and the active chain.
pub struct ChainManager {
    tree: BlockTree,
    blocks: BlockFolder,
    orphans: Orphans,
    coins: Box<dyn TipCoins>,
    checker: BlockChecker,
    verifier: Option<Box<dyn ScriptVerifier>>,
    mock_time: Option<i64>,
    /// What was found invalid during the present call, the first found first.
    failures: Vec<ActivationFailure>,
}

impl ChainManager {
    /// A manager that keeps everything in memory. `coins` must be at the genesis block.
    ///
    /// `verifier` runs the scripts of signet's block solutions, and is needed on signet alone.
    pub fn in_memory(
        params: &Params,
        coins: Box<dyn TipCoins>,
        verifier: Option<Box<dyn ScriptVerifier>>,
    ) -> Self {
        Self::with(BlockTree::new(params), BlockFolder::in_memory(), coins, verifier)
    }

    fn with(
        tree: BlockTree,
        blocks: BlockFolder,
        coins: Box<dyn TipCoins>,
        verifier: Option<Box<dyn ScriptVerifier>>,
    ) -> Self {
        Self {
            tree,
            blocks,
            orphans: Orphans::new(ORPHANS_MAX, ORPHANS_BYTES_MAX),
            coins,
            checker: BlockChecker::new(),
            verifier,
            mock_time: None,
            failures: Vec::new(),
        }
    }

    /// The tip of the active chain.
    pub fn tip(&self) -> KnownBlock {
        self.tree.tip_block()
    }

    /// How many blocks wait for their parents.
    pub fn orphans_count(&self) -> usize {
        self.orphans.len()
    }

    /// Sets the time against which headers may be too new, in seconds since 1970; zero is the
    /// machine's clock again (Core's `setmocktime`).
    pub fn set_mock_time(&mut self, seconds: i64) {
        self.mock_time = (seconds != 0).then_some(seconds);
    }

    fn now(&self) -> i64 {
        self.mock_time.unwrap_or_else(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
        })
    }

    /// Makes everything durable that can be. Nothing may be asked of a manager that failed.
    pub fn close(mut self) -> Result<(), ChainManagerError> {
        self.blocks.close()?;
        let hash = self.tip().hash;
        self.coins.flush().map_err(|error| ChainManagerError::Coins { hash, error })
    }
}

#[cfg(test)]
mod tests;

// [`TipCoins`]: the coins at the tip, which the chain manager moves from block to block.
//
// The seam to the engine that knows every rule about coins. The manager decides which block comes
// next, and this says whether it is valid there.

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
