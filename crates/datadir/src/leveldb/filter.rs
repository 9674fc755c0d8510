//! [`FilterWriter`]: the filters of a table, which let a look-up of an absent key skip reading the block.
//!
//! LevelDB's bloom filter with Core's ten bits per key (LevelDB `util/bloom.cc`, `util/hash.cc`,
//! `table/filter_block.cc`; Core `dbwrapper.cpp`, `NewBloomFilterPolicy(10)`): one filter for the
//! keys of all blocks that begin within the same 2 KiB of the table. Blocks are larger than that,
//! so each has its own filter, and ranges in which no block begins have empty ones.
//!
//! Keys are user keys, without sequence numbers. Only their hashes are kept, four bytes each.

use super::block_writer::{BlockEntry, COIN_KEY, TAG_BYTES, TaggedKey, entries};

/// The name of the filters in the table's metaindex.
pub(super) const NAME: &[u8] = b"filter.leveldb.BuiltinBloomFilter2";

const BITS_PER_KEY: usize = 10;

/// The number of bits set per key: LevelDB's choice for ten bits per key, ln 2 times ten, rounded down.
const PROBES: u8 = 6;

/// The minimum size of a filter in bits; smaller filters would let too many keys pass.
const BITS_MIN: usize = 64;

/// A filter covers blocks that begin within the same 2^11 bytes.
pub(super) const BASE_LOG2: u8 = 11;

#[derive(Default)]
pub(super) struct FilterWriter {
    /// Hashes of the keys since the last filter.
    hashes: Vec<u32>,
    filters: Vec<u8>,
    /// The start of each filter in `filters`.
    offsets: Vec<u32>,
}

impl FilterWriter {
    /// Adds the keys of the next block.
    pub(super) fn add_block(&mut self, block: &[u8]) {
        let before = self.hashes.len();
        if add_coins(&mut self.hashes, block).is_some() {
            return;
        }
        self.hashes.truncate(before);
        let mut key = TaggedKey::default();
        for BlockEntry { shared, own, bytes } in entries(block) {
            key.continue_with(shared, own, bytes);
            self.hashes.push(hash(key.user()));
        }
    }

    /// Starts the next block at `offset` of the table. The keys added so far belong to earlier blocks.
    pub(super) fn start_block(&mut self, offset: u64) {
        let index = offset >> BASE_LOG2;
        while index > self.offsets.len() as u64 {
            self.end_filter();
        }
    }

    /// Appends the whole filter block to `out` and starts over.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.hashes.is_empty() {
            self.end_filter();
        }
        out.extend_from_slice(&self.filters);
        for offset in &self.offsets {
            out.extend_from_slice(&offset.to_le_bytes());
        }
        out.extend_from_slice(&(self.filters.len() as u32).to_le_bytes());
        out.push(BASE_LOG2);
        self.filters.clear();
        self.offsets.clear();
    }

    fn end_filter(&mut self) {
        self.offsets.push(self.filters.len() as u32);
        if self.hashes.is_empty() {
            return;
        }
        let bytes = (self.hashes.len() * BITS_PER_KEY).max(BITS_MIN).div_ceil(8);
        let start = self.filters.len();
        self.filters.resize(start + bytes, 0);
        let filter = &mut self.filters[start..];
        let bits = Divisor::new((bytes * 8) as u32);
        for mut hash in self.hashes.drain(..) {
            let step = hash.rotate_right(17);
            for _ in 0..PROBES {
                let bit = bits.rest_of(hash) as usize;
                filter[bit / 8] |= 1 << (bit % 8);
                hash = hash.wrapping_add(step);
            }
        }
        self.filters.push(PROBES);
    }
}

/// A divisor prepared so that each remainder costs two multiplications: the fractional part of the
/// quotient, times the divisor (Lemire, Kaser and Kurz, *Faster remainder by direct computation*,
/// 2019). Correct for all 32-bit numbers.
#[derive(Clone, Copy)]
struct Divisor {
    divisor: u32,
    /// 2^64 divided by the divisor, rounded up.
    inverse: u64,
}

impl Divisor {
    /// Prepares a `divisor`, which must be at least 2.
    fn new(divisor: u32) -> Self {
        Self { divisor, inverse: u64::MAX / u64::from(divisor) + 1 }
    }

    fn rest_of(self, number: u32) -> u32 {
        let part = self.inverse.wrapping_mul(u64::from(number));
        ((u128::from(part) * u128::from(self.divisor)) >> 64) as u32
    }
}

/// Appends the hashes of the keys in a block of coins in a fraction of the time: it builds no keys, and
/// continues from the hash of a transaction's first coin for its second. Returns `None` if a key's length
/// differs, or if it shares bytes with the previous key in a way that coins hardly ever do.
fn add_coins(hashes: &mut Vec<u32>, block: &[u8]) -> Option<()> {
    const WORD: usize = size_of::<u64>();
    const SAME_HASH: usize = COIN_KEY - 1;
    let begun = Hash::of_length(COIN_KEY);
    // The first bytes of the last key; the hash of all but its last two bytes; and the first of those two.
    let (mut first, mut body, mut next_to_last) = (0, begun, 0);
    for BlockEntry { shared, own, bytes } in entries(block) {
        if shared + own != COIN_KEY + TAG_BYTES {
            return None;
        }
        let number = if shared == SAME_HASH {
            bytes[0]
        } else if shared <= WORD {
            let bits = 8 * shared as u32;
            let kept = first & 1u64.unbounded_shl(bits).wrapping_sub(1);
            let word = u64::from_le_bytes(*bytes.first_chunk()?);
            first = kept | word.unbounded_shl(bits);
            let behind: &[u8; COIN_KEY - WORD] = bytes[WORD - shared..].first_chunk()?;
            let (words, [last, number]) = behind.as_chunks() else { return None };
            body = begun.and(first as u32, 16).and((first >> 32) as u32, 16);
            for word in words {
                body = body.and(u32::from_le_bytes(*word), 16);
            }
            next_to_last = *last;
            *number
        } else {
            return None;
        };
        hashes.push(body.and(u32::from_le_bytes([next_to_last, number, 0, 0]), 24).0);
    }
    Some(())
}

/// A LevelDB hash in progress.
#[derive(Clone, Copy)]
struct Hash(u32);

impl Hash {
    const MULTIPLIER: u32 = 0xc6a4_a793;

    /// The initial state for a key of this length, with the bloom filter's seed.
    #[inline]
    fn of_length(length: usize) -> Self {
        const SEED: u32 = 0xbc9f_1d34;
        Self(SEED ^ (length as u32).wrapping_mul(Self::MULTIPLIER))
    }

    /// Adds the next four bytes with a shift of 16, or fewer last bytes with a shift of 24.
    #[inline]
    fn and(self, word: u32, shift: u32) -> Self {
        let hash = self.0.wrapping_add(word).wrapping_mul(Self::MULTIPLIER);
        Self(hash ^ hash >> shift)
    }
}

/// LevelDB's hash of a key, with the seed of its bloom filter.
pub(super) fn hash(key: &[u8]) -> u32 {
    let (words, rest) = key.as_chunks();
    let mut hash = Hash::of_length(key.len());
    for word in words {
        hash = hash.and(u32::from_le_bytes(*word), 16);
    }
    if !rest.is_empty() {
        let mut word = [0; size_of::<u32>()];
        word[..rest.len()].copy_from_slice(rest);
        hash = hash.and(u32::from_le_bytes(word), 24);
    }
    hash.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leveldb::block_writer::BlockWriter;
    use proptest::prelude::*;
    use rusty_leveldb::{BloomPolicy, FilterPolicy};

    proptest! {
        #[test]
        fn remainders_match_a_division(number: u32, divisor in 2u32..) {
            for divisor in [divisor, divisor % 4096 + 2] {
                prop_assert_eq!(Divisor::new(divisor).rest_of(number), number % divisor);
            }
        }

        /// The fast path and the slow path agree for keys that share any number of first bytes. The fast path
        /// accepts keys in any order.
        #[test]
        fn coins_have_the_hashes_of_their_keys(
            hashes in proptest::collection::btree_set(
                ("[ab]{0,12}", any::<[u8; 32]>()).prop_map(|(beginning, mut hash)| {
                    hash[..beginning.len()].copy_from_slice(beginning.as_bytes());
                    hash
                }),
                1..30,
            ),
            numbers in proptest::collection::vec(proptest::collection::btree_set(0u8..5, 1..4), 30),
            other in proptest::option::of(0usize..30),
            value in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let (mut block, mut out, mut expected) = (BlockWriter::new(16), vec![], vec![]);
            block.begin(&out);
            for (at, (hash, numbers)) in hashes.iter().zip(&numbers).enumerate() {
                for &number in numbers {
                    let long = if other == Some(at) { &[number, 0][..] } else { &[number] };
                    let key = [b"C", &hash[..], long].concat();
                    let mut tagged = TaggedKey::default();
                    tagged.set(&key, 257);
                    block.append(&mut out, &tagged, &value);
                    expected.push(super::hash(&key));
                }
            }
            block.end(&mut out);
            let mut found = Vec::new();
            match add_coins(&mut found, &out) {
                Some(()) => prop_assert_eq!(&found, &expected),
                None => prop_assert!(expected.starts_with(&found)),
            }
            let mut filter = FilterWriter::default();
            filter.add_block(&out);
            prop_assert_eq!(&filter.hashes, &expected);
        }

        #[test]
        fn filters_match_the_other_implementation(
            keys in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 1..100),
        ) {
            let (mut filter, mut flat, mut offsets) = (FilterWriter::default(), vec![], vec![]);
            for key in &keys {
                filter.hashes.push(hash(key));
                offsets.push(flat.len());
                flat.extend_from_slice(key);
            }
            let expected = BloomPolicy::new(10).create_filter(&flat, &offsets);
            let mut out = Vec::new();
            filter.finish(&mut out);
            prop_assert_eq!(&out[..expected.len()], &expected[..]);
            let end = (expected.len() as u32).to_le_bytes();
            prop_assert_eq!(&out[expected.len()..], &[&[0; 4], &end[..], &[11]].concat()[..]);
        }
    }

    /// Checks that coins take the fast path.
    #[test]
    fn coins_of_one_block_take_the_fast_path() {
        let (mut block, mut out, mut found) = (BlockWriter::new(16), vec![], vec![]);
        block.begin(&out);
        for at in 0u8..100 {
            let key = [b"C", &[at / 3; 32][..], &[at]].concat();
            let mut tagged = TaggedKey::default();
            tagged.set(&key, 257);
            block.append(&mut out, &tagged, &[7; 30]);
        }
        block.end(&mut out);
        assert_eq!(add_coins(&mut found, &out), Some(()));
        assert_eq!(found.len(), 100);
    }

    #[test]
    fn blocks_that_begin_far_apart_leave_empty_filters() {
        let mut filter = FilterWriter::default();
        filter.hashes.push(hash(b"a"));
        filter.start_block(2047);
        assert!(filter.offsets.is_empty(), "the next block has its keys in the same filter");
        filter.hashes.push(hash(b"b"));
        filter.start_block(3 * 2048);
        assert_eq!(filter.offsets, [0, 9, 9]);
        let mut out = Vec::new();
        filter.finish(&mut out);
        assert_eq!(out.len(), 9 + 3 * 4 + 5);
        assert_eq!(out[8], PROBES);
    }
}
