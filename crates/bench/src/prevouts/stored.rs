//! [`StoredCoins`]: the made-up coins in a real store on a disk.
//!
//! The folder is filled once and may be measured again. Each opening begins with the store's own
//! cache empty; what the system has in its page cache is the system's business, and a measurement
//! of a disk wants that emptied before.

use super::coins::{coin, outpoint};
use apus_chain::{BlockHash, KnownBlock, Network, OutPoint};
use apus_engine::utxo::store::{DiskOptions, DiskStore, EachChange};
use apus_engine::utxo::{Changes, CoinBytes, CoinsStore, CoinsView, Flush, StoreError};
use std::path::Path;

/// Coins that are filled in together: what bounds the memory that it takes to sort them.
const TOGETHER: u32 = 2_000_000;

/// A store that holds the coins with numbers below a count.
pub struct StoredCoins(DiskStore);

impl StoredCoins {
    /// Opens the store in `folder` with so much memory for a cache, and fills it up to `count`
    /// coins if it has fewer.
    pub fn open(folder: &Path, count: u32, cache_bytes: u64) -> Result<Self, StoreError> {
        let options = DiskOptions { cache_bytes, ..DiskOptions::default() };
        let store = DiskStore::open(folder, Network::Regtest, options)?;
        // The height of its tip says how many coins there are.
        let mut have = store.tip()?.map_or(0, |tip| tip.height);
        if have < count {
            while have < count {
                let end = count.min(have.saturating_add(TOGETHER));
                let mut numbers: Vec<(OutPoint, u32)> =
                    (have..end).map(|number| (outpoint(number), number)).collect();
                numbers.sort_unstable();
                let tip = KnownBlock { height: end, hash: BlockHash::ZERO };
                store.write(&Flush { tip, changes: &Numbers(numbers), undo: &[], undo_from: 0 })?;
                have = end;
            }
            store.settle()?;
            drop(store);
            return Ok(Self(DiskStore::open(folder, Network::Regtest, options)?));
        }
        Ok(Self(store))
    }
}

impl CoinsView for StoredCoins {
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        self.0.get(outpoint)
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
}
