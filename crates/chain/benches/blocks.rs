//! What is done with a block's bytes, beside the plain way with the `bitcoin` crate and with the
//! collections of `std`. All blocks are the main chain's.

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

/// Heights of the blocks measured: full ones before, at the start of and well after segwit.
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

/// A block read by both.
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

/// From bytes to something that knows where everything is.
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

/// From bytes to a block that obeys the rules that need no coins. The other crate checks far fewer:
/// the merkle root and the witness commitment.
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

/// The weight of a block that was read.
mod weight {
    use super::*;

    #[divan::bench(args = HEIGHTS)]
    fn ours(bencher: Bencher, height: Height) {
        let mut both = Both::new(height);
        let view = both.view();
        bencher.bench_local(|| black_box(&view).weight());
    }

    /// What a size computer does: the same walk as for writing, only counting.
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

/// Whether a transaction spends a coin twice, for every transaction of a block. Items are inputs.
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

    /// Few are compared each with each; of more, numbers that nearly always tell them apart are
    /// sorted. The method of `check/transaction.rs`.
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

/// The hash of a header at the three places that ask for it while a block is taken: as the place in
/// the tree, as the parent of the next, and against the block that was read. Items are headers.
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
