//! [`IndexesError`]: why a node's indexes could not be made.

use crate::making::MakeError;
use apus_datadir::chainstate::ChainstateDbError;
use apus_datadir::{DatabaseError, IndependentReadError};
use apus_storage::Storage;
use apus_sync::{ErrorKind, RunError};
use std::io;
use std::path::PathBuf;

/// Why a node's indexes could not be made. What was written has a temporary name, and no node uses it.
#[derive(Debug, thiserror::Error)]
pub enum IndexesError {
    /// An index could not be written, or a block does not fit its undo data.
    #[error(transparent)]
    Make(#[from] MakeError),
    /// The system gave no random numbers for an index's salt.
    #[error("cannot get random numbers from the system: {0}")]
    Random(getrandom::Error),
    /// The system failed to read a file of an index.
    #[error(
        "cannot read {path}: {source}. Check the file's permissions and the disk, then rerun the command"
    )]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The node or the request do not fit; the text says what, where and what to do.
    #[error("{0}")]
    Unfit(String),
    /// The node's data are damaged; the text says what, where and what to do.
    #[error("{0}")]
    Damaged(String),
    /// The user stopped the work.
    #[error("interrupted")]
    Interrupted,
}

impl RunError for IndexesError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Make(MakeError::Block { .. }) | Self::Damaged(_) => ErrorKind::Wrong,
            Self::Make(_) | Self::Random(_) | Self::Read { .. } => ErrorKind::Io,
            Self::Unfit(_) => ErrorKind::Usage,
            Self::Interrupted => ErrorKind::Interrupted,
        }
    }

    fn class(&self) -> &'static str {
        match self.kind() {
            ErrorKind::Usage => "usage",
            ErrorKind::Interrupted => "interrupted",
            ErrorKind::Io => "io",
            ErrorKind::Wrong | ErrorKind::Invalid => "wrong_data",
        }
    }
}

impl From<ChainstateDbError> for IndexesError {
    fn from(error: ChainstateDbError) -> Self {
        Self::Damaged(format!("{error}. `apus reindex --replace` makes a new chainstate"))
    }
}

impl From<IndependentReadError> for IndexesError {
    fn from(error: IndependentReadError) -> Self {
        match error {
            IndependentReadError::Read { path, source, .. } => Self::Read { path, source },
            error => Self::Damaged(error.to_string()),
        }
    }
}

impl From<DatabaseError> for IndexesError {
    fn from(error: DatabaseError) -> Self {
        Self::Make(error.into())
    }
}

/// Adds the name of file `name` of `storage` to a system error.
pub(crate) fn at(storage: &dyn Storage, name: &str) -> impl FnOnce(io::Error) -> IndexesError {
    let file = storage.describe(name);
    move |source| MakeError::File { file, source }.into()
}
