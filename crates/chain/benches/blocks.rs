//! Benchmarks operations on a block's bytes against the naive way, with the `bitcoin` crate and the
//! collections of `std`. All blocks are from the main chain.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed measurement")]

use apus_chain::{
    BlockChecker, BlockContext, BlockHash, BlockLayout, BlockView, Height, Network, OutPoint,
    Params,
};
use bitcoin::consensus::{deserialize, serialize};
use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use std::collections::{BTreeSet, HashSet};
use std::path::Path;

fn main() {
    divan::main();
}

/// The heights of the measured blocks: full blocks before, at the start of and well after segwit.
const HEIGHTS: [Height; 3] = [277_647, 481_824, 692_261];

/// A block of the fixtures: its bytes and its hash.
fn block(height: Height) -> (Vec<u8>, BlockHash) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/main-blocks");
    let wanted = format!("{height}_");
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if let Some(hash) = name.strip_prefix(&wanted).and_then(|name| name.strip_suffix(".raw")) {
            let hash = hash.parse().unwrap();
            return (std::fs::read(entry.path()).unwrap(), hash);
        }
    }
    panic!("no block of height {height} in the fixtures");
}

/// A block read by both crates.
struct Both {
    raw: Vec<u8>,
    layout: BlockLayout,
    theirs: bitcoin::Block,
}

impl Both {
    fn new(height: Height) -> Self {
        let (raw, _) = block(height);
        let theirs = deserialize(&raw).unwrap();
        Self { raw, layout: BlockLayout::new(), theirs }
    }

    fn view(&mut self) -> BlockView<'_> {
        self.layout.read(&self.raw).unwrap()
    }
}

/// Reads bytes into a view with the positions of all parts.
mod parse {
    use super::*;

    #[divan::bench(args = HEIGHTS)]
    fn ours(bencher: Bencher, height: Height) {
        let (raw, _) = block(height);
        let mut layout = BlockLayout::new();
        let bencher = bencher.counter(BytesCount::of_slice(&raw));
        bencher.bench_local(|| layout.read(black_box(&raw)).unwrap().tx_count());
    }

    #[divan::bench(args = HEIGHTS)]
    fn bitcoin_crate(bencher: Bencher, height: Height) {
        let (raw, _) = block(height);
        let bencher = bencher.counter(BytesCount::of_slice(&raw));
        bencher.bench_local(|| deserialize::<bitcoin::Block>(black_box(&raw)).unwrap());
    }
}

/// Reads bytes and checks all rules that need no coins. The other crate checks far fewer rules: the merkle
/// root and the witness commitment.
mod check {
    use super::*;

    #[divan::bench(args = HEIGHTS)]
    fn ours(bencher: Bencher, height: Height) {
        let (raw, hash) = block(height);
        let median_time_past = u32::from_le_bytes(*raw[68..].first_chunk().unwrap());
        let params = Params::of(Network::Main);
        let context = BlockContext { params, height, hash, median_time_past, verifier: None };
        let mut checker = BlockChecker::new();
        let bencher = bencher.counter(BytesCount::of_slice(&raw));
        bencher.bench_local(|| checker.check(black_box(&raw), &context).unwrap().height());
    }

    #[divan::bench(args = HEIGHTS)]
    fn bitcoin_crate(bencher: Bencher, height: Height) {
        let (raw, _) = block(height);
        let bencher = bencher.counter(BytesCount::of_slice(&raw));
        bencher.bench_local(|| {
            let block = deserialize::<bitcoin::Block>(black_box(&raw)).unwrap();
            assert!(block.check_merkle_root() && block.check_witness_commitment());
        });
    }
}

/// Computes the weight of a block that was already read.
mod weight {
    use super::*;

    #[divan::bench(args = HEIGHTS)]
    fn ours(bencher: Bencher, height: Height) {
        let mut both = Both::new(height);
        let view = both.view();
        bencher.bench_local(|| black_box(&view).weight());
    }

    /// Computes a size like the other crate: walks the block as for writing, but only counts.
    #[divan::bench(args = HEIGHTS)]
    fn counted(bencher: Bencher, height: Height) {
        let both = Both::new(height);
        bencher.bench_local(|| black_box(&both.theirs).weight());
    }

    #[divan::bench(args = HEIGHTS)]
    fn written(bencher: Bencher, height: Height) {
        let both = Both::new(height);
        bencher.bench_local(|| {
            let block = black_box(&both.theirs);
            let whole = serialize(block).len();
            let bare = |tx: &bitcoin::Transaction| {
                (serialize(&tx.version), serialize(&tx.input), serialize(&tx.output))
            };
            let stripped = block.txdata.iter().map(|tx| {
                let (version, input, output) = bare(tx);
                version.len() + input.len() + output.len() + 4
            });
            3 * (81 + stripped.sum::<usize>()) + whole
        });
    }
}

/// Checks every transaction of a block for coins that it spends twice. An item is an input.
mod duplicate_inputs {
    use super::*;

    /// The outpoints of each transaction.
    fn outpoints(height: Height) -> Vec<Vec<[u8; OutPoint::SIZE]>> {
        let mut both = Both::new(height);
        let txs = both.view().txs();
        txs.map(|tx| tx.inputs().map(|input| *input.outpoint()).collect()).collect()
    }

    fn measure(
        bencher: Bencher,
        height: Height,
        mut has_duplicates: impl FnMut(&[[u8; OutPoint::SIZE]]) -> bool,
    ) {
        let txs = outpoints(height);
        let bencher = bencher.counter(ItemsCount::new(txs.iter().map(Vec::len).sum::<usize>()));
        bencher.bench_local(|| black_box(&txs).iter().any(|inputs| has_duplicates(inputs)));
    }

    /// Compares a few inputs pairwise; sorts more by fingerprints that nearly always differ. The method of
    /// `check/survey.rs`.
    #[divan::bench(args = HEIGHTS)]
    fn ours(bencher: Bencher, height: Height) {
        let mut scratch = Vec::new();
        measure(bencher, height, |inputs| {
            if inputs.len() <= 8 {
                return few_have_duplicates(inputs);
            }
            scratch.clear();
            scratch.extend(inputs.iter().map(|outpoint| {
                let OutPoint { txid, vout } = OutPoint::from_bytes(outpoint);
                let start = txid.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                start.wrapping_add(u64::from(vout).wrapping_mul(0x9e37_79b9_7f4a_7c15))
            }));
            scratch.sort_unstable();
            scratch.windows(2).any(|pair: &[u64]| pair[0] == pair[1])
        });
    }

    #[divan::bench(args = HEIGHTS)]
    fn sorted_outpoints(bencher: Bencher, height: Height) {
        let mut scratch = Vec::new();
        measure(bencher, height, |inputs| {
            if inputs.len() <= 8 {
                return few_have_duplicates(inputs);
            }
            scratch.clear();
            scratch.extend_from_slice(inputs);
            scratch.sort_unstable();
            scratch.windows(2).any(|pair| pair[0] == pair[1])
        });
    }

    fn few_have_duplicates(inputs: &[[u8; OutPoint::SIZE]]) -> bool {
        (1..inputs.len()).any(|index| inputs[index..].contains(&inputs[index - 1]))
    }

    #[divan::bench(args = HEIGHTS)]
    fn tree_set(bencher: Bencher, height: Height) {
        measure(bencher, height, |inputs| {
            let mut seen = BTreeSet::new();
            !inputs.iter().all(|outpoint| seen.insert(outpoint))
        });
    }

    #[divan::bench(args = HEIGHTS)]
    fn hash_set(bencher: Bencher, height: Height) {
        measure(bencher, height, |inputs| {
            let mut seen = HashSet::with_capacity(inputs.len());
            !inputs.iter().all(|outpoint| seen.insert(outpoint))
        });
    }
}

/// Hashes headers for the three uses while a block is processed: as the key in the tree, as the parent of the
/// next, and to verify the block that was read. An item is a header.
mod header_hash {
    use super::*;

    fn headers() -> Vec<[u8; 80]> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../fixtures/headers/main_191520_193542.bin");
        std::fs::read(path).unwrap().as_chunks().0.to_vec()
    }

    #[divan::bench]
    fn ours_once_and_kept(bencher: Bencher) {
        let headers = headers();
        let bencher = bencher.counter(ItemsCount::new(headers.len()));
        bencher.bench_local(|| {
            let hashes: Vec<_> =
                black_box(&headers).iter().map(|h| apus_hash::sha256d(h)).collect();
            (0..3).map(|_| black_box(&hashes).iter().map(|hash| hash[0]).max()).max()
        });
    }

    #[divan::bench]
    fn at_each_place(bencher: Bencher) {
        let headers = headers();
        let bencher = bencher.counter(ItemsCount::new(headers.len()));
        bencher.bench_local(|| {
            let hash = |header: &[u8; 80]| apus_hash::sha256d(header)[0];
            (0..3).map(|_| black_box(&headers).iter().map(hash).max()).max()
        });
    }
}
