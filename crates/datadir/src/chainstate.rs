//! Core's chainstate, a database of all coins: [`ChainstateWriter`] makes one from coins in order,
//! [`read_back()`] reads one through another implementation, and a [`CoinSample`] asks that one for
//! single coins. [`read_node`] reads that of a node.
//!
//! `docs/formats/chainstate.md` has the format, and what Core makes of a wrong one. A chainstate
//! states the block that it is at and nothing else about itself: no network, no version, no count.
//! Whether its coins are the right ones only a hash over all of them tells.

mod read;
mod sample;
#[cfg(test)]
mod tests;
mod writer;

pub use read::{ChainstateSummary, check_files, node_best_block, read_back, read_node};
pub use sample::{CoinSample, LookedUp};
pub use writer::{ChainstateSize, ChainstateWriter, size_bound};

use crate::error::IndexError;
use crate::independent::IndependentReadError;
use crate::leveldb::DatabaseError;
use std::path::{Path, PathBuf};

/// The folder of a node's second set of coins, beside the first, while it goes on from a snapshot (Core
/// `node/utxo_snapshot.h`, `SNAPSHOT_CHAINSTATE_SUFFIX`).
pub const SNAPSHOT_CHAINSTATE: &str = "chainstate_snapshot";

/// The first byte of a coin's key (Core `txdb.cpp`, `DB_COIN`); then its txid, then VARINT(vout).
const KEY_COIN: u8 = b'C';

/// The key of the block that the coins are at (Core `txdb.cpp`, `DB_BEST_BLOCK`).
const KEY_BEST_BLOCK: &[u8] = b"B";

/// The key of the blocks between which a node was writing when it was stopped (Core `txdb.cpp`,
/// `DB_HEAD_BLOCKS`).
const KEY_HEAD_BLOCKS: &[u8] = b"H";

/// The key of the obfuscation key: a string with its length before it (Core `dbwrapper.cpp`,
/// `OBFUSCATION_KEY`). Its value, 8 and as many bytes, is the one that is not obfuscated.
const KEY_OBFUSCATION: &[u8] = b"\x0e\0obfuscate_key";

/// Why a chainstate could not be written or read back.
#[derive(Debug, thiserror::Error)]
pub enum ChainstateDbError {
    /// The database could not be written.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The database could not be read back.
    #[error("{0}; write the chainstate anew")]
    Independent(#[from] IndependentReadError),
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
    /// The coins are none that can be written, or what is stored is none of what a node writes.
    #[error("{0}")]
    Invalid(String),
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
}

impl ChainstateDbError {
    /// Whether what is stored, or was to be, is at fault, and not the disk or the program.
    pub fn is_invalid(&self) -> bool {
        !matches!(
            self,
            Self::Database(_)
                | Self::Independent(_)
                | Self::LookUp { .. }
                | Self::Read { .. }
                | Self::Vanished { .. }
        )
    }

    /// An entry about the whole set cannot be read.
    fn entry(dir: &Path, about: &str) -> Self {
        let dir = dir.display();
        Self::Invalid(format!(
            "in the chainstate {dir} the entry of {about} is not what Bitcoin Core writes"
        ))
    }
}

impl From<IndexError> for ChainstateDbError {
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
