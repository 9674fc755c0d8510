//! [`SortedTable`] looks up keys in one table as a node does; [`TableWalk`] reads the table in order.
//!
//! Memory holds the table's index, its filters and one block. Every checksum is verified before the block is
//! used.

use super::layout::{TAG, TableName, order, split};
use super::{ByteCursor, IndependentReadError, fault, little, stored_sum, unread};
use core::ops::Range;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The length of the footer: the positions of the metaindex and the index, padded to 40 bytes, and a magic
/// number.
const FOOTER: u64 = 48;
const PLACES: usize = 40;
const MAGIC: [u8; 8] = 0xdb47_7524_8b80_fb57_u64.to_le_bytes();

/// The length of a block's trailer: 0 for no compression, and the checksum.
const TAIL: u64 = 5;

/// The tag that sorts before all versions of a key: the highest sequence number with the kind of a put.
const NEWEST: u64 = u64::MAX << 8 | 1;

/// The kinds of an entry, in the low byte of its tag.
const DELETED: u64 = 0;
const PUT: u64 = 1;

/// The position and length of a block.
struct BlockExtent {
    offset: u64,
    length: u64,
}

impl BlockExtent {
    fn read(bytes: &mut ByteCursor<'_>) -> Option<Self> {
        Some(Self { offset: bytes.varint()?, length: bytes.varint()? })
    }
}

/// The result of a look-up in a table.
pub(super) enum TableAnswer {
    Value(Vec<u8>),
    Deleted,
    Nothing,
}

pub(super) struct SortedTable {
    path: PathBuf,
    file: File,
    /// The offset of the footer.
    end: u64,
    index: EntryBlock,
    filters: Option<Vec<u8>>,
}

impl SortedTable {
    pub(super) fn open(dir: &Path, name: &TableName) -> Result<Self, IndependentReadError> {
        let path = name.path(dir);
        let file = File::open(&path).map_err(|error| unread(&path, 0, error))?;
        let length = file.metadata().map_err(|error| unread(&path, 0, error))?.len();
        if length != name.length {
            let what = format!("it has {length} bytes, but {} in the manifest", name.length);
            return Err(fault(&path, 0, what));
        }
        let Some(end) = length.checked_sub(FOOTER) else {
            return Err(fault(&path, 0, "it is shorter than any table"));
        };
        let mut footer = [0; FOOTER as usize];
        file.read_exact_at(&mut footer, end).map_err(|error| unread(&path, end, error))?;
        let mut places = ByteCursor(&footer[..PLACES]);
        let (list, index) = (BlockExtent::read(&mut places), BlockExtent::read(&mut places));
        let (Some(list), Some(index), true) = (list, index, footer[PLACES..] == MAGIC) else {
            return Err(fault(&path, end, "it does not end like a table"));
        };
        let none = EntryBlock::new(vec![0, 0, 0, 0, 1, 0, 0, 0]).expect("a block of no entries");
        let mut table = Self { path, file, end, index: none, filters: None };
        table.index = table.block(&index)?;
        table.filters = table.filters(&list)?;
        Ok(table)
    }

    fn fault(&self, offset: u64, what: impl ToString) -> IndependentReadError {
        fault(&self.path, offset, what)
    }

    /// Reads the bytes at a position and verifies their checksum.
    fn content(&self, place: &BlockExtent) -> Result<Vec<u8>, IndependentReadError> {
        let BlockExtent { offset, length } = *place;
        let end = offset.checked_add(length).and_then(|end| end.checked_add(TAIL));
        if end.is_none_or(|end| end > self.end) {
            return Err(self.fault(self.end, "a block's position is impossible"));
        }
        let mut bytes = vec![0; (length + TAIL) as usize];
        let read: io::Result<()> = self.file.read_exact_at(&mut bytes, offset);
        read.map_err(|error| unread(&self.path, offset, error))?;
        let tail = bytes.split_off(length as usize);
        if tail[0] != 0 {
            return Err(self.fault(offset, "a block is compressed, which Bitcoin Core never does"));
        }
        if tail[1..] != stored_sum([&bytes, &tail[..1]]).to_le_bytes() {
            return Err(self.fault(offset, "a block has a wrong checksum"));
        }
        Ok(bytes)
    }

    fn block(&self, place: &BlockExtent) -> Result<EntryBlock, IndependentReadError> {
        EntryBlock::new(self.content(place)?).ok_or_else(|| self.fault(place.offset, NO_BLOCK))
    }

    /// Reads the filters, if the metaindex lists some of the kind that Core uses. The metaindex's keys have
    /// no tags.
    fn filters(&self, list: &BlockExtent) -> Result<Option<Vec<u8>>, IndependentReadError> {
        let content = self.content(list)?;
        let mut rest = ByteCursor(&content);
        let mut first = || {
            let (shared, own, length) = (rest.varint()?, rest.varint()?, rest.varint()?);
            let name = (shared == 0).then(|| rest.take(own))??;
            Some((name, BlockExtent::read(&mut ByteCursor(rest.take(length)?))?))
        };
        match first() {
            Some((NAME, place)) => self.content(&place).map(Some),
            _ => Ok(None),
        }
    }

    /// Reads the block that an index entry points to.
    fn place(&self, at: &EntryPosition) -> Result<BlockExtent, IndependentReadError> {
        let place = BlockExtent::read(&mut ByteCursor(self.index.value(at)));
        place.ok_or_else(|| self.fault(self.end, NO_BLOCK))
    }

    /// Looks up a user key: the index selects a block, the filter may rule the key out, and restart points
    /// lead to the entry.
    pub(super) fn get(&self, key: &[u8]) -> Result<TableAnswer, IndependentReadError> {
        let target = [key, &NEWEST.to_le_bytes()].concat();
        let mut at = EntryPosition::default();
        let sought = self.index.seek(&target, &mut at);
        if !sought.ok_or_else(|| self.fault(self.end, NO_BLOCK))? {
            return Ok(TableAnswer::Nothing);
        }
        let place = self.place(&at)?;
        if self.filters.as_ref().is_some_and(|filters| !may_have(filters, place.offset, key)) {
            return Ok(TableAnswer::Nothing);
        }
        let (block, mut at) = (self.block(&place)?, EntryPosition::default());
        let no_block = || self.fault(place.offset, NO_BLOCK);
        if !block.seek(&target, &mut at).ok_or_else(no_block)? {
            return Ok(TableAnswer::Nothing);
        }
        match split(&at.key).ok_or_else(no_block)? {
            (found, _) if found != key => Ok(TableAnswer::Nothing),
            (_, tag) if tag & 0xff == PUT => Ok(TableAnswer::Value(block.value(&at).to_vec())),
            (_, tag) if tag & 0xff == DELETED => Ok(TableAnswer::Deleted),
            _ => Err(no_block()),
        }
    }
}

/// The entries of a table, in order.
pub(super) struct TableWalk {
    table: SortedTable,
    name: TableName,
    in_index: EntryPosition,
    offset: u64,
    block: Option<EntryBlock>,
    at: EntryPosition,
    /// The previous key, and the key of the index for the block before.
    before: Vec<u8>,
    separator: Vec<u8>,
}

impl TableWalk {
    /// Starts before the first entry.
    pub(super) fn new(table: SortedTable, name: TableName) -> Self {
        let (in_index, at) = (EntryPosition::default(), EntryPosition::default());
        let (offset, block, before, separator) = (0, None, Vec::new(), Vec::new());
        Self { table, name, in_index, offset, block, at, before, separator }
    }

    /// Moves to the next entry; returns false at the end.
    pub(super) fn advance(&mut self) -> Result<bool, IndependentReadError> {
        self.before.clone_from(&self.at.key);
        loop {
            if let Some(block) = &self.block {
                let is_first = self.at.next == 0;
                let next = block.next_of_all(&mut self.at);
                if next.ok_or_else(|| self.fault(NO_BLOCK))? {
                    self.expect_order()?;
                    return self.expect_found(is_first).map(|()| true);
                }
                self.expect_end_of_block()?;
            }
            self.separator.clone_from(&self.in_index.key);
            let next = self.table.index.next_of_all(&mut self.in_index);
            if !next.ok_or_else(|| self.fault(NO_BLOCK))? {
                let within = self.before.is_empty() || self.name.ends_with(&self.before);
                return within.then_some(false).ok_or_else(|| self.fault(OUTSIDE));
            }
            let place = self.table.place(&self.in_index)?;
            self.offset = place.offset;
            self.block = Some(self.table.block(&place)?);
            self.at = EntryPosition::default();
        }
    }

    fn expect_order(&self) -> Result<(), IndependentReadError> {
        let ascends = self.before.len() < TAG
            || order(&self.before, &self.at.key).is_some_and(core::cmp::Ordering::is_lt);
        ascends.then_some(()).ok_or_else(|| self.fault("its keys do not ascend"))
    }

    /// Expects that a look-up of the current entry's key comes to it, and not to the block before, whose separator must
    /// be lower.
    fn expect_found(&self, is_first: bool) -> Result<(), IndependentReadError> {
        let key = &self.at.key;
        let (user, _) = split(key).ok_or_else(|| self.fault(NO_BLOCK))?;
        if is_first {
            if self.before.is_empty() && !self.name.begins_with(key) {
                return Err(self.fault(OUTSIDE));
            }
            let is_lower = split(&self.separator).is_none_or(|(separator, _)| separator < user);
            // Newer versions of this key may be in the block before, where a look-up ends.
            let has_newer = split(&self.before).is_some_and(|(before, _)| before == user);
            if !is_lower && !has_newer {
                return Err(self.fault("the index leads past its first key"));
            }
        }
        Ok(())
    }

    /// Expects that the index leads to this block, and not to the next, for its last key.
    fn expect_end_of_block(&self) -> Result<(), IndependentReadError> {
        let within = self.before.is_empty()
            || order(&self.before, &self.in_index.key).is_some_and(core::cmp::Ordering::is_le);
        within.then_some(()).ok_or_else(|| self.fault("the index leads past its last key"))
    }

    fn fault(&self, what: &str) -> IndependentReadError {
        self.table.fault(self.offset, what)
    }

    /// The key with its tag, and the value, of the current entry.
    pub(super) fn entry(&self) -> (&[u8], &[u8]) {
        (&self.at.key, self.block.as_ref().map_or(&[], |block| block.value(&self.at)))
    }
}

/// Reports a key that the manifest leads past.
const OUTSIDE: &str = "a key is outside the range that the manifest gives the table";

/// Reports a block that cannot be parsed.
pub(super) const NO_BLOCK: &str = "a block cannot be read, though its checksum is right";

/// A block: entries, followed by the offsets of its restart points, which are entries with whole keys.
pub(super) struct EntryBlock {
    bytes: Vec<u8>,
    entries_end: usize,
    restarts: usize,
}

/// The position of the current entry.
#[derive(Default)]
pub(super) struct EntryPosition {
    pub(super) key: Vec<u8>,
    /// The range of the value in the block.
    value: Range<usize>,
    /// The offset of the next entry.
    next: usize,
    /// The number of bytes that the key shares with the one before.
    shared: usize,
    /// The number of restart points passed, if all entries are read.
    restarts: usize,
}

impl EntryBlock {
    /// Parses the content of a block; `None` if it is not a valid block.
    pub(super) fn new(bytes: Vec<u8>) -> Option<Self> {
        let restarts = little(bytes.last_chunk::<4>()?) as usize;
        let entries_end = bytes.len().checked_sub(restarts.checked_mul(4)?.checked_add(4)?)?;
        (restarts > 0).then_some(Self { bytes, entries_end, restarts })
    }

    pub(super) fn value(&self, at: &EntryPosition) -> &[u8] {
        &self.bytes[at.value.clone()]
    }

    /// Moves to the next entry; returns false at the end, `None` if the entry cannot be parsed.
    pub(super) fn next(&self, at: &mut EntryPosition) -> Option<bool> {
        if at.next == self.entries_end {
            return Some(false);
        }
        let mut rest = ByteCursor(self.bytes.get(at.next..self.entries_end)?);
        let (shared, own, length) = (rest.varint()?, rest.varint()?, rest.varint()?);
        let shared = usize::try_from(shared).ok().filter(|shared| *shared <= at.key.len())?;
        let own = rest.take(own)?;
        let start = self.entries_end - rest.0.len();
        let end = start + rest.take(length)?.len();
        at.key.truncate(shared);
        at.key.extend_from_slice(own);
        (at.value, at.next, at.shared) = (start..end, end, shared);
        (at.key.len() >= TAG).then_some(true)
    }

    /// Like [`next`](Self::next), for a block that is read from its first entry to its last. `None` also if a restart
    /// point is not where an entry with a whole key begins, the first not at the beginning, or if they do not ascend: a
    /// look-up would miss entries.
    fn next_of_all(&self, at: &mut EntryPosition) -> Option<bool> {
        let here = at.next;
        let is_restart = at.restarts < self.restarts && self.restart_at(at.restarts) == here;
        if !self.next(at)? {
            return (at.restarts == self.restarts || here == 0).then_some(false);
        }
        if is_restart {
            at.restarts += 1;
            (at.shared == 0).then_some(())?;
        }
        (here > 0 || is_restart).then_some(true)
    }

    /// Moves to the first entry not before `key`, like a node: jumps to the last restart point before the
    /// key, then moves forward.
    pub(super) fn seek(&self, key: &[u8], at: &mut EntryPosition) -> Option<bool> {
        let (mut low, mut high) = (0, self.restarts - 1);
        while low < high {
            let middle = (low + high).div_ceil(2);
            self.restart(middle, at)?;
            // The end of the block counts as a key after all others.
            if self.next(at)? && order(&at.key, key)?.is_lt() {
                low = middle
            } else {
                high = middle - 1
            }
        }
        self.restart(low, at)?;
        while self.next(at)? {
            if order(&at.key, key)?.is_ge() {
                return Some(true);
            }
        }
        Some(false)
    }

    /// The offset of the restart point with this number.
    fn restart_at(&self, number: usize) -> usize {
        let place = self.entries_end + 4 * number;
        little(&self.bytes[place..place + 4]) as usize
    }

    /// Moves to just before the restart point with this number.
    fn restart(&self, number: usize, at: &mut EntryPosition) -> Option<()> {
        at.key.clear();
        at.next = self.restart_at(number);
        (at.next <= self.entries_end).then_some(())
    }
}

/// The name of the filters in a table's metaindex.
pub(super) const NAME: &[u8] = b"filter.leveldb.BuiltinBloomFilter2";

/// Returns whether a look-up of a user key must read the block at `offset`. An invalid filter lets
/// everything pass, as in LevelDB.
pub(super) fn may_have(filters: &[u8], offset: u64, key: &[u8]) -> bool {
    filter_of(filters, offset).is_none_or(|filter| matches(filter, key))
}

/// Reads the filter of the block at an offset. The block of filters has four parts: the filters, the offset
/// of each, the offset of that list, and the bytes of the table per filter, as a power of two.
fn filter_of(filters: &[u8], offset: u64) -> Option<&[u8]> {
    let (log2, rest) = filters.split_last()?;
    let (places, end) = rest.split_last_chunk::<4>()?;
    let end = little(end) as usize;
    let count = places.len().checked_sub(end)? / 4;
    let number = offset.checked_shr((*log2).into()).unwrap_or(0);
    let number = usize::try_from(number).ok().filter(|number| *number < count)?;
    // The offset of the list follows the last filter's offset, and is also where that filter ends.
    let place = |number: usize| Some(little(rest.get(end + 4 * number..)?.get(..4)?) as usize);
    filters[..end].get(place(number)?..place(number + 1)?)
}

fn matches(filter: &[u8], key: &[u8]) -> bool {
    let Some((probes, bits)) = filter.split_last().filter(|(_, bits)| !bits.is_empty()) else {
        return false;
    };
    // LevelDB reserves these numbers of probes for other filters.
    if *probes > 30 {
        return true;
    }
    let (first, count) = (hash(key), bits.len() as u64 * 8);
    let step = first.rotate_right(17);
    (0..u32::from(*probes)).all(|probe| {
        let bit = u64::from(first.wrapping_add(step.wrapping_mul(probe))) % count;
        bits[(bit / 8) as usize] >> (bit % 8) & 1 == 1
    })
}

/// LevelDB's hash function, four bytes at a time (`util/hash.cc`).
fn hash(key: &[u8]) -> u32 {
    const FACTOR: u32 = 0xc6a4_a793;
    let mut words = key.chunks_exact(4);
    let start = 0xbc9f_1d34 ^ (key.len() as u32).wrapping_mul(FACTOR);
    let hash = words.by_ref().fold(start, |hash, word| {
        let hash = hash.wrapping_add(little(word)).wrapping_mul(FACTOR);
        hash ^ hash >> 16
    });
    match words.remainder() {
        [] => hash,
        rest => {
            let hash = hash.wrapping_add(little(rest)).wrapping_mul(FACTOR);
            hash ^ hash >> 24
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of LevelDB's own tests (`util/hash_test.cc` with another seed, `bloom_test.cc`): an
    /// empty filter matches nothing, and an invalid one lets everything pass.
    #[test]
    fn empty_and_invalid_filters() {
        assert!(!matches(&[], b"hello"));
        assert!(!matches(&[6], b"hello"));
        assert!(matches(&[0, 31], b"hello"));
        assert!(!matches(&[0, 6], b"hello"));
        assert!(matches(&[0xff, 6], b"hello"));
        assert!(may_have(&[], 0, b"hello"));
        assert!(may_have(&[9, 0, 0, 0, 11], 0, b"hello"));
    }
}
