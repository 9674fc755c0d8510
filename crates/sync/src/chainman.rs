//! [`ChainManager`]: takes raw blocks in any order, and maintains the valid chain with the most work.
//!
//! It does the work of Core's `ChainstateManager` (`validation.cpp`): it keeps the tree of headers and blocks,
//! picks the complete, valid chain with the most work (on a tie, the chain that was complete first), and
//! connects and disconnects blocks until that chain is active. Between two calls the active chain is always the
//! best one. It knows no rules about coins: [`TipCoins`] validates them.
//!
//! Differences from Core: a block that arrives before its parent waits for it ([`ORPHANS_MAX`]), and waits only
//! once; and if a block completes a chain, the verdict on that chain counts as the block's own, unless another
//! block caused it ([`SubmitOutcome::Rejected`]).

mod accept;
mod log;
mod orphans;
mod replay;
mod tree;

pub use orphans::{ORPHANS_BYTES_MAX, ORPHANS_MAX};
pub use replay::{LogState, LogSync};

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

/// How a submitted block was classified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubmitOutcome {
    /// The block is valid and part of the active chain.
    Accepted,
    /// The block, or the chain that it would have completed, is invalid; or these bytes are a damaged copy, and
    /// another copy may still be valid.
    Rejected {
        /// Core's reject reason.
        reason: String,
    },
    /// The block was submitted before, and is not known to be invalid.
    Duplicate,
    /// The block is kept, but whether it is valid is unknown: its chain has no more work than the active one,
    /// or an ancestor is missing.
    Inconclusive,
    /// The block's parent is unknown. The manager keeps the block until the parent arrives.
    Orphan,
}

/// The answer to a submitted block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// Its hash; `None` if the bytes are too short for a header.
    pub hash: Option<BlockHash>,
    /// The result.
    pub outcome: SubmitOutcome,
}

/// A block that proved invalid while the manager tried to activate a chain.
#[derive(Debug, Clone)]
struct ActivationFailure {
    id: HeaderId,
    reason: String,
}

/// Keeps all known blocks, and connects the best chain of them.
pub struct ChainManager {
    tree: BlockTree,
    blocks: BlockFolder,
    orphans: Orphans,
    coins: Box<dyn TipCoins>,
    checker: BlockChecker,
    verifier: Option<Box<dyn ScriptVerifier>>,
    mock_time: Option<i64>,
    /// Blocks that proved invalid during the current call, in the order found.
    failures: Vec<ActivationFailure>,
}

impl ChainManager {
    /// Makes a manager that keeps everything in memory. `coins` must be at the genesis block.
    ///
    /// `verifier` runs the scripts of signet's block solutions; only signet needs it.
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

    /// Returns the tip of the active chain.
    pub fn tip(&self) -> KnownBlock {
        self.tree.tip_block()
    }

    /// Returns the number of blocks that wait for their parents.
    pub fn orphans_count(&self) -> usize {
        self.orphans.len()
    }

    /// Sets the time against which headers may be too new, in seconds since 1970; zero restores the machine's
    /// clock (Core's `setmocktime`).
    pub fn set_mock_time(&mut self, seconds: i64) {
        self.mock_time = (seconds != 0).then_some(seconds);
    }

    fn now(&self) -> i64 {
        self.mock_time.unwrap_or_else(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
        })
    }

    /// Makes all blocks, verdicts and coins durable. After an error, the manager must not be used.
    pub fn close(mut self) -> Result<(), ChainManagerError> {
        self.blocks.close()?;
        let hash = self.tip().hash;
        self.coins.flush().map_err(|error| ChainManagerError::Coins { hash, error })
    }
}

// [`TipCoins`]: the coins at the tip, which the chain manager moves from block to block.
//
// This is the interface to the engine, which knows every rule about coins. The manager decides which block comes
// next, and the engine says whether it is valid there.

/// Why the coins could not move to another block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TipCoinsError {
    /// The block breaks a rule. The coins are unchanged.
    #[error("invalid: {reason}")]
    Invalid {
        /// Core's reject reason.
        reason: String,
    },
    /// The block could not be validated, for example because coins cannot be read. The manager cannot continue.
    #[error("{0}")]
    Failed(String),
}

/// The UTXO set at one block.
pub trait TipCoins: Send {
    /// Returns the block that the coins are at; initially the genesis block.
    fn tip(&self) -> KnownBlock;

    /// Validates a block that follows the tip, and makes it the tip if it is valid. `below` is the chain up to
    /// the tip.
    fn connect(&mut self, block: CheckedBlock, below: &dyn Ancestry) -> Result<(), TipCoinsError>;

    /// Disconnects `block`, which must be the tip.
    fn disconnect(&mut self, block: &CheckedBlock) -> Result<(), TipCoinsError>;

    /// Writes the coins to their store, if it is a durable one.
    fn flush(&mut self) -> Result<(), TipCoinsError>;
}

// Errors that stop a chain manager. An invalid block is not such an error.

/// Why a [`ChainManager`] cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ChainManagerError {
    /// Reading or writing the log failed.
    #[error("{file}: {error}")]
    Storage {
        /// The file.
        file: String,
        /// The system's error.
        error: io::Error,
    },
    /// The log differs from what was written.
    #[error("{file} is damaged ({what}): remove the folder to start over")]
    Damaged {
        /// The file.
        file: String,
        /// The fault.
        what: String,
    },
    /// A later version of this program wrote the log.
    #[error(
        "{file} has format {found}, but this version of Apus knows only formats up to {known}. Use the version \
         that wrote the file, or remove the folder to start over"
    )]
    Newer {
        /// The file.
        file: String,
        /// Its format.
        found: u32,
        /// The latest format that this version knows.
        known: u32,
    },
    /// The log belongs to another chain, or to other activation heights.
    #[error(
        "{file} holds blocks of another chain, or of other activation heights: use the options of the first start, \
         or another folder"
    )]
    OtherChain {
        /// The file.
        file: String,
    },
    /// The coins are at a block that is not in the log.
    #[error(
        "the coins are at block {hash} (height {height}), which is not in the log. The folder is damaged: remove \
         it to start over"
    )]
    UnknownTip {
        /// The block's hash.
        hash: BlockHash,
        /// Its height.
        height: Height,
    },
    /// A stored block differs from what was checked.
    #[error(
        "block {hash} cannot be read back ({what}). The folder is damaged: remove it to start over"
    )]
    BlockDamaged {
        /// The block.
        hash: BlockHash,
        /// The fault.
        what: String,
    },
    /// The coins could not be moved.
    #[error("block {hash}: {error}")]
    Coins {
        /// The block to connect or disconnect.
        hash: BlockHash,
        /// The error.
        error: TipCoinsError,
    },
}

impl ChainManagerError {
    /// Returns what it means for the user.
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

/// Coins that check each block against every rule.
pub struct ValidatedCoins {
    state: Chainstate,
    check_scripts: bool,
}

impl ValidatedCoins {
    /// Wraps a chainstate. Without scripts, anyone can spend any coin: skip them only in tests.
    pub fn new(state: Chainstate, check_scripts: bool) -> Self {
        Self { state, check_scripts }
    }

    /// Starts a flush if the coins cache is too large.
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
    /// Wraps a store so that it writes nothing before the log is durable.
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
