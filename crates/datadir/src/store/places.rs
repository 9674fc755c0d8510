//! [`Places`]: which blocks are stored, and where.
//!
//! The state that the log's records lead to: a record is taken only where the one before it leaves
//! room for it, so what is read from a log can be relied on to be as it was written. Memory is some
//! 70 bytes a block.

use super::UndoLocation;
use crate::files::{BlockLocation, RECORD_HEAD};
use crate::rev;
use apus_chain::BlockHash;
use hashbrown::HashTable;

/// Lengths in bytes of a block file and the undo file of the same number.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileLengths {
    /// Of the block file.
    pub(crate) blocks: u64,
    /// Of the undo file; 0 where there is none.
    pub(crate) undo: u64,
}

/// A block that is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) hash: BlockHash,
    /// Number, offset and size in the block files; offsets have 32 bits there.
    file: u32,
    offset: u32,
    size: u32,
    /// Where the log tells of it.
    pub(super) record: u32,
    /// Where the log tells of its undo data; 0, where its head is, if it does not.
    undo_record: u32,
}

impl Entry {
    pub(super) fn place(&self) -> BlockLocation {
        BlockLocation { file: self.file, offset: u64::from(self.offset), size: self.size }
    }

    pub(super) fn undo_record(&self) -> Option<u32> {
        (self.undo_record > 0).then_some(self.undo_record)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// In the order in which they lie in the files.
    entries: Vec<Entry>,
    /// Indexes of entries, by hash.
    table: HashTable<u32>,
    /// By number.
    files: Vec<FileLengths>,
}

impl Places {
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn files(&self) -> &[FileLengths] {
        &self.files
    }

    pub(super) fn find(&self, hash: &BlockHash) -> Option<&Entry> {
        self.table
            .find(key(hash), |index| self.entries[*index as usize].hash == *hash)
            .map(|index| &self.entries[*index as usize])
    }

    /// Takes a block. `None`, and nothing is changed, if it is there already or does not lie
    /// directly behind the one before it.
    pub(super) fn add_block(
        &mut self,
        hash: BlockHash,
        place: BlockLocation,
        record: u64,
    ) -> Option<()> {
        let (number, index) = (place.file as usize, u32::try_from(self.entries.len()).ok()?);
        let behind = match self.files.last() {
            Some(last) if number + 1 == self.files.len() => last.blocks,
            _ if number == self.files.len() => 0,
            _ => return None,
        };
        if place.offset != behind + RECORD_HEAD || self.find(&hash).is_some() {
            return None;
        }
        let entry = Entry {
            hash,
            file: place.file,
            offset: u32::try_from(place.offset).ok()?,
            size: place.size,
            record: u32::try_from(record).ok()?,
            undo_record: 0,
        };
        if number == self.files.len() {
            self.files.push(FileLengths::default());
        }
        self.files[number].blocks = place.end();
        self.entries.push(entry);
        let entries = &self.entries;
        self.table.insert_unique(key(&hash), index, |index| key(&entries[*index as usize].hash));
        Some(())
    }

    /// Where undo data of `size` bytes for `entry` would lie. `None` if they would end where
    /// offsets of 32 bits do not reach.
    pub(super) fn undo_place(&self, entry: &Entry, size: usize) -> Option<UndoLocation> {
        let offset = self.files[entry.file as usize].undo + RECORD_HEAD;
        let size = u32::try_from(size).ok()?;
        let end = offset + u64::from(size) + rev::CHECKSUM;
        (end <= u64::from(u32::MAX)).then_some(UndoLocation { offset, size })
    }

    /// Takes undo data. `None`, and nothing is changed, if their block is not there or has some, or
    /// they do not lie directly behind those before them.
    pub(super) fn add_undo(
        &mut self,
        hash: &BlockHash,
        place: UndoLocation,
        record: u64,
    ) -> Option<()> {
        let (entries, record) = (&self.entries, u32::try_from(record).ok()?);
        let same = |index: &u32| entries[*index as usize].hash == *hash;
        let index = *self.table.find(key(hash), same)? as usize;
        let entry = &self.entries[index];
        let free = self.undo_place(entry, place.size as usize);
        if entry.undo_record > 0 || free != Some(place) {
            return None;
        }
        self.files[entry.file as usize].undo = place.offset + u64::from(place.size) + rev::CHECKSUM;
        self.entries[index].undo_record = record;
        Some(())
    }
}

/// A block's hash is a hash already; its first bytes in internal order have no zeros that mining
/// leaves.
fn key(hash: &BlockHash) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = hash.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}
