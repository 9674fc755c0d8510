//! [`TableWriter`]: the bytes of one table, made from entries in order.
//!
//! LevelDB's format as its own `table/table_builder.cc` writes it, to the byte: blocks of sorted
//! entries that share beginnings of keys, the filters, a list of further blocks, an index with the
//! shortest keys that part the blocks, and a footer. Nothing is compressed; Core's LevelDB cannot
//! undo that. Blocks and index are made here; the rest, which costs about as much, is for
//! [`TableSealer`](super::seal::TableSealer) on another thread.
//!
//! It writes nothing anywhere: finished blocks gather in a buffer that the caller takes whenever it
//! likes. [`TableWriter::follow`] says whether entries come in order; that it is asked is for the
//! caller to see to.

use super::block::{BLOCK_TAIL, Handle};
use super::put_varint;
use super::seal::{Piece, TableEnd};
use crate::obfuscation::Obfuscation;

/// Entries between two that have their whole keys.
pub(super) const RESTART_INTERVAL: usize = 16;

/// Bytes after the user's key: sequence number and kind.
const TAG_BYTES: usize = 8;

/// The tag before all entries of a key: the greatest sequence number, and the kind that look-ups
/// have (LevelDB `db/dbformat.h`, `kMaxSequenceNumber`, `kValueTypeForSeek`).
const TAG_SEEK: u64 = u64::MAX << 8 | 1;

pub(super) struct TableWriter {
    block_bytes: usize,
    /// Blocks that were not taken yet; the one being written is at the end.
    out: Piece,
    /// Where `out` begins in the table.
    base: u64,
    block: BlockWriter,
    /// The block that is finished but has no entry in the index yet, since that depends on the
    /// key that follows.
    finished: Option<Handle>,
    index: Vec<u8>,
    index_block: BlockWriter,
    /// The key of an entry of the index, with its tag.
    key: Vec<u8>,
    smallest: Vec<u8>,
}

impl TableWriter {
    /// Tables whose blocks have about `block_bytes`.
    pub(super) fn new(block_bytes: usize) -> Self {
        let mut writer = Self {
            block_bytes,
            out: Piece::default(),
            base: 0,
            block: BlockWriter::new(RESTART_INTERVAL),
            finished: None,
            index: Vec::new(),
            index_block: BlockWriter::new(1),
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
        self.block.begin(&self.out.bytes);
        self.index_block.begin(&self.index);
    }

    /// How the key goes on from the last one, or `None` where it is not above that.
    pub(super) fn follow(&self, key: &[u8]) -> Option<Follows> {
        self.block.follow(key)
    }

    /// Appends an entry. True where a block ended with it: only then [`take`](Self::take) may be
    /// called, and only then the length changes.
    pub(super) fn put(&mut self, entry: &PutEntry<'_>) -> bool {
        if let Some(handle) = self.finished.take() {
            self.index_entry(handle, Some(entry.key));
        }
        self.block.put(&mut self.out.bytes, entry);
        if self.smallest.is_empty() {
            self.smallest.extend_from_slice(&self.block.last);
        }
        let full = self.block.size(&self.out.bytes) >= self.block_bytes;
        if full {
            self.end_block();
        }
        full
    }

    /// The key of the last entry, of whatever table; `None` before the first one.
    pub(super) fn last(&self) -> Option<&[u8]> {
        self.block.last()
    }

    /// Length of the finished blocks.
    pub(super) fn length(&self) -> u64 {
        self.base + self.ready() as u64
    }

    /// Bytes that can be taken.
    pub(super) fn ready(&self) -> usize {
        self.out.bytes.len()
    }

    /// Takes the blocks that are finished and goes on in `empty`.
    pub(super) fn take(&mut self, empty: Piece) -> Piece {
        self.base += self.ready() as u64;
        let full = core::mem::replace(&mut self.out, empty);
        self.block.begin(&self.out.bytes);
        full
    }

    /// Ends the table; its last blocks and what comes behind them. The next entry is of another.
    /// It needs an entry.
    pub(super) fn finish(&mut self, empty: Piece) -> (Piece, TableEnd) {
        if !self.block.is_empty(&self.out.bytes) {
            self.end_block();
        }
        if let Some(handle) = self.finished.take() {
            self.index_entry(handle, None);
        }
        self.index_block.end(&mut self.index);
        let end = TableEnd {
            index: core::mem::take(&mut self.index),
            smallest: core::mem::take(&mut self.smallest),
            largest: self.block.last.clone(),
        };
        let rest = self.take(empty);
        self.begin();
        (rest, end)
    }

    fn end_block(&mut self) {
        let (out, start) = (&mut self.out.bytes, self.block.start);
        self.block.end(out);
        let handle = Handle { offset: self.base + start as u64, size: (out.len() - start) as u64 };
        self.finished = Some(handle);
        self.out.ends.push(out.len());
        out.extend_from_slice(&[0; BLOCK_TAIL as usize]);
        self.block.begin(out);
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

/// An entry to be written.
pub(super) struct PutEntry<'a> {
    /// The user's key.
    pub(super) key: &'a [u8],
    /// What [`TableWriter::follow`] found about that key.
    pub(super) follows: Follows,
    pub(super) tag: u64,
    pub(super) value: &'a [u8],
    /// Applied to the value.
    pub(super) obfuscation: Obfuscation,
}

/// That a key is above the last one, and how many bytes at their beginnings are the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Follows {
    common: usize,
}

/// A key without its tag.
pub(super) fn user_key(key: &[u8]) -> &[u8] {
    &key[..key.len() - TAG_BYTES]
}

/// How many bytes at their beginnings are the same, compared in words of eight.
#[inline]
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
    pub(super) fn bytes(self) -> Vec<u8> {
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
pub(super) struct BlockWriter {
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
    pub(super) fn new(interval: usize) -> Self {
        Self { start: 0, interval, restarts: Vec::new(), run: 0, last: Vec::new() }
    }

    pub(super) fn begin(&mut self, out: &[u8]) {
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

    /// The last key without its tag, of whatever block.
    fn last(&self) -> Option<&[u8]> {
        (!self.last.is_empty()).then(|| user_key(&self.last))
    }

    fn follow(&self, key: &[u8]) -> Option<Follows> {
        let Some(last) = self.last() else { return Some(Follows { common: 0 }) };
        let common = common(last, key);
        // A key is above those that it begins with.
        let above = key.get(common)? > last.get(common).unwrap_or(&0) || common == last.len();
        above.then_some(Follows { common })
    }

    /// Appends an entry.
    fn put(&mut self, out: &mut Vec<u8>, entry: &PutEntry<'_>) {
        let PutEntry { key, follows: Follows { common }, tag, value, obfuscation } = *entry;
        if self.last.len() == common + TAG_BYTES || self.last.is_empty() {
            // It begins with the whole last key, and may go on as the tag of that does.
            let mut key = [key, &tag.to_le_bytes()].concat();
            self.add(out, &mut key, value);
        } else {
            let shared = if self.begin_entry(out) { 0 } else { common };
            let own = &key[shared..];
            put_lengths(out, shared, own.len() + TAG_BYTES, value.len());
            out.extend_from_slice(own);
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(value);
            self.last.truncate(common);
            self.last.extend_from_slice(&key[common..]);
            self.last.extend_from_slice(&tag.to_le_bytes());
        }
        let value_at = out.len() - value.len();
        obfuscation.apply(&mut out[value_at..], 0);
    }

    /// Appends an entry. The key, which has its tag, stays here, and `key` gets the memory of the
    /// one before.
    pub(super) fn add(&mut self, out: &mut Vec<u8>, key: &mut Vec<u8>, value: &[u8]) {
        let shared = if self.begin_entry(out) { 0 } else { common(&self.last, key) };
        let own = &key[shared..];
        put_lengths(out, shared, own.len(), value.len());
        out.extend_from_slice(own);
        out.extend_from_slice(value);
        core::mem::swap(&mut self.last, key);
    }

    /// Counts the entry that follows. True where it has its whole key.
    fn begin_entry(&mut self, out: &[u8]) -> bool {
        if self.run == self.interval {
            self.restarts.push((out.len() - self.start) as u32);
            self.run = 0;
        }
        self.run += 1;
        self.run == 1
    }

    pub(super) fn end(&mut self, out: &mut Vec<u8>) {
        for restart in &self.restarts {
            out.extend_from_slice(&restart.to_le_bytes());
        }
        out.extend_from_slice(&(self.restarts.len() as u32).to_le_bytes());
    }
}

/// What stands before an entry.
#[inline]
fn put_lengths(out: &mut Vec<u8>, shared: usize, own: usize, value: usize) {
    if (shared | own | value) <= 0x7f {
        out.extend_from_slice(&[shared as u8, own as u8, value as u8]);
    } else {
        for length in [shared, own, value] {
            put_varint(out, length as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::manifest::Manifest;
    use super::super::seal::{TableSealer, each_key};
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
                let (mut writer, mut sealer) = (TableWriter::new(4096), TableSealer::default());
                let (mut entry, mut bytes) = (Entry::default(), Vec::new());
                let mut seal = |mut piece: Piece| {
                    sealer.seal(&mut piece);
                    bytes.extend(piece.bytes);
                };
                while cursor.next(&mut entry).unwrap() {
                    // Where a key comes twice the newer version is the first.
                    let follows = writer.follow(&entry.key).unwrap_or_else(|| {
                        assert_eq!(writer.last(), Some(&entry.key[..]));
                        Follows { common: entry.key.len() }
                    });
                    let entry = PutEntry {
                        key: &entry.key,
                        follows,
                        tag: entry.tag,
                        value: &entry.value,
                        obfuscation: Obfuscation::NONE,
                    };
                    if writer.put(&entry) && writer.ready() > 20_000 {
                        seal(writer.take(Piece::default()));
                    }
                }
                let (rest, end) = writer.finish(Piece::default());
                seal(rest);
                let mut rest = Vec::new();
                let made = sealer.end(end, &mut rest);
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
        /// Some keys go on as the tag of the one before does.
        #[test]
        fn a_block_is_that_of_whole_keys(
            entries in proptest::collection::btree_map(
                proptest::collection::vec(0u8..3, 0..12),
                proptest::collection::vec(any::<u8>(), 0..200),
                1..60,
            ),
            mask: [u8; 8],
        ) {
            let obfuscation = Obfuscation::new(mask);
            let (mut parts, mut whole) = (BlockWriter::new(16), BlockWriter::new(16));
            let (mut out, mut expected) = (Vec::new(), Vec::new());
            parts.begin(&out);
            whole.begin(&expected);
            for (key, value) in &entries {
                let tag = 0x0000_0201;
                let follows = parts.follow(key).unwrap();
                parts.put(&mut out, &PutEntry { key, follows, tag, value, obfuscation });
                prop_assert!(parts.follow(key).is_none());
                let mut hidden = value.clone();
                obfuscation.apply(&mut hidden, 0);
                whole.add(&mut expected, &mut [&key[..], &tag.to_le_bytes()].concat(), &hidden);
            }
            parts.end(&mut out);
            whole.end(&mut expected);
            prop_assert_eq!(&out, &expected);
            let (mut found, mut last) = (Vec::new(), Vec::new());
            each_key(&out, &mut last, |key| found.push(key.to_vec()));
            prop_assert!(found.iter().eq(entries.keys()));
        }

        #[test]
        fn a_key_follows_only_smaller_ones(
            last in proptest::collection::vec(0u8..3, 0..6),
            key in proptest::collection::vec(0u8..3, 0..6),
        ) {
            let (mut block, mut out) = (BlockWriter::new(16), Vec::new());
            block.begin(&out);
            let follows = block.follow(&last).unwrap();
            let obfuscation = Obfuscation::NONE;
            block.put(&mut out, &PutEntry { key: &last, follows, tag: 257, value: b"", obfuscation });
            prop_assert_eq!(block.follow(&key).is_some(), key > last);
        }

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
