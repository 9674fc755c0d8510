//! [`MuHashBatch`]: a MuHash of elements that come one at a time and are hashed many at once.
//!
//! Invariant: what [`MuHashBatch::finish`] gives is, byte for byte, what inserting and removing the
//! same elements one by one gives. It is for sets that grow by hundreds of elements: finishing
//! costs as much as a few dozen of them.

use super::MuHash;
use apus_hash::muhash::{Num3072, Product};
use apus_hash::{Message, sha256, sha256_many};

/// Elements hashed at once: many times all lanes of a kernel, so that what it works on is brought
/// into the first-level cache seldom enough.
pub(super) const ELEMENTS: usize = 128;

/// Room for as many elements as are hashed at once, most of which are coins of some 75 bytes.
const BYTES: usize = 12 << 10;

/// Elements on their way into a [`MuHash`]. Takes less than 100 KB, however many they are.
#[derive(Debug, Default)]
pub struct MuHashBatch {
    inserted: Gathered,
    removed: Gathered,
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
struct Gathered {
    product: Product,
    /// The elements one after the other, and where each ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Default for Gathered {
    fn default() -> Self {
        Self {
            product: Product::new(),
            bytes: Vec::with_capacity(BYTES),
            ends: Vec::with_capacity(ELEMENTS),
        }
    }
}

impl Gathered {
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
pub(super) fn multiply<'a>(product: &mut Product, mut elements: impl Iterator<Item = &'a [u8]>) {
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
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn many_elements_and_long_ones() {
        let element = |i: usize| {
            let len = match i % 40 {
                7 => BYTES + i % 2,
                8 => BYTES / 2,
                9 => 0,
                _ => i % 120,
            };
            vec![i as u8; len]
        };
        let elements: Vec<Vec<u8>> = (0..3 * ELEMENTS + 5).map(element).collect();
        let (mut batch, mut many, mut expected) =
            (MuHashBatch::new(), MuHash::new(), MuHash::new());
        for (i, element) in elements.iter().enumerate() {
            match i % 3 {
                0 => batch.insert_written(|out| out.extend_from_slice(element)),
                _ => batch.insert(element),
            }
            expected.insert(element);
        }
        many.insert_many(&elements);
        assert_eq!(batch.finish().to_bytes(), expected.to_bytes());
        assert_eq!(many.to_bytes(), expected.to_bytes());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Elements of any length in any order of insertions and removals, in batches cut anywhere.
        #[test]
        fn batches_give_what_single_steps_give(
            steps in vec((any::<bool>(), vec(any::<u8>(), 0..100)), 0..150),
            cut in any::<proptest::sample::Index>(),
        ) {
            let mut expected = MuHash::new();
            for (insert, element) in &steps {
                if *insert { expected.insert(element) } else { expected.remove(element) }
            }
            let (first, second) = steps.split_at(cut.index(steps.len() + 1));
            let mut hash = MuHash::new();
            for part in [first, second] {
                let mut batch = MuHashBatch::new();
                for (insert, element) in part {
                    match insert {
                    true if element.len() % 2 == 0 => batch.insert(element),
                    true => batch.insert_written(|out| out.extend_from_slice(element)),
                    false => batch.remove(element),
                }
                }
                hash.combine(&batch.finish());
            }
            prop_assert_eq!(hash.to_bytes(), expected.to_bytes());

            let elements = |wanted: bool| -> Vec<&[u8]> {
                let chosen = steps.iter().filter(|(insert, _)| *insert == wanted);
                chosen.map(|(_, element)| &element[..]).collect()
            };
            let mut hash = MuHash::new();
            hash.insert_many(&elements(true));
            hash.remove_many(&elements(false));
            prop_assert_eq!(hash.to_bytes(), expected.to_bytes());
        }
    }
}
