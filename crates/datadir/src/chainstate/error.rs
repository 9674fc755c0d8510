//! [`ChainstateError`]: why a chainstate could not be written or read back.

use crate::error::ErrorKind;
use crate::foreign::ForeignError;
use crate::index_error::IndexError;
use crate::leveldb::DatabaseError;
use apus_chain::{CoinError, OutPoint, Txid};
use std::path::PathBuf;

/// Why a chainstate could not be written or read back.
#[derive(Debug, thiserror::Error)]
pub enum ChainstateError {
    /// The database could not be written.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// Transactions do not ascend, or one comes twice.
    #[error("the coins of transaction {txid} must not follow those of {previous}")]
    TxidOrder {
        /// The transaction.
        txid: Txid,
        /// The one before it.
        previous: Txid,
    },
    /// Outputs of a transaction do not ascend, or one comes twice.
    #[error("coin {outpoint} must not follow that of output {previous}")]
    VoutOrder {
        /// The coin's name.
        outpoint: OutPoint,
        /// Number of the output before it.
        previous: u32,
    },
    /// A transaction without coins.
    #[error("transaction {txid} comes without a coin")]
    EmptyGroup {
        /// The transaction.
        txid: Txid,
    },
    /// The coins of a transaction cannot be read.
    #[error("bad coins of transaction {txid}: {source} (counted from their count)")]
    Group {
        /// The transaction.
        txid: Txid,
        /// What is wrong.
        source: CoinError,
    },
    /// The database could not be read back.
    #[error("{0}; write the chainstate anew")]
    Foreign(#[from] ForeignError),
    /// The database of a node could not be read.
    #[error("{path} is damaged at byte {offset}: {what}")]
    Table {
        /// The file.
        path: PathBuf,
        /// Where, as precisely as is known.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A file of a node's database is gone: the node may have replaced it meanwhile.
    #[error("{path} belongs to the chainstate but is not there")]
    Vanished {
        /// The file.
        path: PathBuf,
    },
    /// There is no database.
    #[error("there is no chainstate in {path}")]
    Missing {
        /// The folder.
        path: PathBuf,
    },
    /// The system could not read.
    #[error(
        "cannot read {path} at byte {offset}: {source}; see that it may be read, and check the disk"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Where reading began.
        offset: u64,
        /// What the system said.
        source: std::io::Error,
    },
    /// An entry of no kind that a chainstate has.
    #[error(
        "the chainstate {path} has an entry {key:02x?}, which is none of Bitcoin Core's; a node \
         would refuse it or overlook it"
    )]
    Key {
        /// The folder.
        path: PathBuf,
        /// The first bytes of the key.
        key: Vec<u8>,
    },
    /// An entry about the whole set cannot be read.
    #[error("in the chainstate {path} the entry of {entry} is not what Bitcoin Core writes")]
    Entry {
        /// The folder.
        path: PathBuf,
        /// What the entry is about.
        entry: &'static str,
    },
    /// No block is stated, so a node would take the set for empty.
    #[error(
        "the chainstate {path} does not say at which block it is; a node would damage its index"
    )]
    NoBestBlock {
        /// The folder.
        path: PathBuf,
        /// Whether there are coins. Without any it is that of a node which has written none yet.
        coins: bool,
    },
    /// A node was stopped while it wrote.
    #[error(
        "the chainstate {path} is between two blocks: a node was stopped while it wrote; start and \
         stop that node once"
    )]
    Unfinished {
        /// The folder.
        path: PathBuf,
    },
    /// What is read in order is not what is found when a node asks for it.
    #[error(
        "the chainstate {path}, asked for {entry} as a node asks, {what}: a node would refuse valid \
         blocks, or worse; write the chainstate anew"
    )]
    LookUp {
        /// The folder.
        path: PathBuf,
        /// What was asked for.
        entry: String,
        /// What it answered.
        what: &'static str,
    },
    /// A coin that cannot be read.
    #[error("in the chainstate {path} coin {outpoint} cannot be read: {source}")]
    Coin {
        /// The folder.
        path: PathBuf,
        /// The coin's name.
        outpoint: OutPoint,
        /// What is wrong.
        source: CoinError,
    },
}

impl ChainstateError {
    /// What the error means for the run.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Database(error) => error.kind(),
            Self::Foreign(_) | Self::LookUp { .. } | Self::Read { .. } => ErrorKind::Fatal,
            Self::Vanished { .. } => ErrorKind::Recoverable,
            _ => ErrorKind::Invalid,
        }
    }
}

impl From<IndexError> for ChainstateError {
    fn from(error: IndexError) -> Self {
        match error {
            IndexError::Missing { path } => Self::Missing { path },
            IndexError::Vanished { path } => Self::Vanished { path },
            IndexError::Open { path, source } => Self::Read { path, offset: 0, source },
            IndexError::Read { path, offset, source } => Self::Read { path, offset, source },
            IndexError::Corrupt { path, offset, what } => Self::Table { path, offset, what },
            IndexError::Entry { path, .. } => {
                let what = "an entry of a block, which no chainstate has";
                Self::Table { path, offset: 0, what }
            }
        }
    }
}
