//! [`CacheTable`]: coins that differ from the layers below, as one shard of a generation holds them.
//!
//! Entries lie in chunks of one size and are found through an index of 4-byte places. So a table
//! grows by small steps (only its index ever doubles, and that is given back before it is built
//! anew), no coin has an allocation of its own, and what a table uses is known to the byte. What
//! FRESH and DIRTY mean is stated in the [cache](super).

use crate::coin::CoinBytes;
use crate::salt::Salt;
use apus_chain::OutPoint;
use hashbrown::HashTable;

/// Entries in a chunk: small, since every shard has one that is not full.
const CHUNK_ENTRIES: usize = 64;

/// What an allocator keeps beside an allocation.
const ALLOCATION_BYTES: u64 = 16;

const CHUNK_BYTES: u64 = (CHUNK_ENTRIES * size_of::<CacheEntry>() + size_of::<Vec<CacheEntry>>())
    as u64
    + ALLOCATION_BYTES;

/// No entry.
const NONE: u32 = u32::MAX;

/// One outpoint whose coin differs from the layers below.
struct CacheEntry {
    outpoint: OutPoint,
    mark: SlotMark,
    /// None where it is spent.
    coin: Option<CoinBytes>,
}

const _: () = assert!(size_of::<CacheEntry>() == 88, "what the cache's memory is planned with");

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotMark {
    /// No entry; the outpoint's number is the next such place.
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

    /// Entries: coins, and marks of spent ones.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Memory in use.
    pub(super) fn bytes(&self) -> u64 {
        let spare = (self.chunks.capacity() - self.chunks.len()) * size_of::<Vec<CacheEntry>>();
        self.chunks.len() as u64 * CHUNK_BYTES
            + spare as u64
            + self.index.allocation_size() as u64
            + self.heap_bytes
    }

    /// The most by which [`bytes`](Self::bytes) grows when so many entries are added.
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

    /// What this table says of the coin: nothing, that it is spent, or the coin.
    pub(super) fn get(&self, outpoint: &OutPoint) -> Option<Option<&CoinBytes>> {
        let hash = self.salt.hash(outpoint);
        let at = self.index.find(hash, |at| self.entry(*at).outpoint == *outpoint)?;
        Some(self.entry(*at).coin.as_ref())
    }

    /// Notes that the coin is there now. `fresh`: the layers below have no coin here.
    pub(super) fn create(&mut self, outpoint: &OutPoint, coin: &CoinBytes, fresh: bool) {
        let hash = self.salt.hash(outpoint);
        self.heap_bytes += coin.heap_bytes() as u64;
        if let Some(at) = self.find(hash, outpoint) {
            // What the layers below have is known from the entry that is there; its mark stays.
            let entry = self.entry_mut(at);
            let replaced = entry.coin.replace(coin.clone());
            self.heap_bytes -= replaced.map_or(0, |coin| coin.heap_bytes() as u64);
        } else {
            let mark = if fresh { SlotMark::Fresh } else { SlotMark::Dirty };
            self.insert(hash, CacheEntry { outpoint: *outpoint, mark, coin: Some(coin.clone()) });
        }
    }

    /// Notes that the coin is spent now.
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

    /// Places of all entries in ascending order of outpoint, for [`change`](Self::change).
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

    /// One change, by its place.
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
                    // By an eighth: a list that doubles would be most of a small step.
                    self.chunks.reserve_exact((self.chunks.len() / 8).max(4));
                }
                self.chunks.push(Vec::with_capacity(CHUNK_ENTRIES));
            }
            let chunk = self.chunks.len() - 1;
            let last = &mut self.chunks[chunk];
            last.push(entry);
            u32::try_from(chunk * CHUNK_ENTRIES + last.len() - 1)
                .expect("memory for four thousand million coins was refused before")
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

    /// Makes room for at least one more place. The old index is given back first: the entries
    /// themselves say all that the new one needs.
    #[cold]
    fn rebuild_index(&mut self) {
        let entries = self.index.len();
        self.index = HashTable::new();
        // Where most places are worn out by removals, the same size serves again.
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

/// Places that a new index for so many entries has room for, at least: some more than there are.
fn index_capacity(entries: usize) -> usize {
    (entries * 5 / 4).max(56)
}

/// What such an index takes at most: buckets are a power of two, 8/7 of its capacity or more, each
/// 4 bytes and one of control, and a last group.
fn index_bytes_max(entries: usize) -> usize {
    (index_capacity(entries) * 8 / 7).next_power_of_two() * 5 + 64
}

fn place(chunks: &[Vec<CacheEntry>], at: u32) -> &CacheEntry {
    &chunks[at as usize / CHUNK_ENTRIES][at as usize % CHUNK_ENTRIES]
}

/// Where an entry lies, with the first bytes of its txid, which nearly always decide the order.
pub(super) struct SortKey {
    head: u64,
    at: u32,
}

/// What sorting takes for each entry.
pub(super) const SORT_BYTES: u64 = size_of::<SortKey>() as u64;

/// The first bytes of the txid, as a number that sorts as they do.
pub(super) fn head(outpoint: &OutPoint) -> u64 {
    let (words, _) = outpoint.txid.0.as_chunks::<8>();
    u64::from_be_bytes(words[0])
}

#[cfg(test)]
mod tests;
