use super::*;
use crate::Fragment;
use apus_testkit::rng::Rng;
use proptest::prelude::*;
use rustreexo::mem_forest::MemForest;
use rustreexo::node_hash::BitcoinNodeHash;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Pages in memory.
#[derive(Default)]
struct Store {
    pages: RefCell<BTreeMap<PageId, Vec<u8>>>,
    /// Reads fail at this level and below.
    fails_at: RefCell<Option<u32>>,
}

impl Pages for Store {
    type Error = &'static str;

    fn read(&self, page: PageId, out: &mut Vec<u8>) -> Result<bool, Self::Error> {
        if self.fails_at.borrow().is_some_and(|level| page.level() <= level) {
            return Err("out of order");
        }
        let pages = self.pages.borrow();
        let found = pages.get(&page);
        out.extend(found.into_iter().flatten());
        Ok(found.is_some())
    }
}

impl Store {
    fn take(&self, forest: &mut Forest<&Self>) {
        let mut pages = self.pages.borrow_mut();
        forest.changes(|page, bytes| match bytes {
            Some(bytes) => drop(pages.insert(page, bytes.to_vec())),
            None => drop(pages.remove(&page)),
        });
        drop(pages);
        forest.set_stored();
        assert_eq!(forest.usage().changed_bytes, 0);
    }
}

/// A unique leaf.
fn leaf(number: u64) -> NodeHash {
    NodeHash(Rng::at(77, number).bytes(32).try_into().unwrap())
}

fn leaves(numbers: std::ops::Range<u64>) -> Vec<NodeHash> {
    numbers.map(leaf).collect()
}

fn theirs(hash: &NodeHash) -> BitcoinNodeHash {
    if hash.is_empty() { BitcoinNodeHash::Empty } else { BitcoinNodeHash::from(hash.0) }
}

fn ours(hash: &BitcoinNodeHash) -> NodeHash {
    if *hash == BitcoinNodeHash::Empty { NodeHash::EMPTY } else { NodeHash(**hash) }
}

/// A block and its expected result.
struct Step {
    spent: Vec<u64>,
    added: Vec<NodeHash>,
    proof: Proof,
    roots: Roots,
}

/// A chain computed by `rustreexo`.
struct History {
    rng: Rng,
    forest: MemForest<BitcoinNodeHash>,
    leaves: u64,
    live: Vec<u64>,
}

impl History {
    fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), forest: MemForest::new(), leaves: 0, live: Vec::new() }
    }

    /// A block that spends up to `spent` random leaves and adds `added` others.
    fn step(&mut self, spent: usize, added: u64) -> Step {
        let spent = spent.min(self.live.len());
        let spent: Vec<u64> = (0..spent)
            .map(|_| {
                let at = self.rng.index(self.live.len());
                self.live.swap_remove(at)
            })
            .collect();
        self.step_of(spent, added)
    }

    fn step_of(&mut self, spent: Vec<u64>, added: u64) -> Step {
        let end = self.leaves + added;
        let gone: Vec<_> = spent.iter().map(|number| theirs(&leaf(*number))).collect();
        let proof = self.forest.prove(&gone).unwrap();
        let proof =
            Proof { targets: proof.targets, hashes: proof.hashes.iter().map(ours).collect() };
        let added = leaves(self.leaves..end);
        let new: Vec<_> = added.iter().map(theirs).collect();
        self.forest.modify(&new, &gone).unwrap();
        self.live.extend(self.leaves..end);
        self.leaves = end;
        let hashes = self.forest.get_roots().iter().map(|root| ours(&root.get_data())).collect();
        Step { spent, added, proof, roots: Roots { leaves: end, hashes } }
    }
}

fn check(forest: &mut Forest<&Store>, step: &Step) {
    assert_eq!(forest.block(&step.spent, &step.added).unwrap(), step.proof);
    assert_eq!(forest.roots(), &step.roots);
    let usage = forest.usage();
    assert!(usage.bytes >= usage.changed_bytes && usage.bytes >= usage.pages * 64);
}

const LARGE: usize = 1 << 30;

/// Applies these blocks with unlimited memory, with none, and to a forest that is reopened after some blocks,
/// chosen by `reopened`; the last two have their own stores.
fn run(seed: u64, blocks: &[(usize, u64)], reopened: u64) {
    let (all, none, some) = (Store::default(), Store::default(), Store::default());
    let mut history = History::new(seed);
    let mut large = Forest::open(&all, Roots::default(), LARGE);
    let mut small = Forest::open(&none, Roots::default(), 0);
    let mut again = Forest::open(&some, Roots::default(), 20_000);
    for (height, (spent, added)) in blocks.iter().enumerate() {
        let step = history.step(*spent, *added);
        check(&mut large, &step);
        check(&mut small, &step);
        check(&mut again, &step);
        none.take(&mut small);
        assert_eq!((small.usage().pages, small.usage().bytes), (0, 0));
        if again.wants_store() {
            some.take(&mut again);
            assert!(again.usage().bytes <= 20_000);
        }
        if reopened >> (height % 64) & 1 == 1 {
            some.take(&mut again);
            again = Forest::open(&some, step.roots.clone(), 20_000);
        }
    }
    assert_eq!(large.usage().pages_read, 0);
    all.take(&mut large);
    some.take(&mut again);
    assert_eq!(all.pages, none.pages);
    assert_eq!(all.pages, some.pages);
    let bytes: usize = all.pages.borrow().values().map(Vec::len).sum();
    assert!(large.usage().bytes >= bytes);
}

proptest! {
    /// Few leaves, so that all sizes of trees, empty roots and forests without leaves occur.
    #[test]
    fn small_forests_match_the_library(
        seed: u64,
        blocks in prop::collection::vec((prop_oneof![0usize..8, Just(300)], 0u64..12), 1..30),
        reopened: u64,
    ) {
        run(seed, &blocks, reopened);
    }

    #[test]
    fn forests_of_more_pages_match_the_library(
        seed: u64,
        blocks in prop::collection::vec((0usize..120, 0u64..200), 1..12),
        reopened: u64,
    ) {
        run(seed, &blocks, reopened);
    }
}

/// Three levels of pages; old ones become sparse, until all leaves are deleted.
#[test]
fn forests_of_three_levels_match_the_library() {
    for seed in 0..4 {
        let mut blocks = vec![(0, 3_000 + 500 * seed)];
        blocks.extend([(700, 500 - seed); 12]);
        blocks.extend([(20_000, 40), (0, 0), (30, 3_000), (5_000, 0), (1, 1)]);
        run(seed, &blocks, 0b1_0010_0110_0101);
    }
}

/// Grows from 0 to 200 leaves, one by one, and spends each leaf from each of these forests.
#[test]
fn every_leaf_of_every_small_forest_is_proved() {
    for count in 1..=200 {
        let store = Store::default();
        let numbers = [0, 1, count / 3, count / 2, count - 1];
        for number in numbers.into_iter().filter(|number| *number < count) {
            let mut history = History::new(0);
            let mut forest = Forest::open(&store, Roots::default(), LARGE);
            check(&mut forest, &history.step(0, count));
            check(&mut forest, &history.step_of(vec![number], 0));
        }
    }
}

/// Grows forests over the ends of pages and levels: trees that fill a page or a level, and the leaves after
/// them.
#[test]
fn forests_grow_over_the_ends_of_pages() {
    for start in [62, 63, 64, 65, 4_095, 4_096, 4_097] {
        for (spent, added) in [(0, 1), (1, 1), (start, 0), (start, 1), (5, 64), (start / 2, 4_096)]
        {
            let blocks = [(0, start), (spent as usize, added), (3, 1), (70, 70)];
            run(start, &blocks, 0b1010);
        }
    }
}

/// More leaves than a test could add one by one. The library's verifier accepts such forests up to 62 rows.
#[test]
fn proofs_of_huge_forests_are_valid() {
    for first in [(1 << 20) - 3, (1 << 42) + (1 << 36) - 7, (1 << 61) - 1, (1 << 62) - 90] {
        let mut fragment = Fragment::new(0).unwrap();
        fragment.push_empty(first).unwrap();
        let store = Store::default();
        let mut forest = Forest::open(&store, fragment.roots().unwrap(), 0);
        let live = leaves(0..90);
        assert_eq!(forest.block(&[], &live).unwrap(), Proof::default());
        live.iter().for_each(|leaf| fragment.push(*leaf).unwrap());
        let roots = fragment.roots().unwrap();
        assert_eq!(forest.roots(), &roots);
        store.take(&mut forest);
        let spent = [3, 0, 41, 42, 89];
        let proof = forest.block(&spent.map(|at| first + at), &[leaf(1_000)]).unwrap();
        let gone: Vec<_> = spent.iter().map(|at| theirs(&live[*at as usize])).collect();
        let hashes = proof.hashes.iter().map(theirs).collect();
        let proof = rustreexo::proof::Proof::new_with_hash(proof.targets, hashes);
        let roots: Vec<_> = roots.hashes().iter().map(theirs).collect();
        assert_eq!(proof.verify(&gone, &roots, first + 90), Ok(true), "{first}");
    }
}

#[test]
fn a_forest_refuses_too_many_leaves() {
    let mut fragment = Fragment::new(0).unwrap();
    fragment.push_empty(LEAVES_MAX - 2).unwrap();
    let store = Store::default();
    let mut forest = Forest::open(&store, fragment.roots().unwrap(), 0);
    let refused = ForestError::TooMany { leaves: LEAVES_MAX - 2, added: 3 };
    assert_eq!(forest.block(&[], &leaves(0..3)), Err(refused));
    assert_eq!(forest.block(&[], &leaves(0..2)), Ok(Proof::default()));
    leaves(0..2).iter().for_each(|leaf| fragment.push(*leaf).unwrap());
    assert_eq!(forest.roots(), &fragment.roots().unwrap());
    let refused = ForestError::TooMany { leaves: LEAVES_MAX, added: 1 };
    assert_eq!(forest.block(&[LEAVES_MAX - 1], &leaves(0..1)), Err(refused));
    assert!(forest.block(&[LEAVES_MAX - 1], &[]).is_ok());
}

/// A leaf that is empty from the start counts as deleted.
#[test]
fn empty_leaves_are_added() {
    let store = Store::default();
    let mut forest = Forest::open(&store, Roots::default(), LARGE);
    let (mut added, mut fragment) = (leaves(0..150), Fragment::new(0).unwrap());
    added[70..140].fill(NodeHash::EMPTY);
    forest.block(&[], &added).unwrap();
    added.iter().for_each(|leaf| fragment.push(*leaf).unwrap());
    assert_eq!(forest.roots(), &fragment.roots().unwrap());
    let refused = ForestError::NotLive { leaf: 71, leaves: 150 };
    assert_eq!(forest.block(&[71], &[]), Err(refused));
}

/// A forest of three levels whose left half is spent, and the leaves left in it.
fn half_spent(store: &Store) -> (Forest<&Store>, History) {
    let mut history = History::new(5);
    let mut forest = Forest::open(store, Roots::default(), 0);
    check(&mut forest, &history.step(0, 5_000));
    history.live.retain(|number| *number >= 2_500);
    check(&mut forest, &history.step_of((0..2_500).collect(), 10));
    store.take(&mut forest);
    (forest, history)
}

/// A refused block changes nothing, even if other parts of it are valid.
#[test]
fn leaves_that_are_not_live_cannot_be_spent() {
    let store = Store::default();
    let (mut forest, mut history) = half_spent(&store);
    let (added, leaves) = (leaves(7_000..270_000), 5_010);
    // These leaves are in an empty part of the forest, in an empty page, in a page with live leaves, and
    // after the last leaf.
    for dead in [0, 70, 2_000, 2_497, 2_499, 5_010, 5_100, 1 << 40, u64::MAX] {
        let spent = [3_000, dead, 4_000];
        let refused = ForestError::NotLive { leaf: dead, leaves };
        assert_eq!(forest.block(&spent, &added), Err(refused));
    }
    let refused = ForestError::Twice { leaf: 3_000 };
    assert_eq!(forest.block(&[3_000, 4_000, 3_000], &added), Err(refused));
    assert_eq!(forest.usage().changed_bytes, 0);
    for _ in 0..3 {
        check(&mut forest, &history.step(50, 60));
    }
}

#[test]
fn a_store_that_fails_changes_nothing() {
    let store = Store::default();
    let (mut forest, mut history) = half_spent(&store);
    let step = history.step(50, 60);
    for level in [0, 1, 2] {
        *store.fails_at.borrow_mut() = Some(level);
        let refused = forest.block(&step.spent, &step.added);
        let Err(ForestError::Read { page, source: "out of order" }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(page.level(), level);
    }
    *store.fails_at.borrow_mut() = None;
    check(&mut forest, &step);
}

/// Changes each byte of each page, truncates pages, and appends to them.
#[test]
fn damaged_pages_are_refused() {
    let store = Store::default();
    let (mut forest, history) = half_spent(&store);
    let whole = store.pages.borrow().clone();
    assert_eq!(whole.keys().map(|page| page.level()).max(), Some(2));
    let damaged = |forest: &mut Forest<&Store>, page: PageId, bytes: Option<Vec<u8>>| {
        match bytes.clone() {
            Some(bytes) => store.pages.borrow_mut().insert(page, bytes),
            None => store.pages.borrow_mut().remove(&page),
        };
        let refused = forest.block(&history.live, &[]).unwrap_err();
        store.pages.borrow_mut().insert(page, whole[&page].clone());
        match refused {
            ForestError::Missing { page: found } if found == page && bytes.is_none() => None,
            ForestError::Damaged { page: found, fault } if found == page => Some(fault),
            _ => panic!("{refused}"),
        }
    };
    let mut rng = Rng::new(1);
    for (page, bytes) in whole.iter().step_by(7).chain(whole.iter().rev().take(2)) {
        assert_eq!(damaged(&mut forest, *page, None), None);
        let mut other = bytes.clone();
        let (at, bit) = (12 + rng.index(bytes.len() - 12), rng.below(8));
        other[at] ^= 1 << bit;
        let fault = damaged(&mut forest, *page, Some(other));
        assert!(matches!(fault, Some(PageFault::Root { .. })), "{fault:?}");
        let mut mask = bytes.clone();
        mask[rng.index(12)] ^= 1 << rng.below(8);
        assert_eq!(damaged(&mut forest, *page, Some(mask)), Some(PageFault::Checksum));
        for length in [12, 13, bytes.len() - 32, bytes.len() - 1] {
            let fault = damaged(&mut forest, *page, Some(bytes[..length].to_vec()));
            assert!(matches!(fault, Some(PageFault::Length { .. })), "{fault:?}");
        }
        for more in [1, 32] {
            let longer = [bytes, &vec![9; more][..]].concat();
            let fault = damaged(&mut forest, *page, Some(longer));
            let needed = bytes.len();
            assert_eq!(fault, Some(PageFault::Length { needed, found: needed + more }));
        }
        let mut empty = bytes.clone();
        empty[12..44].fill(0);
        assert_eq!(damaged(&mut forest, *page, Some(empty)), Some(PageFault::Empty));
        let none = [&[0; 8], &crc32c::crc32c(&[0; 8]).to_le_bytes()[..]].concat();
        assert_eq!(damaged(&mut forest, *page, Some(none)), Some(PageFault::Empty));
        for found in [0, 7, 8, 11] {
            let fault = damaged(&mut forest, *page, Some(bytes[..found].to_vec()));
            assert_eq!(fault, Some(PageFault::Head { found }));
        }
    }
    assert!(forest.block(&history.live, &[]).is_ok());
    assert!(forest.roots().hashes().iter().all(NodeHash::is_empty));
}

#[test]
fn pages_of_other_roots_are_refused() {
    let store = Store::default();
    let (forest, history) = half_spent(&store);
    let mut roots = forest.roots().clone();
    roots.hashes[0].0[0] ^= 1;
    let mut forest = Forest::open(&store, roots, LARGE);
    let refused = forest.block(&history.live[..1], &[]).unwrap_err();
    assert!(matches!(refused, ForestError::Damaged { page, .. } if page.level() == 2), "{refused}");
}

/// A page is read once, if it is not in memory and not empty.
#[test]
fn pages_are_read_once() {
    let store = Store::default();
    let (small, mut history) = half_spent(&store);
    let mut small = Forest::open(&store, small.roots().clone(), 0);
    let mut large = Forest::open(&store, small.roots().clone(), LARGE);
    let step = history.step_of(vec![2_500, 2_501, 5_009], 0);
    check(&mut small, &step);
    check(&mut large, &step);
    // Leaf 5,009 is in page 78, below page 1; the other two are below page 0.
    assert_eq!((small.usage().pages_read, large.usage().pages_read), (5, 5));
    store.take(&mut small);
    large.set_stored();
    let step = history.step_of(vec![2_502, 2_600], 0);
    check(&mut small, &step);
    check(&mut large, &step);
    assert_eq!((small.usage().pages_read, large.usage().pages_read), (9, 6));
    assert_eq!((small.usage().pages, large.usage().pages), (4, 6));
}

/// A page with few nodes takes little memory, even if it once had many.
#[test]
fn pages_that_become_sparse_become_small() {
    let store = Store::default();
    let mut forest = Forest::open(&store, Roots::default(), LARGE);
    forest.block(&[], &leaves(0..64)).unwrap();
    let full = forest.usage().bytes;
    for leaf in 0..62 {
        forest.block(&[leaf], &[]).unwrap();
    }
    assert!(full - forest.usage().bytes >= (127 - 4) * 32);
}

/// They must be stored once they take more than half of the memory.
#[test]
fn changed_pages_must_be_stored() {
    let store = Store::default();
    let mut forest = Forest::open(&store, Roots::default(), 0);
    assert!(!forest.wants_store());
    forest.block(&[], &leaves(0..64)).unwrap();
    assert!(forest.wants_store());
    let bytes = forest.usage().bytes;
    for (bytes_max, wants) in [(2 * bytes - 1, true), (2 * bytes, false)] {
        let mut forest = Forest::open(&store, Roots::default(), bytes_max);
        forest.block(&[], &leaves(0..64)).unwrap();
        assert_eq!((forest.usage().changed_bytes, forest.wants_store()), (bytes, wants));
    }
}
