//! [`Totals`]: how much was processed up to a block.

use apus_chain::{BlockHash, CheckedBlock, KnownBlock};
use apus_engine::connect::{BlockCounts, ConnectError};
use apus_engine::script::NoInterpreter;
use apus_engine::utxo::store::StoreError;

/// What was processed up to a block, as far as the caller told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Blocks.
    pub blocks: u64,
    /// Bytes of blocks.
    pub bytes: u64,
    /// Transactions, coinbases included.
    pub transactions: u64,
    /// Inputs that spend a coin.
    pub inputs: u64,
    /// Outputs, unspendable ones included.
    pub outputs: u64,
    /// Blocks whose scripts were run.
    pub scripts: u64,
    /// Coins in the set.
    pub coins: u64,
}

impl Totals {
    pub(super) fn add(&mut self, counts: BlockCounts, coins: i64, scripts: bool) {
        self.blocks += 1;
        self.bytes += counts.bytes;
        self.transactions += counts.transactions;
        self.inputs += counts.inputs;
        self.outputs += counts.outputs;
        self.scripts += u64::from(scripts);
        self.coins = self.coins.wrapping_add_signed(coins);
    }

    /// Takes a block out again. Whether its scripts were run is not known; too few is on the safe
    /// side.
    pub(super) fn take_back(&mut self, block: &CheckedBlock, coins: i64) {
        let view = block.bytes().view();
        let coinbase_inputs = 1;
        self.blocks = self.blocks.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(view.raw().len() as u64);
        self.transactions = self.transactions.saturating_sub(view.tx_count() as u64);
        let inputs = view.input_count().saturating_sub(coinbase_inputs) as u64;
        self.inputs = self.inputs.saturating_sub(inputs);
        self.outputs = self.outputs.saturating_sub(view.output_count() as u64);
        self.scripts = self.scripts.saturating_sub(1);
        self.coins = self.coins.wrapping_add_signed(coins);
    }
}

// Why a block could not be connected.

/// Why the chain state is where it was.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ChainstateError {
    /// A block breaks a rule.
    #[error("block {} ({}) is invalid: {}", .block.height, .block.hash, .error.with_reason())]
    Invalid {
        /// The block.
        block: KnownBlock,
        /// The rule.
        error: ConnectError,
    },
    /// Coins could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Scripts were to be run, and there is nothing to run them.
    #[error(transparent)]
    NoInterpreter(#[from] NoInterpreter),
    /// Scripts could not be run: no verdict, and never a pass.
    #[error("block {} ({}): the scripts could not be run: {what}", .block.height, .block.hash)]
    Script {
        /// The block.
        block: KnownBlock,
        /// What the interpreter said.
        what: String,
    },
    /// A block that does not follow the tip, or is not the tip.
    #[error("block {block} does not belong at the tip {} ({})", .tip.height, .tip.hash)]
    NotAtTip {
        /// The block given.
        block: BlockHash,
        /// Where the chain state is.
        tip: KnownBlock,
    },
    /// Undo data that is needed to go back is not there, or is not of this block.
    #[error(
        "block {} ({}) cannot be disconnected: its undo data {what}: start anew with an empty folder",
        .block.height, .block.hash
    )]
    Undo {
        /// The block.
        block: KnownBlock,
        /// What is wrong with it.
        what: String,
    },
    /// The system has no room for as many threads.
    #[error("cannot start threads: {0}")]
    Threads(String),
}
