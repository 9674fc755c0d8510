//! Benchmarks coins against the naive way: their stored form, the scripts in them, MuHash, and tables by
//! outpoint. Scripts are from a full block of the main chain, coins from a real node's snapshot.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed measurement")]

use apus_chain::{
    BlockLayout, CoinRef, MuHash, MuHashBatch, OutPoint, Reader, Txid, read_coin, skip_coin,
    write_coin, write_utxo_element,
};
use bitcoin::consensus::{Decodable, Encodable};
use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;

fn main() {
    divan::main();
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)).unwrap()
}

const BLOCK: &str =
    "main-blocks/692261_0000000000000000000f14c35b2d841e986ab5441de8c585d5ffe55ea1e395ad.raw";

/// Amount and script of every spendable output of a block.
fn outputs() -> Vec<(u64, Vec<u8>)> {
    let raw = fixture(BLOCK);
    let mut layout = BlockLayout::new();
    let view = layout.read(&raw).unwrap();
    let outputs = view.txs().flat_map(|tx| tx.outputs());
    let kept = outputs.filter(|output| !apus_chain::is_unspendable(output.script()));
    kept.map(|output| (output.value() as u64, output.script().to_vec())).collect()
}

fn coin<'a>((amount, script): &'a (u64, Vec<u8>)) -> CoinRef<'a> {
    CoinRef { height: 692_261, coinbase: false, amount: *amount, script }
}

/// Writes coins: with compressed scripts and amounts, or with the output as in its block.
mod write {
    use super::*;

    #[divan::bench]
    fn ours_compressed(bencher: Bencher) {
        let outputs = outputs();
        let mut out = Vec::new();
        bencher.counter(ItemsCount::new(outputs.len())).bench_local(|| {
            out.clear();
            black_box(&outputs).iter().for_each(|output| write_coin(&mut out, coin(output)));
            out.len()
        });
    }

    #[divan::bench]
    fn whole_with_bitcoin_crate(bencher: Bencher) {
        let outputs = theirs();
        let mut out = Vec::new();
        bencher.counter(ItemsCount::new(outputs.len())).bench_local(|| {
            out.clear();
            for output in black_box(&outputs) {
                692_261u32.consensus_encode(&mut out).unwrap();
                output.consensus_encode(&mut out).unwrap();
            }
            out.len()
        });
    }
}

fn theirs() -> Vec<bitcoin::TxOut> {
    let outputs = outputs().into_iter().map(|(amount, script)| bitcoin::TxOut {
        value: bitcoin::Amount::from_sat(amount),
        script_pubkey: script.into(),
    });
    outputs.collect()
}

/// Reads the coins back.
mod read {
    use super::*;

    fn stored() -> (usize, Vec<u8>) {
        let outputs = outputs();
        let mut stored = Vec::new();
        outputs.iter().for_each(|output| write_coin(&mut stored, coin(output)));
        (outputs.len(), stored)
    }

    #[divan::bench]
    fn ours_compressed(bencher: Bencher) {
        let (count, stored) = stored();
        bencher.counter(ItemsCount::new(count)).bench_local(|| {
            let mut reader = Reader::new(black_box(&stored));
            (0..count).map(|_| read_coin(&mut reader).unwrap().script.len()).sum::<usize>()
        });
    }

    #[divan::bench]
    fn ours_skipped(bencher: Bencher) {
        let (count, stored) = stored();
        bencher.counter(ItemsCount::new(count)).bench_local(|| {
            let mut reader = Reader::new(black_box(&stored));
            (0..count).for_each(|_| _ = black_box(skip_coin(&mut reader).unwrap()));
        });
    }

    #[divan::bench]
    fn whole_with_bitcoin_crate(bencher: Bencher) {
        let outputs = theirs();
        let mut stored = Vec::new();
        for output in &outputs {
            692_261u32.consensus_encode(&mut stored).unwrap();
            output.consensus_encode(&mut stored).unwrap();
        }
        bencher.counter(ItemsCount::new(outputs.len())).bench_local(|| {
            let mut rest = black_box(&stored[..]);
            let mut bytes = 0;
            for _ in 0..outputs.len() {
                black_box(u32::consensus_decode(&mut rest).unwrap());
                bytes += bitcoin::TxOut::consensus_decode(&mut rest).unwrap().script_pubkey.len();
            }
            bytes
        });
    }
}

/// Stores a block's scripts until they are written: in one array, or in one allocation each. Most have 22 to
/// 34 bytes.
mod scripts {
    use super::*;

    #[divan::bench]
    fn ours_in_one_array(bencher: Bencher) {
        let outputs = outputs();
        bencher.counter(ItemsCount::new(outputs.len())).bench_local(|| {
            let (mut bytes, mut ends) = (Vec::new(), Vec::new());
            for (_, script) in black_box(&outputs) {
                bytes.extend_from_slice(script);
                ends.push(bytes.len() as u32);
            }
            (bytes, ends)
        });
    }

    /// Stores up to 36 bytes inline with the length, longer scripts on the heap.
    #[divan::bench]
    fn inline_36(bencher: Bencher) {
        enum Script {
            Inline { bytes: [u8; 36], length: u8 },
            Heap(Vec<u8>),
        }
        let outputs = outputs();
        bencher.counter(ItemsCount::new(outputs.len())).bench_local(|| {
            let keep = |(_, script): &(u64, Vec<u8>)| match script.len() {
                length @ 0..=36 => {
                    let mut bytes = [0; 36];
                    bytes[..length].copy_from_slice(script);
                    Script::Inline { bytes, length: length as u8 }
                }
                _ => Script::Heap(script.clone()),
            };
            let kept: Vec<Script> = black_box(&outputs).iter().map(keep).collect();
            let length = |script: &Script| match script {
                Script::Inline { bytes, length } => usize::from(*length) + usize::from(bytes[0]),
                Script::Heap(bytes) => bytes.len(),
            };
            kept.iter().map(length).sum::<usize>()
        });
    }

    #[divan::bench]
    fn one_allocation_each(bencher: Bencher) {
        let outputs = outputs();
        bencher.counter(ItemsCount::new(outputs.len())).bench_local(|| {
            let scripts = black_box(&outputs).iter().map(|(_, script)| script.clone());
            scripts.collect::<Vec<Vec<u8>>>()
        });
    }
}

/// Adds coins to the hash of a set.
mod muhash {
    use super::*;

    fn elements() -> Vec<Vec<u8>> {
        let write = |(vout, output): (u32, &(u64, Vec<u8>))| {
            let mut element = Vec::new();
            write_utxo_element(&mut element, &OutPoint { txid: Txid([7; 32]), vout }, coin(output));
            element
        };
        (0..).zip(&outputs()[..500]).map(write).collect()
    }

    #[divan::bench]
    fn ours_in_batches(bencher: Bencher) {
        let elements = elements();
        bencher.counter(ItemsCount::new(elements.len())).bench_local(|| {
            let mut batch = MuHashBatch::new();
            black_box(&elements).iter().for_each(|element| batch.insert(element));
            batch.finish()
        });
    }

    #[divan::bench]
    fn one_by_one(bencher: Bencher) {
        let elements = elements();
        bencher.counter(ItemsCount::new(elements.len())).bench_local(|| {
            let mut hash = MuHash::new();
            black_box(&elements).iter().for_each(|element| hash.insert(element));
            hash
        });
    }
}

/// Hashes outpoints for a table whose keys an adversary may choose. An item is an outpoint.
mod outpoint_table {
    use super::*;

    type Outpoint = [u8; OutPoint::SIZE];

    /// Every outpoint that a block spends.
    fn outpoints() -> Vec<Outpoint> {
        let raw = fixture(BLOCK);
        let mut layout = BlockLayout::new();
        let view = layout.read(&raw).unwrap();
        view.txs().flat_map(|tx| tx.inputs().map(|input| *input.outpoint())).collect()
    }

    /// Mixes each of five words with a random word: a multiplication whose two halves are folded.
    #[derive(Clone)]
    struct Salted([u64; 5]);

    impl Salted {
        fn new() -> Self {
            let random = RandomState::new();
            Self([0, 1, 2, 3, 4].map(|index: u64| random.hash_one(index)))
        }

        fn hash(&self, outpoint: &Outpoint) -> u64 {
            let (words, rest) = outpoint.as_chunks::<8>();
            let mut last = [0; 8];
            last[..4].copy_from_slice(rest);
            let fold = |a: u64, b: u64| {
                let product = u128::from(a) * u128::from(b);
                product as u64 ^ (product >> 64) as u64
            };
            let word = |index: usize| u64::from_le_bytes(words[index]) ^ self.0[index];
            let last = u64::from_le_bytes(last) ^ self.0[4];
            fold(fold(word(0), word(1)) ^ last, fold(word(2), word(3)) ^ self.0[0])
        }
    }

    /// Hashes only a key of exactly these 36 bytes.
    struct OnlyOutpoints(u64, Salted);

    impl Hasher for OnlyOutpoints {
        fn finish(&self) -> u64 {
            self.0
        }

        fn write(&mut self, bytes: &[u8]) {
            // The first bytes to hash are the array's length, eight bytes.
            if let Ok(outpoint) = bytes.try_into() {
                self.0 = self.1.hash(outpoint);
            }
        }
    }

    impl BuildHasher for Salted {
        type Hasher = OnlyOutpoints;

        fn build_hasher(&self) -> OnlyOutpoints {
            OnlyOutpoints(0, self.clone())
        }
    }

    fn hashes(bencher: Bencher, hash: impl Fn(&Outpoint) -> u64) {
        let outpoints = outpoints();
        let bencher = bencher.counter(ItemsCount::new(outpoints.len()));
        bencher.bench_local(|| black_box(&outpoints).iter().map(&hash).fold(0, |a, b| a ^ b));
    }

    fn table(bencher: Bencher, hasher: impl BuildHasher + Clone) {
        let outpoints = outpoints();
        bencher.counter(ItemsCount::new(outpoints.len())).bench_local(|| {
            let capacity = outpoints.len();
            let mut table = HashMap::with_capacity_and_hasher(capacity, hasher.clone());
            (0u32..).zip(black_box(&outpoints)).for_each(|(at, key)| _ = table.insert(*key, at));
            outpoints.iter().filter_map(|outpoint| table.remove(outpoint)).max()
        });
    }

    #[divan::bench]
    fn hash_salted_folds(bencher: Bencher) {
        let salted = Salted::new();
        hashes(bencher, |outpoint| salted.hash(outpoint));
    }

    #[divan::bench]
    fn hash_std_siphash(bencher: Bencher) {
        let random = RandomState::new();
        hashes(bencher, |outpoint| random.hash_one(outpoint));
    }

    #[divan::bench]
    fn insert_and_remove_salted_folds(bencher: Bencher) {
        table(bencher, Salted::new());
    }

    #[divan::bench]
    fn insert_and_remove_std_siphash(bencher: Bencher) {
        table(bencher, RandomState::new());
    }
}

/// Reads a snapshot's coins, each of a different transaction.
#[divan::bench]
fn skip_a_snapshot_of_early_coins(bencher: Bencher) {
    let file = fixture("main-4521/utxo.dat");
    bencher.counter(BytesCount::of_slice(&file)).bench_local(|| {
        // The header is followed by: txid, a count and a vout of one byte each, the coin.
        let mut reader = Reader::new(&black_box(&file)[51..]);
        let mut groups = 0;
        while reader.take(32).is_ok() {
            let coins = reader.compact_size().unwrap();
            for _ in 0..coins {
                reader.compact_size().unwrap();
                skip_coin(&mut reader).unwrap();
            }
            groups += 1;
        }
        groups
    });
}
