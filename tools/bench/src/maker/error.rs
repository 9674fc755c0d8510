//! [`MakeError`]: why there is no chain.

use apus_sync::engines::swiftsync::hints::HintsError;
use std::io;
use std::path::{Path, PathBuf};

/// Why there is no chain.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The folder holds something.
    #[error(
        "{} is not empty and holds no chain of the same arguments: name another folder, or remove it",
        .0.display()
    )]
    Occupied(PathBuf),
    /// Arguments that no chain can have.
    #[error("{0}")]
    Arguments(String),
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The hints could not be written.
    #[error("{}: {source}", path.display())]
    Hints {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: Box<HintsError>,
    },
    /// The caller asked to stop. Nothing is left.
    #[error("interrupted; what was made so far is removed")]
    Interrupted,
}

impl MakeError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |source| Self::Io { path: path.to_owned(), source }
    }
}
