//! Undo data of a block, as Core's undo files have it, made and used.

use super::cache::{CoinChange, CoinsDelta};
use super::coin::CoinBytes;
use super::fetch::{Place, wanted_of};
use super::prepared::PreparedBlock;
use apus_chain::{BlockUndo, BlockUndoWriter, CheckedBlock, OutPoint, is_unspendable};
use std::collections::HashSet;

/// The undo data of a block that spends `spent`, in the order of its inputs.
pub(super) fn block_undo(block: &PreparedBlock, spent: &[CoinBytes]) -> Vec<u8> {
    let view = block.block().bytes().view();
    let mut out = Vec::with_capacity(16 + 48 * spent.len());
    let mut writer = BlockUndoWriter::new(&mut out, view.tx_count());
    let mut rest = spent;
    for tx in view.txs().skip(1) {
        let (coins, after) = rest.split_at(tx.inputs().len());
        rest = after;
        writer
            .push_stored_tx(coins.iter().map(CoinBytes::as_bytes))
            .expect("coins are in their stored form");
    }
    writer.finish();
    out
}

/// What it does to the coins to disconnect a block (Core `validation.cpp`, `DisconnectBlock`): what
/// it created goes, what it spent comes back. Fails where the undo data is not this block's.
///
/// A coin that one of BIP-30's two exceptions overwrote does not come back, as in Core.
pub(super) fn undo_delta(block: &CheckedBlock, undo: &[u8]) -> Result<CoinsDelta, String> {
    let undo = BlockUndo::read(undo).map_err(|error| format!("cannot be read: {error}"))?;
    let bytes = block.bytes();
    let view = bytes.view();
    let inputs: usize = view.txs().skip(1).map(|tx| tx.inputs().len()).sum();
    if undo.tx_count() != view.tx_count() || undo.coins().len() != inputs {
        return Err("is of another block".to_owned());
    }
    let (mut wanted, mut places) = (Vec::new(), Vec::new());
    wanted_of(&bytes, &mut wanted, &mut places);
    let spends = view.txs().skip(1).flat_map(|tx| tx.inputs());
    // What the block created and spent itself was in no set, before or after.
    let within: HashSet<OutPoint> = spends
        .zip(&places)
        .filter(|(_, place)| matches!(place, Place::Created { .. }))
        .map(|(input, _)| OutPoint::from_bytes(input.outpoint()))
        .collect();
    let mut delta = CoinsDelta::with_capacity(inputs + view.output_count());
    for (txid, tx) in bytes.txs() {
        for (vout, output) in tx.outputs().enumerate() {
            let outpoint = OutPoint { txid, vout: vout as u32 };
            if !is_unspendable(output.script()) && !within.contains(&outpoint) {
                delta.spend(outpoint);
            }
        }
    }
    let mut stored = Vec::new();
    for (place, coin) in places.iter().zip(undo.coins()) {
        if let Place::Wanted(index) = place {
            stored.clear();
            coin.write_stored(&mut stored);
            let coin = CoinBytes::read(&stored).map_err(|error| format!("is damaged: {error}"))?;
            delta.create(wanted[*index as usize], coin, false);
        }
    }
    Ok(delta)
}

/// Coins more after a change than before.
pub(super) fn coins_added(delta: &CoinsDelta) -> i64 {
    let one = |change: &CoinChange| match change {
        CoinChange::Created { .. } => 1,
        CoinChange::Spent => -1,
    };
    delta.iter().map(|(_, change)| one(change)).sum()
}
