//! [`ReadBackError`]: in what a `blocks` folder differs from what it is to hold.

use crate::error::ErrorKind;
use crate::foreign::ForeignError;
use std::io;
use std::path::{Path, PathBuf};

/// In what a `blocks` folder differs from what it is to hold. The caller, which made the folder,
/// says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ReadBackError {
    /// The index could not be read by the code that reads back.
    #[error("the block index was read back: {0}")]
    Foreign(#[from] ForeignError),
    /// The index says something else than it should.
    #[error("the block index {path} was read back, and {what}")]
    Index {
        /// The folder of the index.
        path: PathBuf,
        /// In what it differs, with block or file.
        what: String,
    },
    /// A file is missing, too much, or of another length.
    #[error("{path} was looked at once more, and {what}")]
    Folder {
        /// The file.
        path: PathBuf,
        /// In what it differs.
        what: String,
    },
    /// A block does not lie where it should, or is another or a damaged one.
    #[error("{path} was read back at byte {offset}, where block {height} should lie, and {what}")]
    Block {
        /// The file.
        path: PathBuf,
        /// Where the block should begin, behind magic and size.
        offset: u64,
        /// The height of the block.
        height: u32,
        /// What is wrong.
        what: String,
    },
    /// Undo data do not lie where they should, or are others or damaged ones.
    #[error(
        "{path} was read back at byte {offset}, where the undo data of block {height} should lie, and \
         {what}"
    )]
    Undo {
        /// The file.
        path: PathBuf,
        /// Where the data should begin, behind magic and size.
        offset: u64,
        /// The height of the block.
        height: u32,
        /// What is wrong.
        what: String,
    },
    /// The system could not read.
    #[error("cannot read {path} at byte {offset}: {source}; check the disk")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Where reading began.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
}

impl ReadBackError {
    /// What the error means for the run.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { .. } | Self::Foreign(_) => ErrorKind::Fatal,
            _ => ErrorKind::Invalid,
        }
    }

    /// Whether it is about the index alone, and blocks and undo data may be as they should.
    pub fn is_about_index(&self) -> bool {
        matches!(self, Self::Foreign(_) | Self::Index { .. })
    }

    pub(super) fn io(path: &Path, offset: u64) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { path, offset, source }
    }
}
