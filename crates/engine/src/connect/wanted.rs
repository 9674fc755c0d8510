//! [`wanted_of`]: which coins a block needs from outside, and which it creates itself.
//!
//! An input may spend an output of a transaction *before* its own (`validation.cpp`, `ConnectBlock`:
//! transactions are applied one after the other). One that names a later transaction's output names
//! a coin that is not there yet, so it is looked up outside like any other.

use crate::tx_table::TxTable;
use apus_chain::{BlockBytes, OutPoint};

/// Where the coin of an input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It is looked up: the index among the wanted ones.
    Wanted(u32),
    /// A transaction before it in the block has such an output. Whether that became a coin, and
    /// whether something else has spent it since, is for the connector to see.
    Created {
        /// Index of the transaction in the block.
        tx: u32,
        /// Index of the output in it.
        vout: u32,
    },
}

/// Lists the coins that a block needs and does not create, in block order, into `wanted`; and for
/// each input, in block order and without the coinbase's, where its coin comes from, into `places`.
/// Both are emptied first.
pub fn wanted_of(block: &BlockBytes<'_>, wanted: &mut Vec<OutPoint>, places: &mut Vec<Place>) {
    wanted.clear();
    places.clear();
    places.reserve(block.view().input_count());
    let txs = block.view().tx_count();
    let (mut before, mut outputs) = (TxTable::new(txs), Vec::with_capacity(txs));
    for (txid, tx) in block.txs() {
        let coinbase = outputs.is_empty();
        for input in tx.inputs().filter(|_| !coinbase) {
            let outpoint = OutPoint::from_bytes(input.outpoint());
            let tx = before.find(&outpoint.txid);
            let place = match tx.filter(|tx| outpoint.vout < outputs[*tx as usize]) {
                Some(tx) => Place::Created { tx, vout: outpoint.vout },
                None => {
                    wanted.push(outpoint);
                    // A block has fewer inputs than bytes.
                    Place::Wanted(wanted.len() as u32 - 1)
                }
            };
            places.push(place);
        }
        before.add(txid);
        outputs.push(tx.outputs().len() as u32);
    }
}

#[cfg(test)]
mod tests;
