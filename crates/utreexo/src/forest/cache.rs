//! [`Cache`]: the pages in memory.
//!
//! It counts the bytes that it holds. A page that was changed since it was last stored stays; of the others those
//! go that have not been asked for since the clock's hand last came by.

use super::id::PageId;
use super::page::Page;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Bytes that a page takes besides its hashes: its entry, its share of the map, and what the allocator adds.
const PAGE_BYTES: usize = size_of::<Entry>() + 2 * (size_of::<(u64, u32)>() + 1) + 16;

struct Entry {
    id: PageId,
    page: Page,
    /// Whether the store has another one.
    is_changed: bool,
    /// Whether it was asked for since the hand came by.
    is_used: bool,
}

impl Entry {
    fn bytes(&self) -> usize {
        PAGE_BYTES + self.page.heap_bytes()
    }
}

/// Which page, until the cache is [trimmed](Cache::trim).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(u32);

/// See the module.
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

    /// Bytes of pages that were changed since they were last stored.
    pub(super) fn changed_bytes(&self) -> usize {
        self.changed_bytes
    }

    pub(super) fn find(&mut self, id: PageId) -> Option<Slot> {
        let slot = *self.slots.get(&id.number())?;
        self.entries[slot as usize].is_used = true;
        Some(Slot(slot))
    }

    /// Takes in a page that it does not have, as the store has it.
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

    /// Takes a page out, in order to change it and [put it back](Self::put).
    pub(super) fn take(&mut self, Slot(slot): Slot) -> Page {
        let entry = &mut self.entries[slot as usize];
        self.bytes -= entry.bytes();
        if entry.is_changed {
            self.changed_bytes -= entry.bytes();
        }
        std::mem::take(&mut entry.page)
    }

    /// Puts back a page that was changed.
    pub(super) fn put(&mut self, Slot(slot): Slot, page: Page) {
        let entry = &mut self.entries[slot as usize];
        (entry.page, entry.is_changed) = (page, true);
        self.bytes += entry.bytes();
        self.changed_bytes += entry.bytes();
    }

    /// The pages that were changed since they were last stored.
    pub(super) fn changed(&self) -> impl Iterator<Item = (PageId, &Page)> {
        let changed = self.entries.iter().filter(|entry| entry.is_changed);
        changed.map(|entry| (entry.id, &entry.page))
    }

    /// From now on the store has every page as it is here.
    pub(super) fn set_stored(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.is_changed = false);
        self.changed_bytes = 0;
    }

    /// Drops pages until it holds no more than so many bytes, or only pages that were changed.
    pub(super) fn trim(&mut self, bytes_max: usize) {
        // In the first turn a page may have been used, in the second none is any more.
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

    /// The last page takes the place of the one that goes.
    fn drop_at_hand(&mut self) {
        let gone = self.entries.swap_remove(self.hand);
        self.bytes -= gone.bytes();
        self.slots.remove(&gone.id.number());
        if let Some(moved) = self.entries.get(self.hand) {
            self.slots.insert(moved.id.number(), self.hand as u32);
        }
    }
}

/// Spreads page numbers. They count up from 0, and whoever makes blocks cannot choose which of them there are.
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
