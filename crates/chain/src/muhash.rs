//! MuHash3072: a hash of a set that does not depend on order, can be computed in parts, and supports
//! removals.
//!
//! Each element becomes a number modulo a 3072-bit prime. A set is the product of its elements,
//! divided by those removed (Core `crypto/muhash.cpp`). It is kept as numerator and denominator, so
//! that only [`MuHash::finalize`] needs a division. It cannot tell whether an element is in the
//! set: inserting twice, or removing an absent element, is a caller's mistake.
//!
//! [`MuHashBatch`] takes elements one at a time and hashes many at once. [`MuHashBatch::finish`] returns,
//! byte for byte, the same result as inserting and removing the same elements one by one. Use it for sets
//! that grow by hundreds of elements: finishing costs as much as a few dozen elements.

use apus_hash::muhash::{Num3072, Product};
use apus_hash::{Message, sha256, sha256_many};

/// Length of a number in bytes.
const SIZE: usize = Num3072::SIZE;

/// Why bytes are not a MuHash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the {part} of a stored muhash is zero or not below the modulus: the data is damaged")]
pub struct MuHashError {
    /// Either `numerator` or `denominator`.
    pub part: &'static str,
}

/// An incremental MuHash.
///
/// Two are equal if their sets are equal: removing an inserted element restores the previous value.
#[derive(Clone, Debug)]
pub struct MuHash {
    numerator: Num3072,
    denominator: Num3072,
}

impl MuHash {
    /// Length of the stored form.
    pub const SIZE: usize = 2 * SIZE;

    /// Creates the hash of the empty set.
    pub const fn new() -> Self {
        Self { numerator: Num3072::ONE, denominator: Num3072::ONE }
    }

    /// Adds an element.
    pub fn insert(&mut self, element: &[u8]) {
        self.numerator.multiply(&Num3072::of_key(&sha256(element)));
    }

    /// Removes an element.
    pub fn remove(&mut self, element: &[u8]) {
        self.denominator.multiply(&Num3072::of_key(&sha256(element)));
    }

    /// Merges `other`: adds all elements that it added, and removes all that it removed.
    pub fn combine(&mut self, other: &Self) {
        self.numerator.multiply(&other.numerator);
        self.denominator.multiply(&other.denominator);
    }

    /// Returns whether the set is empty: every inserted element was removed, and vice versa. Costs nothing.
    pub fn is_balanced(&self) -> bool {
        self.numerator == self.denominator
    }

    /// Returns the 32-byte hash of the set, in internal byte order (`gettxoutsetinfo` shows it reversed).
    /// Takes about ten microseconds.
    pub fn finalize(&self) -> [u8; 32] {
        let mut quotient = self.denominator.inverse();
        quotient.multiply(&self.numerator);
        sha256(&quotient.to_bytes())
    }

    /// Returns the product of all elements added, and that of all elements removed.
    pub const fn fraction(&self) -> [&Num3072; 2] {
        [&self.numerator, &self.denominator]
    }

    /// Returns the stored form: numerator, then denominator, 384 bytes each, little-endian.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..SIZE].copy_from_slice(&self.numerator.to_bytes());
        bytes[SIZE..].copy_from_slice(&self.denominator.to_bytes());
        bytes
    }

    /// Parses the form that [`to_bytes`](Self::to_bytes) returns. Rejects numbers that no sequence of
    /// elements produces: zero would make every later product zero.
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Result<Self, MuHashError> {
        let number = |part, at: usize| {
            let mut half = [0; SIZE];
            half.copy_from_slice(&bytes[at..at + SIZE]);
            Num3072::from_canonical(&half).ok_or(MuHashError { part })
        };
        Ok(Self { numerator: number("numerator", 0)?, denominator: number("denominator", SIZE)? })
    }
}

impl Default for MuHash {
    fn default() -> Self {
        Self::new()
    }
}

impl PartialEq for MuHash {
    fn eq(&self, other: &Self) -> bool {
        let (mut left, mut right) = (self.numerator.clone(), other.numerator.clone());
        left.multiply(&other.denominator);
        right.multiply(&self.denominator);
        left == right
    }
}

impl Eq for MuHash {}

/// Number of elements hashed at once: many times the lanes of a kernel, so that its working data is
/// seldom reloaded into the first-level cache.
const ELEMENTS: usize = 128;

/// Capacity for the elements hashed at once; most are coins of some 75 bytes.
const BYTES: usize = 12 << 10;

/// Collects elements for a [`MuHash`]. Uses less than 100 KB, regardless of their number.
#[derive(Debug, Default)]
pub struct MuHashBatch {
    inserted: ElementBatch,
    removed: ElementBatch,
}

impl MuHashBatch {
    /// Creates an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an element.
    pub fn insert(&mut self, element: &[u8]) {
        self.inserted.push(element);
    }

    /// Adds the element that `write` appends.
    #[inline]
    pub fn insert_written(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.inserted.push_written(write);
    }

    /// Removes an element.
    pub fn remove(&mut self, element: &[u8]) {
        self.removed.push(element);
    }

    /// Removes the element that `write` appends.
    #[inline]
    pub fn remove_written(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.removed.push_written(write);
    }

    /// Returns the hash of everything inserted and removed.
    pub fn finish(self) -> MuHash {
        MuHash { numerator: self.inserted.finish(), denominator: self.removed.finish() }
    }
}

/// A product, and the elements that wait to be multiplied into it.
#[derive(Debug)]
struct ElementBatch {
    product: Product,
    /// The elements, concatenated; `ends` holds the end of each.
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Default for ElementBatch {
    fn default() -> Self {
        Self {
            product: Product::new(),
            bytes: Vec::with_capacity(BYTES),
            ends: Vec::with_capacity(ELEMENTS),
        }
    }
}

impl ElementBatch {
    #[inline]
    fn push(&mut self, element: &[u8]) {
        if element.len() > BYTES {
            // The element is so long that hashing it takes most of the time, so batching gains nothing.
            return self.product.multiply(&[sha256(element)]);
        }
        if self.ends.len() == ELEMENTS || self.bytes.len() + element.len() > BYTES {
            self.flush();
        }
        self.bytes.extend_from_slice(element);
        self.ends.push(self.bytes.len());
    }

    /// Adds an element that `write` appends to the buffer in place. A long element enlarges the buffer until
    /// it is hashed.
    #[inline]
    fn push_written(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
        if self.ends.len() == ELEMENTS || self.bytes.len() > BYTES {
            self.flush();
            self.bytes.shrink_to(BYTES);
        }
    }

    fn flush(&mut self) {
        let mut start = 0;
        let elements = self.ends.iter().map(|&end| {
            let element = &self.bytes[start..end];
            start = end;
            element
        });
        multiply(&mut self.product, elements);
        self.bytes.clear();
        self.ends.clear();
    }

    fn finish(mut self) -> Num3072 {
        self.flush();
        self.product.finish()
    }
}

/// Hashes the waiting elements and multiplies the product by their numbers.
fn multiply<'a>(product: &mut Product, mut elements: impl Iterator<Item = &'a [u8]>) {
    let mut messages = [Message::default(); ELEMENTS];
    let mut keys = [[0; 32]; ELEMENTS];
    loop {
        let mut count = 0;
        for (message, element) in messages.iter_mut().zip(&mut elements) {
            *message = Message::from(element);
            count += 1;
        }
        if count == 0 {
            return;
        }
        sha256_many(&messages[..count], &mut keys[..count]);
        product.multiply(&keys[..count]);
    }
}

#[cfg(test)]
mod tests;
