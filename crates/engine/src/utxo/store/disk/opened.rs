//! [`OpenedStore`]: a folder with a tree that one process writes, whatever its entries are.
//!
//! The entry under [`PLACE`](OpenedStore::PLACE) says at which block the store is: it comes with the first batch. So a tree that has it, in a
//! folder without a header, has lost something.

use super::folder::{self, FolderForm};
use super::merger::Merger;
use super::tree::{self, CoinsTree, Entry, TreeBatch};
use super::{DiskOptions, StoreError};
use apus_chain::Network;
use apus_storage::lock::FolderLock;
use apus_storage::{DirStorage, Storage, create_private_dir};
use core::ops::{Deref, RangeBounds};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// See the module.
pub struct OpenedStore {
    // Fields are dropped in this order: the lock goes when nothing uses the folder any more.
    merger: Merger,
    pub(super) tree: Arc<CoinsTree>,
    /// What errors call it.
    pub place: String,
    /// Held by the one writer; whether an earlier one failed half-way.
    halted: Mutex<bool>,
    /// Batches that were written. Each is there to be looked up before it is counted, and before the next one is begun.
    written: AtomicU64,
    _lock: FolderLock,
}

impl OpenedStore {
    /// The key of the entry that says at which block the store is.
    pub const PLACE: [u8; 1] = [0];

    /// Opens the store in `folder`, or makes one in a folder that is new or empty.
    pub fn open(
        folder: &Path,
        form: FolderForm,
        network: Network,
        options: DiskOptions,
    ) -> Result<Self, StoreError> {
        let place = folder.display().to_string();
        let failed = |error| StoreError::io(&place, &error);
        // The library makes files as the system does: what closes them to others is the folder.
        create_private_dir(folder).map_err(failed)?;
        let storage = DirStorage::private(folder);
        // What is not ours is not even locked.
        folder::read_header(&storage, &place, form, network)?;
        let lock = folder::lock(folder)?;
        let known = folder::read_header(&storage, &place, form, network)?;
        let path = folder.join(folder::TREE);
        tree::remove_drafts(&path, &place)?;
        let tree = CoinsTree::open(&path, &place, !known, options)?;
        if !known {
            if tree.get(&Self::PLACE)?.is_some() {
                let what = format!("its file `{}` is missing", folder::HEADER);
                return Err(StoreError::damaged(&place, what));
            }
            storage.sync_names().map_err(failed)?;
            folder::write_header(&storage, &place, form, network)?;
            sync_parent(folder).map_err(failed)?;
        }
        let tree = Arc::new(tree);
        let merger = Merger::start(Arc::clone(&tree)).map_err(failed)?;
        // What an earlier process did not come to.
        merger.wake();
        Ok(Self {
            merger,
            tree,
            place,
            halted: Mutex::new(false),
            written: AtomicU64::new(0),
            _lock: lock,
        })
    }

    /// The value under a key, if there is one.
    pub fn get(&self, key: &[u8]) -> Result<Option<impl Deref<Target = [u8]> + use<>>, StoreError> {
        self.tree.get(key)
    }

    /// The entries of a range of keys, ascending, as they are now.
    pub fn range<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K>,
    ) -> Result<impl Iterator<Item = Result<Entry, StoreError>>, StoreError> {
        self.tree.range(range)
    }

    /// Starts a batch, for [`write`](Self::write).
    pub fn batch(&self) -> Result<TreeBatch<'_>, StoreError> {
        self.tree.batch()
    }

    /// Waits until tables are merged as far as they ever are.
    pub(super) fn settle(&self) -> Result<(), StoreError> {
        self.merger.settle()
    }

    /// What look-ups find, all of one state: they are done again where a batch came in between.
    pub(super) fn at_one_state<T>(
        &self,
        look_up: impl Fn() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        loop {
            let written = self.written.load(Ordering::SeqCst);
            let place = self.tree.get(&Self::PLACE)?;
            let found = look_up()?;
            // One that came meanwhile, and is not counted yet, says that it is at another block. Of several the first
            // is counted by now, whatever block they led back to.
            let same = self.tree.get(&Self::PLACE)? == place;
            if same && self.written.load(Ordering::SeqCst) == written {
                return Ok(found);
            }
        }
    }

    /// Writes a batch, durably and as a whole.
    pub fn write<'a>(
        &'a self,
        batch: impl FnOnce() -> Result<TreeBatch<'a>, StoreError>,
    ) -> Result<(), StoreError> {
        let mut halted = self.halted.lock().unwrap_or_else(PoisonError::into_inner);
        if *halted {
            return Err(StoreError::Halted { place: self.place.clone() });
        }
        self.merger.make_room()?;
        let batch = batch()?;
        // When this fails, a crash may find either block.
        *halted = true;
        batch.finish()?;
        *halted = false;
        self.written.fetch_add(1, Ordering::SeqCst);
        self.merger.wake();
        Ok(())
    }
}

/// Makes the name of a new folder durable.
fn sync_parent(folder: &Path) -> std::io::Result<()> {
    match fs::canonicalize(folder)?.parent() {
        Some(parent) => apus_storage::place::sync_names_of(parent),
        None => Ok(()),
    }
}
