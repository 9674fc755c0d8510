//! [`ConnectError`]: a rule that a block breaks, given the coins that it spends.

use crate::script::ScriptFailure;
use apus_chain::{BlockView, ScriptError, SpendError, Txid};

/// A rule that a block breaks, found when it was connected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// What it spends, or how much.
    #[error("{0}")]
    Spend(#[from] SpendError),
    /// A script does not allow a spend.
    #[error("transaction {tx} ({txid}), input {vin}: {reason}")]
    Script {
        /// Index of the transaction in the block.
        tx: usize,
        /// Its id.
        txid: Txid,
        /// Index of the input.
        vin: usize,
        /// Core's reject reason.
        reason: String,
    },
}

impl ConnectError {
    /// The rule that a script's failure is about. `None` where the script could not be run.
    pub fn of_script(block: BlockView<'_>, failure: &ScriptFailure) -> Option<Self> {
        if failure.error != ScriptError::Invalid {
            return None;
        }
        Some(Self::Script {
            tx: failure.tx_index,
            txid: block.tx(failure.tx_index).map(|tx| tx.txid()).unwrap_or_default(),
            vin: failure.input,
            reason: failure.reason(),
        })
    }

    /// What is wrong, and once Core's reject reason, in brackets.
    pub fn with_reason(&self) -> String {
        match self {
            Self::Spend(error) => format!("{error} [{}]", error.reason()),
            Self::Script { tx, txid, vin, reason } => {
                format!("transaction {tx} ({txid}), input {vin}: its script fails [{reason}]")
            }
        }
    }

    /// Core's reject reason (`validation.cpp`, `ConnectBlock`).
    pub fn reject_reason(&self) -> String {
        match self {
            Self::Spend(error) => error.reason().to_owned(),
            Self::Script { reason, .. } => reason.clone(),
        }
    }
}
