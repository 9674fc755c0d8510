//! Tests sets in any order and from parts, one by one and in batches.

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
fn inserted_and_removed_elements_have_a_known_hash() {
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
    let hash = MuHash { numerator: Num3072::from_bytes(&[0xff; SIZE]), denominator: Num3072::ONE };
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
fn the_hash_depends_on_the_set_not_on_its_history() {
    let hash = of(&[b"a", b"b", b"c"], &[b"b"]);
    assert_eq!(hash.finalize(), of(&[b"c", b"a"], &[]).finalize());
    assert_ne!(hash.finalize(), of(&[b"c"], &[]).finalize());
}

#[test]
fn many_elements_and_long_ones_can_be_batched() {
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
    let (mut batch, mut expected) = (MuHashBatch::new(), MuHash::new());
    for (i, element) in elements.iter().enumerate() {
        match i % 3 {
            0 => batch.insert_written(|out| out.extend_from_slice(element)),
            _ => batch.insert(element),
        }
        expected.insert(element);
    }
    assert_eq!(batch.finish().to_bytes(), expected.to_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Inserts and removes elements of any length in any order, in batches of any size.
    #[test]
    fn batches_equal_single_steps(
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
    }
}
