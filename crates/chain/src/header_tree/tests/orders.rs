//! The order of arrival only affects the choice between chains of equal work.

use super::{NOW, mine_child, raw_headers};
use crate::hashes::BlockHash;
use crate::header::Header;
use crate::header_tree::{HeaderAcceptance, HeaderStatus, HeaderTree};
use crate::params::{Network, Params};
use proptest::prelude::*;

/// Builds a tree on regtest: entry `i` is a child of entry `parents[i] % (i + 1)`, where 0 is genesis.
fn random_tree(parents: &[usize]) -> (Vec<Header>, Vec<u32>) {
    let params = Params::of(Network::Regtest);
    let (mut headers, mut heights) = (vec![params.genesis_header], vec![0]);
    for (i, parent) in parents.iter().enumerate() {
        let parent = parent % (i + 1);
        headers.push(mine_child(params, &headers[parent], i as u32));
        heights.push(heights[parent] + 1);
    }
    (headers, heights)
}

/// Makes `parents` that form long chains as well as bushes, and the order of inserting their headers.
fn tree_and_order() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
    let parent = prop_oneof![3 => Just(usize::MAX), 1 => 0usize..40];
    proptest::collection::vec(parent, 1..40).prop_flat_map(|parents| {
        let parents: Vec<usize> =
            parents.iter().enumerate().map(|(i, &p)| if p == usize::MAX { i } else { p }).collect();
        let order: Vec<usize> = (1..=parents.len()).collect();
        (Just(parents), Just(order).prop_shuffle())
    })
}

proptest! {
    #[test]
    fn every_order_connects_everything_and_finds_the_most_work((parents, order) in tree_and_order()) {
        let (headers, heights) = random_tree(&parents);
        let mut tree = HeaderTree::new(Params::of(Network::Regtest), NOW);
        let mut ids = vec![tree.tip(); headers.len()];
        for &i in &order {
            ids[i] = tree.accept(&headers[i].to_bytes()).unwrap().id();
        }
        prop_assert_eq!((tree.orphans_count(), tree.rejected_count()), (0, 0));
        for (i, &id) in ids.iter().enumerate() {
            prop_assert_eq!(tree.find(&headers[i].hash()), Some(id));
            let HeaderStatus::Connected(header) = tree.status(id) else { panic!("{i}") };
            prop_assert_eq!(header.height, heights[i]);
            // Each regtest header is worth two hashes.
            prop_assert_eq!(header.chain_work, 2 * (u128::from(heights[i]) + 1));
            prop_assert_eq!(tree.path_to(id).len() as u32, heights[i] + 1);
        }
        let most = *heights.iter().max().unwrap();
        let best: Vec<BlockHash> = (0..headers.len())
            .filter(|&i| heights[i] == most)
            .map(|i| headers[i].hash())
            .collect();
        prop_assert!(best.contains(tree.hash(tree.tip())));
        for &i in &order {
            prop_assert_eq!(tree.accept(&headers[i].to_bytes()), Ok(HeaderAcceptance::Known(ids[i])));
        }

        // The same calls again produce the same tip, even between equal chains.
        let mut again = HeaderTree::new(Params::of(Network::Regtest), NOW);
        for &i in &order {
            again.accept(&headers[i].to_bytes()).unwrap();
        }
        prop_assert_eq!(again.tip(), tree.tip());
    }

    #[test]
    fn any_80_bytes_are_handled_without_panic(raw in proptest::collection::vec(any::<u8>(), 80)) {
        let mut tree = HeaderTree::new(Params::of(Network::Regtest), NOW);
        let raw: [u8; 80] = raw.try_into().unwrap();
        let kept = tree.accept(&raw).is_ok();
        prop_assert_eq!(tree.len(), 1 + usize::from(kept));
    }
}

#[test]
fn of_equal_chains_the_first_to_connect_wins() {
    let params = Params::of(Network::Regtest);
    let a = mine_child(params, &params.genesis_header, 1);
    let a2 = mine_child(params, &a, 2);
    let b = mine_child(params, &params.genesis_header, 3);
    let b2 = mine_child(params, &b, 4);
    let b3 = mine_child(params, &b2, 5);
    let c3 = mine_child(params, &b2, 6);
    let tip = |order: &[&Header]| {
        let mut tree = HeaderTree::new(params, NOW);
        order.iter().for_each(|header| {
            tree.accept(&header.to_bytes()).unwrap();
        });
        *tree.hash(tree.tip())
    };
    assert_eq!(tip(&[&a, &b]), a.hash());
    assert_eq!(tip(&[&b, &a]), b.hash());
    // b2 arrived before a2 but connects after it.
    assert_eq!(tip(&[&b2, &a, &a2, &b]), a2.hash());
    assert_eq!(tip(&[&a2, &b, &b2, &a]), b2.hash());
    // Siblings that waited together connect in order of arrival.
    assert_eq!(tip(&[&c3, &b3, &b2, &b]), c3.hash());
    assert_eq!(tip(&[&b3, &c3, &b2, &b]), b3.hash());
    // Their children connect after all of them, in the order of their parents.
    let d4 = mine_child(params, &b3, 7);
    let e4 = mine_child(params, &c3, 8);
    assert_eq!(tip(&[&e4, &b3, &c3, &d4, &b2, &b]), d4.hash());
    assert_eq!(tip(&[&d4, &c3, &b3, &e4, &b2, &b]), e4.hash());
    // The chain with more work wins, regardless of when it arrives.
    assert_eq!(tip(&[&a, &a2, &b, &b2, &b3]), b3.hash());
}

/// Accepts a chain in reverse order: all headers wait until the first one arrives.
#[test]
fn main_connects_backwards() {
    let raw = raw_headers("main_0_4040.bin");
    let mut tree = HeaderTree::new(Params::of(Network::Main), NOW);
    tree.reserve(raw.len());
    for raw in raw[2..].iter().rev() {
        assert!(matches!(tree.accept(raw), Ok(HeaderAcceptance::Orphan(_))));
    }
    assert_eq!(tree.orphans_count(), 4039);
    assert!(matches!(tree.accept(&raw[1]), Ok(HeaderAcceptance::New(_))));
    assert_eq!(tree.orphans_count(), 0);
    assert_eq!(tree.hash(tree.tip()), &Header::parse(&raw[4040]).hash());
    assert_eq!(tree.path_to(tree.tip()).len(), 4041);
}
