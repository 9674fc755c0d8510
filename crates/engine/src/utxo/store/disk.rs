//! [`DiskStore`]: coins in a folder, in a log-structured merge tree.
//!
//! A flush is one sorted batch with the new tip in it, streamed into new tables and then made to
//! count by one rename: no journal, nothing written twice, nothing held in memory. A crash leaves
//! the batch whole or not there. Why this library, and what it was measured against: decision 0012;
//! what is in the folder: `docs/formats/coins-store.md`.
//!
//! Memory: the cache of blocks has [`DiskOptions::cache_bytes`]. Beside it are buffers of the tables
//! being written and merged, some 10 MiB whatever is written, and some 20 KiB for each table of 64
//! MiB, for the top of its index and filter.

mod folder;
mod keys;
mod merger;
mod tree;

use super::{CoinsStore, EachCoin, Flush, StoreError, UndoRecord};
use crate::coin::CoinBytes;
use apus_chain::{BlockHash, Height, KnownBlock, Network, OutPoint};
use apus_storage::lock::FolderLock;
use apus_storage::{DirStorage, Storage, create_private_dir};
use folder::{damaged, io_error};
use keys::Tip;
use merger::Merger;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tree::{Batch, Tree};

/// What may be chosen of a store.
#[derive(Debug, Clone, Copy)]
pub struct DiskOptions {
    /// Size of the cache of blocks of tables in bytes.
    pub cache_bytes: u64,
    /// Size at which tables are cut when they are merged, in bytes.
    pub table_bytes: u64,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { cache_bytes: 32 << 20, table_bytes: 64 << 20 }
    }
}

/// Coins in a folder.
pub struct DiskStore {
    // Fields are dropped in this order: the lock goes when nothing uses the folder any more.
    merger: Merger,
    tree: Arc<Tree>,
    place: String,
    /// Held by the one writer; whether an earlier one failed half-way.
    halted: Mutex<bool>,
    _lock: FolderLock,
}

impl std::fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskStore").field("place", &self.place).finish_non_exhaustive()
    }
}

impl DiskStore {
    /// Opens the store in `folder`, or makes one in a folder that is new or empty.
    pub fn open(folder: &Path, network: Network, options: DiskOptions) -> Result<Self, StoreError> {
        let place = folder.display().to_string();
        let failed = |error| io_error(&place, &error);
        // The library makes files as the system does: what closes them to others is the folder.
        create_private_dir(folder).map_err(failed)?;
        let storage = DirStorage::private(folder);
        // What is not ours is not even locked.
        folder::read_header(&storage, &place, network)?;
        let lock = folder::lock(folder)?;
        let known = folder::read_header(&storage, &place, network)?;
        let path = folder.join(folder::TREE);
        tree::remove_drafts(&path, &place)?;
        let tree = Tree::open(&path, &place, !known, options)?;
        let tip = read_tip(&tree, &place)?;
        if !known {
            if tip.is_some() {
                let what = format!("its file `{}` is missing", folder::HEADER);
                return Err(damaged(&place, what));
            }
            storage.sync_names().map_err(failed)?;
            folder::write_header(&storage, &place, network)?;
            sync_parent(folder).map_err(failed)?;
        }
        let tree = Arc::new(tree);
        let merger = Merger::start(Arc::clone(&tree)).map_err(failed)?;
        // What an earlier process did not come to.
        merger.wake();
        Ok(Self { merger, tree, place, halted: Mutex::new(false), _lock: lock })
    }

    /// Waits until tables are merged as far as they ever are, as after a pause. Look-ups are at
    /// their fastest then.
    pub fn settle(&self) -> Result<(), StoreError> {
        self.merger.settle()
    }

    fn coin(&self, outpoint: OutPoint, bytes: &[u8]) -> Result<CoinBytes, StoreError> {
        CoinBytes::read(bytes).map_err(|error| StoreError::Coin {
            place: self.place.clone(),
            outpoint,
            error,
        })
    }

    /// Everything of a flush, in the order of keys. The batch counts only when it is finished.
    fn batch(&self, flush: &Flush<'_>) -> Result<Batch<'_>, StoreError> {
        let undo = self.undo_changes(flush)?;
        let mut batch = self.tree.batch()?;
        let tip = Tip { block: flush.tip, undo_from: flush.undo_from };
        batch.put(&keys::TIP, Some(&tip.to_bytes()))?;
        let mut last = None;
        flush.changes.for_each(&mut |outpoint, coin| {
            if last.replace(*outpoint).is_some_and(|last| last >= *outpoint) {
                return Err(StoreError::Unordered {
                    place: self.place.clone(),
                    outpoint: *outpoint,
                });
            }
            batch.put(&keys::coin(outpoint), coin.map(CoinBytes::as_bytes))
        })?;
        for (hash, change) in &undo {
            let height = change.block.height.to_be_bytes();
            batch.put(&keys::undo_height(hash), change.bytes.map(|_| &height[..]))?;
        }
        let mut by_height: Vec<_> = undo.values().collect();
        by_height.sort_unstable_by_key(|change| keys::undo(&change.block));
        for change in by_height {
            batch.put(&keys::undo(&change.block), change.bytes)?;
        }
        Ok(batch)
    }

    /// Undo data that comes, and that which goes because it is too old.
    fn undo_changes<'a>(
        &self,
        flush: &Flush<'a>,
    ) -> Result<BTreeMap<BlockHash, UndoChange<'a>>, StoreError> {
        let from = read_tip(&self.tree, &self.place)?.map_or(flush.undo_from, |tip| tip.undo_from);
        let mut changes = BTreeMap::new();
        for entry in
            self.tree.range(keys::undo_range(from.min(flush.undo_from), flush.undo_from))?
        {
            let block = keys::undo_block(&entry?.0).ok_or_else(|| self.strange("undo data"))?;
            changes.insert(block.hash, UndoChange { block, bytes: None });
        }
        for UndoRecord { block, bytes } in flush.undo {
            if block.height >= flush.undo_from {
                changes.insert(block.hash, UndoChange { block: *block, bytes: Some(bytes) });
            }
        }
        Ok(changes)
    }

    fn strange(&self, what: &str) -> StoreError {
        damaged(&self.place, format!("{what} under a key that is none"))
    }
}

/// What is to be under the keys of a block's undo data.
struct UndoChange<'a> {
    block: KnownBlock,
    bytes: Option<&'a [u8]>,
}

fn read_tip(tree: &Tree, place: &str) -> Result<Option<Tip>, StoreError> {
    let Some(bytes) = tree.get(&keys::TIP)? else { return Ok(None) };
    Tip::read(&bytes).map(Some).ok_or_else(|| damaged(place, "its tip cannot be read"))
}

/// Makes the name of a new folder durable.
fn sync_parent(folder: &Path) -> std::io::Result<()> {
    match fs::canonicalize(folder)?.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

impl CoinsStore for DiskStore {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        Ok(read_tip(&self.tree, &self.place)?.map(|tip| tip.block))
    }

    fn get(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        let bytes = self.tree.get(&keys::coin(outpoint))?;
        bytes.map(|bytes| self.coin(*outpoint, &bytes)).transpose()
    }

    fn write(&self, flush: &Flush<'_>) -> Result<(), StoreError> {
        let mut halted = self.halted.lock().unwrap_or_else(PoisonError::into_inner);
        if *halted {
            return Err(StoreError::Halted { place: self.place.clone() });
        }
        self.merger.make_room()?;
        let batch = self.batch(flush)?;
        // When this fails, a crash may find either block.
        *halted = true;
        batch.finish()?;
        *halted = false;
        self.merger.wake();
        Ok(())
    }

    fn undo(&self, block: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(height) = self.tree.get(&keys::undo_height(block))? else { return Ok(None) };
        let height: Height =
            keys::height(&height).ok_or_else(|| damaged(&self.place, "a height cannot be read"))?;
        let bytes = self.tree.get(&keys::undo(&KnownBlock { height, hash: *block }))?;
        Ok(bytes.map(|bytes| bytes.to_vec()))
    }

    fn for_each(&self, each: &mut EachCoin<'_>) -> Result<(), StoreError> {
        for entry in self.tree.range(keys::coins())? {
            let (key, bytes) = entry?;
            let outpoint = keys::outpoint(&key).ok_or_else(|| self.strange("a coin"))?;
            each(&outpoint, &self.coin(outpoint, &bytes)?)?;
        }
        Ok(())
    }
}
