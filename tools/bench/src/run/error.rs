//! [`RunError`]: why a benchmark ended without numbers.

use crate::floor::WorkError;
use crate::process::ProcessError;
use apus_sync::ErrorKind;
use std::io;
use std::path::{Path, PathBuf};

/// Why a benchmark ended without numbers.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The question was wrong.
    #[error("{0}")]
    Usage(String),
    /// Results differ, or a node did not do what it was to be compared for.
    #[error("{0}")]
    Different(String),
    /// The system, about a file or a folder.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Its answer.
        source: io::Error,
    },
    /// A file of JSON that is not what it should be.
    #[error("{path}: {message}", path = .path.display())]
    Json {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A program that was run.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The work of a chain could not be counted.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// The node answered no question.
    #[error("bitcoind, asked for {method}: {message}")]
    Rpc {
        /// What it was asked.
        method: String,
        /// What went wrong.
        message: String,
    },
    /// It was stopped.
    #[error("interrupted")]
    Interrupted,
}

impl RunError {
    /// What it means.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Usage(_) => ErrorKind::Usage,
            Self::Different(_) | Self::Json { .. } => ErrorKind::Wrong,
            Self::Io { .. } | Self::Rpc { .. } => ErrorKind::Io,
            Self::Process(error) => error.kind(),
            Self::Work(error) => error.kind(),
            Self::Interrupted => ErrorKind::Interrupted,
        }
    }
}

/// Names the file that an error of the system is about.
pub(crate) trait At<T> {
    fn at(self, path: &Path) -> Result<T, RunError>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T, RunError> {
        self.map_err(|source| RunError::Io { path: path.to_owned(), source })
    }
}
