//! Why a block could not be connected.

use apus_chain::{BlockHash, KnownBlock};
use apus_engine::connect::ConnectError;
use apus_engine::script::NoInterpreter;
use apus_engine::utxo::store::StoreError;

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
