//! [`Failure`]: an ending other than success, with its exit code.

use apus_sync::ErrorKind;
use std::fmt::Display;
use std::path::Path;

/// Usage or configuration.
pub(crate) const USAGE: u8 = 1;
/// A block breaks a rule.
pub(crate) const INVALID: u8 = 2;
/// Input or output.
pub(crate) const IO: u8 = 3;
/// Results differ, or what was given does not fit together.
pub(crate) const WRONG: u8 = 4;
/// Interrupted. 128 and the number of SIGINT, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Why the program ends without success.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Display) -> Self {
        Self { code, message: message.to_string() }
    }

    /// An error of a part, whose kind says how the program ends.
    pub(crate) fn of(kind: ErrorKind, error: &impl Display) -> Self {
        let code = match kind {
            ErrorKind::Usage => USAGE,
            ErrorKind::Invalid => INVALID,
            ErrorKind::Wrong => WRONG,
            ErrorKind::Io => IO,
            ErrorKind::Interrupted => INTERRUPTED,
        };
        Self::new(code, error)
    }

    pub(crate) fn usage(message: impl Display) -> Self {
        Self::new(USAGE, message)
    }

    /// An error of the system about a file.
    pub(crate) fn io(path: &Path, error: impl Display) -> Self {
        Self::new(IO, format_args!("{}: {error}", path.display()))
    }

    pub(crate) fn interrupted() -> Self {
        Self::new(INTERRUPTED, "interrupted")
    }
}
