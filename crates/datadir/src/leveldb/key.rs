//! [`TaggedKey`]: the key of an entry with its tag, in a place of fixed size.
//!
//! Keys are short and there are very many of them, so what is done to a key is done to a fixed
//! number of bytes, whatever its length: that needs no loop and no guess of the processor's. Bytes
//! behind the key are of no meaning.

use apus_chain::write_varint;

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
