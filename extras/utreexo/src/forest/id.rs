//! [`PageId`] and [`Pages`]: the store of the forest's pages.

use std::fmt;

/// Rows of nodes in a page.
pub(super) const ROWS: u32 = 6;

/// Bits of an index: at most 2^63 leaves, 2^6 in each page.
const INDEX_BITS: u32 = 57;

/// The identity of a page: its level, counted from the leaves, and its index in that level, in one number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(u64);

impl PageId {
    pub(super) fn new(level: usize, index: u64) -> Self {
        Self((level as u64) << INDEX_BITS | index)
    }

    /// The level; 0 for pages whose bottom row is leaves. The root of a page is in the bottom row of a page
    /// one level above.
    pub fn level(self) -> u32 {
        (self.0 >> INDEX_BITS) as u32
    }

    /// The index in its level, from left to right.
    pub fn index(self) -> u64 {
        self.0 & ((1 << INDEX_BITS) - 1)
    }

    /// A key for a store. Keys sort by level, then by index.
    pub fn key(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    pub(super) fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {} of level {}", self.index(), self.level())
    }
}

impl fmt::Debug for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A store of pages in the state last given by [`Forest::changes`](super::Forest::changes).
pub trait Pages {
    /// Why a page cannot be read.
    type Error;

    /// Appends the bytes of a page; returns `false` if there is no such page.
    fn read(&self, page: PageId, out: &mut Vec<u8>) -> Result<bool, Self::Error>;
}

impl<P: Pages + ?Sized> Pages for &P {
    type Error = P::Error;

    fn read(&self, page: PageId, out: &mut Vec<u8>) -> Result<bool, Self::Error> {
        (**self).read(page, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_levels_and_indexes() {
        let last = (1 << INDEX_BITS) - 1;
        let ids = [(0, 0), (0, 1), (0, 256), (0, last), (1, 0), (1, last), (10, 0), (10, 7)];
        let ids = ids.map(|(level, index)| {
            let id = PageId::new(level, index);
            assert_eq!((id.level() as usize, id.index()), (level, index));
            id
        });
        assert!(ids.is_sorted() && ids.map(PageId::key).is_sorted());
        assert_eq!(ids[5].to_string(), format!("page {last} of level 1"));
    }
}
