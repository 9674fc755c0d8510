//! [`OpenedStore`]: a folder with a tree that one process writes, for any kind of entries.
//!
//! The entry under [`PLACE`](OpenedStore::PLACE) states the store's block and is written with the
//! first batch. So a tree that has this entry, in a folder without a header, has lost data.

use super::folder::{self, FolderForm};
use super::merger::Merger;
use super::tree::{self, CoinsTree, Entry, TreeBatch};
use super::{DiskOptions, StoreError};
use apus_chain::Network;
use apus_storage::lock::FolderLock;
use apus_storage::{DirStorage, Storage, create_private_dir};
use core::ops::{Deref, RangeBounds};
use parking_lot::Mutex;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An open folder with a tree, locked for this process.
pub struct OpenedStore {
    // Fields are dropped in this order: the lock is released when nothing uses the folder any more.
    merger: Merger,
    pub(super) tree: Arc<CoinsTree>,
    /// The store's name in errors.
    pub place: String,
    /// Held by the single writer; whether an earlier write failed halfway.
    halted: Mutex<bool>,
    /// Number of batches written. Each is visible before it is counted, and before the next one
    /// starts.
    written: AtomicU64,
    _lock: FolderLock,
}

impl OpenedStore {
    /// The key of the entry that names the store's block.
    pub const PLACE: [u8; 1] = [0];

    /// Opens the store in `folder`, or creates one if the folder is new or empty.
    pub fn open(
        folder: &Path,
        form: FolderForm,
        network: Network,
        options: DiskOptions,
    ) -> Result<Self, StoreError> {
        let place = folder.display().to_string();
        let failed = |error| StoreError::io(&place, &error);
        // The library creates files with default permissions; the private folder protects them.
        create_private_dir(folder).map_err(failed)?;
        let storage = DirStorage::private(folder);
        // Do not even lock a folder that is not ours.
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
        // Continue merges that an earlier process did not finish.
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

    /// Returns the value of a key, if there is one.
    pub fn get(&self, key: &[u8]) -> Result<Option<impl Deref<Target = [u8]> + use<>>, StoreError> {
        self.tree.get(key)
    }

    /// Returns the current entries of a range of keys, ascending.
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

    /// Waits until tables are merged as far as possible.
    pub(super) fn settle(&self) -> Result<(), StoreError> {
        self.merger.settle()
    }

    /// Runs look-ups that all see one state: retries them if a batch was written in between.
    pub(super) fn at_one_state<T>(
        &self,
        look_up: impl Fn() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        loop {
            let written = self.written.load(Ordering::SeqCst);
            let place = self.tree.get(&Self::PLACE)?;
            let found = look_up()?;
            // If one batch was written meanwhile and not counted yet, the block has changed. If there were
            // several, the first is counted by now, even if the later ones moved back to the same block.
            let same = self.tree.get(&Self::PLACE)? == place;
            if same && self.written.load(Ordering::SeqCst) == written {
                return Ok(found);
            }
        }
    }

    /// Writes a batch, durably and atomically.
    pub fn write<'a>(
        &'a self,
        batch: impl FnOnce() -> Result<TreeBatch<'a>, StoreError>,
    ) -> Result<(), StoreError> {
        let mut halted = self.halted.lock();
        if *halted {
            return Err(StoreError::Halted { place: self.place.clone() });
        }
        self.merger.make_room()?;
        let batch = batch()?;
        // If this fails, a crash may leave either block.
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
