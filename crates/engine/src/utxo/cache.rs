//! [`CoinsCache`]: the coins in memory in front of a [`CoinsStore`].
//!
//! # Layers
//!
//! Two generations of changed coins are layered over the store. *Young* takes the changes. *Old* is
//! frozen: either being written to the store, or already there and kept for reading until its
//! memory is needed. The first of young, old and store that knows a coin determines it.
//! [`CoinsCache::apply`] changes only young; [`CoinsCache::begin_flush`] turns young into the old
//! generation and writes it, while a new young takes the next blocks. Look-ups change nothing: a
//! coin read from the store is either spent soon or not needed again, and the caller keeps it.
//!
//! # FRESH and DIRTY
//!
//! Every entry of a generation is DIRTY in the sense of Core's `coins.h`: it may differ from the
//! layers below and must reach them. So there are only three of Core's four kinds:
//!
//! * a coin, FRESH: the layers below have no unspent coin with this outpoint;
//! * a coin, not FRESH: they may have one, which this one replaces;
//! * spent, not FRESH: they may have one, which must be removed.
//!
//! | young has | spend | create, `fresh` | create, not `fresh` |
//! |---|---|---|---|
//! | nothing | spent | FRESH coin | coin |
//! | FRESH coin | nothing | FRESH coin | FRESH coin |
//! | coin | spent | coin | coin |
//! | spent | spent | coin | coin |
//!
//! A FRESH coin that is spent leaves no trace, which saves the store most of its work. Marking a
//! coin FRESH that exists below would corrupt the set: after it is spent, the coin below would
//! reappear. So the mark is set only if this generation has no entry for the outpoint and the
//! caller vouches for the layers below. An existing entry already reflects them, so its mark stays: a coin
//! created over a spent mark must not be FRESH, or the store would never receive the spent mark
//! that it needs; one created over a FRESH coin is still FRESH. "Below" means the old generation
//! and the store *together*: if old has a coin's spent mark, the coin does not exist, although the
//! store still has it, because old always reaches the store before young.
//!
//! Creating a coin over an unspent one is an overwrite (`possible_overwrite` in Core's
//! `CCoinsViewCache::AddCoin`). Two coinbases did that before BIP-30 forbade it, and blocks 91842
//! and 91880 remain its exceptions forever; the first coin is lost. It is correct for those two,
//! with `fresh` false, and for restoring a coin when a block is disconnected. In any other case a
//! duplicate transaction was accepted, which the engine's rules must prevent.
//!
//! # Memory
//!
//! Shards divide the txids by their leading bits, each with its own lock. Attackers can grind for
//! txids, so a shard may have any size and only the total counts: [`bytes_max`](CoinsCache::new)
//! covers all tables, the indices, long scripts, the sorting memory of a flush, and the undo data
//! that is written with the coins, both the data waiting for the next flush
//! ([`CoinsCache::set_undo_bytes`]) and the data of the current one. A flush is due at two thirds.
//! While it is being written, young grows into the rest, then waits. Afterwards the clean
//! generation is dropped shard by shard as young grows. A caller that checks
//! [`CoinsCache::flush_due`] after each block stays within the bound if it is at least
//! [`BYTES_MIN`], because a block cannot add more than the remaining third.

mod flush;
mod table;

use super::store::{CoinsStore, StoreError, UndoRecord};
use super::view::{CoinsView, known_or_below};
use crate::coin::CoinBytes;
use crate::connect::{CoinChange, CoinsDelta};
use apus_chain::{Height, KnownBlock, OutPoint};
use flush::{FlushJob, Flusher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use table::{CacheTable, SORT_BYTES};

/// The minimum memory with which no block, however large, takes the cache beyond its bound. With
/// less, the cache works but exceeds the bound at times.
pub const BYTES_MIN: u64 = 48 << 20;

/// The coins of one shard of the txids.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    tables: RwLock<Generations>,
    young_hits: AtomicU64,
    old_hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Default)]
struct Generations {
    young: CacheTable,
    old: Option<Arc<CacheTable>>,
}

/// State for applying blocks and freezing generations, which only one thread does at a time.
#[derive(Default)]
struct FlushWriter {
    /// The first shard whose clean old table still exists.
    old_from: usize,
    /// Sorting memory and undo data of the current or last flush.
    flush_bytes: u64,
}

/// Coins in memory, in front of a store. Any number of threads may share it by reference.
pub struct CoinsCache {
    store: Arc<dyn CoinsStore>,
    shards: Box<[Shard]>,
    /// Number of low bits in a txid's first eight bytes that do not select the shard.
    shard_shift: u32,
    bytes_max: u64,
    young_bytes: AtomicU64,
    old_bytes: AtomicU64,
    /// Size of the undo data that waits for the next flush, wherever it is stored.
    undo_bytes: AtomicU64,
    /// Number of entries in the largest shard of young, ever.
    young_largest: AtomicU64,
    writer: Mutex<FlushWriter>,
    flusher: Arc<Flusher>,
}

/// Contents and counters of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// Memory in use.
    pub bytes: u64,
    /// The limit of its memory.
    pub bytes_max: u64,
    /// The part of the memory in use that is undo data waiting for the next flush.
    pub undo_bytes: u64,
    /// Changed coins, including spent ones, that no flush has started to write.
    pub young_entries: u64,
    /// Coins of the last flush, including spent ones, that are still in memory.
    pub old_entries: u64,
    /// Look-ups that the young generation answered.
    pub young_hits: u64,
    /// Look-ups that the old generation answered.
    pub old_hits: u64,
    /// Look-ups that went to the store.
    pub misses: u64,
    /// Flushes that reached the store.
    pub flushes: u64,
}

impl CoinsCache {
    /// Creates an empty cache in front of a store, with a memory limit.
    pub fn new(store: Arc<dyn CoinsStore>, bytes_max: u64) -> Self {
        // Some thousand coins a shard: few enough to be sorted in a processor's cache, and enough
        // to make the unused part of the last chunk insignificant.
        let shards = (bytes_max >> 21).next_power_of_two().clamp(64, 512);
        Self {
            flusher: Arc::new(Flusher::new(Arc::clone(&store))),
            store,
            shards: (0..shards).map(|_| Shard::default()).collect(),
            shard_shift: 64 - shards.trailing_zeros(),
            bytes_max,
            young_bytes: AtomicU64::new(0),
            old_bytes: AtomicU64::new(0),
            undo_bytes: AtomicU64::new(0),
            young_largest: AtomicU64::new(0),
            writer: Mutex::new(FlushWriter::default()),
        }
    }

    /// Applies a valid block. Concurrent look-ups see each coin either before or after the block.
    ///
    /// If there is no memory, waits until the current flush has ended. If that flush has failed,
    /// fails and changes nothing.
    pub fn apply(&self, delta: &CoinsDelta) -> Result<(), StoreError> {
        let parts = CacheParts::of(delta, |outpoint| self.shard_of(outpoint), self.shards.len());
        let mut writer = self.writer.lock().map_err(|_| poisoned())?;
        self.make_room(&mut writer, &parts, delta.heap_bytes())?;
        for (shard, changes) in parts.each() {
            let mut tables = self.shards[shard].write()?;
            let before = tables.young.bytes();
            for at in changes {
                let (outpoint, change) = delta.change(*at);
                match change {
                    CoinChange::Created { coin, fresh } => {
                        tables.young.create(outpoint, coin, *fresh);
                    }
                    CoinChange::Spent => tables.young.spend(outpoint),
                }
            }
            let (after, entries) = (tables.young.bytes(), tables.young.len() as u64);
            drop(tables);
            // Wraps if the table shrinks; adding it to the total wraps back.
            self.young_bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
            self.young_largest.fetch_max(entries, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes room for memory that others hold temporarily, as far as possible by dropping coins
    /// that are also in the store. Waits for the current flush if its memory is needed.
    ///
    /// # Errors
    ///
    /// Fails like [`apply`](Self::apply) if that flush has failed.
    pub fn make_room_beside(&self, bytes: u64) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().map_err(|_| poisoned())?;
        self.drop_clean(&mut writer, bytes)
    }

    /// Sets the size of the undo data that waits for the next flush.
    /// [`begin_flush`](Self::begin_flush) takes it and resets the size to zero.
    pub fn set_undo_bytes(&self, bytes: u64) {
        self.undo_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Returns whether the young generation has used its share of the memory, so that a flush is
    /// due.
    pub fn flush_due(&self) -> bool {
        let sort = self.young_largest.load(Ordering::Relaxed) * SORT_BYTES;
        let undo = self.undo_bytes.load(Ordering::Relaxed);
        self.young_bytes.load(Ordering::Relaxed) + undo + sort >= self.bytes_max / 3 * 2
    }

    /// Starts writing all changes to the store, in the background. Returns once the previous flush
    /// has ended.
    ///
    /// `tip` is the last applied block. `undo` is stored with the coins, and undo data of blocks
    /// below `undo_from` is deleted. If the previous flush has failed, fails, starts nothing and
    /// keeps `undo` for the next flush; call [`finish_flush`](Self::finish_flush) to continue.
    pub fn begin_flush(
        &self,
        tip: KnownBlock,
        mut undo: Vec<UndoRecord>,
        undo_from: Height,
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().map_err(|_| poisoned())?;
        self.flusher.wait_with(&mut undo)?;
        while self.drop_old(&mut writer)? {}
        let mut tables = Vec::with_capacity(self.shards.len());
        for shard in &self.shards {
            let mut generations = shard.write()?;
            let table = Arc::new(std::mem::take(&mut generations.young));
            generations.old = Some(Arc::clone(&table));
            tables.push(table);
        }
        let largest = self.young_largest.swap(0, Ordering::Relaxed);
        let undo_bytes: usize = undo.iter().map(|record| record.bytes.heap_bytes()).sum();
        self.undo_bytes.store(0, Ordering::Relaxed);
        *writer =
            FlushWriter { old_from: 0, flush_bytes: largest * SORT_BYTES + undo_bytes as u64 };
        let bytes = self.young_bytes.swap(0, Ordering::Relaxed);
        self.old_bytes.store(bytes, Ordering::Relaxed);
        self.flusher.start(FlushJob { tables, tip, undo, undo_from })
    }

    /// Waits for the current flush and returns its result. A failure is reported once, here or by
    /// [`begin_flush`](Self::begin_flush); its coins stay, and the next call writes them again.
    pub fn finish_flush(&self) -> Result<(), StoreError> {
        self.flusher.finish()
    }

    /// Writes all changes to the store.
    pub fn flush(
        &self,
        tip: KnownBlock,
        undo: Vec<UndoRecord>,
        undo_from: Height,
    ) -> Result<(), StoreError> {
        self.begin_flush(tip, undo, undo_from)?;
        self.finish_flush()
    }

    /// Returns contents and counters, without stopping other threads.
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats {
            bytes: self.bytes(),
            bytes_max: self.bytes_max,
            undo_bytes: self.undo_bytes.load(Ordering::Relaxed),
            flushes: self.flusher.flushes(),
            ..CacheStats::default()
        };
        for shard in &self.shards {
            if let Ok(tables) = shard.read() {
                stats.young_entries += tables.young.len() as u64;
                stats.old_entries += tables.old.as_ref().map_or(0, |old| old.len() as u64);
            }
            stats.young_hits += shard.young_hits.load(Ordering::Relaxed);
            stats.old_hits += shard.old_hits.load(Ordering::Relaxed);
            stats.misses += shard.misses.load(Ordering::Relaxed);
        }
        stats
    }

    fn bytes(&self) -> u64 {
        let used = [&self.young_bytes, &self.old_bytes, &self.undo_bytes];
        let used: u64 = used.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum();
        used + (self.shards.len() * size_of::<Shard>()) as u64
    }

    fn shard_of(&self, outpoint: &OutPoint) -> usize {
        (table::head(outpoint) >> self.shard_shift) as usize
    }

    /// Drops clean coins, or waits until there are some, until the block has room.
    fn make_room(
        &self,
        writer: &mut FlushWriter,
        parts: &CacheParts,
        heap_bytes: u64,
    ) -> Result<(), StoreError> {
        let mut growth = heap_bytes;
        for (shard, changes) in parts.each() {
            growth += self.shards[shard].read()?.young.growth(changes.len());
        }
        // If nothing is left to drop, the caller already knew that a flush is due. The block is
        // still applied.
        self.drop_clean(writer, growth)
    }

    /// Drops clean coins until there is room for `more_bytes`, or none are left. Waits for coins
    /// that are being written to the store.
    fn drop_clean(&self, writer: &mut FlushWriter, more_bytes: u64) -> Result<(), StoreError> {
        while self.bytes() + more_bytes + writer.flush_bytes > self.bytes_max
            && self.old_bytes.load(Ordering::Relaxed) > 0
        {
            self.flusher.wait()?;
            writer.flush_bytes = 0;
            self.drop_old(writer)?;
        }
        Ok(())
    }

    /// Drops the old table of one more shard, which must already be in the store; returns false if
    /// none was left.
    fn drop_old(&self, writer: &mut FlushWriter) -> Result<bool, StoreError> {
        let Some(shard) = self.shards.get(writer.old_from) else {
            self.old_bytes.store(0, Ordering::Relaxed);
            return Ok(false);
        };
        let old = shard.write()?.old.take();
        writer.old_from += 1;
        let bytes = old.map_or(0, |table| table.bytes());
        self.old_bytes.fetch_sub(bytes, Ordering::Relaxed);
        Ok(true)
    }
}

impl CoinsCache {
    /// Returns the cached state of a coin. If there is none, either no block has changed it so far,
    /// or the change is in the store: the store's current answer was the coin at some time in
    /// between.
    fn cached(&self, outpoint: &OutPoint) -> Result<Option<Option<CoinBytes>>, StoreError> {
        let shard = &self.shards[self.shard_of(outpoint)];
        let tables = shard.read()?;
        if let Some(coin) = tables.young.get(outpoint) {
            shard.young_hits.fetch_add(1, Ordering::Relaxed);
            return Ok(Some(coin.cloned()));
        }
        if let Some(coin) = tables.old.as_ref().and_then(|old| old.get(outpoint)) {
            shard.old_hits.fetch_add(1, Ordering::Relaxed);
            return Ok(Some(coin.cloned()));
        }
        shard.misses.fetch_add(1, Ordering::Relaxed);
        Ok(None)
    }
}

impl CoinsView for CoinsCache {
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        self.cached(outpoint)?.map_or_else(|| self.store.get(outpoint), Ok)
    }

    fn coins(&self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        known_or_below(wanted, |it| self.cached(it), |rest| self.store.get_many(rest))
    }

    fn at_once(&self) -> usize {
        self.store.at_once()
    }
}

impl Drop for CoinsCache {
    fn drop(&mut self) {
        self.flusher.stop();
    }
}

impl std::fmt::Debug for CoinsCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stats().fmt(f)
    }
}

impl Shard {
    fn read(&self) -> Result<RwLockReadGuard<'_, Generations>, StoreError> {
        self.tables.read().map_err(|_| poisoned())
    }

    fn write(&self) -> Result<RwLockWriteGuard<'_, Generations>, StoreError> {
        self.tables.write().map_err(|_| poisoned())
    }
}

/// A block's changes, grouped by shard.
struct CacheParts {
    /// Where each shard begins in `order`, followed by the end.
    starts: Vec<u32>,
    order: Vec<u32>,
}

impl CacheParts {
    fn of(delta: &CoinsDelta, shard_of: impl Fn(&OutPoint) -> usize, shards: usize) -> Self {
        let mut starts = vec![0; shards + 1];
        for (outpoint, _) in delta.iter() {
            starts[shard_of(outpoint) + 1] += 1;
        }
        for shard in 0..shards {
            starts[shard + 1] += starts[shard];
        }
        let (mut next, mut order) = (starts.clone(), vec![0; delta.len()]);
        for (at, (outpoint, _)) in delta.iter().enumerate() {
            let place = &mut next[shard_of(outpoint)];
            order[*place as usize] = at as u32;
            *place += 1;
        }
        Self { starts, order }
    }

    /// Returns the shards with changes, and these changes.
    fn each(&self) -> impl Iterator<Item = (usize, &[u32])> {
        let ranges = self.starts.windows(2).enumerate();
        ranges
            .filter(|(_, ends)| ends[0] < ends[1])
            .map(|(shard, ends)| (shard, &self.order[ends[0] as usize..ends[1] as usize]))
    }
}

/// A cache that was interrupted in the middle of a change cannot be trusted.
fn poisoned() -> StoreError {
    error("a thread failed while it changed coins: restart the program".into())
}

fn error(error: String) -> StoreError {
    StoreError::Io { place: "the coins cache".into(), error }
}
