//! [`ProvenError`]: why a range or a whole job failed.

use super::coins::EntryError;
use super::partial::{ProvenMergeError, RootsDiffer};
use crate::error::ProofsError;
use apus_chain::{Height, HeightRange, KnownBlock, Txid};
use apus_engine::connect::ConnectError;
use apus_engine::script::{NoInterpreter, ScriptPoolError};
use apus_sync::{ErrorKind, IoError, RunError, SyncError};

/// Why a range or a whole job failed.
#[derive(Debug, thiserror::Error)]
pub enum ProvenError {
    /// A block is out of order or outside the range: a bug in the caller.
    #[error("block {0} is not the next block of this range")]
    Unexpected(Height),
    /// Blocks are missing.
    #[error("the blocks {missing} of the chain up to {stop} were not processed")]
    Incomplete {
        /// The first gap.
        missing: HeightRange,
        /// The last requested block.
        stop: Height,
    },
    /// Blocks outside the job were processed: a bug in the caller.
    #[error(
        "the blocks {surplus} were processed, but the job does not cover them: it ends at block {stop}"
    )]
    Surplus {
        /// The first such range.
        surplus: HeightRange,
        /// The stop height.
        stop: Height,
    },
    /// The data of a block are unavailable.
    #[error("cannot get the proofs of block {} ({}): {what}", block.height, block.hash)]
    NotThere {
        /// The block.
        block: KnownBlock,
        /// The cause.
        what: String,
    },
    /// The data of a block are invalid.
    #[error("the proofs of block {} ({}), from {origin}, are invalid: {error}", block.height, block.hash)]
    Entry {
        /// The block.
        block: KnownBlock,
        /// The source of the data.
        origin: String,
        /// The cause.
        error: Box<EntryError>,
    },
    /// The blocks of a range lead to roots that differ from those in its data.
    #[error(
        "the proofs of blocks {range}, from {origin}, are invalid: they do not lead to the roots that they end with: \
         {differ}"
    )]
    After {
        /// The source of the data.
        origin: String,
        /// The range.
        range: HeightRange,
        /// How the roots differ.
        differ: RootsDiffer,
    },
    /// A file of the work folder contradicts another.
    #[error("{0} is damaged")]
    Damaged(String),
    /// Ranges do not fit together.
    #[error(transparent)]
    Merge(#[from] ProvenMergeError),
    /// The first range does not begin with the forest that the job begins with.
    #[error(
        "the proofs of block {first} are invalid: they do not begin with the roots that the sync begins with: {differ}"
    )]
    Before {
        /// The first block.
        first: Height,
        /// How the roots differ.
        differ: RootsDiffer,
    },
    /// A block breaks a rule, provided that the given coins and the roots at which its range begins are
    /// right.
    #[error(
        "block {} ({}) is invalid, if its proofs, from {origin}, are right: {error}", block.height, block.hash
    )]
    Refused {
        /// The block.
        block: KnownBlock,
        /// The source of the data.
        origin: String,
        /// The rule.
        error: Box<ConnectError>,
    },
    /// Two coinbases with one txid.
    #[error(
        "the coinbases of blocks {first} and {second} have the same id {txid}. BIP-30 allows that only if the \
         first was spent before the second, which a forest does not show"
    )]
    DuplicateCoinbase {
        /// The id.
        txid: Txid,
        /// The earlier block.
        first: Height,
        /// The later block.
        second: Height,
    },
    /// A script could not be run, so nothing is known about the block.
    #[error("a script of block {} ({}) could not be run: {what}", block.height, block.hash)]
    Script {
        /// The block.
        block: KnownBlock,
        /// The cause.
        what: String,
    },
    /// Scripts must be run, but there is no interpreter.
    #[error(transparent)]
    NoInterpreter(#[from] NoInterpreter),
}

/// The failure of a job that validates with proofs, with advice.
#[derive(Debug, thiserror::Error)]
#[error("{error}{}", advice(error, trusted.as_deref()))]
pub struct ByProofsError {
    /// The failure.
    pub error: ProvenError,
    /// The roots that the user trusts, in words, if the job began with such roots: they may be the cause.
    pub trusted: Option<String>,
}

fn advice(error: &ProvenError, trusted: Option<&str>) -> String {
    if let Some(roots) = trusted {
        return format!(
            ". Or {roots}, with which this sync began, are wrong: check them, get other proofs, or validate from block \
             1 on, without --roots"
        );
    }
    match error {
        ProvenError::Refused { .. } => {
            ". Either the block or its proofs are wrong: validate without proofs (--engine mergesync) to find out"
        }
        _ => ". Get other proofs, or validate without them (--engine mergesync)",
    }
    .to_owned()
}

impl RunError for ByProofsError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Wrong
    }

    fn class(&self) -> &'static str {
        "wrong_data"
    }

    /// Some range began with wrong roots, and it is unknown which one, so all progress is suspect.
    fn spoils_progress(&self) -> bool {
        matches!(self.error, ProvenError::Merge(_) | ProvenError::Before { .. })
    }
}

impl From<ProvenError> for SyncError {
    fn from(error: ProvenError) -> Self {
        match error {
            ProvenError::NoInterpreter(error) => ScriptPoolError::from(error).into(),
            ProvenError::Damaged(file) => Self::Io(IoError::WorkdirDamaged { file }),
            ProvenError::Script { .. } => Self::Io(IoError::Script { what: error.to_string() }),
            ProvenError::NotThere { .. } => {
                ProofsError::NotThere { what: error.to_string() }.into()
            }
            error => ByProofsError { error, trusted: None }.into(),
        }
    }
}
