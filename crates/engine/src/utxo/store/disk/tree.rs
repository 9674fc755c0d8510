//! [`CoinsTree`]: a wrapper around the library that converts its panics and errors.
//!
//! The library is a log-structured merge tree. All data arrives as complete sorted batches that become tables at
//! once: it has no journal, and nothing in its memory that is not on disk. A batch is committed by
//! one rename of the file `current`, after everything that it refers to is durable.

use super::{DiskOptions, StoreError};
use lsm_tree::checksum::ChecksummedWriter;
use lsm_tree::compaction::Leveled;
use lsm_tree::compaction::filter::{CompactionFilter, Context, Factory, ItemAccessor, Verdict};
use lsm_tree::config::{BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry, PinningPolicy};
use lsm_tree::{
    AbstractTree, AnyIngestion, AnyTree, Cache, Config, Guard, SeqNo, SequenceNumberCounter,
};
use std::fs;
use std::io::{self, Write};
use std::ops::RangeBounds;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of levels in the library's trees.
const LEVELS: usize = 7;

/// Number of tables of the newest level that are merged together.
const TABLES_TO_MERGE: u8 = 8;

/// The library's tree.
pub(super) struct CoinsTree {
    tree: AnyTree,
    sequence: SequenceNumberCounter,
    place: String,
    table_bytes: u64,
    stop: Arc<AtomicBool>,
}

/// An entry's key and value.
pub(super) type Entry = (lsm_tree::Slice, lsm_tree::Slice);

impl CoinsTree {
    /// Opens the tree in `path`, or creates one if `new`. `place` is its name in errors.
    pub(super) fn open(
        path: &Path,
        place: &str,
        new: bool,
        options: DiskOptions,
    ) -> Result<Self, StoreError> {
        check_pointer(path, place, new)?;
        let stop = Arc::new(AtomicBool::new(false));
        let sequence = SequenceNumberCounter::default();
        let visible = SequenceNumberCounter::default();
        let config = config(path, &sequence, &visible, options.cache_bytes)
            .with_compaction_filter_factory(Some(Arc::new(TreeStop(Arc::clone(&stop)))));
        let tree = guarded(place, || config.open())?;
        if let Some(highest) = guarded(place, || Ok(tree.get_highest_seqno()))? {
            let next = highest + 1;
            sequence.fetch_max(next);
            visible.fetch_max(next);
        }
        Ok(Self { tree, sequence, place: place.to_owned(), table_bytes: options.table_bytes, stop })
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<lsm_tree::Slice>, StoreError> {
        guarded(&self.place, || self.tree.get(key, SeqNo::MAX))
    }

    /// Returns the current entries of a range of keys, ascending.
    pub(super) fn range<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K>,
    ) -> Result<impl Iterator<Item = Result<Entry, StoreError>>, StoreError> {
        let mut entries = guarded(&self.place, || Ok(self.tree.range(range, SeqNo::MAX, None)))?;
        Ok(std::iter::from_fn(move || {
            guarded(&self.place, || entries.next().map(Guard::into_inner).transpose()).transpose()
        }))
    }

    /// Starts a batch. It has no effect before [`TreeBatch::finish`].
    pub(super) fn batch(&self) -> Result<TreeBatch<'_>, StoreError> {
        let ingestion = guarded(&self.place, || self.tree.ingestion())?;
        Ok(TreeBatch { ingestion, place: &self.place })
    }

    /// Merges tables if there are too many, one step; returns false if there was nothing to do.
    pub(super) fn merge(&self) -> Result<bool, StoreError> {
        let shape = || {
            let tables = |level| self.tree.level_table_count(level);
            (
                self.tree.next_table_id(),
                self.tree.l0_run_count(),
                std::array::from_fn::<_, LEVELS, _>(tables),
            )
        };
        let before = shape();
        let strategy = Leveled::default()
            .with_l0_threshold(TABLES_TO_MERGE)
            .with_table_target_size(self.table_bytes);
        let strategy = Arc::new(strategy);
        let merged = guarded(&self.place, || self.tree.compact(strategy, self.sequence.get()));
        if self.stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        merged.map(|()| before != shape())
    }

    /// Returns the number of batches that a look-up may have to search one by one.
    pub(super) fn unmerged(&self) -> usize {
        self.tree.l0_run_count()
    }

    /// Aborts a merge in progress, without effect, and all later ones.
    pub(super) fn stop_merging(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A sorted batch being written into the tree.
pub struct TreeBatch<'a> {
    ingestion: AnyIngestion<'a>,
    place: &'a str,
}

impl TreeBatch<'_> {
    /// Adds an entry, or a mark that deletes it. Keys must ascend.
    pub fn put(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), StoreError> {
        guarded(self.place, || match value {
            Some(value) => self.ingestion.write(key, value),
            None => self.ingestion.write_tombstone(key),
        })
    }

    /// Makes the batch durable and then visible, atomically.
    pub(super) fn finish(self) -> Result<(), StoreError> {
        guarded(self.place, || self.ingestion.finish())
    }
}

/// Little is pinned, so that the cache size bounds the memory: only the top of a table's index and
/// filter, some kilobytes.
fn config(
    path: &Path,
    sequence: &SequenceNumberCounter,
    visible: &SequenceNumberCounter,
    cache_bytes: u64,
) -> Config {
    // Nearly every coin looked up exists, and nearly all coins are in the last level: a filter
    // there would be large and rarely helpful.
    let bits = || FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0));
    let mut filters = [const { FilterPolicyEntry::None }; LEVELS];
    filters[..LEVELS - 1].fill_with(bits);
    Config::new(path, sequence.clone(), visible.clone())
        .use_cache(Arc::new(Cache::with_capacity_bytes(cache_bytes)))
        .filter_policy(FilterPolicy::new(filters))
        .index_block_pinning_policy(PinningPolicy::all(false))
        .filter_block_pinning_policy(PinningPolicy::all(false))
        .index_block_partitioning_policy(PinningPolicy::all(true))
        .filter_block_partitioning_policy(PinningPolicy::all(true))
}

/// Checks the list of tables against its checksum, which the library writes but does not verify,
/// and that the list exists if it must.
fn check_pointer(path: &Path, place: &str, new: bool) -> Result<(), StoreError> {
    let pointer = path.join(lsm_tree::file::CURRENT_VERSION_FILE);
    let failed = |error: io::Error| StoreError::io(place, &error);
    if !pointer.try_exists().map_err(failed)? {
        let tables = path.join(lsm_tree::file::TABLES_FOLDER);
        let empty = match fs::read_dir(&tables) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => return Err(failed(error)),
        };
        return match new && empty {
            true => Ok(()),
            false => Err(StoreError::damaged(place, "the list of its tables is missing")),
        };
    }
    let bytes = fs::read(&pointer).map_err(failed)?;
    let wrong = || StoreError::damaged(place, "the list of its tables is corrupt");
    let (id, rest) = bytes.split_first_chunk().ok_or_else(wrong)?;
    let (checksum, kind) = rest.split_first_chunk().ok_or_else(wrong)?;
    let list = match fs::read(path.join(format!("v{}", u64::from_le_bytes(*id)))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(wrong()),
        other => other.map_err(failed)?,
    };
    let mut hasher = ChecksummedWriter::new(io::sink());
    hasher.write_all(&list).map_err(failed)?;
    let right = hasher.checksum().into_u128() == u128::from_le_bytes(*checksum) && kind == [0];
    right.then_some(()).ok_or_else(wrong)
}

/// Calls the library. Converts its reports of damage, and its panics, to errors of the store.
fn guarded<T>(place: &str, act: impl FnOnce() -> lsm_tree::Result<T>) -> Result<T, StoreError> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(lsm_tree::Error::Io(error))) if !is_damage(error.kind()) => {
            Err(StoreError::io(place, &error))
        }
        Ok(Err(error)) => Err(StoreError::damaged(place, format!("its tables: {error}"))),
        Err(_) => Err(StoreError::damaged(place, "reading its tables failed")),
    }
}

/// Returns whether an error of this kind means that a file's content is invalid, such as an offset after its end.
fn is_damage(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, NotFound, UnexpectedEof};
    matches!(kind, NotFound | UnexpectedEof | InvalidData | InvalidInput)
}

/// Aborts merges when the store is closed: they can be repeated. An error aborts them safely; the
/// library's own stop signal would commit the partial merge (in 3.1.10), and only comes when
/// nothing uses the tree any more.
struct TreeStop(Arc<AtomicBool>);

impl Factory for TreeStop {
    fn name(&self) -> &str {
        "stop"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(Self(Arc::clone(&self.0)))
    }
}

impl CompactionFilter for TreeStop {
    fn filter_item(&mut self, _: ItemAccessor<'_>, _: &Context) -> lsm_tree::Result<Verdict> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(io::Error::from(io::ErrorKind::Interrupted).into()),
            false => Ok(Verdict::Keep),
        }
    }
}

/// Removes drafts of replaced files that a crash left behind.
pub(super) fn remove_drafts(path: &Path, place: &str) -> Result<(), StoreError> {
    let failed = |error: io::Error| StoreError::io(place, &error);
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if entry.file_name().to_string_lossy().starts_with(".tmp") {
            fs::remove_file(entry.path()).map_err(failed)?;
        }
    }
    Ok(())
}
