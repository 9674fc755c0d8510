//! [`BenchError`]: the reason why a measurement has no results.

use apus_datadir::chainstate::ChainstateDbError as WriterError;
use apus_engine::utxo::StoreError;
pub use apus_sync::ErrorKind;
use apus_sync::{SourceError, SyncError};
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The reason why a measurement has no results. Callers only use the kind, which selects the exit code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BenchError {
    kind: ErrorKind,
    message: String,
}

impl BenchError {
    /// An error of any kind.
    pub fn new(kind: ErrorKind, message: impl Display) -> Self {
        Self { kind, message: message.to_string() }
    }

    /// A usage error.
    pub fn usage(message: impl Display) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    /// `what`, a command or an option, needs a feature that this build lacks.
    pub fn without_servers(what: &str) -> Self {
        Self::usage(format!(
            "{what}: this program was built without support for remote coins; rebuild it: \
             cargo build --release -p apus-bench --features remote-coins"
        ))
    }

    /// Results differ, or a result is not the expected one.
    pub fn different(message: impl Display) -> Self {
        Self::new(ErrorKind::Wrong, message)
    }

    /// A system error about a file.
    pub fn io(path: &Path, error: impl Display) -> Self {
        Self::new(ErrorKind::Io, format_args!("{}: {error}", path.display()))
    }

    /// A file has invalid contents.
    pub fn file(path: &Path, message: impl Display) -> Self {
        Self::different(format_args!("{}: {message}", path.display()))
    }

    /// A node did not answer an RPC.
    pub(crate) fn rpc(method: &str, message: impl Display) -> Self {
        Self::new(ErrorKind::Io, format_args!("bitcoind: {method}: {message}"))
    }

    /// The caller asked to stop.
    pub fn interrupted() -> Self {
        Self::new(ErrorKind::Interrupted, "interrupted")
    }

    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl From<SyncError> for BenchError {
    fn from(error: SyncError) -> Self {
        Self::new(error.kind(), error)
    }
}

impl From<SourceError> for BenchError {
    fn from(error: SourceError) -> Self {
        Self::new(error.kind(), error)
    }
}

impl From<StoreError> for BenchError {
    fn from(error: StoreError) -> Self {
        Self::new(ErrorKind::Io, error)
    }
}

impl From<WriterError> for BenchError {
    fn from(error: WriterError) -> Self {
        Self::new(ErrorKind::Io, error)
    }
}

/// Adds the file's path to a system error.
pub(crate) trait AtPath<T> {
    fn at(self, path: &Path) -> Result<T, BenchError>;
}

impl<T> AtPath<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T, BenchError> {
        self.map_err(|error| BenchError::io(path, error))
    }
}

/// Returns an error once the caller has asked to stop.
pub(crate) fn check_interrupt(interrupt: &AtomicBool) -> Result<(), BenchError> {
    if interrupt.load(Ordering::Relaxed) { Err(BenchError::interrupted()) } else { Ok(()) }
}
