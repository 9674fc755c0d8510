//! [`SyncError`]: everything that can end a run, in the kinds that exit codes tell apart.

mod invalid;
mod io_error;
mod source;
mod usage;

pub use invalid::{ChainGap, GapStretch, InvalidBlock, InvalidError};
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

/// What an error means for the user that started the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The question was wrong: options that do not fit together, a file for another chain.
    Usage,
    /// A block breaks a rule.
    Invalid,
    /// What was given is damaged, lacks something or does not fit together, and no block has been shown to break a
    /// rule: hints, a snapshot, proofs, undo data, files of blocks.
    Wrong,
    /// Reading or writing failed.
    Io,
    /// The run was stopped; its progress is kept.
    Interrupted,
}

/// Why a run ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The question was wrong.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// The data was wrong.
    #[error(transparent)]
    Invalid(#[from] InvalidError),
    /// Reading or writing failed, or the program did.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The blocks or their headers.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The blocks that are stored.
    #[error(transparent)]
    Blocks(#[from] apus_datadir::BlockStoreError),
    /// The hints as a file.
    #[error("{file}: {error}")]
    Hints {
        /// The file.
        file: String,
        /// What is wrong.
        error: HintsError,
    },
    /// A snapshot given as hints.
    #[error("{file}: {error}")]
    Snapshot {
        /// The file.
        file: String,
        /// What is wrong.
        error: SnapshotError,
    },
    /// A block of the chain breaks a rule, or cannot be had, and the run cannot go on without it.
    #[error("{error}. {why}")]
    NoWayOn {
        /// What is wrong with the block.
        error: Box<SyncError>,
        /// Why there is no other way.
        why: NoWayOn,
    },
    /// Connecting blocks.
    #[error("{error}")]
    Chainstate {
        /// What went wrong.
        error: Box<ChainstateError>,
    },
    /// The coins of a run that connects blocks.
    #[error(transparent)]
    Coins(#[from] StoreError),
    /// Scripts are to be run.
    #[error(transparent)]
    Scripts(#[from] ScriptPoolError),
    /// An engine, or what is built on this crate.
    #[error("{0}")]
    Run(Box<dyn RunError>),
    /// A folder that is to be moved could not be locked first.
    #[error(transparent)]
    Lock(#[from] apus_datadir::LockError),
    /// The run was stopped.
    #[error("interrupted; progress is kept, and the same command goes on from here")]
    Interrupted,
}

/// An error of an engine, or of what is built on this crate: it says itself what it means.
pub trait RunError: std::error::Error + Send + Sync + 'static {
    /// What it means for the user.
    fn kind(&self) -> ErrorKind;

    /// What went wrong, in a word for programs.
    fn class(&self) -> &'static str;

    /// The block that breaks a rule, if that is what is wrong.
    fn invalid_block(&self) -> Option<InvalidBlock> {
        None
    }

    /// Whether hints and blocks do not fit each other.
    fn is_about_hints(&self) -> bool {
        false
    }

    /// Whether no later start may go on from what was computed so far.
    fn spoils_progress(&self) -> bool {
        false
    }
}

impl<E: RunError> From<E> for SyncError {
    fn from(error: E) -> Self {
        Self::Run(Box::new(error))
    }
}

/// Why a run cannot go on without a block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoWayOn {
    /// The block is one of those that hints are about.
    #[error(
        "The hints reach over it, up to block {stop}, so the blocks given are no valid chain for these \
         hints: use hints that stop below it, or none. Without hints the run puts the block aside and \
         goes on along the best chain that is left"
    )]
    UnderHints {
        /// Where the hints stop.
        stop: Height,
    },
    /// An engine from outside cannot, and says why.
    #[error("{0}")]
    Engine(String),
    /// The best chain that is left does not have the block where the hints stop.
    #[error(
        "The best chain without it parts from this one below block {stop}, where the hints stop, so \
         they are of no use for it: use hints of that chain, or none"
    )]
    BelowHints {
        /// Where the hints stop.
        stop: Height,
    },
    /// The best chain that is left does not have the block up to which blocks were joined. The run begins anew.
    #[error(
        "The best chain without it parts from this one below block {at}, up to which blocks were joined: the run begins anew \
         on that one"
    )]
    BelowJoined {
        /// The block whose coins were gone on from.
        at: Height,
    },
    /// A node's own index has the block as valid.
    #[error(
        "The node's own block index has it as valid, so either the node's files are damaged or this \
         program or machine is at fault. Nothing was changed: `bitcoind -reindex` makes the node \
         judge its blocks anew"
    )]
    Connected,
    /// There is no other block.
    #[error("Nothing but the genesis block is left without it: give a folder with other blocks")]
    Nothing,
    /// Too many blocks were put aside.
    #[error(
        "{count} blocks proved invalid before it, and no more are put aside: this is no folder that a \
         node made; give one with other blocks"
    )]
    TooMany {
        /// How many.
        count: usize,
    },
    /// Peers have no other chain.
    #[error(
        "Peers have no other chain of about as much work: see that they are of this network, or start \
         again once the chain with the most work is another one"
    )]
    Peers,
}

impl SyncError {
    /// The error of this type that ended the run, if one did.
    pub fn downcast<E: RunError>(&self) -> Option<&E> {
        let Self::Run(error) = self else { return None };
        let error: &(dyn std::error::Error + 'static) = &**error;
        error.downcast_ref()
    }

    /// The same, with the reason why the run cannot go on without the block.
    pub fn without_way(self, why: NoWayOn) -> Self {
        Self::NoWayOn { error: Box::new(self), why }
    }

    /// Whether the best chain that is left parts from what was joined below its end.
    pub fn is_below_joined(&self) -> bool {
        matches!(self, Self::NoWayOn { why: NoWayOn::BelowJoined { .. }, .. })
    }

    /// Whether it is that hints and blocks do not fit each other.
    pub fn is_about_hints(&self) -> bool {
        match self {
            Self::Run(error) => error.is_about_hints(),
            _ => false,
        }
    }

    /// Whether what was computed so far rests on what proved wrong, so that no later start may go on from it.
    pub fn spoils_progress(&self) -> bool {
        match self {
            Self::Invalid(error) => error.spoils_progress(),
            Self::Run(error) if error.spoils_progress() => true,
            other => other.is_about_hints(),
        }
    }

    /// The block that breaks a rule, if that is what is wrong.
    pub fn block(&self) -> Option<KnownBlock> {
        match self {
            Self::NoWayOn { error, .. } => error.block(),
            error => InvalidBlock::of(error).map(|invalid| invalid.block),
        }
    }

    /// What kind of thing went wrong, in a word for programs.
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

    /// What it means.
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

/// Errors of the crates below that are about a seam of theirs go straight to the kind that they are of.
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

/// Puts a file's name to an error of the system.
pub trait StorageResult<T> {
    /// Names the file `name` of `storage`.
    fn at(self, storage: &dyn Storage, name: &str) -> Result<T, SyncError>;
}

impl<T> StorageResult<T> for io::Result<T> {
    fn at(self, storage: &dyn Storage, name: &str) -> Result<T, SyncError> {
        self.map_err(|error| {
            SyncError::Io(IoError::Storage { file: storage.describe(name), error })
        })
    }
}
