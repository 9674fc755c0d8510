//! [`IoError`]: this machine or this program failed: written data cannot be read back, or a disk is full.

use super::SyncError;
use crate::numbers::bytes;
use apus_chain::{BlockHash, CoinError, Height, Txid};
use std::io;
use std::path::Path;

/// Why this machine or this program failed.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// A script could not be run.
    #[error("{what}")]
    Script {
        /// The script, and the reason.
        what: String,
    },
    /// An earlier start connected a block that the most-work chain no longer contains.
    #[error(
        "block {height} ({hash}), which an earlier start connected, is no longer on the best chain, and no intact \
         copy of the block is left, so Apus cannot disconnect it. Remove the work folder to start over"
    )]
    StaleBlock {
        /// Its height.
        height: Height,
        /// Its hash.
        hash: BlockHash,
    },
    /// Any other error, as a text: no caller handles it separately.
    #[error("{0}")]
    Other(String),
    /// The bytes of a run differ from what was written.
    #[error("{file} is damaged: rerun the same command to process its segment again")]
    RunDamaged {
        /// The run's name in the storage.
        run: String,
        /// The name shown to users.
        file: String,
    },
    /// The coins in the store differ from the result of the blocks.
    #[error(
        "the coins in {store} differ from the result of the blocks: the disk or memory lost, restored or changed \
         some of them, or this is a bug in Apus. The output was not written. Check disk and memory, then remove \
         {progress} and rerun the same command"
    )]
    CoinsChanged {
        /// The store.
        store: String,
        /// The place of the sync's progress, which includes the store.
        progress: String,
    },
    /// The system cannot start this many threads.
    #[error("cannot start {wanted} threads: {error}. Use fewer with --par")]
    Threads {
        /// Number of threads requested.
        wanted: usize,
        /// The system's error.
        error: io::Error,
    },
    /// A group of coins cannot be read back.
    #[error("the coins of transaction {txid} cannot be read back: {error}")]
    Group {
        /// The transaction.
        txid: Txid,
        /// What is invalid.
        error: CoinError,
    },
    /// A chainstate could not be written or read back.
    #[error(transparent)]
    CoreChainstate(#[from] apus_datadir::chainstate::ChainstateDbError),
    /// The block index could not be written.
    #[error(transparent)]
    BlockIndex(#[from] apus_datadir::IndexWriteError),
    /// Blocks or undo data differ from what was written.
    #[error(
        "{error}: the disk or memory changed written data, or this is a bug in Apus. No folder was completed. \
         Check the disk, then remove {workdir}, which holds the progress, and rerun the same command to write all \
         folders again"
    )]
    BlocksReadBack {
        /// The difference.
        error: Box<apus_datadir::ReadBackError>,
        /// The work folder.
        workdir: String,
    },
    /// Blocks that were kept as peers sent them differ from what was written.
    #[error(
        "{error}: the disk or memory changed written data, or this is a bug in Apus. No index was written for the \
         blocks. Check the disk. Then remove {folder} with the blocks and {workdir} with the progress, move any \
         other outputs away, and rerun the same command to download all blocks again"
    )]
    KeptReadBack {
        /// The difference.
        error: Box<apus_datadir::ReadBackError>,
        /// The folder of the blocks.
        folder: String,
        /// The work folder.
        workdir: String,
    },
    /// A disk is too small.
    #[error(
        "not enough disk: {folder} needs up to {} and has {}. Free some space, then rerun the same command",
        bytes(*.needed), bytes(*.free)
    )]
    NoRoom {
        /// The folder.
        folder: String,
        /// Bytes needed, at most.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// The temporary files may not take as much space as the next blocks need.
    #[error(
        "the temporary files need {} to process the next blocks, and may take {}: rerun the command with --scratch \
         {} or more to continue",
        bytes(*.needed), bytes(*.limit), scratch_for(*.needed)
    )]
    LittleScratch {
        /// Bytes needed.
        needed: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A file of the work folder differs from what was written.
    #[error(
        "{file} is damaged or from another version of Apus. If its folder holds only a sync's progress, remove the \
         folder to start over. Otherwise use another --workdir"
    )]
    WorkdirDamaged {
        /// The file.
        file: String,
    },
    /// A file of this program could not be read or written.
    #[error("{file}: {error}{}", remedy(.error))]
    Storage {
        /// The file.
        file: String,
        /// The system's error.
        error: io::Error,
    },
}

/// A size of at least this many bytes, as an option takes it.
fn scratch_for(needed: u64) -> String {
    format!("{}M", needed.div_ceil(1_000_000))
}

/// What a user can do about an I/O error.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => ". Free some space, then rerun the same command",
        io::ErrorKind::PermissionDenied => ". Allow access, or use another place",
        io::ErrorKind::ReadOnlyFilesystem => ". Use a writable folder",
        _ => "",
    }
}

impl SyncError {
    /// Makes an error of this machine or this program from a text.
    pub(crate) fn io(what: impl Into<String>) -> Self {
        Self::Io(IoError::Other(what.into()))
    }

    /// Makes the error for a folder whose content differs from what was written.
    pub(crate) fn read_back(folder: &Path, what: &str) -> Self {
        Self::io(format!(
            "{}: reading it back failed: {what}: the disk or memory changed written data, or this is a bug in \
             Apus. The folder was not completed. Check the disk, then rerun the same command",
            folder.display()
        ))
    }
}
