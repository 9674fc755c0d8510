//! [`SwiftSyncError`]: why a segment or a whole sync failed.

use crate::engines::swiftsync::HintError;
use crate::error::{ErrorKind, InvalidBlock, RunError};
use apus_chain::{BlockHash, Height, HeightRange, KnownBlock, OutPoint, Txid};

/// Core's reject reasons for spends that come too early (Core `consensus/tx_verify.cpp`, `CheckTxInputs`).
pub(super) const MISSING: &str = "bad-txns-inputs-missingorspent";
pub(super) const PREMATURE: &str = "bad-txns-premature-spend-of-coinbase";

/// Why a segment or a whole sync failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SwiftSyncError {
    /// The hints do not fit the blocks.
    #[error(transparent)]
    Hints(#[from] HintError),
    /// A block was passed twice or is outside the segment: a mistake of the caller.
    #[error("block {0} is outside the segment, or came twice")]
    Unexpected(Height),
    /// Blocks are missing.
    #[error("the blocks {missing} of the chain up to {stop} were not processed")]
    Incomplete {
        /// The first gap.
        missing: HeightRange,
        /// The stop height.
        stop: Height,
    },
    /// There are blocks outside the sync's heights: a mistake of the caller.
    #[error("the blocks {surplus} were processed, but a sync only covers heights 1 to {stop}")]
    Surplus {
        /// The first of them.
        surplus: HeightRange,
        /// The stop height.
        stop: Height,
    },
    /// The sums differ.
    #[error(
        "the aggregate does not balance: the hints leave {created} coins to be spent and the blocks spend \
         {spent}{}: the hints are wrong for this chain (made for another stop block or a stale fork, or damaged), \
         or the chain spends a coin twice, or a coin that never existed. Get other hints",
        if created == spent { ", the same number, but other coins" } else { "" }
    )]
    Unbalanced {
        /// Outpoints that were created and do not survive.
        created: u64,
        /// Outpoints that were spent.
        spent: u64,
    },
    /// The sums of coins differ.
    #[error(
        "the aggregate of coins does not balance: the hints leave {created} coins to be spent and, by their undo \
         data, the blocks spend {spent}{}: the hints or the undo data are wrong for this chain, or the chain \
         spends a coin twice, or a coin that never existed. Rerun without --hints (--engine mergesync): that needs \
         neither hints nor undo data, and names the invalid block if there is one",
        if created == spent { ", the same number, but other coins" } else { "" }
    )]
    CoinsUnbalanced {
        /// Coins that were created and do not survive.
        created: u64,
        /// Coins that were spent.
        spent: u64,
    },
    /// The chain creates more bitcoin than subsidies allow.
    #[error(
        "the outputs that were never spent add up to {amount} satoshis, more than the {supply} that all subsidies \
         up to height {stop} allow: the chain creates money"
    )]
    Supply {
        /// Satoshis in coins and unspendable outputs.
        amount: u128,
        /// The bound.
        supply: u64,
        /// The stop height.
        stop: Height,
    },
    /// A block spends an output that it has not created yet, or its own coinbase's.
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
        /// Index of the transaction; the coinbase is 0.
        tx: u32,
        /// The outpoint it spends.
        outpoint: OutPoint,
        /// Core's reject reason.
        reason: &'static str,
    },
    /// Two coinbases have the same txid.
    #[error(
        "the coinbases of blocks {first} and {second} have the same id {txid}. BIP-30 allows that only if the \
         first was spent before the second, which a sync out of order cannot check. Rerun without --hints \
         (--engine mergesync)"
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
    /// If the aggregate balances, the set is the one that the blocks produce, regardless of the hints. If it
    /// does not, either the hints or the blocks may be at fault.
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
