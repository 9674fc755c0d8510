//! [`IoError`]: this machine, or this program, is at fault: what was written cannot be read, a disk is full.

use super::SyncError;
use apus_chain::{BlockHash, CoinError, Height, Txid};
use std::io;
use std::path::Path;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// A script could not be run.
    #[error("{what}")]
    Script {
        /// Which, and why.
        what: String,
    },
    /// A block was connected, and the most-work chain has another one there now.
    #[error(
        "block {height} ({hash}) was connected by an earlier start, the chain has another block \
         there now, and no sound copy of the old one can be had any more: remove the \
         work folder to start anew"
    )]
    StaleBlock {
        /// Its height.
        height: Height,
        /// Its hash.
        hash: BlockHash,
    },
    /// What no caller and no later start tells apart, in words.
    #[error("{0}")]
    Other(String),
    /// A run's bytes are not those that were written.
    #[error("{file} is damaged; its segment will be processed anew: start the same run again")]
    RunDamaged {
        /// Name in the storage.
        run: String,
        /// What to call it in front of people.
        file: String,
    },
    /// The coins of the store are not those that the blocks led to.
    #[error(
        "the coins in {store} are not those that the blocks led to: its disk or the memory lost, \
         brought back or changed some of them, or this is a mistake in the program; nothing was \
         written under the output's name. Check disk and memory; then remove {progress}, and start \
         the same run again"
    )]
    CoinsChanged {
        /// The store.
        store: String,
        /// What holds the run's progress, of which the store is a part.
        progress: String,
    },
    /// The system has no room for as many threads.
    #[error("cannot start {wanted} threads: {error}; ask for fewer with --par")]
    Threads {
        /// How many were asked for.
        wanted: usize,
        /// What the system says.
        error: io::Error,
    },
    /// A group of coins cannot be read back.
    #[error("the coins of transaction {txid} cannot be read back: {error}")]
    Group {
        /// The transaction.
        txid: Txid,
        /// What is wrong.
        error: CoinError,
    },
    /// A chainstate could not be written, or not read back.
    #[error(transparent)]
    CoreChainstate(#[from] apus_datadir::chainstate::ChainstateDbError),
    /// The index of blocks could not be written.
    #[error(transparent)]
    BlockIndex(#[from] apus_datadir::IndexWriteError),
    /// Blocks or undo data that were written are not what was to be written.
    #[error(
        "{error}: the disk or its memory changed what was written, or this is a mistake in the \
         program; no folder was completed. Check the disk; then remove {workdir}, which holds \
         the progress, and start the same run again: it writes all of them anew"
    )]
    BlocksReadBack {
        /// In what they differ.
        error: Box<apus_datadir::ReadBackError>,
        /// The work folder.
        workdir: String,
    },
    /// The same of blocks that were kept on their way from peers.
    #[error(
        "{error}: the disk or its memory changed what was written, or this is a mistake in the \
         program; the blocks got no index. Check the disk; then remove {folder} with the blocks and \
         {workdir}, which holds the progress, move away what else was written, and start the same \
         run again: it gets all of them anew"
    )]
    KeptReadBack {
        /// In what they differ.
        error: Box<apus_datadir::ReadBackError>,
        /// The folder of the blocks.
        folder: String,
        /// The work folder.
        workdir: String,
    },
    /// A disk is too small.
    #[error(
        "{folder} is on a disk with {free} bytes free, and up to {needed} are needed: free some \
         space and start the same run again"
    )]
    NoRoom {
        /// The folder.
        folder: String,
        /// Bytes needed at most.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// A work folder in which something is not as it was written.
    #[error(
        "{file} is damaged, or of another version of Apus: if its folder holds nothing but a \
         run's progress, remove the folder to start anew; otherwise name another --workdir"
    )]
    WorkdirDamaged {
        /// The file.
        file: String,
    },
    /// Files of ours could not be read or written.
    #[error("{file}: {error}{}", remedy(.error))]
    Storage {
        /// The file.
        file: String,
        /// What the system says.
        error: io::Error,
    },
}

/// What a person can do about an error of the system.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => "; free some space and start the same run again",
        io::ErrorKind::PermissionDenied => "; allow access, or name another place",
        io::ErrorKind::ReadOnlyFilesystem => "; name a place that can be written to",
        _ => "",
    }
}

impl SyncError {
    /// This machine or this program is at fault, in words.
    pub(crate) fn io(what: impl Into<String>) -> Self {
        Self::Io(IoError::Other(what.into()))
    }

    /// A folder that was written has not what was to be written.
    pub(crate) fn read_back(folder: &Path, what: &str) -> Self {
        Self::io(format!(
            "{} was read back, and {what}: the disk or its memory changed what was written, or this is a \
             mistake in the program; the folder did not get its name",
            folder.display()
        ))
    }
}
