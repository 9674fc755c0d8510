//! [`MadeUpCoins`]: coins derived from their number, in a map, with a simulated latency.

use crate::error::BenchError;
use apus_chain::{BlockHash, CoinRef, KnownBlock, Network, OutPoint, Txid};
use apus_engine::utxo::store::{DiskOptions, DiskStore, EachChange};
use apus_engine::utxo::{Changes, CoinBytes, CoinsStore, CoinsView, Flush, StoreError};
use apus_testkit::rng::Rng;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// A map of coins.
pub(super) struct MadeUpCoins(HashMap<OutPoint, CoinBytes>);

impl MadeUpCoins {
    /// The coins with numbers below `count`.
    pub(super) fn new(count: u32) -> Self {
        Self((0..count).map(|number| (outpoint(number), coin(number))).collect())
    }
}

impl CoinsView for MadeUpCoins {
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        Ok(self.0.get(outpoint).cloned())
    }
}

/// The outpoint of the coin with a number.
pub(crate) fn outpoint(number: u32) -> OutPoint {
    let mut txid = [0; 32];
    Rng::new(number.into()).fill(&mut txid);
    OutPoint { txid: Txid(txid), vout: number % 4 }
}

/// The coin with a number, with a common script.
pub(crate) fn coin(number: u32) -> CoinBytes {
    let mut script = [0x51; 34];
    // Not at the beginning, where some numbers would make the script unspendable.
    script[1..5].copy_from_slice(&number.to_le_bytes());
    let amount = u64::from(number) * 1000;
    CoinBytes::new(CoinRef { height: number % 1_000_000, coinbase: false, amount, script: &script })
}

/// Another view with a delay before each look-up. Several threads wait concurrently.
pub(super) struct LateView {
    pub(super) view: Arc<dyn CoinsView>,
    pub(super) latency: Duration,
}

impl CoinsView for LateView {
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        thread::sleep(self.latency);
        self.view.coin(outpoint)
    }
}

// ---- the same coins in a real store ----
//
// A store is filled once and can be reused. Each opening of a folder starts with an empty cache of the store;
// the system's page cache is not touched, so empty it first to measure a disk.

/// Coins added per batch: bounds the memory for sorting them.
const TOGETHER: u32 = 2_000_000;

/// A store that holds the coins with numbers below a count.
pub(super) struct StoredCoins(Arc<dyn CoinsStore>);

impl StoredCoins {
    /// The network recorded in the store.
    pub(super) const NETWORK: Network = Network::Regtest;

    /// Opens the store in `folder` with a cache of this size, and fills it up to `count` coins if it has
    /// fewer.
    pub(super) fn open(folder: &Path, count: u32, cache_bytes: u64) -> Result<Self, BenchError> {
        let options = DiskOptions { cache_bytes, ..DiskOptions::default() };
        let store = DiskStore::open(folder, Self::NETWORK, options)?;
        if !fill(&store, &folder.display().to_string(), count)? {
            return Ok(Self(Arc::new(store)));
        }
        store.settle()?;
        drop(store);
        Ok(Self(Arc::new(DiskStore::open(folder, Self::NETWORK, options)?)))
    }

    /// Takes an open store, called `place` in errors, and fills it up to `count` coins if it has fewer.
    #[cfg(any(test, feature = "remote-coins"))]
    pub(super) fn within(
        store: Arc<dyn CoinsStore>,
        place: &str,
        count: u32,
    ) -> Result<Self, BenchError> {
        fill(&*store, place, count)?;
        Ok(Self(store))
    }
}

/// Returns whether coins were missing.
fn fill(store: &dyn CoinsStore, place: &str, count: u32) -> Result<bool, BenchError> {
    let tip = store.tip()?;
    // Generated coins have no block. Do not mix them with the coins of a sync.
    if tip.is_some_and(|tip| tip.hash != BlockHash::ZERO) {
        return Err(BenchError::usage(format_args!(
            "{place} holds the coins of a sync: use another folder or store"
        )));
    }
    // The height field holds the number of coins.
    let mut have = tip.map_or(0, |tip| tip.height);
    let missing = have < count;
    while have < count {
        let end = count.min(have.saturating_add(TOGETHER));
        let mut numbers: Vec<(OutPoint, u32)> =
            (have..end).map(|number| (outpoint(number), number)).collect();
        numbers.sort_unstable();
        let tip = KnownBlock { height: end, hash: BlockHash::ZERO };
        store.write(&Flush { tip, changes: &CoinsByOutpoint(numbers), undo: &[], undo_from: 0 })?;
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
struct CoinsByOutpoint(Vec<(OutPoint, u32)>);

impl Changes for CoinsByOutpoint {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        self.0.iter().try_for_each(|(outpoint, number)| each(outpoint, Some(&coin(*number))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_own_coin() {
        let coins = MadeUpCoins::new(1000);
        assert_eq!(coins.0.len(), 1000);
        let late = LateView { view: Arc::new(coins), latency: Duration::from_nanos(1) };
        for number in 0..1000 {
            let made = coin(number);
            assert_eq!(CoinBytes::read(made.as_bytes()), Ok(made.clone()));
            assert_eq!(late.coin(&outpoint(number)).unwrap(), Some(made));
        }
        assert_eq!(late.coin(&outpoint(1000)).unwrap(), None);
    }
}

#[cfg(test)]
mod stored_tests {
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
    fn a_store_with_coins_of_a_sync_is_refused() {
        let store: Arc<dyn CoinsStore> = Arc::new(MemoryStore::new());
        let tip = KnownBlock { height: 9, hash: BlockHash([1; 32]) };
        store
            .write(&Flush { tip, changes: &CoinsByOutpoint(vec![]), undo: &[], undo_from: 0 })
            .unwrap();
        let refused = StoredCoins::within(Arc::clone(&store), "there", 50).err().unwrap();
        assert!(refused.to_string().contains("holds the coins of a sync"), "{refused}");
        assert_eq!(store.tip().unwrap(), Some(tip));
    }
}
