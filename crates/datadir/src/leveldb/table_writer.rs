//! [`TableWriter`]: makes the bytes of one table from sorted entries.
//!
//! The output equals that of LevelDB's own `table/table_builder.cc`, byte for byte: blocks of sorted entries
//! with shared key beginnings, the filters, a metaindex, an index with the shortest keys that separate the
//! blocks, and a footer. It compresses nothing, because Core's LevelDB cannot decompress. This type makes the
//! blocks and the index; [`TableSealer`] makes the rest on another thread, which costs about as much.
//!
//! It does no I/O: finished blocks accumulate in a buffer that the caller may take at any time.
//! [`TableWriter::follow`] reports whether entries ascend; the caller must check the result.

use super::block_writer::{BlockWriter, KeyRelation, NumberedKey, TaggedKey};
use super::filter::{self, FilterWriter};
use super::manifest::NewTable;
use super::table::{BLOCK_TAIL, BlockHandle, FOOTER, MAGIC};
use super::{masked_crc32c, put_varint};
use crate::files::Obfuscation;

/// The number of entries from one restart to the next.
pub(super) const RESTART_INTERVAL: usize = 16;

/// The tag that sorts before all entries of a key: the largest sequence number, and the kind used
/// for look-ups (LevelDB `db/dbformat.h`, `kMaxSequenceNumber`, `kValueTypeForSeek`).
const TAG_SEEK: u64 = u64::MAX << 8 | 1;

pub(super) struct TableWriter {
    block_bytes: usize,
    /// The blocks that the caller has not taken; the current one is at the end.
    out: TablePiece,
    /// The offset of `out` in the table.
    base: u64,
    block: BlockWriter,
    /// The finished block that has no index entry yet, because the entry depends on the next key.
    finished: Option<BlockHandle>,
    index: Vec<u8>,
    index_block: BlockWriter,
    /// A buffer for the user key of an index entry.
    key: Vec<u8>,
    /// A buffer for the whole key of an index entry.
    index_key: TaggedKey,
    smallest: Vec<u8>,
}

impl TableWriter {
    /// Makes tables with blocks of about `block_bytes`.
    pub(super) fn new(block_bytes: usize) -> Self {
        let mut writer = Self {
            block_bytes,
            out: TablePiece::default(),
            base: 0,
            block: BlockWriter::new(RESTART_INTERVAL),
            finished: None,
            index: Vec::new(),
            index_block: BlockWriter::new(1),
            key: Vec::new(),
            index_key: TaggedKey::default(),
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

    /// Compares this key with the last one.
    pub(super) fn follow(&self, key: &TaggedKey) -> KeyRelation {
        self.block.follow(key)
    }

    /// Appends an entry and obfuscates its value. `follows` is the result of comparing its key with the last
    /// one. Returns true if the entry ended a block: only then does the length change, and may
    /// [`take`](Self::take) be called.
    pub(super) fn put(
        &mut self,
        key: &TaggedKey,
        follows: KeyRelation,
        value: &[u8],
        obfuscation: Obfuscation,
    ) -> bool {
        if let Some(handle) = self.finished.take() {
            self.index_entry(handle, Some(key));
        }
        self.block.put(&mut self.out.bytes, key, follows, value, obfuscation);
        if self.smallest.is_empty() {
            self.smallest.extend_from_slice(key.whole());
        }
        self.end_full_block()
    }

    /// Like [`put`](Self::put), but uses the fast [`BlockWriter::put_short`], which takes nearly all coins;
    /// `None` for other entries.
    #[inline]
    pub(super) fn put_short(
        &mut self,
        key: NumberedKey<'_>,
        tag: u64,
        value: &[u8],
        obfuscation: Obfuscation,
    ) -> Option<bool> {
        let put = self.block.put_short(&mut self.out.bytes, key, tag, value, obfuscation);
        put.then(|| self.end_full_block())
    }

    #[inline]
    fn end_full_block(&mut self) -> bool {
        let full = self.block.size(&self.out.bytes) >= self.block_bytes;
        if full {
            self.end_block();
        }
        full
    }

    /// The user key of the last entry, in this table or a previous one; `None` before the first entry.
    pub(super) fn last(&self) -> Option<&[u8]> {
        let last = self.block.last();
        (!last.is_none()).then(|| last.user())
    }

    /// The length of the finished blocks.
    pub(super) fn length(&self) -> u64 {
        self.base + self.ready() as u64
    }

    /// The number of bytes ready to take.
    pub(super) fn ready(&self) -> usize {
        self.out.bytes.len()
    }

    /// Takes the finished blocks and continues in `empty`.
    pub(super) fn take(&mut self, empty: TablePiece) -> TablePiece {
        self.base += self.ready() as u64;
        let full = core::mem::replace(&mut self.out, empty);
        self.block.begin(&self.out.bytes);
        full
    }

    /// Ends the table, which must have an entry; returns its last blocks and the rest. The next entry starts
    /// another table.
    pub(super) fn finish(&mut self, empty: TablePiece) -> (TablePiece, TableEnd) {
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
            largest: self.block.last().whole().to_vec(),
        };
        let rest = self.take(empty);
        self.begin();
        (rest, end)
    }

    fn end_block(&mut self) {
        let (out, start) = (&mut self.out.bytes, self.block.start());
        self.block.end(out);
        let handle =
            BlockHandle { offset: self.base + start as u64, size: (out.len() - start) as u64 };
        self.finished = Some(handle);
        self.out.ends.push(out.len());
        out.extend_from_slice(&[0; BLOCK_TAIL as usize]);
        self.block.begin(out);
    }

    /// Adds an index entry for a block: the shortest possible key that is at or after the block's last key
    /// and before the next block's first.
    fn index_entry(&mut self, handle: BlockHandle, next: Option<&TaggedKey>) {
        let last = self.block.last();
        let shorter = match next {
            Some(next) => separator(last.user(), next.user()),
            None => successor(last.user()),
        };
        let key = match shorter {
            Some(length) => {
                self.key.clear();
                self.key.extend_from_slice(&last.user()[..length]);
                // Both functions stop at a byte that can be incremented, so this does not overflow.
                self.key[length - 1] += 1;
                self.index_key.set(&self.key, TAG_SEEK);
                &self.index_key
            }
            None => last,
        };
        self.index_block.append(&mut self.index, key, &handle.bytes());
    }
}

/// Counts the first bytes that both share.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl BlockHandle {
    pub(super) fn bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(20);
        put_varint(&mut bytes, self.offset);
        put_varint(&mut bytes, self.size);
        bytes
    }
}

/// Returns how many bytes of `start` to keep so that, with the last one incremented, they form a key between
/// `start` and `limit`; `None` if that key would not be shorter. Like LevelDB's `util/comparator.cc`,
/// `FindShortestSeparator`.
fn separator(start: &[u8], limit: &[u8]) -> Option<usize> {
    let common = common(start, limit);
    let (byte, bound) = (*start.get(common)?, *limit.get(common)?);
    (byte < 0xff && byte + 1 < bound && common + 1 < start.len()).then_some(common + 1)
}

/// Like [`separator`], without a limit (`FindShortSuccessor`).
fn successor(start: &[u8]) -> Option<usize> {
    let length = start.iter().position(|byte| *byte != 0xff)? + 1;
    (length < start.len()).then_some(length)
}

/// Some whole blocks of one table, each followed by space for its kind and checksum.
#[derive(Default)]
pub(super) struct TablePiece {
    pub(super) bytes: Vec<u8>,
    /// The end of each block in `bytes`, before that space.
    pub(super) ends: Vec<usize>,
}

impl TablePiece {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

/// The parts of a table that are complete only after its last block of entries.
pub(super) struct TableEnd {
    /// The index block.
    pub(super) index: Vec<u8>,
    /// The first key, with its tag.
    pub(super) smallest: Vec<u8>,
    /// The last key, with its tag.
    pub(super) largest: Vec<u8>,
}

/// Seals the pieces of each table in order.
///
/// It shares no state with the [`TableWriter`] that makes the blocks, so it can work on another thread: a
/// block contains everything that its filter needs. It trusts its input, which never comes from a file.
pub(super) struct TableSealer {
    /// `None` for tables without filters.
    filter: Option<FilterWriter>,
    /// The number of bytes sealed so far.
    length: u64,
}

impl TableSealer {
    /// Seals tables with or without `filters`.
    pub(super) fn new(filters: bool) -> Self {
        Self { filter: filters.then(FilterWriter::default), length: 0 }
    }

    /// Writes kind and checksum after each block, and adds its keys to the filters.
    pub(super) fn seal(&mut self, piece: &mut TablePiece) {
        let mut start = 0;
        for &end in &piece.ends {
            let next = end + BLOCK_TAIL as usize;
            let (block, tail) = piece.bytes[start..next].split_at_mut(end - start);
            tail.copy_from_slice(&tail_of(block));
            if let Some(filter) = &mut self.filter {
                filter.add_block(block);
                filter.start_block(self.length + next as u64);
            }
            start = next;
        }
        debug_assert_eq!(start, piece.bytes.len());
        self.length += start as u64;
    }

    /// Writes the rest of the table to `out`, which must be empty. The next piece starts another table.
    pub(super) fn end(&mut self, end: TableEnd, out: &mut Vec<u8>) -> NewTable {
        let filters = self.filter.as_mut().map(|filter| filter.finish(out));
        let filters = filters.map(|()| self.close(out, 0));

        let start = out.len();
        let mut list = BlockWriter::new(RESTART_INTERVAL);
        list.begin(out);
        if let Some(filters) = filters {
            list.append(out, &TaggedKey::untagged(filter::NAME), &filters.bytes());
        }
        list.end(out);
        let list = self.close(out, start);

        let start = out.len();
        out.extend_from_slice(&end.index);
        let index = self.close(out, start);

        let mut footer = [list.bytes(), index.bytes()].concat();
        footer.resize(FOOTER - size_of_val(&MAGIC), 0);
        out.extend_from_slice(&footer);
        out.extend_from_slice(&MAGIC.to_le_bytes());
        let length = core::mem::take(&mut self.length) + out.len() as u64;
        NewTable { length, smallest: end.smallest, largest: end.largest }
    }

    /// Seals the block from `start` to the end of `out`.
    fn close(&self, out: &mut Vec<u8>, start: usize) -> BlockHandle {
        let block = &out[start..];
        let (size, tail) = (block.len() as u64, tail_of(block));
        out.extend_from_slice(&tail);
        BlockHandle { offset: self.length + start as u64, size }
    }
}

/// Makes a block's trailer: the kind for "not compressed", and the checksum.
fn tail_of(block: &[u8]) -> [u8; BLOCK_TAIL as usize] {
    let [a, b, c, d] = masked_crc32c(block, &[0]).to_le_bytes();
    [0, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::TableSealer;
    use super::*;
    use crate::leveldb::InternalKey;
    use crate::leveldb::KeyValue;
    use crate::leveldb::manifest::DatabaseManifest;
    use crate::leveldb::table::TableCursor;
    use proptest::prelude::*;
    use std::fs;

    /// Bitcoin Core's LevelDB wrote these tables: writing their entries with our code gives the same bytes in
    /// all parts, including filters.
    #[test]
    fn tables_have_the_bytes_that_core_writes() {
        let mut tables = 0;
        for folder in ["chainstate", "blocks/index"] {
            let dir = crate::tests::fixtures().join("regtest-315/regtest").join(folder);
            for table in DatabaseManifest::read(&dir).unwrap().tables {
                let mut cursor = TableCursor::open(&dir, table.clone(), u64::MAX, true).unwrap();
                let (mut writer, mut sealer) = (TableWriter::new(4096), TableSealer::new(true));
                let (mut entry, mut key) = (KeyValue::default(), TaggedKey::default());
                let mut bytes = Vec::new();
                let mut seal = |mut piece: TablePiece| {
                    sealer.seal(&mut piece);
                    bytes.extend(piece.bytes);
                };
                while cursor.next(&mut entry).unwrap() {
                    // If a key comes twice, the newer version is first.
                    key.set(&entry.key.user, entry.key.tag.0);
                    let follows = writer.follow(&key);
                    assert!(follows.above || writer.last() == Some(&entry.key.user[..]));
                    let ended = writer.put(&key, follows, &entry.value, Obfuscation::NONE);
                    if ended && writer.ready() > 20_000 {
                        seal(writer.take(TablePiece::default()));
                    }
                }
                let (rest, end) = writer.finish(TablePiece::default());
                seal(rest);
                let mut rest = Vec::new();
                let made = sealer.end(end, &mut rest);
                bytes.extend(rest);
                let name = format!("{:06}.ldb", table.number);
                assert!(bytes == fs::read(dir.join(&name)).unwrap(), "{folder}/{name}");
                assert_eq!(made.length, table.length);
                assert_eq!(InternalKey::read(&made.smallest), Some(table.smallest));
                assert_eq!(InternalKey::read(&made.largest), Some(entry.key));
                tables += 1;
            }
        }
        assert!(tables >= 4, "{tables}");
    }

    proptest! {
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
