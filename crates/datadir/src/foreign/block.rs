//! [`Block`]: sorted entries of a table, each with what its key has of its own (LevelDB `doc/table_format.md`,
//! `table/block.cc`).

use super::bytes::{Bytes, little};
use core::cmp::Ordering;
use core::ops::Range;

/// Behind each user's key: sequence number and kind, the newest first.
pub(super) const TAG: usize = 8;

/// Said where a block is none.
pub(super) const NO_BLOCK: &str = "a block cannot be read, though its checksum is right";

/// A key without its tag, and the tag; none where it is too short.
pub(super) fn split(key: &[u8]) -> Option<(&[u8], u64)> {
    let (user, tag) = key.split_last_chunk::<TAG>()?;
    Some((user, u64::from_le_bytes(*tag)))
}

/// LevelDB's order: users' keys ascend, the newest version of one comes first.
pub(super) fn order(a: &[u8], b: &[u8]) -> Option<Ordering> {
    let ((a, newer), (b, older)) = (split(a)?, split(b)?);
    Some(a.cmp(b).then(older.cmp(&newer)))
}

/// Entries, and at the end where whole keys stand.
pub(super) struct Block {
    bytes: Vec<u8>,
    entries_end: usize,
    restarts: usize,
}

/// The entry that was read last.
#[derive(Default)]
pub(super) struct At {
    pub(super) key: Vec<u8>,
    /// In the block.
    value: Range<usize>,
    /// Where the next one begins.
    next: usize,
}

impl Block {
    /// Takes the content of a block; nothing where that cannot be one.
    pub(super) fn new(bytes: Vec<u8>) -> Option<Self> {
        let restarts = little(bytes.last_chunk::<4>()?) as usize;
        let entries_end = bytes.len().checked_sub(restarts.checked_mul(4)?.checked_add(4)?)?;
        (restarts > 0).then_some(Self { bytes, entries_end, restarts })
    }

    pub(super) fn value(&self, at: &At) -> &[u8] {
        &self.bytes[at.value.clone()]
    }

    /// Goes to the next entry: whether there is one, or nothing where it cannot be read.
    pub(super) fn next(&self, at: &mut At) -> Option<bool> {
        if at.next == self.entries_end {
            return Some(false);
        }
        let mut rest = Bytes(self.bytes.get(at.next..self.entries_end)?);
        let (shared, own, length) = (rest.varint()?, rest.varint()?, rest.varint()?);
        let shared = usize::try_from(shared).ok().filter(|shared| *shared <= at.key.len())?;
        let own = rest.take(own)?;
        let start = self.entries_end - rest.0.len();
        let end = start + rest.take(length)?.len();
        at.key.truncate(shared);
        at.key.extend_from_slice(own);
        (at.value, at.next) = (start..end, end);
        (at.key.len() >= TAG).then_some(true)
    }

    /// Goes to the first entry that is not before `key`, as a node does: by whole keys to the last of them that is
    /// before it, and on from there.
    pub(super) fn seek(&self, key: &[u8], at: &mut At) -> Option<bool> {
        let (mut low, mut high) = (0, self.restarts - 1);
        while low < high {
            let middle = (low + high).div_ceil(2);
            self.restart(middle, at)?;
            // One that is not there is as good as one that is behind.
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

    /// Stands before the whole key of this number.
    fn restart(&self, number: usize, at: &mut At) -> Option<()> {
        let place = self.entries_end + 4 * number;
        at.key.clear();
        at.next = little(&self.bytes[place..place + 4]) as usize;
        (at.next <= self.entries_end).then_some(())
    }
}
