//! [`CoinsDelta`]: the effect of one block on the coins, before it is applied.
//!
//! There is at most one change for each outpoint: a coin created and spent within the block leaves
//! none. A delta is self-contained, so a block whose scripts are still running is a layer over the
//! cache for the next block. One thread builds it; afterwards it is read-only.

use crate::coin::CoinBytes;
use crate::salt::Salt;
use apus_chain::OutPoint;
use hashbrown::HashTable;

/// The change of one coin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoinChange {
    /// The coin now exists.
    Created {
        /// The coin.
        coin: CoinBytes,
        /// Whether the layers below are known to have no coin with this outpoint.
        fresh: bool,
    },
    /// The coin no longer exists.
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
    /// Creates an empty delta.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty delta with capacity for `changes`.
    pub fn with_capacity(changes: usize) -> Self {
        Self {
            salt: Salt::of_process(),
            changes: Vec::with_capacity(changes),
            index: HashTable::with_capacity(changes),
        }
    }

    /// Adds a coin.
    ///
    /// `fresh` states that the layers below have no unspent coin with this outpoint: true for a
    /// transaction that never existed before, which BIP-30 and BIP-34 ensure. False is always
    /// correct and costs at most one write to the store; use it for coins restored when a block is
    /// disconnected, and for the two coinbases that BIP-30 allows to overwrite.
    pub fn create(&mut self, outpoint: OutPoint, coin: CoinBytes, fresh: bool) {
        let hash = self.salt.hash(&outpoint);
        match self.find(hash, &outpoint) {
            None => self.push(hash, outpoint, CoinChange::Created { coin, fresh }),
            Some(at) => {
                // The existing change knows what the layers below have.
                let change = &mut self.changes[at].1;
                let fresh = matches!(change, CoinChange::Created { fresh: true, .. });
                *change = CoinChange::Created { coin, fresh };
            }
        }
    }

    /// Removes a coin that exists here or below.
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

    /// Returns the change of a coin: `None` (the layers below know), `Some(None)` if it is spent,
    /// or the created coin.
    pub fn get(&self, outpoint: &OutPoint) -> Option<Option<&CoinBytes>> {
        let at = self.find(self.salt.hash(outpoint), outpoint)?;
        Some(self.changes[at].1.coin())
    }

    /// Returns the number of changed coins.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Returns whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns every change, in no particular order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &(OutPoint, CoinChange)> {
        self.changes.iter()
    }

    /// Returns one change, by its index in [`iter`](Self::iter).
    pub fn change(&self, at: u32) -> &(OutPoint, CoinChange) {
        &self.changes[at as usize]
    }

    /// Returns the memory in use in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let changes = self.changes.capacity() * size_of::<(OutPoint, CoinChange)>();
        (changes + self.index.allocation_size()) as u64 + self.heap_bytes()
    }

    /// Returns the memory of long scripts in bytes.
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

    /// Removes a change; the last one takes its index.
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
    fn long_scripts_count_while_their_coins_exist() {
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
