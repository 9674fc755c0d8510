//! [`Cache`]: the pages in memory.
//!
//! It counts the bytes that it holds. Pages changed since they were last stored stay. Others are evicted by
//! the clock algorithm: a page is dropped if it was not requested since the hand last passed it.

use super::id::PageId;
use super::page::Page;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Bytes that a page takes in addition to its hashes: its entry, its share of the map, and the allocator's
/// overhead.
const PAGE_BYTES: usize = size_of::<Entry>() + 2 * (size_of::<(u64, u32)>() + 1) + 16;

struct Entry {
    id: PageId,
    page: Page,
    /// Whether it differs from the page in the store.
    is_changed: bool,
    /// Whether it was requested since the hand passed.
    is_used: bool,
}

impl Entry {
    fn bytes(&self) -> usize {
        PAGE_BYTES + self.page.heap_bytes()
    }
}

/// Index of a page, valid until the cache is [trimmed](Cache::trim).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(u32);

/// The pages in memory, evicted by the clock algorithm.
#[derive(Default)]
pub(super) struct Cache {
    entries: Vec<Entry>,
    slots: HashMap<u64, u32, BuildHasherDefault<Spread>>,
    bytes: usize,
    changed_bytes: usize,
    hand: usize,
}

impl Cache {
    pub(super) fn pages(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the pages changed since they were last stored.
    pub(super) fn changed_bytes(&self) -> usize {
        self.changed_bytes
    }

    pub(super) fn find(&mut self, id: PageId) -> Option<Slot> {
        let slot = *self.slots.get(&id.number())?;
        self.entries[slot as usize].is_used = true;
        Some(Slot(slot))
    }

    /// Adds a page that is not in the cache, unchanged from the store.
    pub(super) fn insert(&mut self, id: PageId, page: Page) -> Slot {
        let slot = self.entries.len() as u32;
        let entry = Entry { id, page, is_changed: false, is_used: true };
        self.bytes += entry.bytes();
        self.entries.push(entry);
        self.slots.insert(id.number(), slot);
        Slot(slot)
    }

    pub(super) fn page(&self, Slot(slot): Slot) -> &Page {
        &self.entries[slot as usize].page
    }

    /// Takes a page out to change it and [put it back](Self::put).
    pub(super) fn take(&mut self, Slot(slot): Slot) -> Page {
        let entry = &mut self.entries[slot as usize];
        self.bytes -= entry.bytes();
        if entry.is_changed {
            self.changed_bytes -= entry.bytes();
        }
        std::mem::take(&mut entry.page)
    }

    /// Puts back a changed page.
    pub(super) fn put(&mut self, Slot(slot): Slot, page: Page) {
        let entry = &mut self.entries[slot as usize];
        (entry.page, entry.is_changed) = (page, true);
        self.bytes += entry.bytes();
        self.changed_bytes += entry.bytes();
    }

    /// The pages changed since they were last stored, in the order of their keys.
    pub(super) fn changed(&self) -> impl Iterator<Item = (PageId, &Page)> {
        let mut changed: Vec<&Entry> =
            self.entries.iter().filter(|entry| entry.is_changed).collect();
        changed.sort_unstable_by_key(|entry| entry.id);
        changed.into_iter().map(|entry| (entry.id, &entry.page))
    }

    /// Marks every page as stored.
    pub(super) fn set_stored(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.is_changed = false);
        self.changed_bytes = 0;
    }

    /// Drops pages until the cache holds at most `bytes_max` bytes, or only changed pages.
    pub(super) fn trim(&mut self, bytes_max: usize) {
        // Two turns of the hand reach every page: the first clears all used marks.
        let (mut kept, kept_max) = (0, 2 * self.entries.len());
        while self.bytes > bytes_max && kept < kept_max && !self.entries.is_empty() {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            let entry = &mut self.entries[self.hand];
            if entry.is_changed || std::mem::take(&mut entry.is_used) {
                self.hand += 1;
                kept += 1;
            } else {
                self.drop_at_hand();
            }
        }
    }

    /// Drops the page at the hand; the last page takes its place.
    fn drop_at_hand(&mut self) {
        let gone = self.entries.swap_remove(self.hand);
        self.bytes -= gone.bytes();
        self.slots.remove(&gone.id.number());
        if let Some(moved) = self.entries.get(self.hand) {
            self.slots.insert(moved.id.number(), self.hand as u32);
        }
    }
}

/// Spreads page numbers. A weak hash is enough: they count up from 0, and a miner cannot choose them.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        let wide = u128::from(self.0 ^ number) * 0x9e37_79b9_7f4a_7c15;
        self.0 = wide as u64 ^ (wide >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeHash;

    fn id(index: u64) -> PageId {
        PageId::new(1, index)
    }

    fn page(number: u8) -> Page {
        Page::of_first(NodeHash([number; 32]))
    }

    fn counted(cache: &Cache) -> usize {
        cache.entries.iter().map(|entry| PAGE_BYTES + entry.page.heap_bytes()).sum()
    }

    /// All pages have one size. The hand passes over used pages and drops others.
    #[test]
    fn requested_pages_stay() {
        let mut cache = Cache::default();
        for number in 1..=10 {
            cache.insert(id(number.into()), page(number));
        }
        let each = cache.bytes() / 10;
        assert_eq!((cache.bytes(), each), (counted(&cache), PAGE_BYTES + 32));
        cache.trim(10 * each);
        assert_eq!(cache.pages(), 10);
        cache.trim(10 * each - 1);
        assert_eq!(cache.pages(), 9);
        for number in [7, 8, 9] {
            assert!(cache.find(id(number)).is_some());
        }
        cache.trim(4 * each);
        assert_eq!((cache.pages(), cache.bytes()), (4, 4 * each));
        for number in [7, 8, 9] {
            let slot = cache.find(id(number)).unwrap();
            assert_eq!(cache.page(slot), &page(number as u8));
        }
        assert_eq!((0..11).filter(|number| cache.find(id(*number)).is_some()).count(), 4);
        cache.trim(0);
        assert_eq!((cache.pages(), cache.bytes(), cache.slots.len()), (0, 0, 0));
    }

    #[test]
    fn changed_pages_stay_until_they_are_stored() {
        let mut cache = Cache::default();
        let slots: Vec<Slot> =
            (1..=5).map(|number| cache.insert(id(number.into()), page(number))).collect();
        for (slot, number) in [(slots[1], 20), (slots[3], 40), (slots[3], 41)] {
            cache.take(slot);
            cache.put(slot, page(number));
        }
        assert_eq!(
            (cache.bytes(), 2 * cache.bytes()),
            (counted(&cache), 5 * cache.changed_bytes())
        );
        cache.trim(0);
        let changed: Vec<_> = cache.changed().collect();
        assert_eq!(changed.len(), 2);
        assert_eq!(changed, [(id(2), &page(20)), (id(4), &page(41))]);
        assert_eq!((cache.bytes(), cache.changed_bytes()), (counted(&cache), counted(&cache)));
        cache.set_stored();
        assert_eq!((cache.changed().count(), cache.changed_bytes()), (0, 0));
        cache.trim(0);
        assert_eq!((cache.pages(), cache.bytes()), (0, 0));
    }
}
