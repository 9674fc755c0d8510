//! [`InvalidError`]: the data is wrong: a block breaks a rule, hints do not fit, a chain is too short.

use super::{ChainGap, ErrorKind, InvalidBlock, SyncError};
use crate::engines::in_order::ChainstateError;
use apus_chain::{BlockError, BlockHash, Height, KnownBlock, OutPoint, Txid, UtxoSetHash};

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum InvalidError {
    /// A block of the chain breaks a rule.
    #[error("block {height} ({hash}) is invalid: {error} [{}]", .error.reason())]
    InvalidBlock {
        /// Its height.
        height: Height,
        /// Its hash.
        hash: BlockHash,
        /// The rule.
        error: BlockError,
    },
    /// The hints end above the chain.
    #[error(
        "the hints stop at height {stop}, but the chain that was found ends at {tip}{gap}: add the \
         missing block files, or connect to peers that have more of it, or use hints for a height up \
         to {tip}"
    )]
    ChainTooShort {
        /// The hints' stop height.
        stop: Height,
        /// The chain's tip.
        tip: Height,
        /// What lies beyond.
        gap: ChainGap,
    },
    /// The run is to end above the chain.
    #[error(
        "the run is to stop at height {stop}, but the chain that was found ends at {tip}{gap}: add \
         the missing block files, or connect to peers that have more of it, or stop at a height up \
         to {tip}"
    )]
    StopAboveTip {
        /// What was asked for.
        stop: Height,
        /// The chain's tip.
        tip: Height,
        /// What lies beyond.
        gap: ChainGap,
    },
    /// The hints are bound to a block that is not on the chain.
    #[error(
        "the hints are for block {base}, which is not on the most-work chain that was found: they \
         were made on a stale fork or another chain, or block files are missing, or the peers \
         have another chain"
    )]
    BaseNotOnChain {
        /// The block.
        base: BlockHash,
    },
    /// One transaction id in two blocks, with coins of both surviving.
    #[error(
        "two blocks create transaction {txid}, and coins of both survive, which BIP-30 forbids"
    )]
    DuplicateTransaction {
        /// The id.
        txid: Txid,
    },
    /// Core's own table of snapshots has another set for the stop block.
    #[error(
        "the set's hash_serialized_3 is {found}, but Bitcoin Core's own table of snapshots has \
         {known} for block {stop_hash}: either scripts or amounts that are assumed valid here are \
         not, or this is a mistake in the program; nothing was written under the output's name"
    )]
    AssumeUtxo {
        /// The stop block.
        stop_hash: BlockHash,
        /// What the blocks lead to.
        found: UtxoSetHash,
        /// What the table has.
        known: UtxoSetHash,
    },
    /// A coin of a snapshot that claims a height outside the chain up to the snapshot's block.
    #[error(
        "{file}: coin {outpoint} claims to be from block {height}, which is not between 1 and the \
         snapshot's own block: the snapshot is damaged"
    )]
    CoinHeight {
        /// The snapshot.
        file: String,
        /// The coin.
        outpoint: OutPoint,
        /// The height that it claims.
        height: Height,
    },
    /// A snapshot given as hints was written to while it was read.
    #[error("{file} changed while it was read: start again with a file that no program writes to")]
    HintsChanged {
        /// The snapshot.
        file: String,
    },
}

impl InvalidError {
    /// What it means.
    pub(super) fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidBlock { .. } | Self::DuplicateTransaction { .. } => ErrorKind::Invalid,
            Self::ChainTooShort { gap, .. } | Self::StopAboveTip { gap, .. }
                if !gap.invalid.is_empty() =>
            {
                ErrorKind::Invalid
            }
            Self::ChainTooShort { .. }
            | Self::StopAboveTip { .. }
            | Self::BaseNotOnChain { .. }
            | Self::AssumeUtxo { .. }
            | Self::CoinHeight { .. }
            | Self::HintsChanged { .. } => ErrorKind::Wrong,
        }
    }

    /// As [`SyncError::spoils_progress`](super::SyncError::spoils_progress).
    pub(super) fn spoils_progress(&self) -> bool {
        matches!(self, Self::DuplicateTransaction { .. } | Self::AssumeUtxo { .. })
    }
}

impl InvalidBlock {
    /// The block that an error is about, if the error is that a block breaks a rule.
    pub fn of(error: &SyncError) -> Option<Self> {
        let (block, mut why) = match error {
            SyncError::Invalid(InvalidError::InvalidBlock { height, hash, error }) => {
                let block = KnownBlock { height: *height, hash: *hash };
                (block, format!("{error} [{}]", error.reason()))
            }
            SyncError::Run(error) => return error.invalid_block(),
            SyncError::Chainstate { error } => match &**error {
                ChainstateError::Invalid { block, error } => (*block, error.with_reason()),
                _ => return None,
            },
            _ => return None,
        };
        why.truncate(why.floor_char_boundary(Self::WHY_BYTES_MAX));
        Some(Self { block, why })
    }
}
