//! [`StoredCoins`]: the made-up coins in a real store, on a disk or on servers.
//!
//! A store is filled once and may be measured again. Each opening of a folder begins with the store's own
//! cache empty; what the system has in its page cache is the system's business, and a measurement
//! of a disk wants that emptied before.

use super::PrevoutsError;
use super::coins::{coin, outpoint};
use apus_chain::{BlockHash, KnownBlock, Network, OutPoint};
use apus_engine::utxo::store::{DiskOptions, DiskStore, EachChange};
use apus_engine::utxo::{Changes, CoinBytes, CoinsStore, CoinsView, Flush, StoreError};
use std::path::Path;
use std::sync::Arc;

/// Coins that are filled in together: what bounds the memory that it takes to sort them.
const TOGETHER: u32 = 2_000_000;

/// A store that holds the coins with numbers below a count.
pub struct StoredCoins(Arc<dyn CoinsStore>);

impl StoredCoins {
    /// The chain that the coins are said to be of.
    pub const NETWORK: Network = Network::Regtest;

    /// Opens the store in `folder` with so much memory for a cache, and fills it up to `count`
    /// coins if it has fewer.
    pub fn open(folder: &Path, count: u32, cache_bytes: u64) -> Result<Self, PrevoutsError> {
        let options = DiskOptions { cache_bytes, ..DiskOptions::default() };
        let store = DiskStore::open(folder, Self::NETWORK, options)?;
        if !fill(&store, &folder.display().to_string(), count)? {
            return Ok(Self(Arc::new(store)));
        }
        store.settle()?;
        drop(store);
        Ok(Self(Arc::new(DiskStore::open(folder, Self::NETWORK, options)?)))
    }

    /// Takes a store that is open, which errors call `place`, and fills it up to `count` coins if it has fewer.
    pub fn within(
        store: Arc<dyn CoinsStore>,
        place: &str,
        count: u32,
    ) -> Result<Self, PrevoutsError> {
        fill(&*store, place, count)?;
        Ok(Self(store))
    }
}

/// Whether anything was missing.
fn fill(store: &dyn CoinsStore, place: &str, count: u32) -> Result<bool, PrevoutsError> {
    let tip = store.tip()?;
    // Made-up coins are at no block. Those of a run are not to be mixed with them.
    if tip.is_some_and(|tip| tip.hash != BlockHash::ZERO) {
        return Err(PrevoutsError::Occupied { place: place.to_owned() });
    }
    // The height says how many coins there are.
    let mut have = tip.map_or(0, |tip| tip.height);
    let missing = have < count;
    while have < count {
        let end = count.min(have.saturating_add(TOGETHER));
        let mut numbers: Vec<(OutPoint, u32)> =
            (have..end).map(|number| (outpoint(number), number)).collect();
        numbers.sort_unstable();
        let tip = KnownBlock { height: end, hash: BlockHash::ZERO };
        store.write(&Flush { tip, changes: &Numbers(numbers), undo: &[], undo_from: 0 })?;
        have = end;
    }
    Ok(missing)
}

impl CoinsView for StoredCoins {
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        self.0.get(outpoint)
    }

    fn coins(&self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        self.0.get_many(wanted)
    }

    fn at_once(&self) -> usize {
        self.0.at_once()
    }
}

/// Numbers in the order of their outpoints.
struct Numbers(Vec<(OutPoint, u32)>);

impl Changes for Numbers {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        self.0.iter().try_for_each(|(outpoint, number)| each(outpoint, Some(&coin(*number))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_engine::utxo::store::MemoryStore;

    #[test]
    fn a_folder_is_filled_once_and_grows() {
        let folder = tempfile::tempdir().unwrap();
        for count in [1000, 1000, 3000, 2000] {
            let coins = StoredCoins::open(folder.path(), count, 1 << 20).unwrap();
            for number in [0, 1, count - 1] {
                assert_eq!(coins.coin(&outpoint(number)).unwrap(), Some(coin(number)));
            }
            assert_eq!(coins.coin(&outpoint(3000)).unwrap(), None);
        }
    }

    #[test]
    fn the_coins_of_a_run_are_left_alone() {
        let store: Arc<dyn CoinsStore> = Arc::new(MemoryStore::new());
        let tip = KnownBlock { height: 9, hash: BlockHash([1; 32]) };
        store.write(&Flush { tip, changes: &Numbers(vec![]), undo: &[], undo_from: 0 }).unwrap();
        let refused = StoredCoins::within(Arc::clone(&store), "there", 50).err().unwrap();
        assert!(matches!(refused, PrevoutsError::Occupied { .. }), "{refused}");
        assert_eq!(store.tip().unwrap(), Some(tip));
    }
}
