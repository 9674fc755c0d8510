//! [`Failure`]: an ending other than success, with its exit code.

use apus_chain::KnownBlock;
use apus_datadir::snapshot::SnapshotError;
use apus_engine::script::ScriptPoolError;
use apus_engine::utxo::StoreError;
use apus_sync::engines::in_order::ChainstateError;
use apus_sync::engines::swiftsync::hints::HintsError;
use apus_sync::{ErrorKind, SyncError};
use std::fmt::Display;
use std::io;
use std::path::Path;

/// Usage or configuration.
pub(crate) const USAGE: u8 = 1;
/// A block breaks a rule.
pub(crate) const INVALID: u8 = 2;
/// Input or output.
pub(crate) const IO: u8 = 3;
/// What was given is damaged or does not fit together, and no block has been shown to be invalid.
pub(crate) const WRONG: u8 = 4;
/// Interrupted; progress is kept. 128 and the number of SIGINT, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Why the program ends without success.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
    /// What kind of thing went wrong, in a word for programs (`docs/formats/report.md`).
    pub(crate) class: &'static str,
    /// The block that it is about, if it is about one.
    pub(crate) block: Option<KnownBlock>,
}

impl Failure {
    /// A failure of which no more than its kind is known.
    pub(crate) fn new(code: u8, message: String) -> Self {
        let class = match code {
            USAGE => "usage",
            INVALID => "invalid",
            WRONG => "wrong_data",
            INTERRUPTED => "interrupted",
            _ => "io",
        };
        Self { code, message, class, block: None }
    }

    pub(crate) fn usage(message: impl Display) -> Self {
        Self::new(USAGE, message.to_string())
    }

    pub(crate) fn invalid(message: impl Display) -> Self {
        Self::new(INVALID, message.to_string())
    }

    pub(crate) fn wrong(message: impl Display) -> Self {
        Self::new(WRONG, message.to_string())
    }

    /// The user wanted the end of what leaves nothing.
    pub(crate) fn interrupted() -> Self {
        Self::new(INTERRUPTED, "interrupted".to_owned())
    }

    /// An error of the system about a file.
    pub(crate) fn io(path: &Path, error: impl Display) -> Self {
        Self::new(IO, format!("{}: {error}", path.display()))
    }

    /// An error of the system about a file that the user names, with what helps against it.
    pub(crate) fn opening(path: &Path, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::io(
                path,
                format!(
                    "{error}: run this as the user that it belongs to (sudo -u USER), or let this user read it \
                     (chmod)"
                ),
            ),
            io::ErrorKind::NotFound => match std::fs::read_link(path) {
                Ok(target) => Self::io(
                    path,
                    format!(
                        "this is a link to {}, which is not there: mount the disk that it is on, or restore it",
                        target.display()
                    ),
                ),
                Err(_) => Self::io(path, error),
            },
            _ => Self::io(path, error),
        }
    }

    /// What is wrong with a snapshot.
    pub(crate) fn of_snapshot(path: &Path, error: &SnapshotError) -> Self {
        let message = format!("{}: {error}", path.display());
        match error {
            SnapshotError::OtherNetwork { .. } => Self::usage(message),
            _ if error.is_invalid() => Self::wrong(message),
            _ => Self::new(IO, message),
        }
    }

    /// An error of the system about what is to be made or written, with what helps against it.
    /// `instead` says how another place is named.
    pub(crate) fn making(path: &Path, error: &io::Error, instead: &str) -> Self {
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => format!("; allow access, or {instead}"),
            io::ErrorKind::ReadOnlyFilesystem => format!("; {instead}"),
            io::ErrorKind::StorageFull => format!("; free some space, or {instead}"),
            _ => String::new(),
        };
        Self::io(path, format!("{error}{remedy}"))
    }
}

/// What a build can do that runs no scripts.
pub(crate) const WITHOUT_SCRIPTS: &str = ". Without them a run gets as far as its hints reach \
                                          (--hints), or the assumed-valid block (--assumevalid)";

/// What of a run is not lost where its servers are away.
const STAYS: &str = ". What the run has written stays there: start again then, to go on";

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
            SyncError::Scripts(ScriptPoolError::NoInterpreter(_)) => WITHOUT_SCRIPTS,
            SyncError::Chainstate { error } => match **error {
                ChainstateError::NoInterpreter(_) => WITHOUT_SCRIPTS,
                ChainstateError::Store(StoreError::Away { .. }) => STAYS,
                _ => "",
            },
            SyncError::Coins(StoreError::Away { .. }) => STAYS,
            _ => "",
        };
        let code = match error.kind() {
            ErrorKind::Usage => USAGE,
            ErrorKind::Invalid => INVALID,
            ErrorKind::Wrong => WRONG,
            ErrorKind::Io => IO,
            ErrorKind::Interrupted => INTERRUPTED,
        };
        let (class, block) = (error.class(), error.block());
        Self { class, block, ..Self::new(code, format!("{error}{option}")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_made_says_what_to_do() {
        for (kind, remedy) in [
            (io::ErrorKind::PermissionDenied, "; allow access, or name another place"),
            (io::ErrorKind::ReadOnlyFilesystem, "; name another place"),
            (io::ErrorKind::StorageFull, "; free some space, or name another place"),
        ] {
            let failure = Failure::making(Path::new("a/b"), &kind.into(), "name another place");
            assert_eq!(failure.code, IO);
            assert!(failure.message.starts_with("a/b: "), "{}", failure.message);
            assert!(failure.message.ends_with(remedy), "{}", failure.message);
        }
    }
}
