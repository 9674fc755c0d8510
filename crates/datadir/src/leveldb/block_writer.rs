//! [`BlockWriter`] writes the entries of one block of a table (LevelDB `table/block_builder.cc`); [`entries`]
//! reads them back.
//!
//! Except at restarts, a key is stored without the bytes that it shares with the previous key. The writer
//! reports whether keys ascend; the caller must act on it.

use super::{put_varint, varint};
use crate::files::Obfuscation;
use apus_chain::{Reader, write_varint};

/// The length of a short entry's head: three lengths, one byte each.
const LENGTHS: usize = 3;

/// Half the length of a hash. Short entries are copied in pieces of this size: a short value has one to
/// three.
const HALF: usize = size_of::<[u8; 32]>() / 2;

/// The length limit of a short entry.
const SHORT_MAX: usize = LENGTHS + (1 + 2 * HALF + 1 + TAG_BYTES) + 3 * HALF;

/// How a key compares with the previous one.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyRelation {
    /// The number of first bytes that both keys share.
    common: usize,
    /// Whether its user key is greater.
    pub(super) above: bool,
}

/// One block at the end of a buffer that the caller owns.
pub(super) struct BlockWriter {
    /// The start of the block in the buffer.
    start: usize,
    /// The number of entries from one restart to the next.
    interval: usize,
    restarts: Vec<u32>,
    /// Entries since the last restart.
    run: usize,
    /// The previous key; stays when a block ends.
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

    /// The start of the block in the buffer.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    pub(super) fn is_empty(&self, out: &[u8]) -> bool {
        out.len() == self.start
    }

    /// The length of the block if it ended now.
    pub(super) fn size(&self, out: &[u8]) -> usize {
        out.len() - self.start + self.restarts.len() * 4 + 4
    }

    /// The last key of this block or a previous one.
    pub(super) fn last(&self) -> &TaggedKey {
        &self.last
    }

    /// Compares this key with the last one.
    #[inline]
    pub(super) fn follow(&self, key: &TaggedKey) -> KeyRelation {
        let common = key.common(&self.last);
        if self.last.is_none() {
            return KeyRelation { common, above: true };
        }
        let (last, user) = (self.last.user(), key.user());
        let same = common.min(last.len()).min(user.len());
        // A key that extends the last one is greater.
        let above = same < user.len() && (same == last.len() || user[same] > last[same]);
        KeyRelation { common, above }
    }

    /// Appends an entry and obfuscates its value. `follows` is the result of comparing its key with the last
    /// one.
    pub(super) fn put(
        &mut self,
        out: &mut Vec<u8>,
        key: &TaggedKey,
        follows: KeyRelation,
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

    /// Like [`put`](Self::put), in a fraction of the time: it builds no key, has no loop, and takes few
    /// branches that a processor could mispredict. It handles nearly all coins. Returns false and does
    /// nothing for the first entry of a block, an entry that is too long or too short, or one that does not
    /// follow a coin with a smaller key that differs early or only in the number. Use [`put`](Self::put)
    /// then.
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
        // Parts of varying length are copied as overlapping pieces of one size.
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
            let piece: &[u8; HALF] =
                value[from..].first_chunk().expect("a short value has at least HALF bytes");
            let piece = obfuscation.applied(piece, from as u64);
            entry[value_at + from..][..HALF].copy_from_slice(&piece);
        }
        let own = value_at - LENGTHS;
        entry[..LENGTHS].copy_from_slice(&[shared as u8, own as u8, value.len() as u8]);
        out.truncate(at + value_at + value.len());
        self.last.set_numbered(key, tag);
        true
    }

    /// Appends an entry whose key need not ascend.
    pub(super) fn append(&mut self, out: &mut Vec<u8>, key: &TaggedKey, value: &[u8]) {
        self.put(out, key, self.follow(key), value, Obfuscation::NONE);
    }

    /// Counts a new entry. Returns true if it must store its whole key.
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

/// A parsed entry of a block.
pub(super) struct BlockEntry<'a> {
    /// The number of bytes shared with the previous key.
    pub(super) shared: usize,
    /// The number of further bytes of the key.
    pub(super) own: usize,
    /// These bytes, and everything after them in the block.
    pub(super) bytes: &'a [u8],
}

/// Iterates over the entries of a block that a [`BlockWriter`] made.
#[inline]
pub(super) fn entries(block: &[u8]) -> impl Iterator<Item = BlockEntry<'_>> {
    const OWN: &str = "a block that this program wrote";
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

/// The length of a tag: sequence number and kind (LevelDB `db/dbformat.h`).
pub(super) const TAG_BYTES: usize = 8;

/// More than the length of any of Core's keys: the longest are those of coins, 1 + 32 + 5 bytes.
pub(super) const KEY_BYTES_MAX: usize = 64;

/// The number of key bytes copied at once: all of a coin's key with its tag.
const STEP: usize = 48;

const LENGTH_MAX: usize = KEY_BYTES_MAX + TAG_BYTES;

/// The buffer's length: room to copy a whole step at any position of a key.
const PLACE: usize = LENGTH_MAX + STEP;

/// The largest number that takes one byte.
pub(super) const NUMBER_MAX: u32 = 0x7f;

/// The offset of the number, after kind and hash.
const NUMBER_AT: usize = 1 + size_of::<[u8; 32]>();

/// The length of nearly every coin's key: kind, hash, and a number of one byte.
pub(super) const COIN_KEY: usize = NUMBER_AT + 1;

/// The key of a numbered item of a hash, such as an output of a transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NumberedKey<'a> {
    pub(crate) kind: u8,
    pub(crate) hash: &'a [u8; 32],
    pub(crate) number: u32,
}

/// The key of an entry with its tag, in a fixed-size buffer.
///
/// Keys are short but numerous, so each operation handles a fixed number of bytes, whatever the key's length:
/// no loop, no branch to predict. Bytes after the key have no meaning.
pub(super) struct TaggedKey {
    bytes: [u8; PLACE],
    length: usize,
}

/// The initial state: no key, not even a tag.
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
    /// Sets the user key, which has at most [`KEY_BYTES_MAX`] bytes.
    #[inline]
    pub(super) fn set(&mut self, user: &[u8], tag: u64) {
        self.bytes[..user.len()].copy_from_slice(user);
        self.bytes[user.len()..][..TAG_BYTES].copy_from_slice(&tag.to_le_bytes());
        self.length = user.len() + TAG_BYTES;
    }

    /// Sets the key to this kind and hash, followed by a number as Core's VARINT.
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

    /// Sets a number of more than one byte; returns the end of the key.
    #[cold]
    fn set_long_number(&mut self, number: u32) -> usize {
        let mut bytes = Vec::with_capacity(5);
        write_varint(&mut bytes, number.into());
        self.bytes[NUMBER_AT..][..bytes.len()].copy_from_slice(&bytes);
        NUMBER_AT + bytes.len()
    }

    /// Sets a key of any other form, without a tag.
    pub(super) fn untagged(bytes: &[u8]) -> Self {
        let mut key = Self::default();
        key.continue_with(0, bytes.len(), bytes);
        key
    }

    /// Keeps the first `shared` bytes and appends `own` bytes of `entry`. The result must not exceed the
    /// longest key with its tag.
    #[inline]
    pub(super) fn continue_with(&mut self, shared: usize, own: usize, entry: &[u8]) {
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

    /// The key's bytes.
    #[inline]
    pub(super) fn whole(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The key's bytes without the tag.
    #[inline]
    pub(super) fn user(&self) -> &[u8] {
        &self.bytes[..self.length - TAG_BYTES]
    }

    /// Counts the common first bytes if this key has the same kind and a one-byte number, and is smaller: in
    /// one of the first eight bytes of the hash, or only in the number. Otherwise `None`.
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

    /// Counts the first bytes that both keys share.
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

    /// Encodes an entry by the format's definition, from whole keys.
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
        /// Some keys continue with bytes equal to the previous key's tag.
        #[test]
        fn a_block_equals_one_made_from_whole_keys(
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
            // A block starts where another one ended.
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
                    key.continue_with(shared, own, bytes);
                    key.user().to_vec()
                });
                prop_assert!(found.eq(entries.keys().cloned()));
            }
        }

        /// Nearly all coins are short, and a slow path for them must not go unnoticed.
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
                // The same key again and a smaller one are refused.
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
        fn comparing_words_equals_comparing_bytes(
            a in proptest::collection::vec(0u8..2, 0..30),
            length in 0usize..30,
            b in proptest::collection::vec(0u8..2, 0..30),
            before in proptest::collection::vec(0u8..2, 64),
        ) {
            let b = [&a[..length.min(a.len())], &b].concat();
            let (mut left, mut right) = (TaggedKey::default(), TaggedKey::default());
            // Leftovers of a previous key make no difference.
            left.set(&before, 1);
            for (place, key) in [(&mut left, &a), (&mut right, &b)] {
                place.continue_with(0, key.len(), key);
            }
            let same = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(left.common(&right), same);
        }
    }
}
