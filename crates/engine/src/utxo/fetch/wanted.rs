//! [`wanted_of`]: which coins a block needs from outside, and which it creates itself.
//!
//! An input may spend an output of a transaction *before* its own (`validation.cpp`, `ConnectBlock`:
//! transactions are applied one after the other). One that names a later transaction's output names
//! a coin that is not there yet, so it is looked up outside like any other.

use apus_chain::{BlockBytes, OutPoint, Txid};
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

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
    let mut before = Before::new(block.view().tx_count());
    for (txid, tx) in block.txs() {
        if before.txs.is_empty() {
            before.add(txid, tx.outputs().len());
            continue;
        }
        for input in tx.inputs() {
            let outpoint = OutPoint::from_bytes(input.outpoint());
            let place = before.output(&outpoint).unwrap_or_else(|| {
                wanted.push(outpoint);
                // A block has fewer inputs than bytes.
                Place::Wanted(wanted.len() as u32 - 1)
            });
            places.push(place);
        }
        before.add(txid, tx.outputs().len());
    }
}

/// The transactions before one, found by their ids.
///
/// A table with open addressing, at most half full. Ids can be ground for, so the hash is keyed
/// with words that nobody outside the process knows; and an entry only counts if the whole id is
/// the same.
struct Before {
    /// Ids and numbers of outputs.
    txs: Vec<(Txid, u32)>,
    /// Index into `txs`, plus one; 0 is empty.
    table: Vec<u32>,
    shift: u32,
    key: [u64; 2],
}

impl Before {
    fn new(txs: usize) -> Self {
        let bits = (2 * txs).next_power_of_two().trailing_zeros().max(1);
        let table = vec![0; 1 << bits];
        Self { txs: Vec::with_capacity(txs), table, shift: 64 - bits, key: key() }
    }

    /// Where the search for an id begins.
    fn home(&self, txid: &Txid) -> usize {
        let (words, _) = txid.0.as_chunks::<8>();
        let [a, b] = [0, 1].map(|at| u64::from_le_bytes(words[at]) ^ self.key[at]);
        let product = u128::from(a) * u128::from(b);
        ((product as u64 ^ (product >> 64) as u64) >> self.shift) as usize
    }

    /// The entry of an id, or the empty one where it belongs.
    fn find(&self, txid: &Txid) -> (usize, Option<u32>) {
        let mask = self.table.len() - 1;
        let mut at = self.home(txid);
        loop {
            match self.table[at].checked_sub(1) {
                None => return (at, None),
                Some(tx) if self.txs[tx as usize].0 == *txid => return (at, Some(tx)),
                Some(_) => at = (at + 1) & mask,
            }
        }
    }

    fn output(&self, outpoint: &OutPoint) -> Option<Place> {
        let (_, tx) = self.find(&outpoint.txid);
        let tx = tx?;
        let vout = outpoint.vout;
        (vout < self.txs[tx as usize].1).then_some(Place::Created { tx, vout })
    }

    /// Adds the next transaction. Of two with one id, which no valid block has, the first stays.
    fn add(&mut self, txid: Txid, outputs: usize) {
        let (at, same) = self.find(&txid);
        self.txs.push((txid, outputs as u32));
        if same.is_none() {
            self.table[at] = self.txs.len() as u32;
        }
    }
}

/// Secret words of this process.
fn key() -> [u64; 2] {
    static KEY: OnceLock<[u64; 2]> = OnceLock::new();
    *KEY.get_or_init(|| {
        // The standard library's keyed hash, with keys from the system.
        let state = RandomState::new();
        [0u64, 1].map(|word| state.hash_one(word))
    })
}

#[cfg(test)]
mod tests;
