//! Partial results merge or are refused, in any order.

use super::*;
use apus_chain::Txid;
use proptest::collection::vec;
use proptest::prelude::*;

/// Different roots for each number.
fn roots(number: u64) -> Roots {
    let mut bytes = [number.to_le_bytes(), u64::from(number.count_ones()).to_le_bytes()].concat();
    (0..number.count_ones()).for_each(|root| bytes.extend([(number as u8) ^ root as u8; 32]));
    Roots::read(&bytes).unwrap()
}

/// The result of blocks `start..end` of a chain; the roots after block `n` are `roots(n)`.
fn part(start: Height, end: Height) -> Partial {
    let mut part = Partial::of(HeightRange::new(start, end), roots(u64::from(start) - 1));
    part.counts.blocks = u64::from(end - start);
    part.made = AmountSums { coins: 5, amount: u128::from(end) << 40, bogosize: 250 };
    part.spent = AmountSums { coins: 2, amount: u128::from(end) << 30, bogosize: 110 };
    part.push_coinbase(CoinbaseId { txid: Txid([0x80 | end as u8; 32]), height: end - 1 });
    part.push_coinbase(CoinbaseId { txid: Txid([start as u8; 32]), height: start });
    part.end_with(roots(u64::from(end) - 1));
    part
}

fn bytes(partial: &Partial) -> Vec<u8> {
    let mut out = Vec::new();
    partial.write(&mut out);
    out
}

fn merged(parts: &[&Partial]) -> Result<Partial, ProvenMergeError> {
    let mut whole = Partial::default();
    parts.iter().try_for_each(|part| whole.merge(part))?;
    Ok(whole)
}

proptest! {
    #[test]
    fn merge_order_and_grouping_do_not_matter(
        lengths in vec((1u32..9, 0u32..2), 1..8),
        order: Vec<prop::sample::Index>,
        group in 0usize..8,
    ) {
        let mut next = 1;
        let mut parts: Vec<Partial> = lengths.iter().map(|(length, gap)| {
            let start = next + gap;
            next = start + length;
            part(start, next)
        }).collect();
        let whole = merged(&parts.iter().collect::<Vec<_>>()).unwrap();
        for (at, with) in order.iter().enumerate() {
            let (at, with) = (at % parts.len(), with.index(parts.len()));
            parts.swap(at, with);
        }
        let (some, others) = parts.split_at(group.min(parts.len()));
        let some = merged(&some.iter().collect::<Vec<_>>()).unwrap();
        let others = merged(&others.iter().collect::<Vec<_>>()).unwrap();
        prop_assert_eq!(&merged(&[&some, &others]).unwrap(), &whole);
        prop_assert_eq!(&merged(&[&others, &some]).unwrap(), &whole);
        let written = bytes(&whole);
        let mut reader = Reader::new(&written);
        prop_assert_eq!(Partial::read(&mut reader), Some(whole));
        prop_assert_eq!(reader.remaining(), 0);
    }

    /// Merging fails wherever a range begins with other roots, and in any order of merging.
    #[test]
    fn ranges_that_do_not_fit_never_merge(at in 1usize..6, swaps: [prop::sample::Index; 6]) {
        let mut parts: Vec<Partial> = (0..6).map(|n| part(1 + 4 * n, 5 + 4 * n)).collect();
        parts[at].roots[0].0 = roots(99);
        for (from, to) in swaps.iter().enumerate() {
            parts.swap(from, to.index(6));
        }
        let height = 1 + 4 * at as u32;
        let expected = u64::from(height) - 1;
        let differ = RootsDiffer::Leaves { found: 99, expected };
        let refused = merged(&parts.iter().collect::<Vec<_>>());
        prop_assert_eq!(refused, Err(ProvenMergeError::Roots { height, differ }));
    }

    #[test]
    fn readable_damaged_bytes_round_trip(
        places in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        any in vec(any::<u8>(), 0..300),
    ) {
        let _ = Partial::read(&mut Reader::new(&any));
        let mut damaged = bytes(&merged(&[&part(3, 9), &part(12, 14)]).unwrap());
        for (place, byte) in places {
            let place = place.index(damaged.len());
            damaged[place] = byte;
        }
        let mut reader = Reader::new(&damaged);
        if let Some(partial) = Partial::read(&mut reader) {
            prop_assert_eq!(&bytes(&partial)[..], &damaged[..reader.position()]);
        }
    }
}

#[test]
fn merging_adds_all_totals() {
    let whole = merged(&[&part(5, 9), &part(1, 5)]).unwrap();
    assert_eq!(whole.ranges(), [HeightRange::new(1, 9)]);
    assert_eq!(whole.ends(), Some((Roots::default(), roots(8))));
    let amount = (14u128 << 40) - (14 << 30);
    assert_eq!(whole.coins(), AmountSums { coins: 6, amount, bogosize: 280 });
    assert_eq!((whole.counts.blocks, whole.done().blocks), (8, 8));
    let heights: Vec<Height> = whole.coinbases().iter().map(|it| it.height).collect();
    assert_eq!(heights, [1, 5, 4, 8], "ascending ids");
}

/// A refused part changes nothing.
#[test]
fn parts_that_overlap_or_do_not_fit_are_refused() {
    let mut whole = part(1, 5);
    let before = whole.clone();
    assert_eq!(whole.merge(&part(4, 6)), Err(ProvenMergeError::Overlap(4)));
    let mut other = part(5, 9);
    other.roots[0].0.clone_from(&roots(12));
    assert!(matches!(whole.merge(&other), Err(ProvenMergeError::Roots { height: 5, .. })));
    assert_eq!(whole, before);
}

#[test]
fn different_roots_are_distinguished() {
    let found = roots(6);
    let expected = {
        let mut bytes = Vec::new();
        found.write(&mut bytes);
        bytes[16 + 32] ^= 1;
        Roots::read(&bytes).unwrap()
    };
    let differ = RootsDiffer::between(&found, &expected);
    let [found_root, expected_root] = [&found, &expected].map(|roots| roots.hashes()[1]);
    let root = RootsDiffer::Root { index: 1, found: found_root, expected: expected_root };
    assert_eq!(differ, root);
    let differ = RootsDiffer::between(&found, &roots(4));
    assert_eq!(differ, RootsDiffer::Leaves { found: 6, expected: 4 });
}
