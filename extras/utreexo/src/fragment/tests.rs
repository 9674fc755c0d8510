use super::*;
use apus_testkit::rng::Rng;
use proptest::prelude::*;
use rustreexo::mem_forest::MemForest;
use rustreexo::node_hash::BitcoinNodeHash;
use rustreexo::proof::Proof;
use rustreexo::stump::Stump;

/// Leaves of a forest, some of them deleted.
fn leaves() -> impl Strategy<Value = Vec<NodeHash>> {
    let leaf = prop_oneof![
        1 => Just(NodeHash::EMPTY),
        2 => any::<[u8; 32]>().prop_map(NodeHash),
    ];
    prop::collection::vec(leaf, 0..200)
}

fn fragment(first: u64, leaves: &[NodeHash]) -> Fragment {
    let mut fragment = Fragment::new(first).unwrap();
    leaves.iter().for_each(|leaf| fragment.push(*leaf).unwrap());
    fragment
}

/// The roots that the library computes from the same leaves. It treats an empty leaf as deleted.
fn by_the_library(leaves: &[NodeHash]) -> Vec<NodeHash> {
    let hash = |leaf: &NodeHash| match leaf.is_empty() {
        true => BitcoinNodeHash::Empty,
        false => BitcoinNodeHash::from(leaf.0),
    };
    let adds: Vec<BitcoinNodeHash> = leaves.iter().map(hash).collect();
    let stump = Stump::new().modify(&adds, &[], &Proof::default()).unwrap();
    assert_eq!(stump.leaves, leaves.len() as u64);
    stump.roots.iter().map(|root| NodeHash(**root)).collect()
}

/// Joins adjacent fragments in random order until one is left.
fn joined(mut parts: Vec<Fragment>, rng: &mut Rng) -> Fragment {
    while parts.len() > 1 {
        let at = rng.index(parts.len() - 1);
        let next = parts.remove(at + 1);
        parts[at].append(&next).unwrap();
    }
    parts.remove(0)
}

/// The live leaves among `leaves`, in the form of [`Fragment::push_live`].
fn live(leaves: &[NodeHash]) -> Vec<LiveLeaf> {
    let all = (0..).zip(leaves).map(|(place, hash)| LiveLeaf { place, hash: *hash });
    all.filter(|leaf| !leaf.hash.is_empty()).collect()
}

proptest! {
    /// Pushing leaves together or one by one gives the same fragment, wherever they begin and however they
    /// are cut.
    #[test]
    fn live_leaves_are_pushed_together(
        first in prop_oneof![0u64..70, Just(1 << 20), Just((1 << 40) - 3)],
        leaves in leaves(),
        cut: prop::sample::Index,
        empty in 0u64..3_000_000,
    ) {
        let mut single = fragment(first, &leaves);
        single.push_empty(empty).unwrap();
        let mut together = Fragment::new(first).unwrap();
        let cut = cut.index(leaves.len() + 1);
        together.push_live(cut as u64, &live(&leaves[..cut])).unwrap();
        let rest = &leaves[cut..];
        together.push_live(rest.len() as u64 + empty, &live(rest)).unwrap();
        prop_assert_eq!(together, single);
    }

    #[test]
    fn any_tree_of_joins_gives_the_same_fragment(
        first in prop_oneof![0u64..70, Just(1 << 20), Just((1 << 40) - 3)],
        leaves in leaves(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        seed: u64,
    ) {
        let whole = fragment(first, &leaves);
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(leaves.len() + 1)).collect();
        ends.push(leaves.len());
        ends.sort_unstable();
        let mut parts = Vec::new();
        let mut start = 0;
        for end in ends {
            parts.push(fragment(first + start as u64, &leaves[start..end]));
            start = end;
        }
        prop_assert_eq!(joined(parts, &mut Rng::new(seed)), whole);
    }

    #[test]
    fn roots_match_the_library(leaves in leaves()) {
        let roots = fragment(0, &leaves).roots().unwrap();
        prop_assert_eq!(roots.leaves(), leaves.len() as u64);
        prop_assert_eq!(by_the_library(&leaves), roots.hashes());
    }

    #[test]
    fn empty_leaves_are_appended_in_bulk(first in 0u64..3000, before in 0usize..5, count in 0u64..3000) {
        let live = vec![NodeHash([7; 32]); before];
        let (mut one_by_one, mut at_once) = (fragment(first, &live), fragment(first, &live));
        (0..count).for_each(|_| one_by_one.push(NodeHash::EMPTY).unwrap());
        at_once.push_empty(count).unwrap();
        prop_assert_eq!(one_by_one, at_once);
    }

    #[test]
    fn fragments_round_trip(first in 0u64..5000, leaves in leaves(), cut in any::<prop::sample::Index>()) {
        let (fragment, mut bytes) = (fragment(first, &leaves), Vec::new());
        fragment.write(&mut bytes);
        prop_assert_eq!(Fragment::read(&bytes), Ok(fragment));
        bytes.push(0);
        prop_assert!(Fragment::read(&bytes).is_err());
        prop_assert!(Fragment::read(&bytes[..cut.index(bytes.len() - 1)]).is_err());
    }

    #[test]
    fn any_bytes_are_a_fragment_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(fragment) = Fragment::read(&bytes) {
            let mut again = Vec::new();
            fragment.write(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }
}

#[test]
fn only_adjacent_fragments_join() {
    let mut two = fragment(0, &[NodeHash([1; 32]), NodeHash([2; 32])]);
    for first in [0, 1, 3] {
        let other = fragment(first, &[NodeHash([3; 32])]);
        assert_eq!(two.append(&other), Err(FragmentError::NotAdjacent { end: 2, first }));
    }
    assert!(fragment(1, &[]).roots().is_none());
    two.append(&fragment(2, &[])).unwrap();
    assert_eq!(two.leaves(), 2);
}

/// Compares a forest that adds and deletes leaves with one made of the survivors alone.
#[test]
fn survivors_alone_give_the_roots_of_a_history() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut forest = MemForest::<BitcoinNodeHash>::new();
        let mut leaves: Vec<NodeHash> = Vec::new();
        for _ in 0..30 {
            let live: Vec<usize> = (0..leaves.len()).filter(|&at| !leaves[at].is_empty()).collect();
            // Sometimes deletes all of them, so that roots are empty.
            let odds = if rng.below(8) == 0 { 1 } else { 3 };
            let gone: Vec<usize> = live.into_iter().filter(|_| rng.below(odds) == 0).collect();
            let deleted: Vec<_> =
                gone.iter().map(|&at| BitcoinNodeHash::from(leaves[at].0)).collect();
            gone.into_iter().for_each(|at| leaves[at] = NodeHash::EMPTY);
            let added: Vec<NodeHash> =
                (0..rng.below(12)).map(|_| NodeHash(rng.bytes(32).try_into().unwrap())).collect();
            leaves.extend(&added);
            let added: Vec<_> = added.iter().map(|leaf| BitcoinNodeHash::from(leaf.0)).collect();
            forest.modify(&added, &deleted).unwrap();
            let roots = forest.get_roots().iter().map(|root| NodeHash(*root.get_data()));
            let ours = fragment(0, &leaves).roots().unwrap();
            assert_eq!(roots.collect::<Vec<_>>(), ours.hashes(), "seed {seed}");
        }
    }
}

/// At most two trees of each height, however large the range.
#[test]
fn a_fragment_is_small() {
    let mut fragment = Fragment::new(1).unwrap();
    fragment.push_empty((1 << 62) - 2).unwrap();
    let mut bytes = Vec::new();
    fragment.write(&mut bytes);
    assert_eq!(bytes.len(), 16 + 2 * 61 * 32);
    fragment.push_empty(1 << 62).unwrap();
    assert!(fragment.push_empty(2).is_err());
    fragment.push(NodeHash::EMPTY).unwrap();
    let full = FragmentError::TooMany { first: LEAVES_MAX, leaves: 1 };
    assert_eq!(fragment.push(NodeHash::EMPTY), Err(full));
    assert!(Fragment::new(LEAVES_MAX + 1).is_err());
    let ends_beyond = [u64::MAX.to_le_bytes(), 2u64.to_le_bytes()].concat();
    assert!(matches!(Fragment::read(&ends_beyond), Err(FragmentError::TooMany { .. })));
}

#[test]
fn live_leaves_out_of_place_are_refused() {
    let leaf = |place| LiveLeaf { place, hash: NodeHash([1; 32]) };
    for places in [&[3][..], &[1, 0], &[1, 1], &[0, 4]] {
        let live: Vec<LiveLeaf> = places.iter().copied().map(leaf).collect();
        let mut fragment = Fragment::new(5).unwrap();
        let refused = fragment.push_live(3, &live);
        assert!(matches!(refused, Err(FragmentError::OutOfPlace { leaves: 3, .. })), "{places:?}");
        assert_eq!(fragment.leaves(), 0);
    }
    let mut fragment = Fragment::new(LEAVES_MAX - 2).unwrap();
    let refused = fragment.push_live(3, &[]);
    assert!(matches!(refused, Err(FragmentError::TooMany { leaves: 3, .. })));
}
