//! [`CacheTable`]: coins that differ from the layers below, for one shard of a generation.
//!
//! Entries are stored in chunks of equal size and found through an index of 4-byte positions. So a
//! table grows in small steps (only its index ever doubles, and the old one is freed before the new
//! one is built), no coin needs its own allocation, and the memory of a table is known to the byte.
//! For the meaning of FRESH and DIRTY see the [cache](super).

use crate::coin::CoinBytes;
use crate::salt::Salt;
use apus_chain::OutPoint;
use hashbrown::HashTable;

/// Entries in a chunk: few, because every shard has a partly empty chunk.
const CHUNK_ENTRIES: usize = 64;

/// The allocator's overhead for each allocation.
const ALLOCATION_BYTES: u64 = 16;

const CHUNK_BYTES: u64 = (CHUNK_ENTRIES * size_of::<CacheEntry>() + size_of::<Vec<CacheEntry>>())
    as u64
    + ALLOCATION_BYTES;

/// No entry.
const NONE: u32 = u32::MAX;

/// An outpoint whose coin differs from the layers below.
struct CacheEntry {
    outpoint: OutPoint,
    mark: SlotMark,
    /// `None` if it is spent.
    coin: Option<CoinBytes>,
}

const _: () = assert!(size_of::<CacheEntry>() == 88, "the cache's memory plan assumes this size");

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotMark {
    /// No entry; the outpoint's vout is the next free position.
    Free,
    /// The layers below have no coin here.
    Fresh,
    /// They may have one.
    Dirty,
}

/// Changed coins by outpoint.
pub(super) struct CacheTable {
    salt: Salt,
    index: HashTable<u32>,
    chunks: Vec<Vec<CacheEntry>>,
    free: u32,
    heap_bytes: u64,
}

impl Default for CacheTable {
    fn default() -> Self {
        Self::new()
    }
}

impl CacheTable {
    pub(super) fn new() -> Self {
        let salt = Salt::of_process();
        Self { salt, index: HashTable::new(), chunks: Vec::new(), free: NONE, heap_bytes: 0 }
    }

    /// Returns the number of entries: coins, and marks of spent ones.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns the memory in use in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let spare = (self.chunks.capacity() - self.chunks.len()) * size_of::<Vec<CacheEntry>>();
        self.chunks.len() as u64 * CHUNK_BYTES
            + spare as u64
            + self.index.allocation_size() as u64
            + self.heap_bytes
    }

    /// Returns the most by which [`bytes`](Self::bytes) grows when `entries` are added.
    pub(super) fn growth(&self, entries: usize) -> u64 {
        let chunks = entries.div_ceil(CHUNK_ENTRIES);
        let list = if self.chunks.len() + chunks > self.chunks.capacity() {
            (self.chunks.capacity() + chunks.max(4)) * size_of::<Vec<CacheEntry>>()
        } else {
            0
        };
        let index = if self.index.len() + entries > self.index.capacity() {
            index_bytes_max(self.index.len() + entries)
        } else {
            0
        };
        chunks as u64 * CHUNK_BYTES + (list + index) as u64
    }

    /// Returns the table's state of a coin: unknown, spent, or the coin.
    pub(super) fn get(&self, outpoint: &OutPoint) -> Option<Option<&CoinBytes>> {
        let hash = self.salt.hash(outpoint);
        let at = self.index.find(hash, |at| self.entry(*at).outpoint == *outpoint)?;
        Some(self.entry(*at).coin.as_ref())
    }

    /// Records that the coin now exists. `fresh`: the layers below have no such coin.
    pub(super) fn create(&mut self, outpoint: &OutPoint, coin: &CoinBytes, fresh: bool) {
        let hash = self.salt.hash(outpoint);
        self.heap_bytes += coin.heap_bytes() as u64;
        if let Some(at) = self.find(hash, outpoint) {
            // The existing entry knows what the layers below have; its mark stays.
            let entry = self.entry_mut(at);
            let replaced = entry.coin.replace(coin.clone());
            self.heap_bytes -= replaced.map_or(0, |coin| coin.heap_bytes() as u64);
        } else {
            let mark = if fresh { SlotMark::Fresh } else { SlotMark::Dirty };
            self.insert(hash, CacheEntry { outpoint: *outpoint, mark, coin: Some(coin.clone()) });
        }
    }

    /// Records that the coin is now spent.
    pub(super) fn spend(&mut self, outpoint: &OutPoint) {
        let hash = self.salt.hash(outpoint);
        let Some(at) = self.find(hash, outpoint) else {
            self.insert(
                hash,
                CacheEntry { outpoint: *outpoint, mark: SlotMark::Dirty, coin: None },
            );
            return;
        };
        let entry = self.entry_mut(at);
        let fresh = entry.mark == SlotMark::Fresh;
        let spent = entry.coin.take();
        self.heap_bytes -= spent.map_or(0, |coin| coin.heap_bytes() as u64);
        if fresh {
            self.remove(hash, at);
        }
    }

    /// Returns the positions of all entries in ascending order of outpoint, for
    /// [`change`](Self::change).
    pub(super) fn sorted(&self) -> Vec<SortKey> {
        let mut keys = Vec::with_capacity(self.len());
        for (chunk, entries) in self.chunks.iter().enumerate() {
            for (offset, entry) in entries.iter().enumerate() {
                if entry.mark != SlotMark::Free {
                    let at = (chunk * CHUNK_ENTRIES + offset) as u32;
                    keys.push(SortKey { head: head(&entry.outpoint), at });
                }
            }
        }
        keys.sort_unstable_by(|one, other| {
            let order = one.head.cmp(&other.head);
            order.then_with(|| self.entry(one.at).outpoint.cmp(&self.entry(other.at).outpoint))
        });
        keys
    }

    /// Returns one change, by its position.
    pub(super) fn change(&self, key: &SortKey) -> (&OutPoint, Option<&CoinBytes>) {
        let entry = self.entry(key.at);
        (&entry.outpoint, entry.coin.as_ref())
    }

    fn entry(&self, at: u32) -> &CacheEntry {
        &self.chunks[at as usize / CHUNK_ENTRIES][at as usize % CHUNK_ENTRIES]
    }

    fn entry_mut(&mut self, at: u32) -> &mut CacheEntry {
        &mut self.chunks[at as usize / CHUNK_ENTRIES][at as usize % CHUNK_ENTRIES]
    }

    fn find(&self, hash: u64, outpoint: &OutPoint) -> Option<u32> {
        self.index.find(hash, |at| self.entry(*at).outpoint == *outpoint).copied()
    }

    fn insert(&mut self, hash: u64, entry: CacheEntry) {
        if self.index.len() == self.index.capacity() {
            self.rebuild_index();
        }
        let at = if self.free != NONE {
            let at = self.free;
            let place = self.entry_mut(at);
            let next = place.outpoint.vout;
            *place = entry;
            self.free = next;
            at
        } else {
            if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK_ENTRIES) {
                if self.chunks.len() == self.chunks.capacity() {
                    // Grow by an eighth: doubling the list would dominate a small step.
                    self.chunks.reserve_exact((self.chunks.len() / 8).max(4));
                }
                self.chunks.push(Vec::with_capacity(CHUNK_ENTRIES));
            }
            let chunk = self.chunks.len() - 1;
            let last = &mut self.chunks[chunk];
            last.push(entry);
            u32::try_from(chunk * CHUNK_ENTRIES + last.len() - 1)
                .expect("memory would run out before four billion coins")
        };
        let (salt, chunks) = (&self.salt, &self.chunks);
        self.index.insert_unique(hash, at, |at| salt.hash(&place(chunks, *at).outpoint));
    }

    fn remove(&mut self, hash: u64, at: u32) {
        if let Ok(found) = self.index.find_entry(hash, |other| *other == at) {
            found.remove();
        }
        let next = std::mem::replace(&mut self.free, at);
        let entry = self.entry_mut(at);
        entry.mark = SlotMark::Free;
        entry.outpoint.vout = next;
    }

    /// Makes room for at least one more position. Frees the old index first: the entries alone
    /// suffice to build the new one.
    #[cold]
    fn rebuild_index(&mut self) {
        let entries = self.index.len();
        self.index = HashTable::new();
        // If removals have used up most positions, the same size is enough.
        let mut index = HashTable::with_capacity(index_capacity(entries));
        for (chunk, list) in self.chunks.iter().enumerate() {
            for (offset, entry) in list.iter().enumerate() {
                if entry.mark != SlotMark::Free {
                    let at = (chunk * CHUNK_ENTRIES + offset) as u32;
                    let (salt, chunks) = (&self.salt, &self.chunks);
                    index.insert_unique(salt.hash(&entry.outpoint), at, |at| {
                        salt.hash(&place(chunks, *at).outpoint)
                    });
                }
            }
        }
        self.index = index;
    }
}

/// Returns the minimum capacity of a new index for this many entries, including some spare.
fn index_capacity(entries: usize) -> usize {
    (entries * 5 / 4).max(56)
}

/// Returns the maximum size of such an index: buckets are a power of two, 8/7 of its capacity or
/// more, each 4 bytes plus one control byte, plus a last group.
fn index_bytes_max(entries: usize) -> usize {
    (index_capacity(entries) * 8 / 7).next_power_of_two() * 5 + 64
}

fn place(chunks: &[Vec<CacheEntry>], at: u32) -> &CacheEntry {
    &chunks[at as usize / CHUNK_ENTRIES][at as usize % CHUNK_ENTRIES]
}

/// The position of an entry, with the first bytes of its txid, which nearly always decide the
/// order.
pub(super) struct SortKey {
    head: u64,
    at: u32,
}

/// Sorting memory for each entry.
pub(super) const SORT_BYTES: u64 = size_of::<SortKey>() as u64;

/// Returns the first bytes of the txid, as a number with the same order.
pub(super) fn head(outpoint: &OutPoint) -> u64 {
    let (words, _) = outpoint.txid.0.as_chunks::<8>();
    u64::from_be_bytes(words[0])
}

#[cfg(test)]
mod tests;
