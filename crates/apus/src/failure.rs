//! [`Failure`]: the reason for a program's failure, with its exit code.

use apus_chain::KnownBlock;
use apus_datadir::chainstate::ChainstateDbError;
use apus_datadir::snapshot::SnapshotError;
use apus_engine::script::ScriptPoolError;
use apus_engine::utxo::StoreError;
use apus_sync::engines::in_order::ChainstateError;
use apus_sync::engines::swiftsync::hints::HintsError;
use apus_sync::{ErrorKind, SyncError};
use std::fmt::Display;
use std::io;
use std::path::Path;

/// Exit code for an error in usage or configuration.
pub(crate) const USAGE: u8 = 1;
/// Exit code for an invalid block.
pub(crate) const INVALID: u8 = 2;
/// Exit code for an input or output error.
pub(crate) const IO: u8 = 3;
/// Exit code for damaged or inconsistent input, if no block is proven invalid.
pub(crate) const WRONG: u8 = 4;
/// Exit code for an interrupted program that kept its progress: 128 plus the number of SIGINT, as in shells.
pub(crate) const INTERRUPTED: u8 = 130;

/// The reason for a program's failure.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
    /// The kind of failure, in a word for programs (`docs/formats/report.md`).
    pub(crate) class: &'static str,
    /// The block at fault, if any.
    pub(crate) block: Option<KnownBlock>,
}

impl Failure {
    /// Creates a failure of the kind that its exit code gives.
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

    /// Creates the failure for an interrupted command that keeps no progress.
    pub(crate) fn interrupted() -> Self {
        Self::new(INTERRUPTED, "interrupted".to_owned())
    }

    /// Creates the failure for a system error about a file.
    pub(crate) fn io(path: &Path, error: impl Display) -> Self {
        Self::new(IO, format!("{}: {error}", path.display()))
    }

    /// Creates the failure, with the remedy, for a system error about a file that the user named.
    pub(crate) fn opening(path: &Path, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::io(
                path,
                format!(
                    "{error}: run Apus as the file's owner (sudo -u USER), or make the file readable (chmod)"
                ),
            ),
            io::ErrorKind::NotFound => match std::fs::read_link(path) {
                Ok(target) => Self::io(
                    path,
                    format!(
                        "broken link to {}: mount the disk of the target, or restore the target",
                        target.display()
                    ),
                ),
                Err(_) => Self::io(path, error),
            },
            _ => Self::io(path, error),
        }
    }

    /// Creates the failure for an invalid or unreadable snapshot.
    pub(crate) fn of_snapshot(path: &Path, error: &SnapshotError) -> Self {
        let message = format!("{}: {error}", path.display());
        match error {
            SnapshotError::OtherNetwork { .. } => Self::usage(message),
            _ if error.is_invalid() => Self::wrong(message),
            _ => Self::new(IO, message),
        }
    }

    /// Creates the failure, with the remedy, for a system error about a file or folder that Apus writes. `instead`
    /// tells the user how to choose another place.
    pub(crate) fn making(path: &Path, error: &io::Error, instead: &str) -> Self {
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => format!(". Allow access, or {instead}"),
            io::ErrorKind::ReadOnlyFilesystem => format!(": {instead}"),
            io::ErrorKind::StorageFull => format!(". Free some space, or {instead}"),
            _ => String::new(),
        };
        Self::io(path, format!("{error}{remedy}"))
    }
}

/// Remedy for a build without scripts.
pub(crate) const WITHOUT_SCRIPTS: &str = ". Without scripts a sync can only reach the block where the hints stop \
    (--hints) or the assumed-valid block (--assumevalid)";

/// Text about the kept coins if a run's servers become unreachable.
const STAYS: &str = ". The coins written so far stay on the servers. Once the servers respond, rerun the command to resume";

/// Returns the option that fixes an error of hints.
pub(crate) fn option_for(error: &HintsError) -> &'static str {
    match error {
        HintsError::AmbiguousBitOrder { .. } => " (with --hints-order)",
        _ => "",
    }
}

impl From<ChainstateDbError> for Failure {
    fn from(error: ChainstateDbError) -> Self {
        match error.is_invalid() {
            true => Self::wrong(error),
            false => Self::new(IO, error.to_string()),
        }
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
    fn errors_of_making_a_file_name_the_remedy() {
        for (kind, remedy) in [
            (io::ErrorKind::PermissionDenied, ". Allow access, or use another place"),
            (io::ErrorKind::ReadOnlyFilesystem, ": use another place"),
            (io::ErrorKind::StorageFull, ". Free some space, or use another place"),
        ] {
            let failure = Failure::making(Path::new("a/b"), &kind.into(), "use another place");
            assert_eq!(failure.code, IO);
            assert!(failure.message.starts_with("a/b: "), "{}", failure.message);
            assert!(failure.message.ends_with(remedy), "{}", failure.message);
        }
    }
}
