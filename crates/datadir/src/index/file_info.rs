//! [`FileInfo`]: what an index says of a block file and its undo file.
//!
//! A node appends by it: a size that is too small makes the node write over blocks that it has. Heights that are
//! too narrow make a node that prunes remove blocks that it needs.

use apus_chain::{Reader, write_varint};

/// What Core keeps of a block file and its undo file (`node/blockstorage.h`, `CBlockFileInfo`).
#[derive(Default, Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileInfo {
    /// How many blocks are in it.
    pub blocks: u32,
    /// Bytes of the block file that are in use.
    pub size: u64,
    /// Bytes of the undo file that are in use.
    pub undo_size: u64,
    /// The least height of a block.
    pub height_first: u32,
    /// The greatest.
    pub height_last: u32,
    /// The least time of a header.
    pub time_first: u64,
    /// The greatest.
    pub time_last: u64,
}

impl FileInfo {
    /// Adds a block, and no bytes (Core `CBlockFileInfo::AddBlock`).
    pub fn add(&mut self, height: u32, time: u32) {
        let time = u64::from(time);
        if self.blocks == 0 {
            (self.height_first, self.time_first) = (height, time);
        }
        self.blocks = self.blocks.saturating_add(1);
        self.height_first = self.height_first.min(height);
        self.height_last = self.height_last.max(height);
        self.time_first = self.time_first.min(time);
        self.time_last = self.time_last.max(time);
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let heights = [self.height_first, self.height_last].map(u64::from);
        let sizes = [u64::from(self.blocks), self.size, self.undo_size];
        for number in sizes.iter().chain(&heights).chain(&[self.time_first, self.time_last]) {
            write_varint(out, *number);
        }
    }

    /// None where a node would read nothing of it. What follows the numbers it passes over, too.
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(value);
        let mut small = [0; 5];
        for number in &mut small {
            *number = u32::try_from(reader.varint().ok()?).ok()?;
        }
        let [blocks, size, undo_size, height_first, height_last] = small;
        let (time_first, time_last) = (reader.varint().ok()?, reader.varint().ok()?);
        let (size, undo_size) = (size.into(), undo_size.into());
        Some(Self { blocks, size, undo_size, height_first, height_last, time_first, time_last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_edges_grow() {
        let mut info = FileInfo { size: u64::from(u32::MAX), undo_size: 7, ..FileInfo::default() };
        for (height, time) in [(9, 50), (7, 60), (12, 40)] {
            info.add(height, time);
        }
        let edges = (info.height_first, info.height_last, info.time_first, info.time_last);
        assert_eq!((info.blocks, edges), (3, (7, 12, 40, 60)));
        let mut bytes = Vec::new();
        info.write(&mut bytes);
        assert_eq!(FileInfo::read(&bytes), Some(info));
        assert_eq!(FileInfo::read(&bytes[..bytes.len() - 1]), None);
        bytes.push(0);
        assert_eq!(FileInfo::read(&bytes), Some(info));
        let mut wide = Vec::new();
        [1, 1 << 32, 0, 0, 0, 0, 0].iter().for_each(|number| write_varint(&mut wide, *number));
        assert_eq!(FileInfo::read(&wide), None);
    }
}
