//! Tests of properties that hold for any chain, division and order.

use crate::swiftsync::harness::{
    Chain, Division, KINDS, coin_hints, equal_segments, index_hints, random_division, range_of,
    snapshot,
};
use crate::swiftsync::shapes::random_chain;
use crate::swiftsync::wrong_hints::{flipped, spendable_count};
use apus_chain::Reader;
use apus_sync::engines::pass::{PartialResult, Pass};
use apus_sync::engines::swiftsync::Partial;
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_testkit::rng::Rng;
use proptest::prelude::*;

const BLOCKS: u32 = 14;

/// Makes the partial results of a chain, all with one aggregate.
fn parts(chain: &Chain, kind: AggregateKind, division: &Division) -> Vec<Partial> {
    let (engine, hints) = (chain.engine(kind), chain.hints());
    let part = |order: &Vec<u32>| {
        let segment = chain.segment(&engine, index_hints(&hints, range_of(order)), order);
        segment.unwrap().partial
    };
    division.iter().map(part).collect()
}

fn bytes(partial: &Partial) -> Vec<u8> {
    let mut bytes = Vec::new();
    partial.write(&mut bytes);
    bytes
}

fn merged(mut to: Partial, with: &Partial) -> Partial {
    to.merge(with).unwrap();
    to
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn division_and_order_do_not_matter(seed: u64, shuffle: u64, other: bool) {
        let kind = KINDS[usize::from(other)];
        // Without BIP-34, remembered coinbases are compared, too.
        let blocks = random_chain(seed, BLOCKS).blocks();
        let chain = Chain::with(&crate::swiftsync::harness::without_bip34(), blocks);
        let (hints, coins) = (chain.hints(), snapshot(&chain.utxo()));
        let plain = chain.run_divided(kind, &equal_segments(BLOCKS, 1), |range| {
            index_hints(&hints, range)
        });
        let plain = plain.unwrap();
        prop_assert_eq!(&plain.hints, &hints);
        prop_assert_eq!(plain.whole.coinbases.len() as u32, BLOCKS);
        let division = random_division(BLOCKS, &mut Rng::new(shuffle));
        for by_name in [false, true] {
            let divided = chain.run_divided(kind, &division, |range| match by_name {
                true => coin_hints(&coins, range),
                false => index_hints(&hints, range),
            });
            let divided = divided.unwrap();
            prop_assert_eq!(&divided, &plain);
            prop_assert_eq!(bytes(&divided.whole), bytes(&plain.whole));
        }
    }

    #[test]
    fn the_order_of_blocks_in_a_segment_does_not_matter(seed: u64, shuffle: u64) {
        let chain = Chain::with(&crate::swiftsync::harness::without_bip34(), random_chain(seed, 8).blocks());
        let (engine, hints) = (chain.engine(KINDS[0]), chain.hints());
        let mut order: Vec<u32> = (1..=8).collect();
        let range = range_of(&order);
        let plain = chain.segment(&engine, index_hints(&hints, range), &order).unwrap();
        Rng::new(shuffle).shuffle(&mut order);
        let other = chain.segment(&engine, index_hints(&hints, range), &order).unwrap();
        prop_assert_eq!(bytes(&other.partial), bytes(&plain.partial));
        prop_assert_eq!(other.run, plain.run);
        prop_assert_eq!(other.hints, plain.hints);
    }

    #[test]
    fn merging_is_associative_and_commutative_and_nothing_is_neutral(seed: u64, other: bool) {
        let kind = KINDS[usize::from(other)];
        let chain = Chain::with(&crate::swiftsync::harness::without_bip34(), random_chain(seed, 9).blocks());
        let mut rng = Rng::new(seed);
        let mut division = equal_segments(9, 3);
        division.iter_mut().for_each(|segment| rng.shuffle(segment));
        rng.shuffle(&mut division);
        let parts = parts(&chain, kind, &division);
        let [a, b, c] = [&parts[0], &parts[1], &parts[2]];
        let left = merged(merged(a.clone(), b), c);
        let right = merged(a.clone(), &merged(b.clone(), c));
        let back = merged(merged(c.clone(), b), a);
        prop_assert_eq!(bytes(&left), bytes(&right));
        prop_assert_eq!(bytes(&left), bytes(&back));
        prop_assert_eq!(left.coinbases.len(), 9);
        let nothing = chain.engine(kind).nothing();
        prop_assert_eq!(bytes(&merged(nothing.clone(), a)), bytes(a));
        prop_assert_eq!(bytes(&merged(a.clone(), &nothing)), bytes(a));
    }

    #[test]
    fn partial_results_survive_their_byte_form(seed: u64, other: bool, cut: prop::sample::Index) {
        let kind = KINDS[usize::from(other)];
        let chain = Chain::with(&crate::swiftsync::harness::without_bip34(), random_chain(seed, 5).blocks());
        let parts = parts(&chain, kind, &equal_segments(5, 5));
        // A gap leaves two ranges.
        let partial = merged(parts[0].clone(), &merged(parts[4].clone(), &parts[2]));
        let bytes = bytes(&partial);
        let with_tail = [&bytes[..], b"tail"].concat();
        let mut reader = Reader::new(&with_tail);
        let back = Partial::read(&mut reader).unwrap();
        prop_assert_eq!(&back, &partial);
        prop_assert_eq!(back.ranges(), partial.ranges());
        prop_assert_eq!(reader.position(), bytes.len());
        let cut = cut.index(bytes.len());
        prop_assert_eq!(Partial::read(&mut Reader::new(&bytes[..cut])), None);
    }

    #[test]
    fn any_few_wrong_bits_make_a_run_fail(
        seed: u64,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..6),
    ) {
        let chain = Chain::of(&random_chain(seed, BLOCKS));
        let right = chain.hints();
        let mut hints = right.clone();
        for (block, index) in flips {
            let block = block.index(BLOCKS as usize);
            let spendable = spendable_count(&chain.blocks[block + 1]) as usize;
            if spendable > 0 {
                hints = flipped(&hints, block, index.index(spendable) as u32);
            }
        }
        for kind in KINDS {
            prop_assert_eq!(chain.run(kind, &hints).is_ok(), hints == right);
        }
    }
}
