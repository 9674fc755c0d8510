//! [`KeptBlocksError`]: why blocks could not be kept, read or indexed.

use crate::error::ErrorKind;
use crate::index::IndexWriteError;
use crate::store::BlockStoreError;
use apus_chain::BlockHash;
use std::path::PathBuf;

/// Why [`KeptBlocks`](crate::KeptBlocks) failed.
#[derive(Debug, thiserror::Error)]
pub enum KeptBlocksError {
    /// A file could not be written or read, or does not hold what an earlier start put there.
    #[error(transparent)]
    Files(#[from] BlockStoreError),
    /// The block index could not be written.
    #[error(transparent)]
    Index(#[from] IndexWriteError),
    /// The folder has files that this run did not make. They were left alone.
    #[error(
        "{path} has {what}, which this run did not put there; name a folder that is empty or not \
         there yet, or move those files away"
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// What was found in it.
        what: String,
    },
    /// The bytes are not those of the block.
    #[error("block {hash} cannot be kept: {what}; get it again, from another source")]
    Block {
        /// The block.
        hash: BlockHash,
        /// What is wrong.
        what: String,
    },
    /// The undo data cannot be those of the block.
    #[error("the undo data of block {hash} cannot be kept: {what}")]
    Undo {
        /// The block.
        hash: BlockHash,
        /// What is wrong.
        what: String,
    },
    /// A block of the chain is not there.
    #[error(
        "the block index was not written: block {hash} at height {height} is not there; get it \
         first"
    )]
    Missing {
        /// Its height.
        height: u32,
        /// The block.
        hash: BlockHash,
    },
    /// Something failed before, and what is durable is not known any more.
    #[error(
        "nothing more is kept in {path} since a write to it failed; see that the disk has space \
         and is sound, and start again"
    )]
    Failed {
        /// The folder.
        path: PathBuf,
    },
}

impl KeptBlocksError {
    /// What the error means for the run.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Files(error) => error.kind(),
            Self::Index(error) => error.kind(),
            Self::Foreign { .. } => ErrorKind::Recoverable,
            Self::Block { .. } | Self::Undo { .. } | Self::Missing { .. } => ErrorKind::Invalid,
            Self::Failed { .. } => ErrorKind::Fatal,
        }
    }
}
