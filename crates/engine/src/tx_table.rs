//! [`TxTable`]: transactions, found by their ids.
//!
//! Open addressing, at most half full. Ids can be ground for, so the hash is keyed with random
//! words that never leave the process; and an entry only counts if the whole id is the same.
//!
//! Most coins that a block spends are of other blocks, so most ids that are looked for are not there. A table that was made
//! for so many transactions as a block has finds that out by one bit in the first-level cache.

use apus_chain::{OutPoint, Txid};
use apus_hash::prefetch;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// See the module.
pub struct TxTable {
    txids: Vec<Txid>,
    /// Index into `txids`, plus one; 0 is empty.
    table: Vec<u32>,
    shift: u32,
    key: [u64; 2],
    /// A bit for each id, at least sixteen times as many as there are ids; nothing where these are too many.
    filter: Vec<u64>,
    filter_shift: u32,
}

/// A table for more has no filter, which would not fit into the first-level cache.
const FILTERED_MAX: usize = 1 << 14;

impl TxTable {
    /// Has room for so many, and grows where there are more.
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

    /// How many were added.
    pub fn count(&self) -> usize {
        self.txids.len()
    }

    /// Which of those that were added it is, the first of them being 0. Of two with one id the last.
    #[inline]
    pub fn find(&self, txid: &Txid) -> Option<u32> {
        if self.is_ruled_out(&txid.0) { None } else { self.place(txid).1 }
    }

    /// [`find`](Self::find), of the id in an outpoint in wire form, which is seldom there: it is not copied before that is
    /// known.
    #[inline]
    pub fn find_spent(&self, outpoint: &[u8; OutPoint::SIZE]) -> Option<u32> {
        if self.is_ruled_out(outpoint) {
            return None;
        }
        self.place(&OutPoint::from_bytes(outpoint).txid).1
    }

    /// Whether the filter knows that an id that begins like this was not added.
    #[inline]
    fn is_ruled_out(&self, id: &[u8]) -> bool {
        if self.filter.is_empty() {
            return false;
        }
        let (word, bit) = self.filter_bit(id);
        self.filter[word] & bit == 0
    }

    /// Adds the next one. The one of the same id that was found before, if there is such.
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

    /// Has the entry of an id fetched, which will be looked for. Where it is, is not to be foreseen.
    #[inline]
    pub fn prefetch_entry(&self, txid: &Txid) {
        prefetch(&self.table[self.home(txid)]);
    }

    /// Which one stands there, whose id is fetched. Most often it is the one.
    #[inline]
    pub fn prefetch_id(&self, txid: &Txid) -> Option<u32> {
        let tx = self.table[self.home(txid)].checked_sub(1)?;
        prefetch(&self.txids[tx as usize]);
        Some(tx)
    }

    /// Removes all, and keeps the room.
    pub fn clear(&mut self) {
        self.txids.clear();
        self.table.fill(0);
        self.filter.fill(0);
    }

    /// The id of one that was added.
    pub fn txid(&self, tx: u32) -> &Txid {
        &self.txids[tx as usize]
    }

    /// Where an id's bit is. The key is odd, so that all bits of the id's first word tell.
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

    /// Where the search for an id begins.
    fn home(&self, txid: &Txid) -> usize {
        let (words, _) = txid.0.as_chunks::<8>();
        let [a, b] = [0, 1].map(|at| u64::from_le_bytes(words[at]) ^ self.key[at]);
        let product = u128::from(a) * u128::from(b);
        ((product as u64 ^ (product >> 64) as u64) >> self.shift) as usize
    }

    /// The entry of an id, or the empty one where it belongs.
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
mod tests {
    use super::*;

    /// Ids that agree in what the hash reads are still told apart.
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

    /// However few were expected.
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

    /// And is empty again after it was cleared.
    #[test]
    fn a_filter_passes_what_is_there_and_little_else() {
        let id = |number: u32| Txid(apus_hash::sha256(&number.to_le_bytes()));
        let mut txs = TxTable::new(2_000);
        (0..2_000).for_each(|number| assert_eq!(txs.add(id(number)), None));
        let passes = |txs: &TxTable, number| {
            let (word, bit) = txs.filter_bit(&id(number).0);
            txs.filter[word] & bit != 0
        };
        assert!((0..2_000).all(|number| passes(&txs, number)));
        let others = (2_000..12_000).filter(|number| passes(&txs, *number)).count();
        assert!(others < 1_000, "{others} of 10,000 that are not there");
        // One that is there twice is there.
        assert_eq!((txs.add(id(5)), txs.find(&id(5))), (Some(5), Some(2_000)));
        txs.clear();
        assert!(!(0..2_000).any(|number| passes(&txs, number) || txs.find(&id(number)).is_some()));
    }

    /// Where an id is looked for is not to be foreseen: ids that differ in few bits spread.
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
