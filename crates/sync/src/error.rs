//! [`SyncError`]: everything that can end a sync, in the kinds that exit codes distinguish.

mod invalid;
mod io_error;
mod source;
mod usage;

pub use invalid::{ChainGap, GapRange, InvalidBlock, InvalidError};
pub use io_error::IoError;
pub use source::ClockError;
pub use source::SourceError;
pub use usage::NotAnchored;
pub use usage::UsageError;

use crate::engines::in_order::ChainstateError;
use crate::engines::swiftsync::hints::{HintsError, HintsErrorKind};
use apus_chain::{Height, KnownBlock};
use apus_datadir::snapshot::SnapshotError;
use apus_engine::script::ScriptPoolError;
use apus_engine::utxo::StoreError;
use apus_p2p::network::NetworkError;
use apus_storage::Storage;
use std::io;

/// What an error means for the user who started the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is wrong: options that contradict each other, or a file for another chain.
    Usage,
    /// A block breaks a rule.
    Invalid,
    /// An input (hints, snapshot, proofs, undo data or block files) is damaged, incomplete or does not match
    /// the others, and no block has been shown to break a rule.
    Wrong,
    /// Reading or writing failed.
    Io,
    /// The user stopped the sync; its progress is kept.
    Interrupted,
}

/// Why a sync ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The request is invalid.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// The data is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidError),
    /// Reading or writing failed, or the program itself did.
    #[error(transparent)]
    Io(#[from] IoError),
    /// A source of blocks or headers failed.
    #[error(transparent)]
    Source(SourceError),
    /// The network failed.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The stored blocks are damaged or cannot be read.
    #[error(transparent)]
    Blocks(#[from] apus_datadir::BlockStoreError),
    /// The hints file is invalid or cannot be read.
    #[error("{file}: {error}")]
    Hints {
        /// The file.
        file: String,
        /// What is invalid.
        error: HintsError,
    },
    /// A snapshot given as hints is invalid or cannot be read.
    #[error("{file}: {error}")]
    Snapshot {
        /// The file.
        file: String,
        /// What is invalid.
        error: SnapshotError,
    },
    /// A block of the chain is invalid or unavailable, and the sync cannot continue without it.
    #[error("{error}. {why}")]
    NoWayOn {
        /// The error of the block.
        error: Box<SyncError>,
        /// Why no other chain can take its place.
        why: BlockUnavailable,
    },
    /// Connecting blocks failed.
    #[error("{error}")]
    Chainstate {
        /// What went wrong.
        error: Box<ChainstateError>,
    },
    /// The coins store of a sync that connects blocks failed.
    #[error(transparent)]
    Coins(#[from] StoreError),
    /// Running scripts failed.
    #[error(transparent)]
    Scripts(#[from] ScriptPoolError),
    /// An error of an engine, or of a crate built on this one.
    #[error("{0}")]
    Run(Box<dyn RunError>),
    /// A folder that must be moved could not be locked first.
    #[error(transparent)]
    Lock(#[from] apus_datadir::LockError),
    /// The user stopped the sync.
    #[error("interrupted: progress is kept. Rerun the same command to resume")]
    Interrupted,
}

/// An error of an engine, or of a crate built on this one, which classifies itself.
pub trait RunError: std::error::Error + Send + Sync + 'static {
    /// Returns what the error means for the user.
    fn kind(&self) -> ErrorKind;

    /// Returns its class, as one word for programs.
    fn class(&self) -> &'static str;

    /// Returns the block that breaks a rule, if that is the error.
    fn invalid_block(&self) -> Option<InvalidBlock> {
        None
    }

    /// Returns whether hints and blocks do not match.
    fn is_about_hints(&self) -> bool {
        false
    }

    /// Returns whether the progress so far must not be resumed from.
    fn spoils_progress(&self) -> bool {
        false
    }
}

impl From<SourceError> for SyncError {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Interrupted => Self::Interrupted,
            error => Self::Source(error),
        }
    }
}

impl<E: RunError> From<E> for SyncError {
    fn from(error: E) -> Self {
        Self::Run(Box::new(error))
    }
}

/// Why a sync cannot continue without a block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockUnavailable {
    /// The block is below the height where the hints stop.
    #[error(
        "The hints cover this block (they reach block {stop}), so the given blocks are not a valid chain for these \
         hints: use hints that stop below this block, or leave out --hints. A sync without hints marks the block \
         as failed and continues on the best remaining chain"
    )]
    UnderHints {
        /// The height at which the hints stop.
        stop: Height,
    },
    /// An engine of another crate cannot continue, and gives the reason.
    #[error("{0}")]
    Engine(String),
    /// The best remaining chain does not contain the block at which the hints stop.
    #[error(
        "The best remaining chain forks off below block {stop}, where the hints stop, so these hints do not apply \
         to it: use hints for that chain, or leave out --hints"
    )]
    BelowHints {
        /// The height at which the hints stop.
        stop: Height,
    },
    /// The best remaining chain does not contain the last block whose coins were joined, so the sync starts
    /// over.
    #[error(
        "The best remaining chain forks off below block {at}, up to which blocks were already joined: the \
         sync starts over on that chain"
    )]
    BelowJoined {
        /// The height up to which blocks were joined.
        at: Height,
    },
    /// The node's own index lists the block as valid.
    #[error(
        "The node's own block index has this block as valid, so the node's files are damaged, or Apus or this \
         machine is at fault. Nothing was changed. Run `bitcoind -reindex` to make the node validate its blocks \
         again"
    )]
    Connected,
    /// No other block remains.
    #[error("Without this block only the genesis block is left: give a folder with other blocks")]
    Nothing,
    /// Too many blocks are invalid.
    #[error(
        "{count} blocks before this block are invalid already, which is the limit. No node produces such a folder: \
         give a folder with other blocks"
    )]
    TooMany {
        /// Number of invalid blocks.
        count: usize,
    },
    /// No peer has another chain.
    #[error(
        "No peer has another chain of about as much work: check that the peers are on this network, or rerun the \
         command once another chain has the most work"
    )]
    Peers,
}

impl SyncError {
    /// Returns the error that ended the sync, if it is of this type.
    pub fn downcast<E: RunError>(&self) -> Option<&E> {
        let Self::Run(error) = self else { return None };
        let error: &(dyn std::error::Error + 'static) = &**error;
        error.downcast_ref()
    }

    /// Adds the reason why the sync cannot continue without the block.
    pub fn without_way(self, why: BlockUnavailable) -> Self {
        Self::NoWayOn { error: Box::new(self), why }
    }

    /// Returns whether the best remaining chain forks off below the last joined block.
    pub fn is_below_joined(&self) -> bool {
        matches!(self, Self::NoWayOn { why: BlockUnavailable::BelowJoined { .. }, .. })
    }

    /// Returns whether the error is that hints and blocks do not match.
    pub fn is_about_hints(&self) -> bool {
        match self {
            Self::Run(error) => error.is_about_hints(),
            _ => false,
        }
    }

    /// Returns whether the progress so far rests on data that proved wrong, so that no later start may resume
    /// from it.
    pub fn spoils_progress(&self) -> bool {
        match self {
            Self::Invalid(error) => error.spoils_progress(),
            Self::Run(error) if error.spoils_progress() => true,
            other => other.is_about_hints(),
        }
    }

    /// Returns the block that breaks a rule, if that is the error.
    pub fn block(&self) -> Option<KnownBlock> {
        match self {
            Self::NoWayOn { error, .. } => error.block(),
            error => InvalidBlock::of(error).map(|invalid| invalid.block),
        }
    }

    /// Returns the class of the error, as one word for programs.
    pub fn class(&self) -> &'static str {
        match self {
            Self::NoWayOn { error, .. } => error.class(),
            error if error.block().is_some() => "invalid_block",
            error if error.is_about_hints() => "wrong_hints",
            Self::Usage(_) => "usage",
            Self::Invalid(error) if error.kind() == ErrorKind::Invalid => "invalid",
            Self::Invalid(_) => "wrong_data",
            Self::Io(_) => "io",
            Self::Source(SourceError::Clock(_)) => "clock",
            Self::Source(_) | Self::Blocks(_) => "blocks",
            Self::Network(_) => "network",
            Self::Hints { .. } => "hints",
            Self::Snapshot { .. } => "snapshot",
            Self::Chainstate { .. } | Self::Coins(_) => "coins",
            Self::Scripts(_) => "scripts",
            Self::Run(error) => error.class(),
            Self::Lock(_) => "lock",
            Self::Interrupted => "interrupted",
        }
    }

    /// Returns what the error means for the user.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Usage(_) => ErrorKind::Usage,
            Self::Invalid(error) => error.kind(),
            Self::Io(_) => ErrorKind::Io,
            Self::Interrupted => ErrorKind::Interrupted,
            Self::NoWayOn { error, .. } => error.kind(),
            Self::Source(error) => error.kind(),
            Self::Network(NetworkError::Listen { .. }) => ErrorKind::Usage,
            Self::Network(_) => ErrorKind::Io,
            Self::Blocks(apus_datadir::BlockStoreError::Foreign { .. }) => ErrorKind::Usage,
            Self::Blocks(_) => ErrorKind::Io,
            Self::Hints { error, .. } if error.kind() == HintsErrorKind::Io => ErrorKind::Io,
            Self::Hints { .. } => ErrorKind::Wrong,
            Self::Snapshot { error: SnapshotError::OtherNetwork { .. }, .. } => ErrorKind::Usage,
            Self::Snapshot { error, .. } if error.is_invalid() => ErrorKind::Wrong,
            Self::Snapshot { .. } => ErrorKind::Io,
            Self::Run(error) => error.kind(),
            Self::Chainstate { error } => chainstate_kind(error),
            Self::Coins(error) => store_kind(error),
            Self::Scripts(ScriptPoolError::NoInterpreter(_)) => ErrorKind::Usage,
            Self::Scripts(_) => ErrorKind::Io,
            Self::Lock(apus_datadir::LockError::InUse { .. }) => ErrorKind::Usage,
            Self::Lock(_) => ErrorKind::Io,
        }
    }
}

/// Converts an error of a lower crate to a [`SyncError`], through the variant's own error type.
macro_rules! from_through {
    ($($error:ty => $through:ty),* $(,)?) => {$(
        impl From<$error> for SyncError {
            fn from(error: $error) -> Self {
                <$through>::from(error).into()
            }
        }
    )*};
}

from_through! {
    apus_datadir::chainstate::ChainstateDbError => IoError,
    apus_datadir::IndexWriteError => IoError,
}

fn chainstate_kind(error: &ChainstateError) -> ErrorKind {
    match error {
        ChainstateError::Invalid { .. } => ErrorKind::Invalid,
        ChainstateError::Store(error) => store_kind(error),
        ChainstateError::NoInterpreter(_) => ErrorKind::Usage,
        _ => ErrorKind::Io,
    }
}

fn store_kind(error: &StoreError) -> ErrorKind {
    match error {
        StoreError::OtherNetwork { .. }
        | StoreError::Newer { .. }
        | StoreError::InUse { .. }
        | StoreError::Foreign { .. } => ErrorKind::Usage,
        _ => ErrorKind::Io,
    }
}

/// Adds a file's name to an I/O error.
pub trait StorageResult<T> {
    /// Adds the name of file `name` of `storage`.
    fn at(self, storage: &dyn Storage, name: &str) -> Result<T, SyncError>;
}

impl<T> StorageResult<T> for io::Result<T> {
    fn at(self, storage: &dyn Storage, name: &str) -> Result<T, SyncError> {
        self.map_err(|error| {
            SyncError::Io(IoError::Storage { file: storage.describe(name), error })
        })
    }
}
