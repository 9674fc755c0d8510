//! The cost of a transaction's signature operations, once it is known what it spends.
//!
//! The sum over a block is limited. Before the coins are known, only the part in plain sight can
//! be counted, which [`check`](crate::check) does; this is the whole. Nothing is run here.

use crate::block::{InputView, TxView, WitnessView};
use crate::script::{accurate_sigops, is_p2sh, last_push, legacy_sigops};
use crate::verify::{VERIFY_P2SH, VERIFY_WITNESS};

/// Greatest cost of the signature operations in a block (Core `consensus/consensus.h`,
/// `MAX_BLOCK_SIGOPS_COST`).
pub const BLOCK_SIGOPS_COST_MAX: u64 = 80_000;

/// Cost of a signature operation outside witnesses, and weight of one byte there (Core
/// `consensus/consensus.h`, `WITNESS_SCALE_FACTOR`).
pub const WITNESS_SCALE_FACTOR: u64 = 4;

/// The cost of a transaction's signature operations (Core `consensus/tx_verify.cpp`,
/// `GetTransactionSigOpCost`).
///
/// `spent` are the scripts of the coins that its inputs spend, in the order of the inputs; those of
/// a coinbase are not asked for. Where one is missing, what it would add is unknown, and the cost is
/// more than any block may have. `flags` are the block's
/// [script rules](crate::Params::block_script_flags).
pub fn transaction_sigop_cost<'a>(
    tx: &TxView<'_>,
    spent: impl IntoIterator<Item = &'a [u8]>,
    flags: u32,
) -> u64 {
    let legacy = tx_legacy_sigops(tx) * WITNESS_SCALE_FACTOR;
    if tx.is_coinbase() {
        return legacy;
    }
    let spending = spending_sigop_cost(tx, spent, flags).unwrap_or(u64::MAX);
    legacy.saturating_add(spending)
}

/// What a transaction has in plain sight (Core `consensus/tx_verify.cpp`, `GetLegacySigOpCount`).
fn tx_legacy_sigops(tx: &TxView<'_>) -> u64 {
    let inputs = tx.inputs().map(|input| input.script_sig());
    let scripts = inputs.chain(tx.outputs().map(|output| output.script()));
    scripts.map(|script| u64::from(legacy_sigops(script))).sum()
}

/// What the inputs of a transaction can at most add to [`BlockBytes::legacy_sigops`](crate::BlockBytes::legacy_sigops),
/// times [`WITNESS_SCALE_FACTOR`], whatever they spend: an input has one redeem script and one witness script, and
/// counts for one where its witness is to have a single signature.
pub fn spending_sigop_cost_max(tx: &TxView<'_>) -> u64 {
    let mut witnesses = tx.witnesses();
    let of_input = |input: InputView<'_>| {
        let redeem = last_push(input.script_sig()).map_or(0, accurate_sigops);
        let witness = witnesses.next().and_then(|witness| witness.last().map(accurate_sigops));
        u64::from(redeem) * WITNESS_SCALE_FACTOR + u64::from(witness.unwrap_or(0).max(1))
    };
    tx.inputs().map(of_input).sum()
}

/// The part of the cost that depends on the coins, pay-to-script-hash and witnesses; none where a
/// coin is missing.
fn spending_sigop_cost<'a>(
    tx: &TxView<'_>,
    spent: impl IntoIterator<Item = &'a [u8]>,
    flags: u32,
) -> Option<u64> {
    let mut cost = 0;
    let mut spent = spent.into_iter();
    // Witnesses are found only by walking through those before, so that is put off until one is
    // needed: by a script in a witness.
    let mut witnesses = tx.witnesses().enumerate();
    let mut witness_of = |vin: usize| {
        witnesses
            .find(|(index, _)| *index == vin)
            .map_or_else(WitnessView::default, |(_, found)| found)
    };
    for (vin, input) in tx.inputs().enumerate() {
        let script_pubkey = spent.next()?;
        let mut program = script_pubkey;
        if is_p2sh(script_pubkey) {
            let Some(redeem_script) = last_push(input.script_sig()) else { continue };
            if flags & VERIFY_P2SH != 0 {
                cost += u64::from(accurate_sigops(redeem_script)) * WITNESS_SCALE_FACTOR;
            }
            program = redeem_script;
        }
        if flags & VERIFY_WITNESS != 0 {
            cost += witness_sigops(program, || witness_of(vin));
        }
    }
    Some(cost)
}

/// Signature operations behind a witness program; those of other versions than 0 have none (Core
/// `script/interpreter.cpp`, `CountWitnessSigOps` and `WitnessSigOps`).
fn witness_sigops<'a>(program: &[u8], witness: impl FnOnce() -> WitnessView<'a>) -> u64 {
    match program {
        [0, 20, hash @ ..] if hash.len() == 20 => 1,
        [0, 32, hash @ ..] if hash.len() == 32 => {
            witness().last().map_or(0, |script| u64::from(accurate_sigops(script)))
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
