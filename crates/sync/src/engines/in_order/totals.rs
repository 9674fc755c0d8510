//! [`Totals`]: how much was processed up to a block.

use crate::engines::pass::Counts;
use apus_chain::{BlockHash, CheckedBlock, KnownBlock};
use apus_engine::connect::{BlockCounts, ConnectError};
use apus_engine::script::NoInterpreter;
use apus_engine::utxo::store::StoreError;

/// How much was processed up to a block, as far as the caller reported it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// The blocks and what is in them.
    pub counts: Counts,
    /// Number of blocks whose scripts were run.
    pub scripts: u64,
    /// Number of coins in the set.
    pub coins: u64,
}

impl Totals {
    pub(super) fn add(&mut self, counts: BlockCounts, coins: i64, scripts: bool) {
        let BlockCounts { bytes, transactions, inputs, outputs, .. } = counts;
        self.counts.add(&Counts { blocks: 1, bytes, transactions, inputs, outputs });
        self.scripts += u64::from(scripts);
        self.coins = self.coins.wrapping_add_signed(coins);
    }

    /// Subtracts a disconnected block. Whether its scripts were run is unknown, so it assumes they were:
    /// counting too few is safe.
    pub(super) fn take_back(&mut self, block: &CheckedBlock, coins: i64) {
        self.counts.take_back(&block.bytes().view());
        self.scripts = self.scripts.saturating_sub(1);
        self.coins = self.coins.wrapping_add_signed(coins);
    }
}

// Errors of connecting a block.

/// An error of the chain state.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ChainstateError {
    /// A block breaks a rule.
    #[error("block {} ({}) is invalid: {}", .block.height, .block.hash, .error.with_reason())]
    Invalid {
        /// The block.
        block: KnownBlock,
        /// The broken rule.
        error: ConnectError,
    },
    /// Coins could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Scripts must be run, but this build has no interpreter.
    #[error(transparent)]
    NoInterpreter(#[from] NoInterpreter),
    /// Scripts could not be run: there is no verdict, and the block does not pass.
    #[error("block {} ({}): the scripts could not be run: {what}", .block.height, .block.hash)]
    Script {
        /// The block.
        block: KnownBlock,
        /// The interpreter's error.
        what: String,
    },
    /// A block that does not follow the tip, or is not the tip.
    #[error("block {block} is neither the tip {} ({}) nor the next block", .tip.height, .tip.hash)]
    NotAtTip {
        /// The given block.
        block: BlockHash,
        /// The tip of the chain state.
        tip: KnownBlock,
    },
    /// Undo data needed to disconnect a block is missing, or belongs to another block.
    #[error(
        "block {} ({}) cannot be disconnected: its undo data {what}. Start over with an empty work folder",
        .block.height, .block.hash
    )]
    Undo {
        /// The block.
        block: KnownBlock,
        /// What its undo data lacks, as the rest of a sentence.
        what: String,
    },
    /// The system cannot start as many threads.
    #[error("cannot start threads: {0}")]
    Threads(String),
}
