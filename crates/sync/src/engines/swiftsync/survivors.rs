//! The coins of one segment that survive to the stop height, collected and then sorted.
//!
//! The unit is the *group*: all surviving coins of one transaction in the form of a UTXO snapshot
//! (`CompactSize(n) n×{CompactSize(vout) coin}`), so that merging runs and writing a snapshot copy bytes and
//! never parse a coin again.
//!
//! A run is a file of groups in ascending order of txid bytes; each is `txid[32] ‖ u32le length ‖ group`.
//! Here the run is made in memory, because a segment is small.

use apus_chain::{
    CoinRef, OutPoint, Txid, sort_vouts, vouts_ascend, write_coin, write_compact_size,
};
use apus_engine::sort::sort_by_number;

/// Surviving coins in the order in which blocks arrived.
#[derive(Debug, Default)]
pub(super) struct Survivors {
    /// The records of the run, unsorted.
    bytes: Vec<u8>,
    /// The offset of each record, with the first bytes of its txid to sort by.
    records: Vec<(u64, usize)>,
    /// The record in progress: vout and offset of each coin.
    coins: Vec<(u32, usize)>,
}

/// Bytes of a run's record before the group: the txid and the group's length.
const RECORD_HEADER: usize = 36;

/// Greatest number of coins in a group that takes one byte.
const SHORT_COUNT_MAX: usize = 0xfc;

impl Survivors {
    /// Adds a coin. Pass the coins of a transaction by ascending vout, until
    /// [`end_transaction`](Self::end_transaction).
    pub(super) fn push(&mut self, outpoint: OutPoint, coin: CoinRef<'_>) {
        if self.coins.is_empty() {
            self.begin_record(outpoint.txid);
        }
        self.coins.push((outpoint.vout, self.bytes.len()));
        write_compact_size(&mut self.bytes, u64::from(outpoint.vout));
        write_coin(&mut self.bytes, coin);
    }

    /// Reserves space for the group's length and, in one byte, the number of coins.
    fn begin_record(&mut self, txid: Txid) {
        let prefix = txid.0.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        self.records.push((prefix, self.bytes.len()));
        self.bytes.extend_from_slice(&txid.0);
        self.bytes.extend_from_slice(&[0; 5]);
    }

    /// Ends the transaction in progress and returns whether it has survivors; without any it leaves no
    /// record.
    pub(super) fn end_transaction(&mut self) -> bool {
        let (Some(&(_, start)), false) = (self.records.last(), self.coins.is_empty()) else {
            return false;
        };
        let group = start + RECORD_HEADER;
        self.order_coins(group + 1);
        if self.coins.len() <= SHORT_COUNT_MAX {
            self.bytes[group] = self.coins.len() as u8;
        } else {
            let mut count = Vec::new();
            write_compact_size(&mut count, self.coins.len() as u64);
            self.bytes.splice(group..=group, count);
        }
        let length = (self.bytes.len() - group) as u32;
        self.bytes[group - 4..group].copy_from_slice(&length.to_le_bytes());
        self.coins.clear();
        true
    }

    /// Sorts the coins, which begin at `first`, in the order of Core's database keys; they are nearly always in
    /// that order already.
    fn order_coins(&mut self, first: usize) {
        if self.coins.last().is_none_or(|last| vouts_ascend(last.0)) {
            return;
        }
        let by_vout = |coin: &(u32, usize)| coin.0;
        let mut ordered = self.coins.clone();
        sort_vouts(&mut ordered, by_vout);
        if ordered == self.coins {
            return;
        }
        let old = self.bytes.split_off(first);
        for (_, start) in ordered {
            let next = self.coins.partition_point(|coin| coin.1 <= start);
            let end = self.coins.get(next).map_or(old.len(), |coin| coin.1 - first);
            self.bytes.extend_from_slice(&old[start - first..end]);
        }
    }

    /// The records sorted by txid, concatenated.
    pub(super) fn into_run(mut self) -> Vec<u8> {
        let bytes = &self.bytes;
        let txid = |start: usize| &bytes[start..start + 32];
        let by_txid = |a: &(u64, usize), b: &(u64, usize)| {
            a.0.cmp(&b.0).then_with(|| txid(a.1).cmp(txid(b.1))).then(a.1.cmp(&b.1))
        };
        sort_by_number(&mut self.records, &mut Vec::new(), |it| it.0, by_txid);
        let mut run = Vec::with_capacity(bytes.len());
        for &(_, start) in &self.records {
            let length = bytes[start + 32..].first_chunk().map_or(0, |l| u32::from_le_bytes(*l));
            run.extend_from_slice(&bytes[start..start + RECORD_HEADER + length as usize]);
        }
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn coin(amount: u64) -> CoinRef<'static> {
        CoinRef { height: 1, coinbase: false, amount, script: &[0x51] }
    }

    fn push(survivors: &mut Survivors, txid: [u8; 32], vouts: &[u32]) {
        for &vout in vouts {
            let outpoint = OutPoint { txid: Txid(txid), vout };
            survivors.push(outpoint, coin(u64::from(vout)));
        }
        assert_eq!(survivors.end_transaction(), !vouts.is_empty());
    }

    /// The record of a transaction whose coins arrive in the given order.
    fn record(txid: [u8; 32], vouts: &[u32]) -> Vec<u8> {
        let mut group = Vec::new();
        write_compact_size(&mut group, vouts.len() as u64);
        for &vout in vouts {
            write_compact_size(&mut group, u64::from(vout));
            write_coin(&mut group, coin(u64::from(vout)));
        }
        [&txid[..], &(group.len() as u32).to_le_bytes(), &group].concat()
    }

    #[test]
    fn a_run_without_coins_is_empty() {
        let mut survivors = Survivors::default();
        push(&mut survivors, [1; 32], &[]);
        assert!(survivors.into_run().is_empty());
    }

    #[test]
    fn a_group_is_in_the_order_of_the_database() {
        // From 16,512 on VARINTs sort differently from their numbers: `80 80 00` comes before `81 00`.
        let mut survivors = Survivors::default();
        push(&mut survivors, [1; 32], &[0, 256, 16_511, 16_512, 20_000]);
        let expected = record([1; 32], &[0, 16_512, 20_000, 256, 16_511]);
        assert_eq!(survivors.into_run(), expected);
    }

    #[test]
    fn records_sort_by_all_bytes_of_the_txid() {
        let txid = |first: u8, last: u8| {
            let mut txid = [7; 32];
            (txid[0], txid[31]) = (first, last);
            txid
        };
        let mut survivors = Survivors::default();
        let order = [txid(2, 0), txid(1, 9), txid(1, 8), txid(0xff, 0), txid(0, 1), txid(1, 0)];
        order.iter().for_each(|&txid| push(&mut survivors, txid, &[3]));
        let mut sorted = order;
        sorted.sort_unstable();
        let expected: Vec<u8> = sorted.iter().flat_map(|&txid| record(txid, &[3])).collect();
        assert_eq!(survivors.into_run(), expected);
    }

    #[test]
    fn all_records_of_one_txid_are_kept() {
        // Only a chain that breaks BIP-30 has such records; the run keeps them all.
        let mut survivors = Survivors::default();
        push(&mut survivors, [1; 32], &[5]);
        push(&mut survivors, [0; 32], &[1]);
        push(&mut survivors, [1; 32], &[4, 6]);
        let expected =
            [record([0; 32], &[1]), record([1; 32], &[5]), record([1; 32], &[4, 6])].concat();
        assert_eq!(survivors.into_run(), expected);
    }

    proptest! {
        #[test]
        fn a_run_holds_every_transaction_in_order(
            groups in prop::collection::btree_map(
                any::<[u8; 32]>(),
                prop::collection::btree_set(0u32..1_000, 0..6),
                0..12,
            ),
            keys in prop::collection::vec(any::<u32>(), 12),
        ) {
            let groups: Vec<([u8; 32], Vec<u32>)> =
                groups.into_iter().map(|(txid, vouts)| (txid, vouts.into_iter().collect())).collect();
            let mut order: Vec<usize> = (0..groups.len()).collect();
            order.sort_by_key(|&index| keys[index]);
            let mut survivors = Survivors::default();
            order.iter().for_each(|&i| push(&mut survivors, groups[i].0, &groups[i].1));
            let with_coins = groups.iter().filter(|(_, vouts)| !vouts.is_empty());
            let expected: Vec<u8> =
                with_coins.flat_map(|(txid, vouts)| record(*txid, vouts)).collect();
            prop_assert_eq!(survivors.into_run(), expected);
        }
    }
}
