//! [`TableWriter`]: the bytes of one table, made from entries in order.
//!
//! LevelDB's format as its own `table/table_builder.cc` writes it, to the byte: blocks of sorted
//! entries that share beginnings of keys, the filters, a list of further blocks, an index with the
//! shortest keys that part the blocks, and a footer. Nothing is compressed; Core's LevelDB cannot
//! undo that.
//!
//! It writes nothing anywhere: finished bytes gather in a buffer that the caller takes whenever it
//! likes. That entries come in order is for the caller to see to.

use super::block::{BLOCK_TAIL, Handle};
use super::filter::{self, FilterWriter};
use super::table::{FOOTER, MAGIC};
use super::{crc32c, put_varint};

/// Entries between two that have their whole keys.
const RESTART_INTERVAL: usize = 16;

/// Bytes after the user's key: sequence number and kind.
const TAG_BYTES: usize = 8;

/// The tag before all entries of a key: the greatest sequence number, and the kind that look-ups
/// have (LevelDB `db/dbformat.h`, `kMaxSequenceNumber`, `kValueTypeForSeek`).
const TAG_SEEK: u64 = u64::MAX << 8 | 1;

pub(super) struct TableWriter {
    block_bytes: usize,
    /// Bytes that were not taken yet; the block being written is at their end.
    out: Vec<u8>,
    /// Where `out` begins in the table.
    base: u64,
    block: BlockWriter,
    /// The block that is finished but has no entry in the index yet, since that depends on the
    /// key that follows.
    finished: Option<Handle>,
    index: Vec<u8>,
    index_block: BlockWriter,
    filter: FilterWriter,
    /// The key being added, with its tag.
    key: Vec<u8>,
    smallest: Vec<u8>,
}

/// What a manifest says of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Made {
    /// Length in bytes.
    pub(super) length: u64,
    /// The first key, with its tag.
    pub(super) smallest: Vec<u8>,
    /// The last key, with its tag.
    pub(super) largest: Vec<u8>,
}

impl TableWriter {
    /// A table whose blocks have about `block_bytes`; its bytes go to the end of `out`.
    pub(super) fn new(block_bytes: usize, out: Vec<u8>) -> Self {
        let mut writer = Self {
            block_bytes,
            out,
            base: 0,
            block: BlockWriter::new(RESTART_INTERVAL),
            finished: None,
            index: Vec::new(),
            index_block: BlockWriter::new(1),
            filter: FilterWriter::default(),
            key: Vec::new(),
            smallest: Vec::new(),
        };
        writer.begin();
        writer
    }

    fn begin(&mut self) {
        self.base = 0;
        self.index.clear();
        self.smallest.clear();
        self.block.begin(&self.out);
        self.index_block.begin(&self.index);
    }

    /// Appends an entry, which must follow the one before it. True where a block ended with it:
    /// only then [`take`](Self::take) may be called, and only then the length changes.
    pub(super) fn put(&mut self, key: &[u8], tag: u64, value: &[u8]) -> bool {
        if let Some(handle) = self.finished.take() {
            self.index_entry(handle, Some(key));
        }
        self.filter.add(key);
        self.key.clear();
        self.key.extend_from_slice(key);
        self.key.extend_from_slice(&tag.to_le_bytes());
        if self.smallest.is_empty() {
            self.smallest.extend_from_slice(&self.key);
        }
        self.block.add(&mut self.out, &mut self.key, value);
        let full = self.block.size(&self.out) >= self.block_bytes;
        if full {
            self.end_block();
        }
        full
    }

    /// The key of the last entry; the table has one.
    pub(super) fn last(&self) -> &[u8] {
        user_key(&self.block.last)
    }

    /// Length of the finished blocks.
    pub(super) fn length(&self) -> u64 {
        self.base + self.out.len() as u64
    }

    /// Bytes that can be taken.
    pub(super) fn ready(&self) -> usize {
        self.out.len()
    }

    /// Takes what is finished and goes on in `empty`.
    pub(super) fn take(&mut self, empty: Vec<u8>) -> Vec<u8> {
        self.base += self.out.len() as u64;
        let full = core::mem::replace(&mut self.out, empty);
        self.block.begin(&self.out);
        full
    }

    /// Ends the table; what is left of it can be taken, and the next table begins after that. It
    /// needs an entry.
    pub(super) fn finish(&mut self, empty: Vec<u8>) -> (Made, Vec<u8>) {
        if !self.block.is_empty(&self.out) {
            self.end_block();
        }
        if let Some(handle) = self.finished.take() {
            self.index_entry(handle, None);
        }
        let start = self.out.len();
        self.filter.finish(&mut self.out);
        let filters = self.seal(start);

        let mut list = BlockWriter::new(RESTART_INTERVAL);
        list.begin(&self.out);
        list.add(&mut self.out, &mut filter::NAME.to_vec(), &filters.bytes());
        list.end(&mut self.out);
        let list = self.seal(list.start);

        let start = self.out.len();
        self.index_block.end(&mut self.index);
        self.out.extend_from_slice(&self.index);
        let index = self.seal(start);

        let mut footer = [list.bytes(), index.bytes()].concat();
        footer.resize(FOOTER - 8, 0);
        self.out.extend_from_slice(&footer);
        self.out.extend_from_slice(&MAGIC.to_le_bytes());
        let made = Made {
            length: self.length(),
            smallest: self.smallest.clone(),
            largest: core::mem::take(&mut self.block.last),
        };
        let rest = self.take(empty);
        self.begin();
        (made, rest)
    }

    fn end_block(&mut self) {
        self.block.end(&mut self.out);
        let handle = self.seal(self.block.start);
        self.finished = Some(handle);
        self.filter.start_block(self.length());
        self.block.begin(&self.out);
    }

    /// Puts kind and checksum behind the block that begins at `start` of `out`.
    fn seal(&mut self, start: usize) -> Handle {
        let content = &self.out[start..];
        let sum = crc32c::masked(content, &[0]);
        let handle = Handle { offset: self.base + start as u64, size: content.len() as u64 };
        self.out.push(0);
        self.out.extend_from_slice(&sum.to_le_bytes());
        debug_assert_eq!(handle.offset + handle.size + BLOCK_TAIL, self.length());
        handle
    }

    /// The index has, for each block, a key not before its last one and before the next block's
    /// first, as short as can be.
    fn index_entry(&mut self, handle: Handle, next: Option<&[u8]>) {
        let last = &self.block.last;
        let user = user_key(last);
        let shorter = match next {
            Some(next) => separator(user, next),
            None => successor(user),
        };
        self.key.clear();
        match shorter {
            Some(length) => {
                self.key.extend_from_slice(&user[..length]);
                // Neither function shortens behind a byte that it cannot count up.
                self.key[length - 1] += 1;
                self.key.extend_from_slice(&TAG_SEEK.to_le_bytes());
            }
            None => self.key.extend_from_slice(last),
        }
        self.index_block.add(&mut self.index, &mut self.key, &handle.bytes());
    }
}

/// A key without its tag.
pub(super) fn user_key(key: &[u8]) -> &[u8] {
    &key[..key.len() - TAG_BYTES]
}

/// How many bytes at their beginnings are the same, compared in words of eight.
fn common(a: &[u8], b: &[u8]) -> usize {
    let ((words, _), (others, _)) = (a.as_chunks(), b.as_chunks());
    let mut same = 0;
    for (word, other) in words.iter().zip(others) {
        let differ = u64::from_le_bytes(*word) ^ u64::from_le_bytes(*other);
        if differ != 0 {
            return same + differ.trailing_zeros() as usize / 8;
        }
        same += size_of::<u64>();
    }
    same + a[same..].iter().zip(&b[same..]).take_while(|(a, b)| a == b).count()
}

impl Handle {
    fn bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(20);
        put_varint(&mut bytes, self.offset);
        put_varint(&mut bytes, self.size);
        bytes
    }
}

/// How many bytes of `start` to keep so that, with the last of them counted up by one, they are a
/// key between `start` and `limit`; `None` where that makes nothing shorter. As LevelDB's
/// `util/comparator.cc`, `FindShortestSeparator`.
fn separator(start: &[u8], limit: &[u8]) -> Option<usize> {
    let common = common(start, limit);
    let (byte, bound) = (*start.get(common)?, *limit.get(common)?);
    (byte < 0xff && byte + 1 < bound && common + 1 < start.len()).then_some(common + 1)
}

/// The same with nothing behind (`FindShortSuccessor`).
fn successor(start: &[u8]) -> Option<usize> {
    let length = start.iter().position(|byte| *byte != 0xff)? + 1;
    (length < start.len()).then_some(length)
}

/// One block of entries at the end of a buffer that its owner keeps.
struct BlockWriter {
    /// Where it begins in the buffer.
    start: usize,
    interval: usize,
    restarts: Vec<u32>,
    /// Entries since the last restart.
    run: usize,
    /// The key before; it stays when a block ends.
    last: Vec<u8>,
}

impl BlockWriter {
    fn new(interval: usize) -> Self {
        Self { start: 0, interval, restarts: Vec::new(), run: 0, last: Vec::new() }
    }

    fn begin(&mut self, out: &[u8]) {
        self.start = out.len();
        self.restarts.clear();
        self.restarts.push(0);
        self.run = 0;
    }

    fn is_empty(&self, out: &[u8]) -> bool {
        out.len() == self.start
    }

    /// Length of the block if it ended now.
    fn size(&self, out: &[u8]) -> usize {
        out.len() - self.start + self.restarts.len() * 4 + 4
    }

    /// Appends an entry. The key stays here, and `key` gets the memory of the one before.
    fn add(&mut self, out: &mut Vec<u8>, key: &mut Vec<u8>, value: &[u8]) {
        let mut shared = 0;
        if self.run == self.interval {
            self.restarts.push((out.len() - self.start) as u32);
            self.run = 0;
        } else if self.run > 0 {
            shared = common(&self.last, key);
        }
        let own = &key[shared..];
        if (shared | own.len() | value.len()) <= 0x7f {
            out.extend_from_slice(&[shared as u8, own.len() as u8, value.len() as u8]);
        } else {
            put_varint(out, shared as u64);
            put_varint(out, own.len() as u64);
            put_varint(out, value.len() as u64);
        }
        out.extend_from_slice(own);
        out.extend_from_slice(value);
        core::mem::swap(&mut self.last, key);
        self.run += 1;
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        for restart in &self.restarts {
            out.extend_from_slice(&restart.to_le_bytes());
        }
        out.extend_from_slice(&(self.restarts.len() as u32).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::super::manifest::Manifest;
    use super::super::table::TableCursor;
    use super::super::{Entry, split_internal};
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    /// Bitcoin Core's LevelDB wrote these tables: its entries again make its bytes again, blocks,
    /// index, filters and all.
    #[test]
    fn tables_are_the_bytes_that_core_writes() {
        let mut tables = 0;
        for folder in ["chainstate", "blocks/index"] {
            let dir = crate::testing::fixtures().join("regtest-315/regtest").join(folder);
            for table in Manifest::read(&dir).unwrap().into_tables() {
                let mut cursor = TableCursor::open(&dir, &table).unwrap();
                let mut writer = TableWriter::new(4096, Vec::new());
                let (mut entry, mut bytes) = (Entry::default(), Vec::new());
                while cursor.next(&mut entry).unwrap() {
                    if writer.put(&entry.key, entry.tag, &entry.value) && writer.ready() > 20_000 {
                        bytes.extend(writer.take(Vec::new()));
                    }
                }
                let (made, rest) = writer.finish(Vec::new());
                bytes.extend(rest);
                let name = format!("{:06}.ldb", table.number);
                assert!(bytes == fs::read(dir.join(&name)).unwrap(), "{folder}/{name}");
                assert_eq!(made.length, table.length);
                assert_eq!(split_internal(&made.smallest).unwrap().0, table.smallest);
                assert_eq!(split_internal(&made.largest).unwrap().0, entry.key);
                tables += 1;
            }
        }
        assert!(tables >= 4, "{tables}");
    }

    proptest! {
        #[test]
        fn beginnings_in_words_are_those_in_bytes(
            a in proptest::collection::vec(0u8..2, 0..40),
            length in 0usize..40,
            b in proptest::collection::vec(0u8..2, 0..40),
        ) {
            let b = [&a[..length.min(a.len())], &b].concat();
            let same = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(common(&a, &b), same);
        }

        #[test]
        fn separators_lie_between(
            a in proptest::collection::vec(0xfcu8.., 0..6),
            b in proptest::collection::vec(0xfcu8.., 0..6),
        ) {
            prop_assume!(a != b);
            let (start, limit) = if a < b { (&a, &b) } else { (&b, &a) };
            let counted_up = |length: usize| {
                let mut key = start[..length].to_vec();
                key[length - 1] += 1;
                key
            };
            if let Some(length) = separator(start, limit) {
                let key = counted_up(length);
                prop_assert!(start < &key && &key < limit && key.len() < start.len());
            }
            if let Some(length) = successor(start) {
                let key = counted_up(length);
                prop_assert!(start < &key && key.len() < start.len());
            }
        }
    }
}
