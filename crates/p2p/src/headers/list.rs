//! [`HeaderList`]: headers to save, or saved ones, in memory.

use super::candidate::OrphanHeader;
use apus_chain::{BlockHash, Header};

/// Headers that follow each other are divided into parts of at most this many, so that a list grows without being
/// copied as a whole.
const PART_HEADERS_MAX: usize = 2048;

/// Raw headers in order of arrival: 48 bytes each, because the parent of most is the one before.
#[derive(Debug, Clone, Default)]
pub struct HeaderList {
    /// Headers, each the parent of the next, and the parent of the first.
    parts: Vec<(BlockHash, Vec<OrphanHeader>)>,
    /// The hash of the last header.
    last: BlockHash,
    count: usize,
}

impl HeaderList {
    /// Adds a header.
    pub fn push(&mut self, raw: &[u8; Header::SIZE]) {
        let Header { prev, .. } = Header::parse(raw);
        let orphan = OrphanHeader::of(raw);
        match self.parts.last_mut() {
            Some((_, part)) if prev == self.last && part.len() < PART_HEADERS_MAX => {
                part.push(orphan);
            }
            _ => self.parts.push((prev, vec![orphan])),
        }
        self.last = BlockHash(apus_hash::sha256d(raw));
        self.count += 1;
    }

    /// Adds all headers of another list.
    pub fn append(&mut self, mut other: Self) {
        if !other.is_empty() {
            self.parts.append(&mut other.parts);
            (self.last, self.count) = (other.last, self.count + other.count);
        }
    }

    /// Returns the number of headers.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Returns true if there are none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the headers.
    pub fn iter(&self) -> impl Iterator<Item = [u8; Header::SIZE]> {
        self.parts.iter().flat_map(|(first, part)| {
            let mut prev = *first;
            part.iter().map(move |orphan| {
                let raw = orphan.below(prev).to_bytes();
                prev = BlockHash(apus_hash::sha256d(&raw));
                raw
            })
        })
    }
}

impl FromIterator<[u8; Header::SIZE]> for HeaderList {
    fn from_iter<I: IntoIterator<Item = [u8; Header::SIZE]>>(headers: I) -> Self {
        let mut list = Self::default();
        headers.into_iter().for_each(|raw| list.push(&raw));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Any headers come back in their order, whether or not they follow each other.
        #[test]
        fn headers_come_back(follow in proptest::collection::vec(any::<bool>(), 0..40), split in 0usize..40) {
            let mut all: Vec<[u8; 80]> = Vec::new();
            for (number, follows) in (0u8..).zip(follow) {
                let mut raw = [number; 80];
                if let Some(last) = all.last().filter(|_| follows) {
                    raw[4..36].copy_from_slice(&apus_hash::sha256d(last));
                }
                all.push(raw);
            }
            let (first, second) = all.split_at(split.min(all.len()));
            let mut list: HeaderList = first.iter().copied().collect();
            list.append(second.iter().copied().collect());
            prop_assert_eq!(list.iter().collect::<Vec<_>>(), &*all);
            prop_assert_eq!((list.len(), list.is_empty()), (all.len(), all.is_empty()));
            list.push(&[7; 80]);
            prop_assert_eq!(list.iter().collect::<Vec<_>>(), [&*all, &[[7; 80]]].concat());
        }
    }

    /// A sync may hold the headers of a whole chain while it saves them.
    #[test]
    fn a_long_chain_takes_little_memory() {
        let (mut list, mut raw) = (HeaderList::default(), [0; 80]);
        for _ in 0..5000 {
            list.push(&raw);
            let hash = apus_hash::sha256d(&raw);
            raw[4..36].copy_from_slice(&hash);
        }
        let lengths: Vec<usize> = list.parts.iter().map(|(_, part)| part.len()).collect();
        assert_eq!(lengths, [2048, 2048, 904]);
        let bytes = list.parts.iter().map(|(_, part)| part.capacity() * size_of::<OrphanHeader>());
        assert!(bytes.sum::<usize>() <= 5120 * 48);
        assert_eq!(list.iter().count(), 5000);
    }
}
