//! [`TxTable`]: a table of transactions by id.
//!
//! It uses open addressing and is at most half full. Attackers can grind for ids, so the hash is
//! keyed with random words that never leave the process, and an entry matches only if the whole id
//! is equal.
//!
//! Most coins that a block spends come from other blocks, so most look-ups find nothing. A table
//! created for the number of transactions of a block detects that with one bit in the first-level
//! cache.

use apus_chain::{OutPoint, Txid};
use apus_hash::prefetch;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// A hash table of transactions, numbered in order of insertion.
pub struct TxTable {
    txids: Vec<Txid>,
    /// Index into `txids`, plus one; 0 is empty.
    table: Vec<u32>,
    shift: u32,
    key: [u64; 2],
    /// A Bloom filter with one bit for each id and at least sixteen times as many bits as ids;
    /// empty for too many ids.
    filter: Vec<u64>,
    filter_shift: u32,
}

/// A larger table has no filter, because it would not fit into the first-level cache.
const FILTERED_MAX: usize = 1 << 14;

impl TxTable {
    /// Creates a table with room for `txs` transactions; it grows if there are more.
    pub fn new(txs: usize) -> Self {
        let bits = (2 * txs).next_power_of_two().trailing_zeros().max(1);
        let table = vec![0; 1 << bits];
        let filter_bits = (16 * txs).next_power_of_two().trailing_zeros().max(6);
        let words = if (1..=FILTERED_MAX).contains(&txs) { 1 << (filter_bits - 6) } else { 0 };
        Self {
            txids: Vec::with_capacity(txs),
            table,
            shift: 64 - bits,
            key: key(),
            filter: vec![0; words],
            filter_shift: 64 - filter_bits,
        }
    }

    /// Returns the number of transactions added.
    pub fn count(&self) -> usize {
        self.txids.len()
    }

    /// Returns the memory in use, in bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.txids) + size_of_val(&*self.table) + size_of_val(&*self.filter)
    }

    /// Returns the number of the transaction with this id, counted from 0 in order of insertion. If
    /// several have the same id, returns the last.
    #[inline]
    pub fn find(&self, txid: &Txid) -> Option<u32> {
        if self.is_ruled_out(&txid.0) { None } else { self.place(txid).1 }
    }

    /// Like [`find`](Self::find), for the id in an outpoint in wire form. It is seldom in the
    /// table, so it is copied only after the filter has passed it.
    #[inline]
    pub fn find_spent(&self, outpoint: &[u8; OutPoint::SIZE]) -> Option<u32> {
        if self.is_ruled_out(outpoint) {
            return None;
        }
        self.place(&OutPoint::from_bytes(outpoint).txid).1
    }

    /// Returns whether the filter proves that an id with this prefix was not added.
    #[inline]
    fn is_ruled_out(&self, id: &[u8]) -> bool {
        if self.filter.is_empty() {
            return false;
        }
        let (word, bit) = self.filter_bit(id);
        self.filter[word] & bit == 0
    }

    /// Adds the next transaction. Returns the previous one with the same id, if any.
    pub fn add(&mut self, txid: Txid) -> Option<u32> {
        if 2 * self.txids.len() >= self.table.len() {
            self.grow();
        }
        let (at, same) = self.place(&txid);
        if !self.filter.is_empty() {
            let (word, bit) = self.filter_bit(&txid.0);
            self.filter[word] |= bit;
        }
        self.txids.push(txid);
        self.table[at] = self.txids.len() as u32;
        same
    }

    /// Prefetches the table entry of an id before a look-up, because its address is unpredictable.
    #[inline]
    pub fn prefetch_entry(&self, txid: &Txid) {
        prefetch(&self.table[self.home(txid)]);
    }

    /// Returns the transaction in the first slot of the id, usually the right one, and prefetches
    /// its id.
    #[inline]
    pub fn prefetch_id(&self, txid: &Txid) -> Option<u32> {
        let tx = self.table[self.home(txid)].checked_sub(1)?;
        prefetch(&self.txids[tx as usize]);
        Some(tx)
    }

    /// Removes all transactions and keeps the memory that as many need.
    pub fn clear(&mut self) {
        let count = self.txids.len();
        self.txids.clear();
        self.txids.shrink_to(count + count / 8);
        let bits = (2 * count).next_power_of_two().trailing_zeros().max(1);
        if self.filter.is_empty() && self.table.len() > 4 << bits {
            (self.table, self.shift) = (vec![0; 1 << bits], 64 - bits);
        } else {
            self.table.fill(0);
        }
        self.filter.fill(0);
    }

    /// Returns the id of an added transaction.
    pub fn txid(&self, tx: u32) -> &Txid {
        &self.txids[tx as usize]
    }

    /// Returns the position of an id's bit. The key is odd, so that all bits of the id's first word
    /// count.
    #[inline]
    fn filter_bit(&self, id: &[u8]) -> (usize, u64) {
        let (words, _) = id.as_chunks::<8>();
        let place = u64::from_le_bytes(words[0]).wrapping_mul(self.key[0] | 1) >> self.filter_shift;
        ((place >> 6) as usize, 1 << (place & 63))
    }

    fn grow(&mut self) {
        self.filter.clear();
        self.shift -= 1;
        let slots = 2 * self.table.len();
        self.table.clear();
        self.table.resize(slots, 0);
        for tx in 0..self.txids.len() {
            let (at, _) = self.place(&self.txids[tx]);
            self.table[at] = tx as u32 + 1;
        }
    }

    /// Returns the slot where the search for an id begins.
    fn home(&self, txid: &Txid) -> usize {
        let (words, _) = txid.0.as_chunks::<8>();
        let [a, b] = [0, 1].map(|at| u64::from_le_bytes(words[at]) ^ self.key[at]);
        let product = u128::from(a) * u128::from(b);
        ((product as u64 ^ (product >> 64) as u64) >> self.shift) as usize
    }

    /// Returns the slot and transaction of an id, or the free slot where it belongs.
    #[inline]
    fn place(&self, txid: &Txid) -> (usize, Option<u32>) {
        let mask = self.table.len() - 1;
        let mut at = self.home(txid);
        loop {
            match self.table[at].checked_sub(1) {
                None => return (at, None),
                Some(tx) if self.txids[tx as usize] == *txid => return (at, Some(tx)),
                Some(_) => at = (at + 1) & mask,
            }
        }
    }
}

/// Returns secret words of this process.
fn key() -> [u64; 2] {
    static KEY: OnceLock<[u64; 2]> = OnceLock::new();
    *KEY.get_or_init(|| {
        // The standard library's keyed hash, with keys from the system.
        let state = RandomState::new();
        [0u64, 1].map(|word| state.hash_one(word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids with equal hash input are still distinguished.
    #[test]
    fn ids_that_begin_alike_are_different() {
        let mut txs = TxTable::new(301);
        let id = |number: u32| {
            let mut txid = [7; 32];
            txid[28..].copy_from_slice(&number.to_le_bytes());
            Txid(txid)
        };
        (0..300).for_each(|number| assert_eq!(txs.add(id(number)), None));
        assert_eq!(txs.add(id(7)), Some(7));
        for number in 0..300 {
            let last = if number == 7 { 300 } else { number };
            assert_eq!(txs.find(&id(number)), Some(last));
        }
        assert_eq!(txs.find(&id(300)), None);
    }

    /// A table grows whatever number of transactions it was created for.
    #[test]
    fn a_table_grows() {
        let id = |number: u32| Txid([number.to_le_bytes(); 8].concat().try_into().unwrap());
        for expected in [0, 10, FILTERED_MAX + 1] {
            let mut txs = TxTable::new(expected);
            for number in 0..5_000 {
                assert_eq!(txs.find(&id(number)), None);
                assert_eq!(txs.add(id(number)), None);
            }
            for number in 0..5_000 {
                assert_eq!(txs.find(&id(number)), Some(number));
                assert_eq!(*txs.txid(number), id(number));
            }
            assert_eq!(txs.add(id(4)), Some(4));
            assert_eq!(txs.add(id(4)), Some(5_000));
        }
    }

    /// After clearing, the filter is empty again.
    #[test]
    fn a_filter_passes_members_and_little_else() {
        let id = |number: u32| Txid(apus_hash::sha256(&number.to_le_bytes()));
        let mut txs = TxTable::new(2_000);
        (0..2_000).for_each(|number| assert_eq!(txs.add(id(number)), None));
        let passes = |txs: &TxTable, number| {
            let (word, bit) = txs.filter_bit(&id(number).0);
            txs.filter[word] & bit != 0
        };
        assert!((0..2_000).all(|number| passes(&txs, number)));
        let others = (2_000..12_000).filter(|number| passes(&txs, *number)).count();
        assert!(others < 1_000, "{others} of 10,000 absent ids");
        // A duplicate is found.
        assert_eq!((txs.add(id(5)), txs.find(&id(5))), (Some(5), Some(2_000)));
        txs.clear();
        assert!(!(0..2_000).any(|number| passes(&txs, number) || txs.find(&id(number)).is_some()));
    }

    /// Look-up positions must be unpredictable: ids that differ in few bits spread.
    #[test]
    fn homes_spread() {
        let txs = TxTable::new(2048);
        let mut taken = vec![0; txs.table.len()];
        for number in 0..2048u32 {
            let mut txid = [0; 32];
            txid[..4].copy_from_slice(&number.to_le_bytes());
            taken[txs.home(&Txid(txid))] += 1;
        }
        let most = taken.iter().max().unwrap();
        assert!(*most < 40, "{most} of 2,048 ids share one of 4,096 homes");
    }
}
