//! [`FilterReader`]: the filters of a table as a look-up asks them.
//!
//! A filter that says of a key that it is not there ends the look-up, so each has to let the keys of
//! its block pass (LevelDB `table/filter_block.cc`, `util/bloom.cc`).

use super::filter::{BASE_LOG2, hash};

/// So many probes LevelDB keeps for other kinds of filters, and lets all keys pass.
const PROBES_MAX: u8 = 30;

/// Behind the places of the filters: where the places begin, and the stretch of a table for a filter.
const TAIL: usize = size_of::<u32>() + 1;

pub(super) struct FilterReader {
    bytes: Vec<u8>,
    /// Where the filters end and their places begin.
    filters_end: usize,
}

impl FilterReader {
    /// Takes a whole block of filters; `None` where it is none that LevelDB writes.
    pub(super) fn new(bytes: Vec<u8>) -> Option<Self> {
        let (places, tail) = bytes.split_at_checked(bytes.len().checked_sub(TAIL)?)?;
        let (end, base) = tail.split_first_chunk()?;
        let filters_end = usize::try_from(u32::from_le_bytes(*end)).ok()?;
        let places = places.get(filters_end..)?;
        (*base == [BASE_LOG2] && places.len() % size_of::<u32>() == 0)
            .then_some(Self { bytes, filters_end })
    }

    /// Whether a look-up of the user's key goes on to the block that begins at `offset`.
    pub(super) fn lets_pass(&self, offset: u64, user: &[u8]) -> bool {
        let Some(filter) = usize::try_from(offset >> BASE_LOG2).ok().and_then(|it| self.filter(it))
        else {
            return false;
        };
        let Some((&probes, bits)) = filter.split_last().filter(|(_, bits)| !bits.is_empty()) else {
            return false;
        };
        if probes > PROBES_MAX {
            return true;
        }
        let mut hash = hash(user);
        let step = hash.rotate_right(17);
        // A block has fewer than 2^29 bytes.
        let length = (bits.len() * 8) as u32;
        (0..probes).all(|_| {
            let bit = (hash % length) as usize;
            hash = hash.wrapping_add(step);
            bits[bit / 8] & 1 << (bit % 8) != 0
        })
    }

    /// LevelDB lets a key pass that has no filter of the right form. There is none in what it writes.
    fn filter(&self, index: usize) -> Option<&[u8]> {
        let start = self.place(index)?;
        let end = self.place(index.checked_add(1)?)?;
        self.bytes.get(..self.filters_end)?.get(start..end)
    }

    /// Behind the places stands where they begin, which is where the last filter ends.
    fn place(&self, index: usize) -> Option<usize> {
        let at = self.filters_end.checked_add(index.checked_mul(size_of::<u32>())?)?;
        let place = self.bytes.get(..self.bytes.len() - 1)?.get(at..)?.first_chunk()?;
        usize::try_from(u32::from_le_bytes(*place)).ok()
    }
}
