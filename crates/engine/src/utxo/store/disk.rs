//! [`DiskStore`]: coins in a folder, in a log-structured merge tree.
//!
//! A flush is one sorted batch that includes the new tip. It is streamed into new tables and then
//! committed by one rename: no journal, nothing written twice, nothing held in memory. After a
//! crash the batch exists completely or not at all. For the choice of this library and the
//! alternatives measured, see `docs/decisions/0012-coins-store.md`.
//!
//! Memory: [`DiskOptions::cache_bytes`] for the cache of blocks, plus some 10 MiB of buffers for
//! the tables being written and merged, regardless of the amount written, plus some 20 KiB for each
//! table of 64 MiB, for the top of its index and filter.
//!
//! The folder contains `tree/`, tables of `lsm-tree` in its format 3; `lock`; and `store`, which is
//! written once `tree/` exists and never changes: "APUSCOIN" (8), version 1 (4), magic of the
//! network (4), SHA-256 of all preceding bytes (32). A folder with `store` that lacks tables is
//! damaged. Numbers in keys and values are big-endian, hashes in internal order:
//!
//! ```text
//! 00                          height (4), hash (32) of the block that the store is at; height (4) below which there is no undo data
//! 01 txid (32) output (4)     the coin as in a snapshot
//! 02 block hash (32)          its height (4), if its undo data is there
//! 03 height (4) hash (32)     undo data of that block as in Core's rev*.dat, and the sum of the coins that it brings back
//! ```

mod folder;
mod keys;
mod merger;
mod opened;
mod tree;

pub use folder::FolderForm;
pub use opened::OpenedStore;
pub use tree::TreeBatch;

use super::{CoinsStore, EachCoin, Flush, StoreError, UndoRecord, each_once, stored_coin};
use crate::coin::CoinBytes;
use crate::connect::UndoBytes;
use apus_chain::{BlockHash, Height, KnownBlock, Network, OutPoint};
use keys::StoredTip;
use std::collections::BTreeMap;
use std::path::Path;
use tree::CoinsTree;

const FORM: FolderForm = FolderForm { magic: b"APUSCOIN", format: 1 };

/// Options of a store.
#[derive(Debug, Clone, Copy)]
pub struct DiskOptions {
    /// Size of the cache of table blocks in bytes.
    pub cache_bytes: u64,
    /// Maximum size of merged tables in bytes.
    pub table_bytes: u64,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { cache_bytes: 32 << 20, table_bytes: 64 << 20 }
    }
}

/// Coins in a folder.
pub struct DiskStore(OpenedStore);

impl std::fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskStore").field("place", &self.0.place).finish_non_exhaustive()
    }
}

impl DiskStore {
    /// Opens the store in `folder`, or creates one if the folder is new or empty.
    pub fn open(folder: &Path, network: Network, options: DiskOptions) -> Result<Self, StoreError> {
        let opened = OpenedStore::open(folder, FORM, network, options)?;
        read_tip(&opened.tree, &opened.place)?;
        Ok(Self(opened))
    }

    /// Waits until tables are merged as far as possible, as after a pause. Look-ups are fastest
    /// then.
    pub fn settle(&self) -> Result<(), StoreError> {
        self.0.settle()
    }

    fn coin(&self, outpoint: OutPoint, bytes: &[u8]) -> Result<CoinBytes, StoreError> {
        stored_coin(&self.0.place, outpoint, bytes)
    }

    /// Returns all entries of a flush, in key order. The batch takes effect only when it is
    /// finished.
    fn batch(&self, flush: &Flush<'_>) -> Result<TreeBatch<'_>, StoreError> {
        let undo = self.undo_changes(flush)?;
        let mut batch = self.0.tree.batch()?;
        let tip = StoredTip { block: flush.tip, undo_from: flush.undo_from };
        batch.put(&keys::TIP, Some(&tip.to_bytes()))?;
        flush.for_each(&self.0.place, &mut |outpoint, coin| {
            batch.put(&keys::coin(outpoint), coin.map(CoinBytes::as_bytes))
        })?;
        for (hash, change) in &undo {
            let height = change.block.height.to_be_bytes();
            batch.put(&keys::undo_height(hash), change.bytes.map(|_| &height[..]))?;
        }
        let mut by_height: Vec<_> = undo.values().collect();
        by_height.sort_unstable_by_key(|change| keys::undo(&change.block));
        for change in by_height {
            // Shared parts are joined here, one block at a time.
            let bytes = change.bytes.map(UndoBytes::whole);
            batch.put(&keys::undo(&change.block), bytes.as_deref())?;
        }
        Ok(batch)
    }

    /// Returns the undo data to add, and the old undo data to delete.
    fn undo_changes<'a>(
        &self,
        flush: &Flush<'a>,
    ) -> Result<BTreeMap<BlockHash, UndoChange<'a>>, StoreError> {
        let from =
            read_tip(&self.0.tree, &self.0.place)?.map_or(flush.undo_from, |tip| tip.undo_from);
        let mut changes = BTreeMap::new();
        for entry in
            self.0.tree.range(keys::undo_range(from.min(flush.undo_from), flush.undo_from))?
        {
            let block = keys::undo_block(&entry?.0).ok_or_else(|| self.invalid_key("undo data"))?;
            changes.insert(block.hash, UndoChange { block, bytes: None });
        }
        for UndoRecord { block, bytes } in flush.undo {
            if block.height >= flush.undo_from {
                changes.insert(block.hash, UndoChange { block: *block, bytes: Some(bytes) });
            }
        }
        Ok(changes)
    }

    fn invalid_key(&self, what: &str) -> StoreError {
        StoreError::damaged(&self.0.place, format!("{what} under an invalid key"))
    }
}

/// The new value for the keys of a block's undo data.
struct UndoChange<'a> {
    block: KnownBlock,
    bytes: Option<&'a UndoBytes>,
}

fn read_tip(tree: &CoinsTree, place: &str) -> Result<Option<StoredTip>, StoreError> {
    let Some(bytes) = tree.get(&keys::TIP)? else { return Ok(None) };
    StoredTip::read(&bytes)
        .map(Some)
        .ok_or_else(|| StoreError::damaged(place, "its tip cannot be read"))
}

impl CoinsStore for DiskStore {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        Ok(read_tip(&self.0.tree, &self.0.place)?.map(|tip| tip.block))
    }

    fn get(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        let bytes = self.0.tree.get(&keys::coin(outpoint))?;
        bytes.map(|bytes| self.coin(*outpoint, &bytes)).transpose()
    }

    /// All coins are from one block, also while a flush is in progress. Reads by ascending
    /// outpoint, like the tables: coins of one transaction usually share a table block, which is
    /// then read once.
    fn get_many(&self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        let mut coins = vec![None; wanted.len()];
        let mut places: Vec<_> = wanted.iter().copied().zip(0..).collect();
        let ask = |asked: &[OutPoint]| {
            self.0.at_one_state(|| asked.iter().map(|outpoint| self.get(outpoint)).collect())
        };
        each_once(&mut places, ask, |place: usize, coin| coins[place] = coin)?;
        Ok(coins)
    }

    fn write(&self, flush: &Flush<'_>) -> Result<(), StoreError> {
        self.0.write(|| self.batch(flush))
    }

    fn undo(&self, block: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(height) = self.0.tree.get(&keys::undo_height(block))? else { return Ok(None) };
        let height: Height = keys::height(&height)
            .ok_or_else(|| StoreError::damaged(&self.0.place, "a height cannot be read"))?;
        let bytes = self.0.tree.get(&keys::undo(&KnownBlock { height, hash: *block }))?;
        Ok(bytes.map(|bytes| bytes.to_vec()))
    }

    fn for_each(&self, each: &mut EachCoin<'_>) -> Result<(), StoreError> {
        for entry in self.0.tree.range(keys::coins())? {
            let (key, bytes) = entry?;
            let outpoint = keys::outpoint(&key).ok_or_else(|| self.invalid_key("a coin"))?;
            each(&outpoint, &self.coin(outpoint, &bytes)?)?;
        }
        Ok(())
    }
}
