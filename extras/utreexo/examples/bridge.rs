//! Measures the time to prove the leaves that a block spends and to add its new ones, with our forest and
//! with `rustreexo`'s, on one core.
//!
//! `cargo run --release -p apus-utreexo --example bridge [ROUNDS]` grows both forests to 6 million leaves,
//! 1.3 million of them live. Then the forests take turns with the same 10 blocks, round by round. A block
//! spends 7,000 coins, two in five of them younger than 10 blocks, and adds 9,700. Each round prints a line
//! of milliseconds per block; the last lines are the minimum and the median of all rounds. Our forest appears
//! three times, over a store that is a map: with all pages in memory and nothing stored, with 64 MiB, and
//! with 16 MiB. The proofs must be equal.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a wrong answer ends the program")]

use apus_testkit::rng::Rng;
use apus_utreexo::{Forest, NodeHash, PageId, Pages, Proof, Roots};
use rustreexo::mem_forest::MemForest;
use rustreexo::node_hash::BitcoinNodeHash;
use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::hint::black_box;
use std::time::Instant;

const ADDED: u64 = 9_700;
/// Leaves spent per block before the measured blocks, so that 1.3 million are left.
const SPENT_BEFORE: usize = 7_600;
const SPENT: usize = 7_000;
const BLOCKS_BEFORE: usize = 620;
const BLOCKS_PER_ROUND: usize = 10;

/// Pages in memory, as stored.
#[derive(Default)]
struct Store(RefCell<HashMap<PageId, Vec<u8>>>);

impl Pages for Store {
    type Error = Infallible;

    fn read(&self, page: PageId, out: &mut Vec<u8>) -> Result<bool, Infallible> {
        let pages = self.0.borrow();
        out.extend(pages.get(&page).into_iter().flatten());
        Ok(pages.contains_key(&page))
    }
}

impl Store {
    fn take(&self, forest: &mut Forest<&Self>) {
        let mut pages = self.0.borrow_mut();
        forest.changes(|page, bytes| match bytes {
            Some(bytes) => drop(pages.insert(page, bytes.to_vec())),
            None => drop(pages.remove(&page)),
        });
        forest.set_stored();
    }
}

struct Block {
    spent: Vec<u64>,
    /// The hashes of the spent leaves.
    gone: Vec<BitcoinNodeHash>,
    added: Vec<NodeHash>,
    added_theirs: Vec<BitcoinNodeHash>,
}

/// A made-up chain: makes blocks and tracks the live leaves.
struct Chain {
    rng: Rng,
    leaves: u64,
    /// The live leaves of each block.
    live: Vec<Vec<u64>>,
}

fn leaf(number: u64) -> [u8; 32] {
    let mut rng = Rng::at(1, number);
    let words: [[u8; 8]; 4] = core::array::from_fn(|_| rng.next_u64().to_le_bytes());
    words.as_flattened().try_into().unwrap()
}

impl Chain {
    fn block(&mut self, spent: usize) -> Block {
        let spent: Vec<u64> = (0..spent).filter_map(|_| self.spend()).collect();
        let end = self.leaves + ADDED;
        let added: Vec<NodeHash> =
            (self.leaves..end).map(|number| NodeHash(leaf(number))).collect();
        let gone = spent.iter().map(|number| BitcoinNodeHash::from(leaf(*number))).collect();
        self.live.push((self.leaves..end).collect());
        self.leaves = end;
        let added_theirs = added.iter().map(|hash| BitcoinNodeHash::from(hash.0)).collect();
        Block { spent, gone, added, added_theirs }
    }

    /// Spends a leaf from one of the last ten blocks, or from an older one: half of these are younger than
    /// 100 blocks, a quarter as old as 200, and so on.
    fn spend(&mut self) -> Option<u64> {
        for _ in 0..100 {
            let unit = self.rng.next_u64() as f64 / u64::MAX as f64;
            let age = match self.rng.per_mille(400) {
                true => self.rng.index(10),
                false => (-100.0 * unit.log2()) as usize,
            };
            let live = self.live.iter_mut().nth_back(age).filter(|live| !live.is_empty());
            if let Some(live) = live {
                return Some(live.swap_remove(self.rng.index(live.len())));
            }
        }
        None
    }
}

/// One of our forests, with its store.
struct Ours<'a> {
    forest: Forest<&'a Store>,
    store: &'a Store,
    ms: Vec<f64>,
}

impl<'a> Ours<'a> {
    fn new(store: &'a Store, bytes_max: usize) -> Self {
        Self { forest: Forest::open(store, Roots::default(), bytes_max), store, ms: Vec::new() }
    }

    fn take(&mut self, block: &Block) -> Proof {
        let proof = self.forest.block(&block.spent, &block.added).unwrap();
        if self.forest.wants_store() {
            self.store.take(&mut self.forest);
        }
        proof
    }

    fn round(&mut self, blocks: &[Block]) -> Vec<Proof> {
        let start = Instant::now();
        let proofs = blocks.iter().map(|block| self.take(block)).collect();
        self.ms.push(per_block(start));
        proofs
    }
}

fn per_block(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3 / BLOCKS_PER_ROUND as f64
}

fn sorted(ms: &[f64]) -> Vec<f64> {
    let mut ms = ms.to_vec();
    ms.sort_by(f64::total_cmp);
    ms
}

fn report(what: &str, ours: &[Ours<'_>], theirs: &[f64], of: impl Fn(&[f64]) -> f64) {
    print!("{what:<10}");
    ours.iter().for_each(|ours| print!("{:>10.2}", of(&ours.ms)));
    println!("{:>12.2}{:>8.1} times all's", of(theirs), of(theirs) / of(&ours[0].ms));
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(10, |rounds| rounds.parse().unwrap());
    let mut chain = Chain { rng: Rng::new(7), leaves: 0, live: Vec::new() };
    let mut theirs = MemForest::<BitcoinNodeHash>::new();
    let stores: [Store; 3] = Default::default();
    let mut ours = [
        Ours::new(&stores[0], 4 << 30),
        Ours::new(&stores[1], 64 << 20),
        Ours::new(&stores[2], 16 << 20),
    ];
    for _ in 0..BLOCKS_BEFORE {
        let block = chain.block(SPENT_BEFORE);
        theirs.modify(&block.added_theirs, &block.gone).unwrap();
        ours.iter_mut().for_each(|ours| drop(black_box(ours.take(&block))));
    }
    let live: usize = chain.live.iter().map(Vec::len).sum();
    println!("{} leaves, {live} of them live", chain.leaves);
    println!("{:<10}{:>10}{:>10}{:>10}{:>12}", "", "all", "64 MiB", "16 MiB", "rustreexo");
    let mut theirs_ms = Vec::new();
    for _ in 0..rounds {
        let blocks: Vec<Block> = (0..BLOCKS_PER_ROUND).map(|_| chain.block(SPENT)).collect();
        let proofs = ours.each_mut().map(|ours| ours.round(&blocks));
        let start = Instant::now();
        let their_proofs: Vec<_> = blocks
            .iter()
            .map(|block| {
                let proof = theirs.prove(&block.gone).unwrap();
                theirs.modify(&block.added_theirs, &block.gone).unwrap();
                proof
            })
            .collect();
        theirs_ms.push(per_block(start));
        for proofs in proofs {
            for (ours, theirs) in proofs.iter().zip(&their_proofs) {
                assert_eq!(ours.targets, theirs.targets);
                assert!(ours.hashes.iter().map(|it| it.0).eq(theirs.hashes.iter().map(|it| **it)));
            }
        }
        let last = |ms: &[f64]| ms[ms.len() - 1];
        report("", &ours, &theirs_ms, last);
    }
    report("least", &ours, &theirs_ms, |ms| sorted(ms)[0]);
    report("median", &ours, &theirs_ms, |ms| sorted(ms)[ms.len() / 2]);
    ours.iter().for_each(|ours| println!("{:?}", ours.forest.usage()));
}
