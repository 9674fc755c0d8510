//! [`BlockStoreError`]: why blocks could not be stored or found again.

use crate::error::ErrorKind;
use std::io;
use std::path::{Path, PathBuf};

/// Why a [`BlockStore`](crate::BlockStore) or its positions failed.
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
    /// The block is none.
    #[error("a block of {size} bytes cannot be stored at height {height}: one has 80 to 4000000")]
    Size {
        /// Its height.
        height: u32,
        /// Its length in bytes.
        size: usize,
    },
    /// Offsets of undo data have 32 bits.
    #[error(
        "the undo data of block {height} would end behind byte {end} of {path}, where Bitcoin Core \
         no longer finds them"
    )]
    UndoSpace {
        /// The height of the block.
        height: u32,
        /// The file.
        path: PathBuf,
        /// Where the data would end.
        end: u64,
    },
}

impl BlockStoreError {
    /// What the error means for the run.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { .. } => ErrorKind::Fatal,
            Self::Damaged { .. } | Self::Size { .. } | Self::UndoSpace { .. } => ErrorKind::Invalid,
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
