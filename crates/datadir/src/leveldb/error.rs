//! [`DatabaseError`]: why a database could not be written.

use crate::error::ErrorKind;
use std::io;

/// Why a database could not be written. What was written so far is none: no file `CURRENT` names
/// it.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The system refused.
    #[error(
        "cannot {doing} {file}: {source}; see that the disk has space and is sound, then write the \
         database anew"
    )]
    Io {
        /// What was tried: "create", "write", "sync" ...
        doing: &'static str,
        /// The file or folder.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The threads that write could not be started.
    #[error("cannot start a thread to write {folder} with: {source}")]
    Thread {
        /// The folder of the database.
        folder: String,
        /// What the system said.
        source: io::Error,
    },
    /// A key does not follow the one before it, or an entry is too large for a table.
    #[error("entry {key} cannot follow entry {previous}: {what}")]
    Entry {
        /// The key in hex.
        key: String,
        /// The one before it in hex.
        previous: String,
        /// What is wrong.
        what: &'static str,
    },
    /// Writing failed before, and the caller went on nevertheless.
    #[error("writing {folder} failed before: nothing can be added to it")]
    Failed {
        /// The folder of the database.
        folder: String,
    },
}

impl DatabaseError {
    /// What the error means for the run.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Fatal
    }
}
