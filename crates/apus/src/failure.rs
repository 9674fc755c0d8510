//! [`Failure`]: an ending other than success, with its exit code.

use apus_engine::swiftsync::hints::HintsError;
use apus_sync::{ErrorKind, SyncError};
use std::fmt::Display;
use std::path::Path;

/// Usage or configuration.
pub(crate) const USAGE: u8 = 1;
/// Invalid blocks or hints, or a set that does not balance.
pub(crate) const INVALID: u8 = 2;
/// Input or output.
pub(crate) const IO: u8 = 3;
/// Interrupted; progress is kept. 128 and the number of SIGINT, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Why the program ends without success.
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn usage(message: impl Display) -> Self {
        Self { code: USAGE, message: message.to_string() }
    }

    pub(crate) fn invalid(message: impl Display) -> Self {
        Self { code: INVALID, message: message.to_string() }
    }

    /// An error of the system about a file.
    pub(crate) fn io(path: &Path, error: impl Display) -> Self {
        Self { code: IO, message: format!("{}: {error}", path.display()) }
    }
}

/// The option that helps against an error of hints.
pub(crate) fn option_for(error: &HintsError) -> &'static str {
    match error {
        HintsError::AmbiguousBitOrder { .. } => " (with --hints-order)",
        _ => "",
    }
}

impl From<SyncError> for Failure {
    fn from(error: SyncError) -> Self {
        let option = match &error {
            SyncError::Hints { error, .. } => option_for(error),
            _ => "",
        };
        let code = match error.kind() {
            ErrorKind::Usage => USAGE,
            ErrorKind::Invalid => INVALID,
            ErrorKind::Io => IO,
            ErrorKind::Interrupted => INTERRUPTED,
        };
        Self { code, message: format!("{error}{option}") }
    }
}
