//! [`ProvenError`]: why a range or a whole run failed.

use super::coins::EntryError;
use super::partial::{ProvenMergeError, RootsDiffer};
use apus_chain::{Height, HeightRange, KnownBlock, Txid};
use apus_engine::connect::ConnectError;
use apus_engine::script::NoInterpreter;

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
