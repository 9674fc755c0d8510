//! One pass over a block's transactions that gathers what the rules ask of them.
//!
//! Judging is left to the caller: a [`Survey`] notes the first offender against each rule, so that
//! the rules can be applied in Core's order although the transactions were looked at only once.

use super::error::TxError;
use super::transaction::{check_transaction, is_final};
use crate::block::BlockView;
use crate::sigops::block_legacy_sigops;

/// What was found. Places count transactions from the start of the block.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The first transaction in the form of a coinbase.
    pub(super) coinbase: Option<usize>,
    /// The second.
    pub(super) second_coinbase: Option<usize>,
    /// The first transaction that is invalid by itself.
    pub(super) invalid: Option<(usize, TxError)>,
    /// Signature operations in plain sight (Core `consensus/tx_verify.cpp`,
    /// `GetLegacySigOpCount`).
    pub(super) sigops: u64,
    /// The first transaction that is not final.
    pub(super) non_final: Option<usize>,
    /// The first transaction in the form with witnesses.
    pub(super) witness: Option<usize>,
    /// Bytes of the block without witnesses.
    pub(super) stripped_size: usize,
}

impl Survey {
    /// `height` and `cutoff` are what lock times are compared with; `scratch` is working space.
    pub(super) fn of(
        view: &BlockView<'_>,
        height: u32,
        cutoff: u32,
        scratch: &mut Vec<u64>,
    ) -> Self {
        let (stripped_size, sigops) = (view.raw().len(), block_legacy_sigops(view));
        let mut survey = Self { stripped_size, sigops, ..Self::default() };
        for (index, tx) in view.txs().enumerate() {
            let is_coinbase = tx.is_coinbase();
            if is_coinbase {
                match survey.coinbase {
                    None => survey.coinbase = Some(index),
                    Some(_) => survey.second_coinbase = survey.second_coinbase.or(Some(index)),
                }
            }
            if survey.invalid.is_none() {
                let checked = check_transaction(&tx, is_coinbase, scratch);
                survey.invalid = checked.err().map(|error| (index, error));
            }
            if survey.non_final.is_none() && !is_final(&tx, height, cutoff) {
                survey.non_final = Some(index);
            }
            if survey.witness.is_none() && tx.has_witness() {
                survey.witness = Some(index);
            }
            survey.stripped_size -= tx.witness_overhead();
        }
        survey
    }

    /// Weight in units of BIP-141 of a block of `size` bytes: three times the stripped size and
    /// once the size.
    pub(super) fn weight(&self, size: usize) -> usize {
        3 * self.stripped_size + size
    }
}
