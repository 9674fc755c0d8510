//! MuHash3072: a hash of a set that can be built in any order, from parts, and with removals.
//!
//! Each element becomes a number modulo a 3072-bit prime; a set is the product of its elements,
//! divided by those removed (Core `crypto/muhash.cpp`). Kept as numerator and denominator, so that
//! only [`MuHash::finalize`] pays for a division. It cannot tell whether an element is in the set:
//! inserting twice and removing what was never there are the caller's mistakes.
//!
//! [`MuHashBatch`] is for elements that come one at a time and are hashed many at once: what
//! [`MuHashBatch::finish`] gives is, byte for byte, what inserting and removing the same elements one by one gives.
//! It is for sets that grow by hundreds of elements: finishing costs as much as a few dozen of them.

use apus_hash::muhash::{Num3072, Product};
use apus_hash::{Message, sha256, sha256_many};

/// Bytes of a number.
const SIZE: usize = Num3072::SIZE;

/// Why bytes are no MuHash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the {part} of a stored muhash is zero or not below the modulus: the data is damaged")]
pub struct MuHashError {
    /// `numerator` or `denominator`.
    pub part: &'static str,
}

/// A running MuHash.
///
/// Equality is that of the sets: a hash with an element inserted and removed again equals one
/// that never had it.
#[derive(Clone, Debug)]
pub struct MuHash {
    numerator: Num3072,
    denominator: Num3072,
}

impl MuHash {
    /// Length of the stored form.
    pub const SIZE: usize = 2 * SIZE;

    /// The hash of the empty set.
    pub const fn new() -> Self {
        Self { numerator: Num3072::ONE, denominator: Num3072::ONE }
    }

    /// Adds an element.
    pub fn insert(&mut self, element: &[u8]) {
        self.numerator.multiply(&Num3072::of_key(&sha256(element)));
    }

    /// Takes an element away.
    pub fn remove(&mut self, element: &[u8]) {
        self.denominator.multiply(&Num3072::of_key(&sha256(element)));
    }

    /// Adds all that `other` added, and takes away what it took away.
    pub fn combine(&mut self, other: &Self) {
        self.numerator.multiply(&other.numerator);
        self.denominator.multiply(&other.denominator);
    }

    /// Whether everything inserted was removed again and the reverse, so that the empty set is
    /// left. Costs nothing.
    pub fn is_balanced(&self) -> bool {
        self.numerator == self.denominator
    }

    /// The 32-byte hash of the set, in internal byte order (`gettxoutsetinfo` shows it reversed).
    /// Takes some ten microseconds.
    pub fn finalize(&self) -> [u8; 32] {
        let mut quotient = self.denominator.inverse();
        quotient.multiply(&self.numerator);
        sha256(&quotient.to_bytes())
    }

    /// The stored form: numerator, then denominator, 384 bytes each, little-endian.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..SIZE].copy_from_slice(&self.numerator.to_bytes());
        bytes[SIZE..].copy_from_slice(&self.denominator.to_bytes());
        bytes
    }

    /// The reverse of [`to_bytes`](Self::to_bytes). Numbers that no sequence of elements gives are
    /// refused: zero would swallow everything that follows.
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

/// Elements hashed at once: many times all lanes of a kernel, so that what it works on is brought
/// into the first-level cache seldom enough.
const ELEMENTS: usize = 128;

/// Room for as many elements as are hashed at once, most of which are coins of some 75 bytes.
const BYTES: usize = 12 << 10;

/// Elements on their way into a [`MuHash`]. Takes less than 100 KB, however many they are.
#[derive(Debug, Default)]
pub struct MuHashBatch {
    inserted: ElementBatch,
    removed: ElementBatch,
}

impl MuHashBatch {
    /// A batch of nothing.
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

    /// Takes an element away.
    pub fn remove(&mut self, element: &[u8]) {
        self.removed.push(element);
    }

    /// The hash of all that was inserted and removed.
    pub fn finish(self) -> MuHash {
        MuHash { numerator: self.inserted.finish(), denominator: self.removed.finish() }
    }
}

/// A product, and elements that are not in it yet.
#[derive(Debug)]
struct ElementBatch {
    product: Product,
    /// The elements one after the other, and where each ends.
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
            // So long that its hash takes most of the time.
            return self.product.multiply(&[sha256(element)]);
        }
        if self.ends.len() == ELEMENTS || self.bytes.len() + element.len() > BYTES {
            self.flush();
        }
        self.bytes.extend_from_slice(element);
        self.ends.push(self.bytes.len());
    }

    /// An element is written where it stays until it is hashed. A long one makes the room grow for
    /// as long as it is there.
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

/// Multiplies with the numbers of elements.
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
