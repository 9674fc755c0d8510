//! [`IndexError`]: why Core's block index could not be read.
//!
//! None of these need stop a run: whatever the index would have said, the block files say too.

use crate::error::{ErrorKind, to_be_read};
use apus_chain::BlockHash;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Why the block index could not be read.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// There is no block index.
    #[error("there is no block index in {path}")]
    Missing {
        /// Where it should be.
        path: PathBuf,
    },
    /// A file is there but cannot be opened.
    #[error("cannot open {path}: {source}; {}", to_be_read(.source))]
    Open {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that belongs to the index is not there.
    #[error(
        "{path} belongs to the block index but is not there: if a node is running on it, stop the \
         node or try again"
    )]
    Vanished {
        /// The file.
        path: PathBuf,
    },
    /// The system could not read.
    #[error("cannot read {path} at byte {offset}: {source}; check the disk")]
    Read {
        /// The file.
        path: PathBuf,
        /// Where reading began.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{path} is damaged at byte {offset}: {what}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where, as precisely as is known.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// An entry of the index is not what Core writes.
    #[error(
        "the entry of block {hash} in the block index {path} cannot be read: {what}; it may be of \
         another version of Bitcoin Core"
    )]
    Entry {
        /// The folder of the index.
        path: PathBuf,
        /// The block that the key names.
        hash: BlockHash,
        /// What is wrong.
        what: String,
    },
}

impl IndexError {
    /// What the error means for the run.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. } | Self::Corrupt { .. } | Self::Entry { .. } => ErrorKind::Invalid,
            Self::Open { .. } | Self::Vanished { .. } => ErrorKind::Recoverable,
            Self::Read { .. } => ErrorKind::Fatal,
        }
    }

    pub(crate) fn corrupt(path: &Path, offset: u64, what: &'static str) -> Self {
        Self::Corrupt { path: path.to_owned(), offset, what }
    }

    /// Opens a file for reading, with its length.
    pub(crate) fn open(path: &Path) -> Result<(File, u64), Self> {
        let open = || {
            // To open a pipe is to wait for who writes into it.
            if !fs::metadata(path)?.is_file() {
                return Err(io::Error::other("it is no regular file"));
            }
            let file = File::open(path)?;
            let length = file.metadata()?.len();
            Ok((file, length))
        };
        open().map_err(|source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => Self::Vanished { path: path.to_owned() },
            _ => Self::Open { path: path.to_owned(), source },
        })
    }

    /// Fills `buffer` from `offset` on.
    pub(crate) fn read(
        path: &Path,
        file: &File,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<(), Self> {
        file.read_exact_at(buffer, offset).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => Self::corrupt(path, offset, "it was shortened"),
            _ => Self::Read { path: path.to_owned(), offset, source },
        })
    }
}
