//! [`CoinsCache`]: the coins in memory in front of a [`CoinsStore`].
//!
//! # Layers
//!
//! Two generations of changed coins lie over the store. *Young* is being changed. *Old* is frozen:
//! either on its way to the store, or there already and kept to be read until its memory is needed.
//! A coin is what the first of young, old and store says that knows it. [`CoinsCache::apply`] changes
//! young alone; [`CoinsCache::begin_flush`] makes young the old generation and writes it, while a
//! new young takes the next blocks. Looking a coin up changes nothing: a coin that was read from the
//! store is spent soon or not asked for again, and the caller keeps it.
//!
//! # FRESH and DIRTY
//!
//! Every entry of a generation is DIRTY in the words of Core's `coins.h`: it may differ from the
//! layers below and must reach them. So there are three kinds, of the four that Core has:
//!
//! * a coin, FRESH: the layers below have no unspent coin of this name;
//! * a coin, not FRESH: they may have one, which this one replaces;
//! * spent, not FRESH: they may have one, which must go.
//!
//! | young has | spend | create, `fresh` | create, not `fresh` |
//! |---|---|---|---|
//! | nothing | spent | FRESH coin | coin |
//! | FRESH coin | nothing | FRESH coin | FRESH coin |
//! | coin | spent | coin | coin |
//! | spent | spent | coin | coin |
//!
//! A FRESH coin that is spent leaves no trace, which spares the store most of its work. To call a
//! coin FRESH that exists below is a wrong set of coins: spent, it would come to light again. Hence
//! the mark is set only where this generation knows nothing of the outpoint and the caller vouches
//! for the layers below; an entry that is there knows better, so its mark stays (a coin made over a
//! spent mark must not be FRESH, or the mark that the store needs would be lost with it; one made
//! over a FRESH coin still is). "Below" is the old generation and the store *together*: a coin whose
//! spent mark lies in old is not there, although the store still has it, since old reaches the store
//! before young ever does.
//!
//! Creating a coin where an unspent one is, is an overwrite (`possible_overwrite` in Core's
//! `CCoinsViewCache::AddCoin`). Two coinbases did that before BIP-30 forbade it, and blocks 91842
//! and 91880 are its exceptions for ever; the coin of the first is lost. It is right for those two,
//! with `fresh` false, and for putting a coin back when a block is disconnected; anywhere else it
//! means that a duplicate transaction was let through, which the engine's rules must refuse before.
//!
//! # Memory
//!
//! Shards split the txids by their leading bits, each with its lock. Txids can be ground for, so a
//! shard may have any size and what counts is the sum: [`bytes_max`](CoinsCache::new) is for all
//! tables, the indices, long scripts, what a flush needs to sort, and the undo data that is written
//! with the coins: that which waits for the next flush ([`CoinsCache::set_undo_bytes`]) and that of
//! the one under way. A flush is due at two thirds. While it is written, young grows into the rest,
//! then waits. Afterwards the clean generation is given up shard by shard as young grows. A caller
//! that looks at [`CoinsCache::flush_due`] after each block stays within the bound, from
//! [`BYTES_MIN`] on: a block cannot add more than the third.

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

/// The least memory with which no block, however large, takes the cache beyond its bound. With less
/// it works and is beyond it at times.
pub const BYTES_MIN: u64 = 48 << 20;

/// The coins of one part of all txids.
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

/// For applying blocks and freezing generations, which one thread at a time does.
#[derive(Default)]
struct FlushWriter {
    /// The first shard whose clean old table is still there.
    old_from: usize,
    /// What the flush under way, or the last one, needs to sort, and its undo data.
    flush_bytes: u64,
}

/// Coins in memory, in front of a store. Shared by reference between any number of threads.
pub struct CoinsCache {
    store: Arc<dyn CoinsStore>,
    shards: Box<[Shard]>,
    /// Bits of a txid's first eight bytes that do not choose the shard.
    shard_shift: u32,
    bytes_max: u64,
    young_bytes: AtomicU64,
    old_bytes: AtomicU64,
    /// Undo data that waits for the next flush, wherever it is kept.
    undo_bytes: AtomicU64,
    /// Entries of the largest shard of young, ever.
    young_largest: AtomicU64,
    writer: Mutex<FlushWriter>,
    flusher: Arc<Flusher>,
}

/// What a cache holds and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// Memory in use.
    pub bytes: u64,
    /// The most that it may use.
    pub bytes_max: u64,
    /// Of the memory in use, undo data that waits for the next flush.
    pub undo_bytes: u64,
    /// Changed coins that no flush has begun to write, spent ones among them.
    pub young_entries: u64,
    /// Coins of the last flush that are still in memory, spent ones among them.
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
    /// An empty cache in front of a store, which uses so much memory at most.
    pub fn new(store: Arc<dyn CoinsStore>, bytes_max: u64) -> Self {
        // Some thousand coins a shard: small enough to be sorted in a processor's cache, and a
        // chunk that is not full is little beside it.
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

    /// Applies a block whose verdict is known to be good. Each coin that others look up meanwhile is
    /// the one before or the one after.
    ///
    /// Waits where there is no memory until a flush under way has ended. Fails, and has changed
    /// nothing, where that flush has failed.
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
            // Wraps where it shrinks, as the sum does again.
            self.young_bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
            self.young_largest.fetch_max(entries, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes room for so much that others hold for a while, as far as there are coins to give up for it: those that
    /// the store has, too. Waits for a flush under way where its memory is needed.
    ///
    /// # Errors
    /// As [`apply`](Self::apply), where that flush has failed.
    pub fn make_room_beside(&self, bytes: u64) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().map_err(|_| poisoned())?;
        self.give_up(&mut writer, bytes)
    }

    /// Says how much undo data waits for the next flush. [`begin_flush`](Self::begin_flush) takes it,
    /// and it is none after that.
    pub fn set_undo_bytes(&self, bytes: u64) {
        self.undo_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Whether the young generation has its share of the memory, so that it is time to flush.
    pub fn flush_due(&self) -> bool {
        let sort = self.young_largest.load(Ordering::Relaxed) * SORT_BYTES;
        let undo = self.undo_bytes.load(Ordering::Relaxed);
        self.young_bytes.load(Ordering::Relaxed) + undo + sort >= self.bytes_max / 3 * 2
    }

    /// Begins to write all changes to the store, in the background. Returns once the flush before
    /// has ended.
    ///
    /// `tip` is the block that was applied last. `undo` is stored beside the coins, and undo data of
    /// blocks below `undo_from` is forgotten. Fails where the flush before has failed: then begins
    /// nothing, keeps `undo` for the next flush, and the way on is
    /// [`finish_flush`](Self::finish_flush).
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

    /// Waits for the flush under way and tells how it ended. One that failed is reported once, here
    /// or by [`begin_flush`](Self::begin_flush); its coins stay, and the next call writes them
    /// again.
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

    /// What the cache holds and did. Counted without stopping any other thread.
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

    /// Gives up clean coins, or waits for them to be clean, until the block has room.
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
        // Where there is no more, the caller was told that a flush is due. A block is not refused for that.
        self.give_up(writer, growth)
    }

    /// Gives up clean coins until so much more has room, or none are left. Those on their way to the store are waited
    /// for.
    fn give_up(&self, writer: &mut FlushWriter, more_bytes: u64) -> Result<(), StoreError> {
        while self.bytes() + more_bytes + writer.flush_bytes > self.bytes_max
            && self.old_bytes.load(Ordering::Relaxed) > 0
        {
            self.flusher.wait()?;
            writer.flush_bytes = 0;
            self.drop_old(writer)?;
        }
        Ok(())
    }

    /// Gives up the old table of one more shard, which must be in the store; false if that was none.
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
    /// What is known of a coin here. Where that is nothing, no block changed it up to here, or the change
    /// is in the store: what the store says now was the coin at some time between.
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

/// The changes of a block by shard.
struct CacheParts {
    /// Where each shard begins in `order`, and the end.
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

    /// Shards with changes, and which these are.
    fn each(&self) -> impl Iterator<Item = (usize, &[u32])> {
        let ranges = self.starts.windows(2).enumerate();
        ranges
            .filter(|(_, ends)| ends[0] < ends[1])
            .map(|(shard, ends)| (shard, &self.order[ends[0] as usize..ends[1] as usize]))
    }
}

/// A cache that was left in the midst of a change can be trusted no more.
fn poisoned() -> StoreError {
    error("a thread failed while it changed coins: start the program again".into())
}

fn error(error: String) -> StoreError {
    StoreError::Io { place: "the coins cache".into(), error }
}
