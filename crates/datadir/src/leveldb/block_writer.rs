//! [`BlockWriter`]: the entries of one block of a table, written one by one (LevelDB
//! `table/block_builder.cc`), and [`entries`], which finds them again.
//!
//! A key shares its beginning with the one before it, save at restarts. Whether keys ascend is
//! told, and is for the caller to act on.

use super::{put_varint, varint};
use crate::files::Obfuscation;
use apus_chain::{Reader, write_varint};

/// The three lengths before a short entry, a byte each.
const LENGTHS: usize = 3;

/// Half of a hash, and the size of the pieces that short entries are copied in. A short value has at
/// least one, and no more than three.
const HALF: usize = size_of::<[u8; 32]>() / 2;

/// At most so many bytes a short entry has.
const SHORT_MAX: usize = LENGTHS + (1 + 2 * HALF + 1 + TAG_BYTES) + 3 * HALF;

/// How a key stands to the one before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Follows {
    /// How many bytes at the beginnings of both are the same.
    common: usize,
    /// Whether it is the key of a user's that comes later.
    pub(super) above: bool,
}

/// One block at the end of a buffer that its owner keeps.
pub(super) struct BlockWriter {
    /// Where it begins in the buffer.
    start: usize,
    /// Entries between two that have their whole keys.
    interval: usize,
    restarts: Vec<u32>,
    /// Entries since the last restart.
    run: usize,
    /// The key before; it stays when a block ends.
    last: TaggedKey,
}

impl BlockWriter {
    pub(super) fn new(interval: usize) -> Self {
        Self { start: 0, interval, restarts: Vec::new(), run: 0, last: TaggedKey::default() }
    }

    pub(super) fn begin(&mut self, out: &[u8]) {
        self.start = out.len();
        self.restarts.clear();
        self.restarts.push(0);
        self.run = 0;
    }

    /// Where it begins in the buffer.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    pub(super) fn is_empty(&self, out: &[u8]) -> bool {
        out.len() == self.start
    }

    /// Length of the block if it ended now.
    pub(super) fn size(&self, out: &[u8]) -> usize {
        out.len() - self.start + self.restarts.len() * 4 + 4
    }

    /// The last key, of whatever block.
    pub(super) fn last(&self) -> &TaggedKey {
        &self.last
    }

    /// How this key stands to the last one.
    #[inline]
    pub(super) fn follow(&self, key: &TaggedKey) -> Follows {
        let common = key.common(&self.last);
        if self.last.is_none() {
            return Follows { common, above: true };
        }
        let (last, user) = (self.last.user(), key.user());
        let same = common.min(last.len()).min(user.len());
        // A key is above those that it begins with.
        let above = same < user.len() && (same == last.len() || user[same] > last[same]);
        Follows { common, above }
    }

    /// Appends an entry, whose key stands to the last one as `follows` says, and applies the
    /// obfuscation to its value.
    pub(super) fn put(
        &mut self,
        out: &mut Vec<u8>,
        key: &TaggedKey,
        follows: Follows,
        value: &[u8],
        obfuscation: Obfuscation,
    ) {
        let shared = if self.begin_entry(out) { 0 } else { follows.common };
        let own = &key.whole()[shared..];
        for length in [shared, own.len(), value.len()] {
            put_varint(out, length as u64);
        }
        out.extend_from_slice(own);
        let value_at = out.len();
        out.extend_from_slice(value);
        obfuscation.apply(&mut out[value_at..], 0);
        self.last.clone_from(key);
    }

    /// The same of nearly all coins, in a fraction of the time: it makes no key, has no loop, and
    /// takes few branches that a processor could not guess. False, and nothing is done, where the
    /// entry is the first of its block, too long or too short, or does not follow from a coin with a
    /// smaller key that differs early or in the number alone; then it is for [`put`](Self::put).
    #[inline]
    pub(super) fn put_short(
        &mut self,
        out: &mut Vec<u8>,
        key: NumberedKey<'_>,
        tag: u64,
        value: &[u8],
        obfuscation: Obfuscation,
    ) -> bool {
        let short = key.number <= NUMBER_MAX && (HALF..=3 * HALF).contains(&value.len());
        if !short || self.run == 0 {
            return false;
        }
        let Some(common) = self.last.common_below(key) else { return false };
        let shared = if self.begin_entry(out) { 0 } else { common };
        let at = out.len();
        out.extend_from_slice(&[0; SHORT_MAX]);
        let entry = &mut out[at..];
        // Wherever parts of changing length follow each other, each is copied in pieces of one size
        // that overlap.
        let number_at = if shared > size_of_val(key.hash) {
            LENGTHS
        } else {
            entry[LENGTHS] = key.kind;
            let (hash_at, from) = (LENGTHS + usize::from(shared == 0), shared.saturating_sub(1));
            let behind = hash_at + size_of_val(key.hash) - from;
            entry[hash_at..][..HALF].copy_from_slice(&key.hash[from..][..HALF]);
            entry[behind - HALF..][..HALF].copy_from_slice(&key.hash[HALF..]);
            behind
        };
        entry[number_at] = key.number as u8;
        entry[number_at + 1..][..TAG_BYTES].copy_from_slice(&tag.to_le_bytes());
        let value_at = number_at + 1 + TAG_BYTES;
        let last = value.len() - HALF;
        for from in [0, last.min(HALF), last] {
            let piece: &[u8; HALF] = value[from..].first_chunk().expect("at least so many bytes");
            let piece = obfuscation.applied(piece, from as u64);
            entry[value_at + from..][..HALF].copy_from_slice(&piece);
        }
        let own = value_at - LENGTHS;
        entry[..LENGTHS].copy_from_slice(&[shared as u8, own as u8, value.len() as u8]);
        out.truncate(at + value_at + value.len());
        self.last.set_numbered(key, tag);
        true
    }

    /// Appends an entry whose key needs no order.
    pub(super) fn append(&mut self, out: &mut Vec<u8>, key: &TaggedKey, value: &[u8]) {
        self.put(out, key, self.follow(key), value, Obfuscation::NONE);
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

/// An entry of a block.
pub(super) struct BlockEntry<'a> {
    /// So many bytes its key begins with as the one before it does.
    pub(super) shared: usize,
    /// So many follow.
    pub(super) own: usize,
    /// These, and all that lies behind them in the block.
    pub(super) bytes: &'a [u8],
}

/// The entries of a block that a [`BlockWriter`] made.
#[inline]
pub(super) fn entries(block: &[u8]) -> impl Iterator<Item = BlockEntry<'_>> {
    const OWN: &str = "a block of our own making";
    let (rest, count) = block.split_last_chunk().expect(OWN);
    let restarts = u32::from_le_bytes(*count) as usize * size_of::<u32>();
    let mut rest = &rest[..rest.len() - restarts];
    core::iter::from_fn(move || {
        let (shared, own, value, bytes) = match *rest {
            [] => return None,
            [shared, own, value, ref bytes @ ..] if (shared | own | value) <= 0x7f => {
                (shared.into(), own.into(), value.into(), bytes)
            }
            _ => {
                let mut reader = Reader::new(rest);
                let mut length = || varint(&mut reader).expect(OWN) as usize;
                let (shared, own, value) = (length(), length(), length());
                (shared, own, value, &rest[reader.position()..])
            }
        };
        rest = &bytes[own + value..];
        Some(BlockEntry { shared, own, bytes })
    })
}

/// Bytes after the user's key: sequence number and kind (LevelDB `db/dbformat.h`).
pub(super) const TAG_BYTES: usize = 8;

/// More than any key of Core's: the longest are of coins, 1 + 32 + 5 bytes.
pub(super) const KEY_BYTES_MAX: usize = 64;

/// Bytes of a key that are copied at once: all of a coin's, with its tag.
const STEP: usize = 48;

const LENGTH_MAX: usize = KEY_BYTES_MAX + TAG_BYTES;

/// With room to copy a whole step wherever a key goes on.
const PLACE: usize = LENGTH_MAX + STEP;

/// The greatest number that takes one byte.
pub(super) const NUMBER_MAX: u32 = 0x7f;

/// Where a number stands, behind kind and hash.
const NUMBER_AT: usize = 1 + size_of::<[u8; 32]>();

/// Bytes of the key of nearly every coin: kind, hash, a number of one byte.
pub(super) const COIN_KEY: usize = NUMBER_AT + 1;

/// The key of something numbered that a hash has, as a coin is an output of a transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NumberedKey<'a> {
    pub(crate) kind: u8,
    pub(crate) hash: &'a [u8; 32],
    pub(crate) number: u32,
}

/// The key of an entry with its tag, in a place of fixed size.
///
/// Keys are short and there are very many of them, so what is done to a key is done to a fixed
/// number of bytes, whatever its length: that needs no loop and no guess of the processor's. Bytes
/// behind the key are of no meaning.
pub(super) struct TaggedKey {
    bytes: [u8; PLACE],
    length: usize,
}

/// No key: it has not even a tag.
impl Default for TaggedKey {
    fn default() -> Self {
        Self { bytes: [0; PLACE], length: 0 }
    }
}

impl Clone for TaggedKey {
    fn clone(&self) -> Self {
        let mut key = Self::default();
        key.clone_from(self);
        key
    }

    #[inline]
    fn clone_from(&mut self, other: &Self) {
        self.bytes[..STEP].copy_from_slice(&other.bytes[..STEP]);
        if other.length > STEP {
            self.bytes[STEP..].copy_from_slice(&other.bytes[STEP..]);
        }
        self.length = other.length;
    }
}

impl TaggedKey {
    /// Becomes this key of a user's, which has at most [`KEY_BYTES_MAX`] bytes.
    #[inline]
    pub(super) fn set(&mut self, user: &[u8], tag: u64) {
        self.bytes[..user.len()].copy_from_slice(user);
        self.bytes[user.len()..][..TAG_BYTES].copy_from_slice(&tag.to_le_bytes());
        self.length = user.len() + TAG_BYTES;
    }

    /// Becomes the key of this kind and hash with a number behind, as Core's VARINT.
    #[inline]
    pub(super) fn set_numbered(&mut self, key: NumberedKey<'_>, tag: u64) {
        self.bytes[0] = key.kind;
        self.bytes[1..NUMBER_AT].copy_from_slice(key.hash);
        let end = if key.number <= NUMBER_MAX {
            self.bytes[NUMBER_AT] = key.number as u8;
            NUMBER_AT + 1
        } else {
            self.set_long_number(key.number)
        };
        self.bytes[end..][..TAG_BYTES].copy_from_slice(&tag.to_le_bytes());
        self.length = end + TAG_BYTES;
    }

    /// Where it ends.
    #[cold]
    fn set_long_number(&mut self, number: u32) -> usize {
        let mut bytes = Vec::with_capacity(5);
        write_varint(&mut bytes, number.into());
        self.bytes[NUMBER_AT..][..bytes.len()].copy_from_slice(&bytes);
        NUMBER_AT + bytes.len()
    }

    /// A key of another kind, without a tag.
    pub(super) fn untagged(bytes: &[u8]) -> Self {
        let mut key = Self::default();
        key.go_on(0, bytes.len(), bytes);
        key
    }

    /// Goes on behind its first `shared` bytes with `own` of `entry`. It must not become longer than
    /// a key with its tag can be.
    #[inline]
    pub(super) fn go_on(&mut self, shared: usize, own: usize, entry: &[u8]) {
        debug_assert!(shared <= self.length && shared + own <= LENGTH_MAX);
        match entry.first_chunk::<STEP>() {
            Some(step) if own <= STEP => self.bytes[shared..][..STEP].copy_from_slice(step),
            _ => self.bytes[shared..][..own].copy_from_slice(&entry[..own]),
        }
        self.length = shared + own;
    }

    pub(super) fn is_none(&self) -> bool {
        self.length == 0
    }

    /// Its bytes.
    #[inline]
    pub(super) fn whole(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Its bytes without the tag.
    #[inline]
    pub(super) fn user(&self) -> &[u8] {
        &self.bytes[..self.length - TAG_BYTES]
    }

    /// How many bytes at the beginnings of both are the same, where this is a key of the same kind
    /// and of one byte for its number, and below: in one of the first eight bytes of the hash, or in
    /// the number alone. `None` where it stands otherwise.
    #[inline]
    pub(super) fn common_below(&self, key: NumberedKey<'_>) -> Option<usize> {
        if self.length != COIN_KEY + TAG_BYTES || self.bytes[0] != key.kind {
            return None;
        }
        let first = |hash: &[u8]| hash.first_chunk().map(|word| u64::from_be_bytes(*word));
        let (ours, theirs) = (first(&self.bytes[1..])?, first(key.hash)?);
        if ours < theirs {
            return Some(1 + (ours ^ theirs).leading_zeros() as usize / 8);
        }
        let same = self.bytes[1..NUMBER_AT] == *key.hash;
        (same && u32::from(self.bytes[NUMBER_AT]) < key.number).then_some(NUMBER_AT)
    }

    /// How many bytes at the beginnings of both are the same.
    #[inline]
    pub(super) fn common(&self, other: &Self) -> usize {
        let least = self.length.min(other.length);
        let (words, others) = (self.bytes.as_chunks().0, other.bytes.as_chunks().0);
        for (at, (word, other)) in words.iter().zip(others).enumerate() {
            let differ = u64::from_le_bytes(*word) ^ u64::from_le_bytes(*other);
            if differ != 0 {
                return least.min(at * size_of::<u64>() + differ.trailing_zeros() as usize / 8);
            }
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An entry as the format has it, from whole keys.
    fn plain(out: &mut Vec<u8>, last: Option<&[u8]>, key: &[u8], value: &[u8]) {
        let same = |last: &[u8]| last.iter().zip(key).take_while(|(a, b)| a == b).count();
        let shared = last.map_or(0, same);
        for length in [shared, key.len() - shared, value.len()] {
            put_varint(out, length as u64);
        }
        out.extend_from_slice(&key[shared..]);
        out.extend_from_slice(value);
    }

    fn tagged(user: &[u8], tag: u64) -> TaggedKey {
        let mut key = TaggedKey::default();
        key.set(user, tag);
        key
    }

    fn keys() -> impl Strategy<Value = Vec<u8>> {
        let few = proptest::collection::vec(0u8..3, 0..12);
        let long = proptest::collection::vec(0u8..2, 60..=64);
        let begun = proptest::collection::vec(0u8..3, 0..30).prop_map(|end| {
            let mut key = vec![7; 33];
            key.extend(end);
            key
        });
        prop_oneof![few, long, begun]
    }

    proptest! {
        /// Some keys go on as the tag of the one before does.
        #[test]
        fn a_block_is_that_of_whole_keys(
            entries in proptest::collection::btree_map(
                keys(),
                proptest::collection::vec(any::<u8>(), 0..200),
                1..60,
            ),
            mask: [u8; 8],
        ) {
            const TAG: u64 = 0x0000_0201;
            const INTERVAL: usize = 4;
            let obfuscation = Obfuscation::new(mask);
            let mut block = BlockWriter::new(INTERVAL);
            // A block begins where another one ended.
            let (mut out, mut expected, mut restarts) = (vec![9; 5], Vec::new(), Vec::new());
            block.begin(&out);
            let mut last: Option<Vec<u8>> = None;
            for (at, (key, value)) in entries.iter().enumerate() {
                let place = tagged(key, TAG);
                let follows = block.follow(&place);
                prop_assert!(follows.above);
                block.put(&mut out, &place, follows, value, obfuscation);
                prop_assert!(!block.follow(&place).above);
                let mut hidden = value.clone();
                obfuscation.apply(&mut hidden, 0);
                if at % INTERVAL == 0 {
                    restarts.push(expected.len() as u32);
                    last = None;
                }
                let whole = [&key[..], &TAG.to_le_bytes()].concat();
                plain(&mut expected, last.as_deref(), &whole, &hidden);
                last = Some(whole);
            }
            prop_assert_eq!(&out[..5], &[9; 5]);
            prop_assert_eq!(&out[5..], &expected[..]);
            block.end(&mut out);
            let count = restarts.len() as u32;
            restarts.push(count);
            expected.extend(restarts.iter().flat_map(|restart| restart.to_le_bytes()));
            prop_assert_eq!(&out[5..], &expected[..]);
            let mut key = TaggedKey::default();
            for _ in 0..2 {
                let found = super::entries(&expected).map(|BlockEntry { shared, own, bytes }| {
                    key.go_on(shared, own, bytes);
                    key.user().to_vec()
                });
                prop_assert!(found.eq(entries.keys().cloned()));
            }
        }

        /// So are nearly all coins, and none may take the slower way unnoticed.
        #[test]
        fn coins_are_short(
            coins in proptest::collection::btree_map(
                (any::<[u8; 32]>(), 0..=NUMBER_MAX),
                proptest::collection::vec(any::<u8>(), HALF..=3 * HALF),
                2..60,
            ),
            mask: [u8; 8],
        ) {
            const TAG: u64 = 0x0000_0201;
            let mask = Obfuscation::new(mask);
            let (mut short, mut plain) = (BlockWriter::new(4), BlockWriter::new(4));
            let (mut out, mut expected) = (vec![9; 5], vec![9; 5]);
            short.begin(&out);
            plain.begin(&expected);
            for (at, ((hash, number), value)) in coins.iter().enumerate() {
                let key = NumberedKey { kind: b'C', hash, number: *number };
                let mut tagged = TaggedKey::default();
                tagged.set_numbered(key, TAG);
                plain.put(&mut expected, &tagged, plain.follow(&tagged), value, mask);
                let taken = short.put_short(&mut out, key, TAG, value, mask);
                prop_assert_eq!(taken, at > 0);
                if !taken {
                    short.put(&mut out, &tagged, short.follow(&tagged), value, mask);
                }
                prop_assert_eq!(&out, &expected);
                prop_assert_eq!(short.last().whole(), plain.last().whole());
                // Neither once more, nor before.
                prop_assert!(!short.put_short(&mut out, key, TAG, value, mask));
                let before = NumberedKey { number: number.saturating_sub(1), ..key };
                prop_assert!(!short.put_short(&mut out, before, TAG, value, mask));
            }
        }

        #[test]
        fn a_key_follows_only_smaller_ones(
            last in proptest::collection::vec(0u8..3, 0..6),
            key in proptest::collection::vec(0u8..3, 0..6),
            tag: u64,
        ) {
            let (mut block, mut out) = (BlockWriter::new(16), Vec::new());
            block.begin(&out);
            prop_assert!(block.follow(&tagged(&last, 257)).above);
            block.append(&mut out, &tagged(&last, 257), b"");
            prop_assert_eq!(block.follow(&tagged(&key, tag)).above, key > last);
        }

        #[test]
        fn beginnings_in_words_are_those_in_bytes(
            a in proptest::collection::vec(0u8..2, 0..30),
            length in 0usize..30,
            b in proptest::collection::vec(0u8..2, 0..30),
            before in proptest::collection::vec(0u8..2, 64),
        ) {
            let b = [&a[..length.min(a.len())], &b].concat();
            let (mut left, mut right) = (TaggedKey::default(), TaggedKey::default());
            // What was there before makes no difference.
            left.set(&before, 1);
            for (place, key) in [(&mut left, &a), (&mut right, &b)] {
                place.go_on(0, key.len(), key);
            }
            let same = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(left.common(&right), same);
        }
    }
}
