//! [`TableSealer`]: what needs a table's blocks whole: their checksums and filters, and the table's
//! end.
//!
//! It shares no state with the [`TableWriter`](super::table_writer::TableWriter) that makes the
//! blocks, so it can work on another thread: a block has all that its filter is made of. It believes
//! what it is given; nothing here reads a file.

use super::block::{BLOCK_TAIL, Handle};
use super::block_writer::BlockWriter;
use super::crc32c;
use super::filter::{self, FilterWriter};
use super::key::TaggedKey;
use super::table::{FOOTER, MAGIC};
use super::table_writer::RESTART_INTERVAL;

/// Some whole blocks of one table, each with room for its kind and checksum behind it.
#[derive(Default)]
pub(super) struct Piece {
    pub(super) bytes: Vec<u8>,
    /// Where each block ends in `bytes`, before that room.
    pub(super) ends: Vec<usize>,
}

impl Piece {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

/// What remains of a table when its blocks of entries are made.
pub(super) struct TableEnd {
    /// The block that is the index.
    pub(super) index: Vec<u8>,
    /// The first key, with its tag.
    pub(super) smallest: Vec<u8>,
    /// The last key, with its tag.
    pub(super) largest: Vec<u8>,
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

/// Goes through the pieces of one table after another.
#[derive(Default)]
pub(super) struct TableSealer {
    filter: FilterWriter,
    /// How much of the table was sealed.
    length: u64,
}

impl TableSealer {
    /// Puts kind and checksum behind each block, and its keys into the filters.
    pub(super) fn seal(&mut self, piece: &mut Piece) {
        let mut start = 0;
        for &end in &piece.ends {
            let next = end + BLOCK_TAIL as usize;
            let (block, tail) = piece.bytes[start..next].split_at_mut(end - start);
            self.filter.add_block(block);
            tail.copy_from_slice(&tail_of(block));
            self.filter.start_block(self.length + next as u64);
            start = next;
        }
        debug_assert_eq!(start, piece.bytes.len());
        self.length += start as u64;
    }

    /// Puts the last bytes of the table into `out`, which is empty. The next piece is of another.
    pub(super) fn end(&mut self, end: TableEnd, out: &mut Vec<u8>) -> Made {
        self.filter.finish(out);
        let filters = self.close(out, 0);

        let start = out.len();
        let mut list = BlockWriter::new(RESTART_INTERVAL);
        list.begin(out);
        list.append(out, &TaggedKey::untagged(filter::NAME), &filters.bytes());
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
        Made { length, smallest: end.smallest, largest: end.largest }
    }

    /// Seals the block that begins at `start` of `out`, the rest of the table.
    fn close(&self, out: &mut Vec<u8>, start: usize) -> Handle {
        let block = &out[start..];
        let (size, tail) = (block.len() as u64, tail_of(block));
        out.extend_from_slice(&tail);
        Handle { offset: self.length + start as u64, size }
    }
}

/// What stands behind a block: that it is not compressed, and its checksum.
fn tail_of(block: &[u8]) -> [u8; BLOCK_TAIL as usize] {
    let [a, b, c, d] = crc32c::masked(block, &[0]).to_le_bytes();
    [0, a, b, c, d]
}
