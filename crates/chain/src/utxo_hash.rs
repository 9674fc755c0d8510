//! The values that `gettxoutsetinfo` reports about a UTXO set: its hashes, sizes and sums.
//!
//! Both hashes cover the same bytes for each coin ([`write_utxo_element`]). `muhash`
//! ([`MuHash`](crate::MuHash)) takes coins in any order. `hash_serialized_3` ([`HashSerialized3`]) takes them
//! by txid and, within a transaction, by *numeric* vout, which is not the order of snapshot files and
//! databases: see [`vout_order`](crate::vout_order). This module does not validate the coins.

use crate::coin::{CoinRef, coin_code};
use crate::hashes::{OutPoint, Txid, UtxoSetHash};
use crate::read::write_compact_size;
use apus_hash::{Sha256, sha256};

/// Appends the bytes that both hashes cover for one coin: outpoint, height and coinbase flag,
/// amount and script (Core `kernel/coinstats.cpp`, `TxOutSer`).
pub fn write_utxo_element(out: &mut Vec<u8>, outpoint: &OutPoint, coin: CoinRef<'_>) {
    let mut fixed = [0; OutPoint::SIZE + 12];
    let (name, numbers) = fixed.split_at_mut(OutPoint::SIZE);
    name.copy_from_slice(&outpoint.to_bytes());
    numbers[..4].copy_from_slice(&coin_code(&coin).to_le_bytes());
    numbers[4..].copy_from_slice(&coin.amount.to_le_bytes());
    out.extend_from_slice(&fixed);
    write_compact_size(out, coin.script.len() as u64);
    out.extend_from_slice(coin.script);
}

/// Returns a size of a coin that is independent of any database: txid, vout, height, amount, script
/// length and script (Core `kernel/coinstats.cpp`, `GetBogoSize`).
pub const fn bogosize(script_length: usize) -> u64 {
    32 + 4 + 4 + 8 + 2 + script_length as u64
}

/// Counts and sums over a set (Core `kernel/coinstats.h`, `CCoinsStats`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UtxoStats {
    /// Number of coins, `txouts`.
    pub coins: u64,
    /// Number of transactions with at least one coin.
    pub transactions: u64,
    /// Sum of the amounts in satoshi; wide enough for any amounts.
    pub total_amount: u128,
    /// Sum of [`bogosize`].
    pub bogosize: u64,
    last_txid: Option<Txid>,
}

impl UtxoStats {
    /// Counts a coin. The coins of a transaction must be consecutive.
    pub fn push(&mut self, outpoint: &OutPoint, coin: CoinRef<'_>) {
        if self.last_txid != Some(outpoint.txid) {
            self.last_txid = Some(outpoint.txid);
            self.transactions += 1;
        }
        self.coins += 1;
        self.total_amount += u128::from(coin.amount);
        self.bogosize += bogosize(coin.script.len());
    }
}

/// Number of bytes collected before they are hashed.
const BATCH_BYTES: usize = 1 << 16;

/// The bytes that `hash_serialized_3` covers for some consecutive coins of a set: their elements
/// ([`write_utxo_element`]) in order.
///
/// Expects coins with ascending txids. Coins of one transaction must be consecutive, in any order; it holds
/// them until the next transaction begins.
#[derive(Clone, Debug, Default)]
pub struct UtxoElements {
    /// From offset `group` on, the bytes belong to `txid`.
    bytes: Vec<u8>,
    group: usize,
    txid: Option<Txid>,
    /// Where each output of `txid` begins in `bytes`.
    starts: Vec<(u32, usize)>,
}

impl UtxoElements {
    /// Adds a coin.
    #[inline]
    pub fn push(&mut self, outpoint: &OutPoint, coin: CoinRef<'_>) {
        if self.txid != Some(outpoint.txid) {
            self.end_group();
            self.txid = Some(outpoint.txid);
        }
        self.starts.push((outpoint.vout, self.bytes.len()));
        write_utxo_element(&mut self.bytes, outpoint, coin);
    }

    /// Sorts the elements of the last transaction.
    fn end_group(&mut self) {
        if !self.starts.is_sorted() {
            let mut ends: Vec<_> = self.starts.iter().skip(1).map(|&(_, start)| start).collect();
            ends.push(self.bytes.len());
            let mut order: Vec<_> = self.starts.iter().zip(ends).collect();
            order.sort_unstable_by_key(|&(&(vout, _), _)| vout);
            let mut sorted = Vec::with_capacity(self.bytes.len() - self.group);
            for (&(_, start), end) in order {
                sorted.extend_from_slice(&self.bytes[start..end]);
            }
            self.bytes.truncate(self.group);
            self.bytes.extend_from_slice(&sorted);
        }
        self.starts.clear();
        self.group = self.bytes.len();
    }

    /// Returns the elements of all coins, in order.
    fn whole(&mut self) -> &[u8] {
        self.end_group();
        &self.bytes
    }

    fn clear(&mut self) {
        self.bytes.clear();
        (self.group, self.txid) = (0, None);
    }
}

/// A streaming `hash_serialized_3` of a set: SHA256d over all coins (Core `kernel/coinstats.cpp`,
/// `ComputeUTXOStats`).
///
/// It takes coins one by one, in the order of [`UtxoElements`], or many at once as such elements.
#[derive(Clone, Debug, Default)]
pub struct HashSerialized3 {
    hasher: Sha256,
    /// The coins that wait to be hashed.
    elements: UtxoElements,
}

impl HashSerialized3 {
    /// Creates the hash of the empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a coin.
    #[inline]
    pub fn push(&mut self, outpoint: &OutPoint, coin: CoinRef<'_>) {
        if self.elements.bytes.len() >= BATCH_BYTES && self.elements.txid != Some(outpoint.txid) {
            self.hash_elements();
        }
        self.elements.push(outpoint, coin);
    }

    /// Adds all coins of the next transactions. Empties `elements` but preserves its memory.
    pub fn append(&mut self, elements: &mut UtxoElements) {
        self.hash_elements();
        self.hasher.update(elements.whole());
        elements.clear();
    }

    fn hash_elements(&mut self) {
        self.hasher.update(self.elements.whole());
        self.elements.clear();
    }

    /// Returns the hash of all coins added.
    pub fn finish(mut self) -> UtxoSetHash {
        self.hash_elements();
        UtxoSetHash(sha256(&self.hasher.finalize()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_hash::sha256d;
    use proptest::prelude::*;

    const COIN: CoinRef<'_> =
        CoinRef { height: 5, coinbase: true, amount: 0x0102_0304, script: &[0x51, 0x52] };

    fn at(txid: u8, vout: u32) -> OutPoint {
        OutPoint { txid: Txid([txid; 32]), vout }
    }

    #[test]
    fn a_coin_has_its_element() {
        let mut out = Vec::new();
        write_utxo_element(&mut out, &at(7, 9), COIN);
        let expected: &[&[u8]] =
            &[&[7; 32], &[9, 0, 0, 0], &[11, 0, 0, 0], &[4, 3, 2, 1, 0, 0, 0, 0], &[2, 0x51, 0x52]];
        assert_eq!(out, expected.concat());
    }

    #[test]
    fn statistics_count_coins_transactions_and_sums() {
        let mut stats = UtxoStats::default();
        for (txid, vout) in [(1, 0), (1, 5), (2, 0)] {
            stats.push(&at(txid, vout), CoinRef { amount: u64::MAX, ..COIN });
        }
        assert_eq!((stats.coins, stats.transactions, stats.bogosize), (3, 2, 3 * 52));
        assert_eq!(stats.total_amount, 3 * u128::from(u64::MAX));
    }

    /// Computes one hash over all elements, sorted in the test.
    fn oracle(coins: &[(OutPoint, u64)]) -> UtxoSetHash {
        let mut sorted = coins.to_vec();
        sorted.sort_by_key(|(outpoint, _)| (outpoint.txid, outpoint.vout));
        let mut bytes = Vec::new();
        for (outpoint, amount) in &sorted {
            write_utxo_element(&mut bytes, outpoint, CoinRef { amount: *amount, ..COIN });
        }
        UtxoSetHash(sha256d(&bytes))
    }

    fn streamed(coins: &[(OutPoint, u64)]) -> UtxoSetHash {
        let mut hash = HashSerialized3::new();
        for (outpoint, amount) in coins {
            hash.push(outpoint, CoinRef { amount: *amount, ..COIN });
        }
        hash.finish()
    }

    /// Like `streamed`, but adds coins of some transactions in batches: a new batch begins at each of these
    /// numbers.
    fn in_pieces(coins: &[(OutPoint, u64)], begins: &[u8]) -> UtxoSetHash {
        let (mut hash, mut piece) = (HashSerialized3::new(), UtxoElements::default());
        let mut last = None;
        for (outpoint, amount) in coins {
            let first = outpoint.txid.0[0];
            let coin = CoinRef { amount: *amount, ..COIN };
            if last != Some(first) && begins.contains(&first) {
                hash.append(&mut piece);
            }
            // Push some transactions directly; put the others into the batch that is appended next.
            match begins.contains(&(first ^ 1)) && piece.bytes.is_empty() {
                true => hash.push(outpoint, coin),
                false => piece.push(outpoint, coin),
            }
            last = Some(first);
        }
        hash.append(&mut piece);
        hash.finish()
    }

    #[test]
    fn the_hash_of_no_coins_is_the_empty_hash() {
        assert_eq!(streamed(&[]), UtxoSetHash(sha256d(&[])));
    }

    #[test]
    fn outputs_in_database_order_are_hashed_in_numeric_order() {
        let mut vouts: Vec<u32> = (0..20_001).collect();
        vouts.sort_by(|&a, &b| crate::vout_order(a, b));
        assert!(!vouts.is_sorted());
        let coins: Vec<_> = vouts.into_iter().map(|vout| (at(1, vout), u64::from(vout))).collect();
        assert_eq!(streamed(&coins), oracle(&coins));
    }

    proptest! {
        #[test]
        fn streaming_agrees_with_sorting_everything(
            mut coins in proptest::collection::vec((0u8..4, 0u32..50, any::<u64>()), 0..40),
            begins in proptest::collection::vec(0u8..4, 0..4),
        ) {
            coins.sort_by_key(|&(txid, vout, _)| (txid, vout));
            coins.dedup_by_key(|&mut (txid, vout, _)| (txid, vout));
            // Add the outputs of a transaction in another order: by amount.
            coins.sort_by_key(|&(txid, _, amount)| (txid, amount));
            let coins: Vec<_> =
                coins.into_iter().map(|(txid, vout, amount)| (at(txid, vout), amount)).collect();
            prop_assert_eq!(streamed(&coins), oracle(&coins));
            prop_assert_eq!(in_pieces(&coins, &begins), oracle(&coins));
        }
    }
}
