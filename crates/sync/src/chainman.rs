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

mod accept;
mod log;
mod orphans;
mod replay;
mod tree;

pub use orphans::{ORPHANS_BYTES_MAX, ORPHANS_MAX};
pub use replay::{LogSync, Resumed};

use crate::engines::in_order::{Chainstate, ChainstateError};
use crate::error::ErrorKind;
use apus_chain::{
    Ancestry, BlockChecker, BlockHash, CheckedBlock, HeaderId, Height, KnownBlock, OutPoint,
    Params, ScriptVerifier,
};
use apus_engine::utxo::store::{CoinsStore, EachCoin, Flush, StoreError};
use apus_engine::utxo::{CoinBytes, ConnectContext};
use log::BlockFolder;
use orphans::Orphans;
use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tree::BlockTree;

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

// Why a chain manager cannot go on; an invalid block is no reason.

/// Why a [`ChainManager`] cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ChainManagerError {
    /// The log could not be read or written.
    #[error("{file}: {error}")]
    Storage {
        /// The file.
        file: String,
        /// What the system says.
        error: io::Error,
    },
    /// The log is not as it was written.
    #[error("{file} is damaged ({what}): remove the folder to start anew")]
    Damaged {
        /// The file.
        file: String,
        /// What was found.
        what: String,
    },
    /// The log was written by a later version of this program.
    #[error(
        "{file} has format {found}, and this program knows up to {known}: use the version that \
         wrote it, or remove the folder to start anew"
    )]
    Newer {
        /// The file.
        file: String,
        /// Its format.
        found: u32,
        /// The latest format known here.
        known: u32,
    },
    /// The log is of another chain, or of other activation heights.
    #[error(
        "{file} holds blocks of another chain, or under other activation heights: give the \
         options that it was begun with, or name another folder"
    )]
    OtherChain {
        /// The file.
        file: String,
    },
    /// The coins are at a block that the log does not hold.
    #[error(
        "the coins are at block {hash} (height {height}), which is not among the blocks: the \
         folder is damaged; remove it to start anew"
    )]
    UnknownTip {
        /// The block's hash.
        hash: BlockHash,
        /// Its height.
        height: Height,
    },
    /// A block of ours no longer is what was checked.
    #[error(
        "block {hash} cannot be read back ({what}): the folder is damaged; remove it to start anew"
    )]
    BlockDamaged {
        /// The block.
        hash: BlockHash,
        /// What was found.
        what: String,
    },
    /// The coins could not be moved.
    #[error("block {hash}: {error}")]
    Coins {
        /// The block that was to be connected or disconnected.
        hash: BlockHash,
        /// What went wrong.
        error: TipCoinsError,
    },
}

impl ChainManagerError {
    /// What it means.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Newer { .. } | Self::OtherChain { .. } => ErrorKind::Usage,
            Self::Storage { .. }
            | Self::Damaged { .. }
            | Self::UnknownTip { .. }
            | Self::BlockDamaged { .. }
            | Self::Coins { .. } => ErrorKind::Io,
        }
    }
}

/// Coins under every rule.
pub struct ValidatedCoins {
    state: Chainstate,
    check_scripts: bool,
}

impl ValidatedCoins {
    /// Takes a chain state. Without scripts what is left says nothing about who may spend what:
    /// that is for tests alone.
    pub fn new(state: Chainstate, check_scripts: bool) -> Self {
        Self { state, check_scripts }
    }

    /// Begins to make coins durable when memory asks for it.
    fn make_room(&mut self) -> Result<(), TipCoinsError> {
        if self.state.flush_due() {
            self.state.begin_flush().map_err(failed)?;
        }
        Ok(())
    }
}

fn failed(error: ChainstateError) -> TipCoinsError {
    TipCoinsError::Failed(error.to_string())
}

impl TipCoins for ValidatedCoins {
    fn tip(&self) -> KnownBlock {
        *self.state.tip()
    }

    fn connect(&mut self, block: CheckedBlock, below: &dyn Ancestry) -> Result<(), TipCoinsError> {
        let context = ConnectContext { ancestry: below, check_scripts: self.check_scripts };
        match self.state.connect(block, &context) {
            Ok(()) => self.make_room(),
            Err(ChainstateError::Invalid { error, .. }) => {
                Err(TipCoinsError::Invalid { reason: error.reject_reason() })
            }
            Err(error) => Err(failed(error)),
        }
    }

    fn disconnect(&mut self, block: &CheckedBlock) -> Result<(), TipCoinsError> {
        self.state.disconnect(block).map_err(failed)?;
        self.make_room()
    }

    fn flush(&mut self) -> Result<(), TipCoinsError> {
        self.state.flush().map_err(failed)
    }
}

impl LogSync {
    /// A store that writes nothing before the log is durable.
    pub fn before(self, store: Arc<dyn CoinsStore>) -> Arc<dyn CoinsStore> {
        Arc::new(AfterLog { log: self, store })
    }
}

struct AfterLog {
    log: LogSync,
    store: Arc<dyn CoinsStore>,
}

impl CoinsStore for AfterLog {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        self.store.tip()
    }

    fn get(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        self.store.get(outpoint)
    }

    fn write(&self, flush: &Flush<'_>) -> Result<(), StoreError> {
        self.log.sync().map_err(|error| StoreError::Io {
            place: "the log of blocks".to_owned(),
            error: error.to_string(),
        })?;
        self.store.write(flush)
    }

    fn undo(&self, block: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.undo(block)
    }

    fn for_each(&self, each: &mut EachCoin<'_>) -> Result<(), StoreError> {
        self.store.for_each(each)
    }
}

#[cfg(test)]
mod tests;
