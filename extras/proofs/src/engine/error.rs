//! [`ProvenError`]: why a range or a whole run failed.

use super::coins::EntryError;
use super::partial::{ProvenMergeError, RootsDiffer};
use crate::error::ProofsError;
use apus_chain::{Height, HeightRange, KnownBlock, Txid};
use apus_engine::connect::ConnectError;
use apus_engine::script::{NoInterpreter, ScriptPoolError};
use apus_sync::{ErrorKind, IoError, RunError, SyncError};

/// Why a range or a whole run failed.
#[derive(Debug, thiserror::Error)]
pub enum ProvenError {
    /// A block came out of order or does not belong to the range: a mistake of the caller's.
    #[error("block {0} is not the one that this range waits for")]
    Unexpected(Height),
    /// Blocks are missing.
    #[error("the blocks {missing} of the chain up to {stop} were not processed")]
    Incomplete {
        /// The first gap.
        missing: HeightRange,
        /// The last block that is wanted.
        stop: Height,
    },
    /// Blocks are there that do not belong to the run: a mistake of the caller's.
    #[error("the blocks {surplus} were processed, but a run covers the heights 1 to {stop} alone")]
    Surplus {
        /// The first of them.
        surplus: HeightRange,
        /// The stop height.
        stop: Height,
    },
    /// What is told of a block is not there.
    #[error("there are no proofs of block {} ({}): {what}", block.height, block.hash)]
    NotThere {
        /// The block.
        block: KnownBlock,
        /// Why.
        what: String,
    },
    /// What is told of a block is of no use.
    #[error("the proofs of block {} ({}), from {origin}, are of no use: {error}", block.height, block.hash)]
    Entry {
        /// The block.
        block: KnownBlock,
        /// Who or what told.
        origin: String,
        /// What is wrong.
        error: Box<EntryError>,
    },
    /// A range ends with other roots than it says itself.
    #[error(
        "the proofs of blocks {range}, from {origin}, are of no use: they lead to other roots than they end with: \
         {differ}"
    )]
    After {
        /// Who or what told.
        origin: String,
        /// The range.
        range: HeightRange,
        /// In what they differ.
        differ: RootsDiffer,
    },
    /// Ranges do not fit together.
    #[error(transparent)]
    Merge(#[from] ProvenMergeError),
    /// The first range does not begin at the beginning.
    #[error(
        "the proofs of block 1 are of no use: they begin with a forest of {leaves} leaves, and before block 1 there \
         is none"
    )]
    Before {
        /// How many there would be.
        leaves: u64,
    },
    /// A block breaks a rule, if it spends what is told, and the forest is the one that its range begins with.
    #[error(
        "block {} ({}) is invalid, if its proofs, from {origin}, are right: {error}", block.height, block.hash
    )]
    Refused {
        /// The block.
        block: KnownBlock,
        /// Who or what told.
        origin: String,
        /// The rule.
        error: Box<ConnectError>,
    },
    /// Two coinbases with one txid.
    #[error(
        "the coinbases of blocks {first} and {second} have the same id {txid}: BIP-30 allows that \
         only if the first was spent before the second, which a forest does not show"
    )]
    DuplicateCoinbase {
        /// The id.
        txid: Txid,
        /// The earlier block.
        first: Height,
        /// The later block.
        second: Height,
    },
    /// A script could not be run, which says nothing of the block.
    #[error("a script of block {} ({}) could not be run: {what}", block.height, block.hash)]
    Script {
        /// The block.
        block: KnownBlock,
        /// Why.
        what: String,
    },
    /// Scripts are to be run, and nothing can run them.
    #[error(transparent)]
    NoInterpreter(#[from] NoInterpreter),
}

/// A run by proofs that failed, with what one without them is good for.
#[derive(Debug, thiserror::Error)]
#[error("{error}{advice}", error = .0, advice = advice(.0))]
pub struct ByProofsError(pub ProvenError);

fn advice(error: &ProvenError) -> &'static str {
    match error {
        ProvenError::Refused { .. } => {
            ". Either the block is at fault or its proofs are: a run without them (--engine mergesync) tells which"
        }
        _ => ". Get other proofs, or do without them (--engine mergesync)",
    }
}

impl RunError for ByProofsError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Wrong
    }

    fn class(&self) -> &'static str {
        "wrong_data"
    }

    /// Some range began with roots that were never there, and which one is not known.
    fn spoils_progress(&self) -> bool {
        matches!(self.0, ProvenError::Merge(_) | ProvenError::Before { .. })
    }
}

impl From<ProvenError> for SyncError {
    fn from(error: ProvenError) -> Self {
        match error {
            ProvenError::NoInterpreter(error) => ScriptPoolError::from(error).into(),
            ProvenError::Script { .. } => Self::Io(IoError::Script { what: error.to_string() }),
            ProvenError::NotThere { .. } => {
                ProofsError::NotThere { what: error.to_string() }.into()
            }
            other => ByProofsError(other).into(),
        }
    }
}
