//! [`IndexesError`]: why a node's indexes could not be made.

use crate::making::MakeError;
use apus_datadir::DatabaseError;
use apus_datadir::chainstate::ChainstateDbError;
use apus_storage::Storage;
use apus_sync::{ErrorKind, RunError};
use std::io;

/// Why a node's indexes could not be made. What was written has a temporary name, and no node uses it.
#[derive(Debug, thiserror::Error)]
pub enum IndexesError {
    /// An index could not be written, or a block does not fit its undo data.
    #[error(transparent)]
    Make(#[from] MakeError),
    /// The system gave no random numbers for an index's salt.
    #[error("cannot get random numbers from the system: {0}")]
    Random(getrandom::Error),
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
            Self::Make(_) | Self::Random(_) => ErrorKind::Io,
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
