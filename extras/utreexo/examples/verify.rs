//! Measures a verifier's time for a block, and the time to add leaves, compared with `rustreexo`'s `Stump`.
//!
//! `cargo run --release -p apus-utreexo --example verify [ROUNDS]` makes a forest of a million live leaves
//! and the proofs of some blocks, which takes seconds, and then updates the roots over those blocks,
//! alternating between both in each round, so that both see the same load from the rest of the machine. Then
//! it adds leaves only, few or all of them live: ours by fragments on one thread, and on two threads with a
//! join. Each line has the medians of all rounds, in milliseconds, and the ratio of theirs to ours. The
//! program aborts if the roots differ.
#![allow(clippy::print_stdout)]
#![allow(clippy::unwrap_used, reason = "a failure here ends the program")]

use apus_utreexo::{Fragment, LiveLeaf, NodeHash, Proof, Roots};
use rustreexo::mem_forest::MemForest;
use rustreexo::node_hash::BitcoinNodeHash;
use rustreexo::stump::Stump;
use std::time::Instant;

const LIVE: u64 = 1_000_000;
const BLOCKS: usize = 10;
const SPENT: usize = 4_000;
const ADDED: u64 = 4_500;
/// Leaves of the second part.
const LEAVES: u64 = 2_000_000;
/// Live leaves pushed together.
const TOGETHER: usize = 8_192;

type Theirs = rustreexo::proof::Proof<BitcoinNodeHash>;

/// A random generator with the same numbers on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn leaf(&mut self) -> NodeHash {
        let mut hash = [0; 32];
        hash.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&self.next().to_le_bytes()));
        NodeHash(hash)
    }
}

fn theirs(hashes: &[NodeHash]) -> Vec<BitcoinNodeHash> {
    let hash = |hash: &NodeHash| match hash.is_empty() {
        true => BitcoinNodeHash::Empty,
        false => BitcoinNodeHash::from(hash.0),
    };
    hashes.iter().map(hash).collect()
}

fn expect_same(ours: &Roots, theirs: &Stump) {
    assert_eq!(ours.leaves(), theirs.leaves);
    assert!(ours.hashes().iter().map(|root| &root.0).eq(theirs.roots.iter().map(|root| &**root)));
}

/// What a verifier receives with a block, for both libraries.
struct Block {
    proof: Proof,
    spent: Vec<NodeHash>,
    added: Vec<NodeHash>,
    their_proof: Theirs,
    their_spent: Vec<BitcoinNodeHash>,
    their_added: Vec<BitcoinNodeHash>,
}

/// A forest, and blocks after it that spend live leaves of any age.
fn blocks(random: &mut Random) -> (Vec<NodeHash>, Vec<Block>) {
    let first: Vec<NodeHash> = (0..LIVE).map(|_| random.leaf()).collect();
    let (mut forest, mut live) = (MemForest::<BitcoinNodeHash>::new(), first.clone());
    forest.modify(&theirs(&first), &[]).unwrap();
    let blocks = (0..BLOCKS).map(|_| {
        let take = |_| live.swap_remove(random.next() as usize % live.len());
        let spent: Vec<NodeHash> = (0..SPENT).map(take).collect();
        let added: Vec<NodeHash> = (0..ADDED).map(|_| random.leaf()).collect();
        let (their_spent, their_added) = (theirs(&spent), theirs(&added));
        let their_proof = forest.prove(&their_spent).unwrap();
        forest.modify(&their_added, &their_spent).unwrap();
        live.extend(&added);
        let hashes = their_proof.hashes.iter().map(|hash| NodeHash(**hash)).collect();
        let proof = Proof { targets: their_proof.targets.clone(), hashes };
        Block { proof, spent, added, their_proof, their_spent, their_added }
    });
    let blocks = blocks.collect();
    (first, blocks)
}

/// Samples in milliseconds.
#[derive(Default)]
struct Samples(Vec<f64>);

impl Samples {
    fn take<T>(&mut self, run: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = run();
        self.0.push(start.elapsed().as_secs_f64() * 1e3);
        result
    }

    fn median(&mut self) -> f64 {
        self.0.sort_by(f64::total_cmp);
        self.0[self.0.len() / 2]
    }
}

fn report(what: &str, ours: &mut Samples, theirs: &mut Samples) {
    let (least, most) = (|of: &Samples| of.0[0], |of: &Samples| of.0[of.0.len() - 1]);
    let (median, their_median) = (ours.median(), theirs.median());
    println!(
        "{what:<34}{median:>9.2} ({:.2} to {:.2}){their_median:>10.2} ({:.2} to {:.2}){:>8.2}",
        least(ours),
        most(ours),
        least(theirs),
        most(theirs),
        their_median / median
    );
}

fn measure_blocks(rounds: usize, random: &mut Random) {
    let (first, blocks) = blocks(random);
    let mut start = Roots::default();
    start.update(&Proof::default(), &[], &first).unwrap();
    let their_start = Stump::new().modify(&theirs(&first), &[], &Theirs::default()).unwrap();
    let [mut verify, mut update, mut their_verify, mut modify] =
        [(); 4].map(|()| Samples::default());
    for _ in 0..rounds {
        let (mut roots, mut stump) = (start.clone(), their_start.clone());
        for block in &blocks {
            let Block { proof, spent, added, their_proof, their_spent, their_added } = block;
            verify.take(|| roots.verify(proof, spent)).unwrap();
            assert!(their_verify.take(|| stump.verify(their_proof, their_spent)).unwrap());
            update.take(|| roots.update(proof, spent, added)).unwrap();
            stump = modify.take(|| stump.modify(their_added, their_spent, their_proof)).unwrap();
            expect_same(&roots, &stump);
        }
    }
    report(&format!("verify, {SPENT} spent"), &mut verify, &mut their_verify);
    report(&format!("update, {SPENT} spent, {ADDED} added"), &mut update, &mut modify);
}

/// The fragment of leaves `first..end`; `live` has the places of live leaves in the forest.
fn fragment(first: u64, end: u64, live: &[LiveLeaf]) -> Fragment {
    let mut fragment = Fragment::new(first).unwrap();
    let mut done = first;
    for chunk in live.chunks(TOGETHER) {
        let here: Vec<LiveLeaf> =
            chunk.iter().map(|leaf| LiveLeaf { place: leaf.place - done, ..*leaf }).collect();
        let count = here[here.len() - 1].place + 1;
        fragment.push_live(count, &here).unwrap();
        done += count;
    }
    fragment.push_empty(end - done).unwrap();
    fragment
}

fn on_two_threads(live: &[LiveLeaf]) -> Fragment {
    let middle = LEAVES / 2 + 1;
    let (left, right) = live.split_at(live.partition_point(|leaf| leaf.place < middle));
    std::thread::scope(|scope| {
        let right = scope.spawn(move || fragment(middle, LEAVES, right));
        let mut left = fragment(0, middle, left);
        left.append(&right.join().unwrap()).unwrap();
        left
    })
}

fn measure_leaves(rounds: usize, percent: u64, random: &mut Random) {
    let is_live = |random: &mut Random| random.next() % 100 < percent;
    let leaves: Vec<NodeHash> = (0..LEAVES)
        .map(|_| if is_live(random) { random.leaf() } else { NodeHash::EMPTY })
        .collect();
    let all = (0..).zip(&leaves).map(|(place, hash)| LiveLeaf { place, hash: *hash });
    let live: Vec<LiveLeaf> = all.filter(|leaf| !leaf.hash.is_empty()).collect();
    let their_leaves = theirs(&leaves);
    let [mut one, mut two, mut modify] = [(); 3].map(|()| Samples::default());
    for _ in 0..rounds {
        let stump = modify.take(|| Stump::new().modify(&their_leaves, &[], &Theirs::default()));
        let stump = stump.unwrap();
        expect_same(&one.take(|| fragment(0, LEAVES, &live)).roots().unwrap(), &stump);
        expect_same(&two.take(|| on_two_threads(&live)).roots().unwrap(), &stump);
    }
    report(&format!("{LEAVES} leaves, {percent} % live"), &mut one, &mut modify);
    report("  on two threads", &mut two, &mut modify);
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(5, |rounds| rounds.parse().unwrap());
    println!("{:<34}{:>22}{:>28}{:>8}", "", "ours, ms", "rustreexo, ms", "times");
    let mut random = Random(1);
    measure_blocks(rounds, &mut random);
    for percent in [5, 100] {
        measure_leaves(rounds, percent, &mut random);
    }
}
