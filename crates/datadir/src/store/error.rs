//! [`BlockStoreError`]: why blocks could not be stored or found again.

use crate::error::ErrorKind;
use apus_chain::BlockHash;
use std::io;
use std::path::{Path, PathBuf};

/// Why a [`BlockStore`](crate::BlockStore) failed.
#[derive(Debug, thiserror::Error)]
pub enum BlockStoreError {
    /// The system refused.
    #[error("cannot {doing} {path}: {source}; see that the disk has space and is sound")]
    Io {
        /// What was tried: "create", "write", "sync" ...
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What an earlier start made durable is not there.
    #[error(
        "{path} is damaged: {what}; the blocks stored so far cannot be relied on, remove them and \
         begin anew"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong, with height or offset.
        what: String,
    },
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
    #[error("block {hash} cannot be stored: {what}; get it again, from another source")]
    Block {
        /// The block.
        hash: BlockHash,
        /// What is wrong.
        what: String,
    },
    /// The undo data cannot be those of the block.
    #[error("the undo data of block {hash} cannot be stored: {what}")]
    Undo {
        /// The block.
        hash: BlockHash,
        /// What is wrong.
        what: String,
    },
    /// A block is not there.
    #[error("block {hash} is not stored in {path}; get it first")]
    Missing {
        /// The folder.
        path: PathBuf,
        /// The block.
        hash: BlockHash,
    },
    /// Something failed before, and what is durable is not known any more.
    #[error(
        "nothing more is stored in {path} since a write to it failed; see that the disk has space \
         and is sound, and start again"
    )]
    Failed {
        /// The folder.
        path: PathBuf,
    },
}

impl BlockStoreError {
    /// What the error means for the run.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { .. } | Self::Failed { .. } => ErrorKind::Fatal,
            Self::Foreign { .. } => ErrorKind::Recoverable,
            Self::Damaged { .. }
            | Self::Block { .. }
            | Self::Undo { .. }
            | Self::Missing { .. } => ErrorKind::Invalid,
        }
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into() }
    }

    /// For `map_err`: what was tried with which file.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }
}
