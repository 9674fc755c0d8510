//! [`SwiftSyncError`]: why a segment or a whole run failed.

use crate::engines::swiftsync::HintError;
use crate::error::{ErrorKind, InvalidBlock, RunError};
use apus_chain::{BlockHash, Height, HeightRange, KnownBlock, OutPoint, Txid};

/// Core's words for what is spent before it can be (Core `consensus/tx_verify.cpp`, `CheckTxInputs`).
pub(super) const MISSING: &str = "bad-txns-inputs-missingorspent";
pub(super) const PREMATURE: &str = "bad-txns-premature-spend-of-coinbase";

/// Why a segment or a whole run failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SwiftSyncError {
    /// The hints and the blocks do not fit together.
    #[error(transparent)]
    Hints(#[from] HintError),
    /// A block came twice or does not belong to the segment: a mistake of the caller's.
    #[error("block {0} is not one that this segment still waits for")]
    Unexpected(Height),
    /// Blocks are missing.
    #[error("the blocks {missing} of the chain up to {stop} were not processed")]
    Incomplete {
        /// The first gap.
        missing: HeightRange,
        /// The stop height.
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
    /// The sums differ.
    #[error(
        "the aggregate does not balance: the hints leave {created} coins to be spent and the \
         blocks spend {spent}{}: the hints are wrong for this chain (made for another stop block \
         or a stale fork, or damaged), or the chain spends a coin twice or one that never was. Get \
         other hints",
        if created == spent { ", as many, but not the same ones" } else { "" }
    )]
    Unbalanced {
        /// Outpoints that were created and do not survive.
        created: u64,
        /// Outpoints that were spent.
        spent: u64,
    },
    /// The sums of coins differ.
    #[error(
        "the coins that the hints leave to be spent, {created}, are not those that blocks spend by their \
         undo data, {spent}: the hints or the undo data are wrong for this chain, or the chain spends a \
         coin twice or one that never was. A run without hints (--engine mergesync) needs neither, and \
         tells of the block, if one is at fault"
    )]
    CoinsUnbalanced {
        /// Coins that were created and do not survive.
        created: u64,
        /// Coins that were spent.
        spent: u64,
    },
    /// More bitcoins than subsidies allow.
    #[error(
        "the outputs that were never spent add up to {amount} satoshis, more than the {supply} \
         that all subsidies up to height {stop} allow: the chain creates money"
    )]
    Supply {
        /// Satoshis in coins and unspendable outputs.
        amount: u128,
        /// The bound.
        supply: u64,
        /// The stop height.
        stop: Height,
    },
    /// A block spends what it has not created yet, or its own coinbase.
    #[error(
        "block {height} ({hash}) is invalid: its transaction {tx} spends {outpoint}, {}: {reason}",
        if *reason == PREMATURE { "which its own coinbase creates" } else { "which the block does \
        not create before it" }
    )]
    Order {
        /// The block's height.
        height: Height,
        /// Its hash.
        hash: BlockHash,
        /// Which of its transactions, the coinbase being 0.
        tx: u32,
        /// What it spends.
        outpoint: OutPoint,
        /// Core's word for it.
        reason: &'static str,
    },
    /// Two coinbases with one txid.
    #[error(
        "the coinbases of blocks {first} and {second} have the same id {txid}: BIP-30 allows that \
         only if the first was spent before the second, which cannot be known out of order"
    )]
    DuplicateCoinbase {
        /// The id.
        txid: Txid,
        /// The earlier block.
        first: Height,
        /// The later block.
        second: Height,
    },
}

impl RunError for SwiftSyncError {
    /// What balances is the set that the blocks lead to, whatever hints say. That hints and blocks do not fit each other
    /// does not say which of the two is at fault.
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Order { .. } | Self::Supply { .. } => ErrorKind::Invalid,
            _ => ErrorKind::Wrong,
        }
    }

    fn class(&self) -> &'static str {
        "invalid"
    }

    fn invalid_block(&self) -> Option<InvalidBlock> {
        let Self::Order { height, hash, tx, outpoint, reason } = self else { return None };
        let block = KnownBlock { height: *height, hash: *hash };
        let why = format!("its transaction {tx} spends {outpoint} too early [{reason}]");
        Some(InvalidBlock { block, why })
    }

    fn is_about_hints(&self) -> bool {
        self.kind() == ErrorKind::Wrong
    }

    fn spoils_progress(&self) -> bool {
        true
    }
}
