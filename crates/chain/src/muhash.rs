//! MuHash3072: a hash of a set that can be built in any order, from parts, and with removals.
//!
//! Each element becomes a number modulo a 3072-bit prime; a set is the product of its elements,
//! divided by those removed (Core `crypto/muhash.cpp`). Kept as numerator and denominator, so that
//! only [`MuHash::finalize`] pays for a division. It cannot tell whether an element is in the set:
//! inserting twice and removing what was never there are the caller's mistakes.

mod batch;

pub use batch::MuHashBatch;

use apus_hash::muhash::{Num3072, Product};
use apus_hash::sha256;

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

    /// Adds elements. Many at once are several times faster than one by one.
    pub fn insert_many(&mut self, elements: &[impl AsRef<[u8]>]) {
        self.numerator.multiply(&product_of(elements));
    }

    /// Takes elements away. Many at once are several times faster than one by one.
    pub fn remove_many(&mut self, elements: &[impl AsRef<[u8]>]) {
        self.denominator.multiply(&product_of(elements));
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

/// The product of the numbers of elements.
fn product_of(elements: &[impl AsRef<[u8]>]) -> Num3072 {
    let mut product = Product::new();
    batch::multiply(&mut product, elements.iter().map(AsRef::as_ref));
    product.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn of(inserted: &[&[u8]], removed: &[&[u8]]) -> MuHash {
        let mut hash = MuHash::new();
        inserted.iter().for_each(|element| hash.insert(element));
        removed.iter().for_each(|element| hash.remove(element));
        hash
    }

    fn shown(hash: [u8; 32]) -> String {
        hash.iter().rev().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn known_hash_of_inserted_and_removed_elements() {
        let element = |first: u8| {
            let mut bytes = [0; 32];
            bytes[0] = first;
            bytes
        };
        let hash = of(&[&element(0), &element(1)], &[&element(2)]);
        assert_eq!(
            shown(hash.finalize()),
            "10d312b100cbd32ada024a6646e40d3482fcff103668d2625f10002a607d5863"
        );
    }

    #[test]
    fn a_number_above_the_modulus_is_reduced_before_hashing() {
        let hash =
            MuHash { numerator: Num3072::from_bytes(&[0xff; SIZE]), denominator: Num3072::ONE };
        assert_eq!(
            shown(hash.finalize()),
            "7122dce59a311400b92298a0cde26ce71d868b7f9f9a2ff6e90dff3a90e6313a"
        );
    }

    #[test]
    fn the_empty_set_is_balanced_and_its_stored_form_is_known() {
        let empty = MuHash::new();
        assert!(empty.is_balanced());
        let bytes = empty.to_bytes();
        assert_eq!((bytes[0], bytes[SIZE]), (1, 1));
        assert_eq!(bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>(), 2);
    }

    #[test]
    fn damaged_stored_forms_are_refused() {
        let good = of(&[b"a"], &[b"b"]).to_bytes();
        for (part, at) in [("numerator", 0), ("denominator", SIZE)] {
            for fill in [0, 0xff] {
                let mut bytes = good;
                bytes[at..at + SIZE].fill(fill);
                assert_eq!(MuHash::from_bytes(&bytes), Err(MuHashError { part }));
            }
        }
    }

    fn any_elements() -> impl Strategy<Value = Vec<Vec<u8>>> {
        vec(vec(any::<u8>(), 0..100), 0..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn order_and_parts_do_not_matter(
            elements in any_elements(),
            keys in vec(any::<u32>(), 12),
            cut in any::<proptest::sample::Index>(),
        ) {
            let whole: Vec<&[u8]> = elements.iter().map(Vec::as_slice).collect();
            let mut order: Vec<usize> = (0..whole.len()).collect();
            order.sort_by_key(|&i| keys[i]);
            let shuffled: Vec<&[u8]> = order.iter().map(|&i| whole[i]).collect();
            let hash = of(&whole, &[]);
            prop_assert_eq!(hash.to_bytes(), of(&shuffled, &[]).to_bytes());
            let (first, second) = shuffled.split_at(cut.index(shuffled.len() + 1));
            let mut parts = of(second, &[]);
            parts.combine(&of(first, &[]));
            prop_assert_eq!(hash.to_bytes(), parts.to_bytes());
        }

        #[test]
        fn removing_all_leaves_the_empty_set(elements in any_elements()) {
            let all: Vec<&[u8]> = elements.iter().map(Vec::as_slice).collect();
            let hash = of(&all, &all);
            prop_assert!(hash.is_balanced());
            prop_assert_eq!(&hash, &MuHash::new());
            if let [first, rest @ ..] = &all[..] {
                prop_assert!(!of(&all, rest).is_balanced());
                prop_assert_eq!(of(&all, rest), of(&[first], &[]));
                prop_assert_ne!(of(&all, &[]), of(rest, &[]));
            }
        }

        #[test]
        fn stored_form_round_trips(elements in any_elements(), removed in any_elements()) {
            let all: Vec<&[u8]> = elements.iter().map(Vec::as_slice).collect();
            let removed: Vec<&[u8]> = removed.iter().map(Vec::as_slice).collect();
            let hash = of(&all, &removed);
            let back = MuHash::from_bytes(&hash.to_bytes()).unwrap();
            prop_assert_eq!(back.to_bytes(), hash.to_bytes());
        }
    }

    #[test]
    fn the_hash_is_that_of_the_set_not_of_its_history() {
        let hash = of(&[b"a", b"b", b"c"], &[b"b"]);
        assert_eq!(hash.finalize(), of(&[b"c", b"a"], &[]).finalize());
        assert_ne!(hash.finalize(), of(&[b"c"], &[]).finalize());
    }
}
