//! [`FilterWriter`]: the filters of a table, which let a look-up of an absent key end without
//! reading a block.
//!
//! LevelDB's bloom filter at Core's ten bits a key (LevelDB `util/bloom.cc`, `util/hash.cc`,
//! `table/filter_block.cc`; Core `dbwrapper.cpp`, `NewBloomFilterPolicy(10)`): one filter for the
//! keys of all blocks that begin within the same 2 KiB of the table. Blocks are larger than that,
//! so each has a filter of its own, and the stretches in which none begins have empty ones.
//!
//! Keys are the user's, without the sequence numbers. Only their hashes are held, four bytes each.

use super::block_writer::Keys;
use super::key::TaggedKey;

/// The name under which the table's list of further blocks has the filters.
pub(super) const NAME: &[u8] = b"filter.leveldb.BuiltinBloomFilter2";

const BITS_PER_KEY: usize = 10;

/// Bits that each key sets: what LevelDB makes of ten bits a key, ln 2 of them, rounded down.
const PROBES: u8 = 6;

/// Least size of a filter; smaller ones would let too much pass.
const BITS_MIN: usize = 64;

/// A filter is for blocks that begin within the same 2^11 bytes.
const BASE_LOG2: u8 = 11;

#[derive(Default)]
pub(super) struct FilterWriter {
    /// The keys of the block that was taken last.
    keys: Keys,
    /// Hashes of the keys since the last filter.
    hashes: Vec<u32>,
    filters: Vec<u8>,
    /// Where each filter begins in `filters`.
    offsets: Vec<u32>,
}

impl FilterWriter {
    /// Takes the keys of the next block.
    pub(super) fn add_block(&mut self, block: &[u8]) {
        self.keys.read(block);
        let (fours, rest) = self.keys.get().as_chunks::<4>();
        for keys in fours {
            let keys = keys.each_ref().map(TaggedKey::user);
            if keys.iter().all(|key| key.len() == keys[0].len()) {
                self.hashes.extend(hashes(keys));
            } else {
                self.hashes.extend(keys.map(hash));
            }
        }
        self.hashes.extend(rest.iter().map(|key| hash(key.user())));
    }

    /// The next block begins at `offset` of the table; keys until now are those before it.
    pub(super) fn start_block(&mut self, offset: u64) {
        let index = offset >> BASE_LOG2;
        while index > self.offsets.len() as u64 {
            self.end_filter();
        }
    }

    /// Appends the whole block of filters to `out` and begins anew.
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

/// A number to divide others by, prepared so that each rest costs two multiplications: the part
/// behind the point of what a division gives, times the divisor (Lemire, Kaser and Kurz, *Faster
/// remainder by direct computation*, 2019). It holds for all numbers of 32 bits.
#[derive(Clone, Copy)]
struct Divisor {
    divisor: u32,
    /// 2^64 divided by it, rounded up.
    inverse: u64,
}

impl Divisor {
    /// `divisor` is at least 2.
    fn new(divisor: u32) -> Self {
        Self { divisor, inverse: u64::MAX / u64::from(divisor) + 1 }
    }

    fn rest_of(self, number: u32) -> u32 {
        let part = self.inverse.wrapping_mul(u64::from(number));
        ((u128::from(part) * u128::from(self.divisor)) >> 64) as u32
    }
}

/// LevelDB's hash of a key, with the seed of its bloom filter.
fn hash(key: &[u8]) -> u32 {
    let [hash] = hashes([key]);
    hash
}

/// The same of several keys, which have one length: each step of one hash waits for the step before
/// it, and the others' are done meanwhile.
#[inline]
fn hashes<const N: usize>(keys: [&[u8]; N]) -> [u32; N] {
    const SEED: u32 = 0xbc9f_1d34;
    const MULTIPLIER: u32 = 0xc6a4_a793;
    let length = keys[0].len();
    let mut hashes = [SEED ^ (length as u32).wrapping_mul(MULTIPLIER); N];
    let mut step = |words: [u32; N], shift: u32| {
        for (hash, word) in hashes.iter_mut().zip(words) {
            *hash = hash.wrapping_add(word).wrapping_mul(MULTIPLIER);
            *hash ^= *hash >> shift;
        }
    };
    let parts = keys.map(<[u8]>::as_chunks::<4>);
    for at in 0..length / 4 {
        step(parts.map(|(words, _)| u32::from_le_bytes(words[at])), 16);
    }
    if !length.is_multiple_of(4) {
        let word = |rest: &[u8]| match *rest {
            [a] => [a, 0, 0, 0],
            [a, b] => [a, b, 0, 0],
            [a, b, c, ..] => [a, b, c, 0],
            [] => [0; 4],
        };
        step(parts.map(|(_, rest)| u32::from_le_bytes(word(rest))), 24);
    }
    hashes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rusty_leveldb::{BloomPolicy, FilterPolicy};

    proptest! {
        #[test]
        fn rests_are_those_of_a_division(number: u32, divisor in 2u32..) {
            for divisor in [divisor, divisor % 4096 + 2] {
                prop_assert_eq!(Divisor::new(divisor).rest_of(number), number % divisor);
            }
        }

        #[test]
        fn one_filter_is_the_other_implementations(
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
