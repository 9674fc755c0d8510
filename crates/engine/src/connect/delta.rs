//! [`CoinsDelta`]: what one block does to the coins, before it is applied.
//!
//! At most one change for each outpoint: a coin that is made and spent within the block leaves
//! none. A delta is complete in itself, so a block whose scripts still run is a layer over the cache
//! for the next one. It is made by one thread and then only read.

use crate::coin::CoinBytes;
use crate::salt::Salt;
use apus_chain::OutPoint;
use hashbrown::HashTable;

/// What became of one coin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoinChange {
    /// It is there now.
    Created {
        /// The coin.
        coin: CoinBytes,
        /// Whether the layers below are known to have no coin of this name.
        fresh: bool,
    },
    /// It is there no more.
    Spent,
}

impl CoinChange {
    fn coin(&self) -> Option<&CoinBytes> {
        match self {
            Self::Created { coin, .. } => Some(coin),
            Self::Spent => None,
        }
    }
}

/// The changed coins of one block.
#[derive(Clone)]
pub struct CoinsDelta {
    salt: Salt,
    changes: Vec<(OutPoint, CoinChange)>,
    index: HashTable<u32>,
}

impl Default for CoinsDelta {
    fn default() -> Self {
        Self::with_capacity(0)
    }
}

impl CoinsDelta {
    /// No change.
    pub fn new() -> Self {
        Self::default()
    }

    /// No change yet, and room for so many.
    pub fn with_capacity(changes: usize) -> Self {
        Self {
            salt: Salt::of_process(),
            changes: Vec::with_capacity(changes),
            index: HashTable::with_capacity(changes),
        }
    }

    /// Adds a coin.
    ///
    /// `fresh` says that the layers below have no unspent coin of this name: true for a transaction
    /// that has never been before, which BIP-30 and BIP-34 see to. False is always right and costs
    /// a write of the store at most; it is for coins that come back when a block is disconnected, and
    /// for the two coinbases that BIP-30 lets overwrite.
    pub fn create(&mut self, outpoint: OutPoint, coin: CoinBytes, fresh: bool) {
        let hash = self.salt.hash(&outpoint);
        match self.find(hash, &outpoint) {
            None => self.push(hash, outpoint, CoinChange::Created { coin, fresh }),
            Some(at) => {
                // What is below is known from the change that is there.
                let change = &mut self.changes[at].1;
                let fresh = matches!(change, CoinChange::Created { fresh: true, .. });
                *change = CoinChange::Created { coin, fresh };
            }
        }
    }

    /// Takes a coin away that is here or below.
    pub fn spend(&mut self, outpoint: OutPoint) {
        let hash = self.salt.hash(&outpoint);
        match self.find(hash, &outpoint) {
            None => self.push(hash, outpoint, CoinChange::Spent),
            Some(at) => match self.changes[at].1 {
                CoinChange::Created { fresh: true, .. } => self.erase(hash, at),
                _ => self.changes[at].1 = CoinChange::Spent,
            },
        }
    }

    /// What the block did to a coin: nothing (the layers below know), spent it, or made this one.
    pub fn get(&self, outpoint: &OutPoint) -> Option<Option<&CoinBytes>> {
        let at = self.find(self.salt.hash(outpoint), outpoint)?;
        Some(self.changes[at].1.coin())
    }

    /// Changed coins.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Every change, in no order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &(OutPoint, CoinChange)> {
        self.changes.iter()
    }

    /// One change, by its place in [`iter`](Self::iter).
    pub fn change(&self, at: u32) -> &(OutPoint, CoinChange) {
        &self.changes[at as usize]
    }

    /// Memory in use.
    pub fn memory_bytes(&self) -> u64 {
        let changes = self.changes.capacity() * size_of::<(OutPoint, CoinChange)>();
        (changes + self.index.allocation_size()) as u64 + self.heap_bytes()
    }

    /// Memory of long scripts.
    pub fn heap_bytes(&self) -> u64 {
        let coins = self.changes.iter().filter_map(|(_, change)| change.coin());
        coins.map(|coin| coin.heap_bytes() as u64).sum()
    }

    fn find(&self, hash: u64, outpoint: &OutPoint) -> Option<usize> {
        let found = self.index.find(hash, |at| self.changes[*at as usize].0 == *outpoint);
        found.map(|at| *at as usize)
    }

    fn push(&mut self, hash: u64, outpoint: OutPoint, change: CoinChange) {
        let at = u32::try_from(self.changes.len()).expect("a block has fewer changes than bytes");
        self.changes.push((outpoint, change));
        let (salt, changes) = (&self.salt, &self.changes);
        self.index.insert_unique(hash, at, |at| salt.hash(&changes[*at as usize].0));
    }

    /// Leaves no trace of a change; the last one takes its place.
    fn erase(&mut self, hash: u64, at: usize) {
        let last = self.changes.len() - 1;
        if let Ok(found) = self.index.find_entry(hash, |other| *other as usize == at) {
            found.remove();
        }
        if at != last {
            let moved = self.salt.hash(&self.changes[last].0);
            if let Some(place) = self.index.find_mut(moved, |other| *other as usize == last) {
                *place = at as u32;
            }
        }
        self.changes.swap_remove(at);
    }
}

impl std::fmt::Debug for CoinsDelta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map()
            .entries(self.changes.iter().map(|(outpoint, change)| (outpoint, change)))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::{CoinRef, Txid};

    fn coin(script: &[u8]) -> CoinBytes {
        CoinBytes::new(CoinRef { height: 1, coinbase: false, amount: 1, script })
    }

    #[test]
    fn long_scripts_are_counted_while_they_are_there() {
        let name = |vout| OutPoint { txid: Txid([7; 32]), vout };
        let (short, long) = (coin(&[0x51; 34]), coin(&[0x51; 1_000]));
        let each = long.heap_bytes() as u64;
        assert!(each >= 1_000);
        let mut delta = CoinsDelta::new();
        assert!(delta.is_empty());
        delta.create(name(0), short, true);
        assert!(!delta.is_empty());
        delta.create(name(1), long.clone(), true);
        delta.create(name(2), long, false);
        assert_eq!((delta.len(), delta.heap_bytes()), (3, 2 * each));
        delta.spend(name(1));
        assert_eq!((delta.len(), delta.heap_bytes()), (2, each), "no trace of a fresh one");
        delta.spend(name(2));
        assert_eq!((delta.len(), delta.heap_bytes()), (2, 0), "a mark");
        assert_eq!((delta.get(&name(1)), delta.get(&name(2))), (None, Some(None)));
    }
}
