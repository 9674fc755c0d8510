use super::*;
use crate::LEAVES_MAX;
use apus_testkit::effort::rounds;
use apus_testkit::rng::Rng;
use rustreexo::mem_forest::MemForest;
use rustreexo::node_hash::BitcoinNodeHash;
use rustreexo::stump::Stump;
use std::collections::HashSet;
use std::mem;

fn theirs(hashes: &[NodeHash]) -> Vec<BitcoinNodeHash> {
    hashes.iter().map(|hash| BitcoinNodeHash::from(hash.0)).collect()
}

fn random(rng: &mut Rng) -> NodeHash {
    NodeHash(rng.bytes(32).try_into().unwrap())
}

/// A full `rustreexo` forest, which makes proofs, and its roots as computed by this crate.
struct History {
    forest: MemForest<BitcoinNodeHash>,
    stump: Stump,
    roots: Roots,
    live: Vec<NodeHash>,
}

impl History {
    fn new() -> Self {
        let (forest, stump) = (MemForest::new(), Stump::new());
        Self { forest, stump, roots: Roots::default(), live: Vec::new() }
    }

    /// A forest after some blocks, with live leaves.
    fn of(rng: &mut Rng, blocks: u64, added_below: u64) -> Self {
        let mut history = Self::new();
        while history.live.is_empty() || history.roots.leaves() < blocks * added_below / 2 {
            history.block(rng, added_below);
        }
        history
    }

    fn prove(&self, leaves: &[NodeHash]) -> Proof {
        let proof = self.forest.prove(&theirs(leaves)).unwrap();
        let hashes = proof.hashes.iter().map(|hash| NodeHash(**hash)).collect();
        Proof { targets: proof.targets, hashes }
    }

    /// Some live leaves, in random order.
    fn choose(&self, rng: &mut Rng, odds: u64) -> Vec<NodeHash> {
        let mut chosen: Vec<NodeHash> =
            self.live.iter().copied().filter(|_| rng.below(odds) == 0).collect();
        rng.shuffle(&mut chosen);
        chosen
    }

    /// Spends some leaves and adds some; added leaves that are spent soon are added as empty.
    fn block(&mut self, rng: &mut Rng, added_below: u64) {
        // Sometimes spends all of them, so that roots are empty.
        let odds = [1, 2, 3, 10][rng.index(4)];
        let spent = self.choose(rng, odds);
        let proof = self.prove(&spent);
        assert_eq!(self.roots.verify(&proof, &spent), Ok(()));
        let all: Vec<NodeHash> = (0..rng.below(added_below)).map(|_| random(rng)).collect();
        let is_live: Vec<bool> = all.iter().map(|_| rng.below(3) > 0).collect();
        let or_empty = all.iter().zip(&is_live);
        let added: Vec<NodeHash> =
            or_empty.map(|(leaf, live)| if *live { *leaf } else { NodeHash::EMPTY }).collect();
        self.roots.update(&proof, &spent, &added).unwrap();
        self.stump = self.stump.modify(&[], &theirs(&spent), &theirs_of(&proof)).unwrap();
        self.stump = self
            .stump
            .modify(&theirs_or_empty(&added), &[], &theirs_of(&Proof::default()))
            .unwrap();
        self.forest.modify(&theirs(&all), &theirs(&spent)).unwrap();
        let gone: Vec<NodeHash> =
            all.iter().zip(&is_live).filter(|(_, live)| !**live).map(|(leaf, _)| *leaf).collect();
        self.forest.modify(&[], &theirs(&gone)).unwrap();
        self.live.retain(|leaf| !spent.contains(leaf));
        self.live.extend(added.iter().filter(|leaf| !leaf.is_empty()));
    }

    fn check(&self) {
        let of_forest = self.forest.get_roots().iter().map(|root| NodeHash(*root.get_data()));
        assert_eq!(of_forest.collect::<Vec<_>>(), self.roots.hashes());
        let of_stump = self.stump.roots.iter().map(|root| NodeHash(**root));
        assert_eq!(of_stump.collect::<Vec<_>>(), self.roots.hashes());
        assert_eq!(self.stump.leaves, self.roots.leaves());
    }
}

fn theirs_or_empty(hashes: &[NodeHash]) -> Vec<BitcoinNodeHash> {
    let hash = |hash: &NodeHash| match hash.is_empty() {
        true => BitcoinNodeHash::Empty,
        false => BitcoinNodeHash::from(hash.0),
    };
    hashes.iter().map(hash).collect()
}

fn theirs_of(proof: &Proof) -> rustreexo::proof::Proof {
    rustreexo::proof::Proof::new(proof.targets.clone(), theirs(&proof.hashes))
}

/// Block after block, the library's proofs hold here, and the roots equal the library's.
#[test]
fn histories_match_the_library() {
    for seed in 0..rounds(30, 3000) {
        let mut rng = Rng::new(seed);
        let mut history = History::new();
        let added_below = [3, 12, 70][rng.index(3)];
        for _ in 0..30 {
            history.block(&mut rng, added_below);
            history.check();
        }
    }
}

/// Makes one change to a proof or its leaves.
fn corrupt(rng: &mut Rng, proof: &mut Proof, leaves: &mut Vec<NodeHash>) {
    let flip = |rng: &mut Rng, hash: &mut NodeHash| hash.0[rng.index(32)] ^= 1 << rng.below(8);
    let (target, hash) = (rng.index(leaves.len()), rng.index(proof.hashes.len().max(1)));
    match rng.below(16) {
        0 => flip(rng, &mut leaves[target]),
        1 => leaves[target] = NodeHash::EMPTY,
        2 => proof.targets[target] ^= 1 << rng.below(64),
        3 => proof.targets[target] = rng.below(u64::MAX),
        4 => {
            proof.targets.remove(target);
        }
        5 => {
            leaves.remove(target);
        }
        6 => {
            proof.targets.remove(target);
            leaves.remove(target);
        }
        7 => {
            proof.targets.push(proof.targets[target]);
            leaves.push(leaves[target]);
        }
        8 => {
            // Use the parent, or an invalid position if there is no parent.
            let at = Position::of_number(proof.targets[target], PROOF_ROWS).unwrap();
            let parent = Position { row: at.row + 1, place: at.place >> 1 };
            proof.targets.push(parent.number(PROOF_ROWS).unwrap_or(u64::MAX));
            leaves.push(random(rng));
        }
        9 => proof.hashes.push(random(rng)),
        10 => proof.hashes.insert(0, NodeHash::EMPTY),
        11 => proof.targets.rotate_left(1),
        12 => leaves.rotate_left(1),
        _ if proof.hashes.is_empty() => proof.targets.clear(),
        13 => flip(rng, &mut proof.hashes[hash]),
        14 => {
            proof.hashes.remove(hash);
        }
        _ => proof.hashes.rotate_left(1),
    }
}

/// A changed proof is refused, unless it proves the changed leaves.
#[test]
fn corrupted_proofs_are_refused() {
    let (mut refused, mut accepted) = (HashSet::new(), 0);
    for seed in 0..rounds(40, 4000) {
        let mut rng = Rng::new(seed);
        let history = History::of(&mut rng, 6, 40);
        for _ in 0..100 {
            let odds = [3, 30][rng.index(2)];
            let mut leaves = history.choose(&mut rng, odds);
            if leaves.is_empty() {
                continue;
            }
            let mut proof = history.prove(&leaves);
            let sound = (proof.clone(), leaves.clone());
            corrupt(&mut rng, &mut proof, &mut leaves);
            let Err(error) = history.roots.verify(&proof, &leaves) else {
                assert_eq!(proof, history.prove(&leaves), "seed {seed}");
                accepted += usize::from((proof, leaves) != sound);
                continue;
            };
            let mut roots = history.roots.clone();
            assert_eq!(roots.update(&proof, &leaves, &[random(&mut rng)]), Err(error.clone()));
            assert_eq!(roots, history.roots);
            refused.insert(mem::discriminant(&error));
        }
    }
    // All kinds of errors except too many added leaves; sometimes removing a leaf leaves a valid proof, if
    // the leaf is a tree of its own.
    assert_eq!((refused.len(), accepted > 0), (9, true));
}

/// Leaves 0 to 6. Leaf 4 is deleted, so leaf 5 takes its parent's place, and leaf 6 is deleted, so its tree
/// is empty. The roots: one of four leaves, one of a single leaf in the place of two, and an empty one.
fn of_seven() -> (Roots, impl Fn(u8) -> NodeHash) {
    let leaf = |number: u8| NodeHash([number + 1; 32]);
    let mut fragment = Fragment::new(0).unwrap();
    for number in 0..7 {
        let is_gone = [4, 6].contains(&number);
        fragment.push(if is_gone { NodeHash::EMPTY } else { leaf(number) }).unwrap();
    }
    (fragment.roots().unwrap(), leaf)
}

/// The position number of a node in a proof.
fn at(row: u32, place: u64) -> u64 {
    Position { row, place }.number(PROOF_ROWS).unwrap()
}

#[test]
fn each_fault_has_its_error() {
    let (roots, leaf) = of_seven();
    let (one, node) = (leaf(1), NodeHash::parent(&leaf(2), &leaf(3)));
    let whole = NodeHash::parent(&NodeHash::parent(&leaf(0), &one), &node);
    let refused = |targets: &[u64], leaves: &[NodeHash], hashes: &[NodeHash], error: ProofError| {
        let proof = Proof { targets: targets.to_vec(), hashes: hashes.to_vec() };
        assert_eq!(roots.verify(&proof, leaves), Err(error));
    };
    let root = |row, expected, found| ProofError::Root { row, expected, found };
    let all = &[one, node][..];

    refused(&[0], &[], all, ProofError::Leaves { targets: 1, leaves: 0 });
    refused(&[], &[leaf(0)], all, ProofError::Leaves { targets: 0, leaves: 1 });
    refused(&[0], &[NodeHash::EMPTY], all, ProofError::EmptyLeaf { target: 0 });
    refused(&[0], &[leaf(0)], &[one, NodeHash::EMPTY], ProofError::EmptyHash { index: 1 });
    for target in [7, at(1, 3), at(2, 1), at(3, 0), at(63, 0), u64::MAX, 1 << 62] {
        refused(&[target], &[leaf(0)], &[], ProofError::Outside { target, leaves: 7 });
    }
    refused(&[1, 0, 1], &[one, leaf(0), one], all, ProofError::Twice { target: 1 });
    let nested = ProofError::Nested { target: at(1, 0) };
    refused(&[at(1, 0), 1], &[node, one], all, nested);
    refused(
        &[at(2, 0), 3],
        &[whole, leaf(3)],
        &[leaf(2), one],
        ProofError::Nested { target: at(2, 0) },
    );
    refused(&[0], &[leaf(0)], &[], ProofError::Missing { hashes: 0, position: 1 });
    refused(&[0], &[leaf(0)], &[one], ProofError::Missing { hashes: 1, position: at(1, 1) });
    refused(&[1, 2], &[one, leaf(2)], &[leaf(0)], ProofError::Missing { hashes: 1, position: 3 });
    refused(&[0], &[leaf(0)], &[one, node, one], ProofError::Surplus { hashes: 3, needed: 2 });
    refused(&[], &[], &[one], ProofError::Surplus { hashes: 1, needed: 0 });
    refused(&[at(1, 2)], &[leaf(4)], &[], root(1, leaf(5), leaf(4)));
    // A deleted tree contains nothing.
    refused(&[6], &[leaf(6)], &[], root(0, NodeHash::EMPTY, leaf(6)));
    // Leaf 5 is no longer where it was added.
    refused(&[5], &[leaf(5)], &[leaf(4)], root(1, leaf(5), NodeHash::parent(&leaf(4), &leaf(5))));
    // One tree's root holds, the other's does not.
    let swapped = NodeHash::parent(&NodeHash::parent(&one, &leaf(0)), &node);
    refused(&[at(1, 2), 0], &[leaf(5), one], &[leaf(0), node], root(2, whole, swapped));

    let mut full = Roots { leaves: LEAVES_MAX, hashes: vec![one] };
    let refused = full.update(&Proof::default(), &[], &[one]);
    let error = FragmentError::TooMany { first: LEAVES_MAX, leaves: 1 };
    assert_eq!(refused, Err(ProofError::Added(error)));
    assert_eq!(full, Roots { leaves: LEAVES_MAX, hashes: vec![one] });
}

/// Targets follow the order of the leaves, for any such order; leaves that a proof deletes are empty afterwards.
#[test]
fn targets_may_be_in_any_order() {
    let (mut roots, leaf) = of_seven();
    let spent = [leaf(3), leaf(5), leaf(0)];
    let proof = Proof { targets: vec![3, at(1, 2), 0], hashes: vec![leaf(1), leaf(2)] };
    assert_eq!(roots.verify(&proof, &spent), Ok(()));
    roots.update(&proof, &spent, &[NodeHash::EMPTY, leaf(8)]).unwrap();
    let upper = NodeHash::parent(&leaf(1), &leaf(2));
    assert_eq!((roots.leaves(), roots.hashes()), (9, &[upper, leaf(8)][..]));
}

/// A proof cannot tell a leaf from a node: if the caller passes a node's hash as a leaf, it is proved. Leaf
/// hashes are over more bytes than node hashes, and other bytes.
#[test]
fn a_node_is_proved_like_a_leaf() {
    let (roots, leaf) = of_seven();
    let (left, right) =
        (NodeHash::parent(&leaf(0), &leaf(1)), NodeHash::parent(&leaf(2), &leaf(3)));
    let proof = Proof { targets: vec![at(1, 0)], hashes: vec![right] };
    assert_eq!(roots.verify(&proof, &[left]), Ok(()));
}

/// A forest of `leaves` leaves in which each tree has one live leaf, with live siblings all along its path.
/// Returns also the proof of these leaves, and the roots once they are deleted.
fn of_many_rows(rng: &mut Rng, leaves: u64) -> (Roots, Proof, Vec<NodeHash>, Roots) {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let (mut targets, mut spent, mut siblings) = (Vec::new(), Vec::new(), Vec::new());
    for root_row in (0..64).rev().filter(|row| leaves >> row & 1 == 1) {
        let first_row = rng.below(root_row + 1) as u32;
        let mut at = Position { row: root_row as u32, place: (leaves >> root_row) - 1 };
        for _ in first_row..at.row {
            at = Position { row: at.row - 1, place: at.place << 1 | rng.below(2) };
        }
        let (mut old, mut new) = (random(rng), NodeHash::EMPTY);
        targets.push(at.number(PROOF_ROWS).unwrap());
        spent.push(old);
        while !at.is_root(leaves) {
            let sibling = random(rng);
            siblings.push((Position { place: at.place ^ 1, ..at }, sibling));
            let parent = |node: &NodeHash| match at.place & 1 {
                0 => NodeHash::parent(node, &sibling),
                _ => NodeHash::parent(&sibling, node),
            };
            (old, new) = (parent(&old), parent(&new));
            at = Position { row: at.row + 1, place: at.place >> 1 };
        }
        before.push(old);
        after.push(new);
    }
    siblings.sort_by_key(|(at, _)| *at);
    let hashes = siblings.into_iter().map(|(_, hash)| hash).collect();
    let of = |hashes| Roots { leaves, hashes };
    (of(before), Proof { targets, hashes }, spent, of(after))
}

/// The largest forests, and trees of each height.
#[test]
fn numbers_do_not_overflow() {
    for seed in 0..rounds(100, 10_000) {
        let mut rng = Rng::new(seed);
        let some = rng.below(LEAVES_MAX);
        let leaves = [LEAVES_MAX, LEAVES_MAX - 1, LEAVES_MAX / 2 + 1, some][rng.index(4)];
        let (roots, proof, spent, after) = of_many_rows(&mut rng, leaves);
        let mut updated = roots.clone();
        assert_eq!(updated.update(&proof, &spent, &[]), Ok(()));
        assert_eq!(updated, after);
        // The error names the root that is wrong.
        let index = rng.index(roots.hashes.len());
        let mut wrong = roots.clone();
        wrong.hashes[index] = random(&mut rng);
        let (expected, found) = (wrong.hashes[index], roots.hashes[index]);
        let rows: Vec<u32> = (0..64).rev().filter(|row| leaves >> row & 1 == 1).collect();
        let error = ProofError::Root { row: rows[index], expected, found };
        assert_eq!(wrong.verify(&proof, &spent), Err(error));
    }
}
