//! Benchmarks decoding hints, compared with the `hintsfile` crate and with reading bit by bit; and adding
//! outpoints to the sums of the aggregate.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed measurement")]

use apus_chain::HeightRange;
use apus_sync::engines::swiftsync::hints::elias_fano::{decode, encode};
use apus_sync::engines::swiftsync::hints::{BitOrder, HintsFile, HintsOptions};
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use std::path::{Path, PathBuf};

fn main() {
    divan::main();
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// Reads a whole hintsfile, from opening it to the last index. Most early blocks have one coin each, so this
/// measures the cost of a block. Items are blocks.
mod file_of_4521_blocks {
    use super::*;

    #[divan::bench]
    fn ours(bencher: Bencher) {
        let path = fixture("main-4521/utxo.bip456.hints");
        bencher.counter(ItemsCount::new(4521u32)).bench_local(|| {
            let file = HintsFile::open_path(&path, &HintsOptions::default()).unwrap();
            let mut range = file.range(HeightRange::new(1, 4522)).unwrap();
            let mut coins = 0;
            while let Some(block) = range.next().unwrap() {
                coins += black_box(block.indices).len();
            }
            coins
        });
    }

    #[divan::bench]
    fn hintsfile_crate(bencher: Bencher) {
        let path = fixture("main-4521/utxo.hintsfile-0.2.hints");
        bencher.counter(ItemsCount::new(4521u32)).bench_local(|| {
            let bytes = std::fs::read(&path).unwrap();
            let file = hintsfile::Hintsfile::from_reader(&mut &bytes[..]).unwrap();
            let coins = (1..=4521).map(|height| file.indices_at_height(height).unwrap().len());
            coins.sum::<usize>()
        });
    }
}

/// Decodes the element of a full block with 8,000 outputs; on average, every n-th one survives. Items are
/// coins.
mod element_of_a_full_block {
    use super::*;

    /// One in 3 outputs survives in the last block, one in 16 in most blocks.
    const ONE_IN: [u64; 2] = [3, 16];

    fn element(one_in: u64) -> (usize, Vec<u8>, Vec<u8>) {
        let mut state = 7u64;
        let stays = |_: &u32| {
            state =
                state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
            (state >> 33).is_multiple_of(one_in)
        };
        let indices: Vec<u32> = (0..8_000).filter(stays).collect();
        let (mut msb, mut lsb) = (Vec::new(), Vec::new());
        encode(&indices, BitOrder::MsbFirst, &mut msb).unwrap();
        encode(&indices, BitOrder::LsbFirst, &mut lsb).unwrap();
        (indices.len(), msb, lsb)
    }

    #[divan::bench(args = ONE_IN)]
    fn ours(bencher: Bencher, one_in: u64) {
        let (coins, bytes, _) = element(one_in);
        let mut indices = Vec::new();
        bencher.counter(ItemsCount::new(coins)).bench_local(|| {
            decode(black_box(&bytes), BitOrder::MsbFirst, &mut indices).unwrap();
            indices.len()
        });
    }

    #[divan::bench(args = ONE_IN)]
    fn hintsfile_crate(bencher: Bencher, one_in: u64) {
        let (coins, _, bytes) = element(one_in);
        bencher.counter(ItemsCount::new(coins)).bench_local(|| {
            let element = hintsfile::EliasFano::from_reader(&mut black_box(&bytes[..])).unwrap();
            element.decompress().len()
        });
    }

    /// Decodes the same element bit by bit.
    #[divan::bench(args = ONE_IN)]
    fn bit_by_bit(bencher: Bencher, one_in: u64) {
        let (coins, bytes, _) = element(one_in);
        let mut ours = Vec::new();
        decode(&bytes, BitOrder::MsbFirst, &mut ours).unwrap();
        assert_eq!(bitwise(&bytes), ours);
        bencher.counter(ItemsCount::new(coins)).bench_local(|| bitwise(black_box(&bytes)).len());
    }

    fn bitwise(bytes: &[u8]) -> Vec<u32> {
        let mut reader = apus_chain::Reader::new(bytes);
        let n = reader.compact_size().unwrap() as u32;
        let m = reader.compact_size().unwrap() as u32;
        let low_bits = ((m + 1) / n).checked_ilog2().unwrap_or(0);
        let bits = &bytes[reader.position()..];
        let bit = |at: usize| u32::from(bits[at / 8] >> (7 - at % 8) & 1);
        let mut high_at = (n * low_bits).div_ceil(8) as usize * 8;
        let (mut indices, mut high) = (Vec::new(), 0);
        for index in 0..n as usize {
            while bit(high_at) == 0 {
                high += 1;
                high_at += 1;
            }
            high_at += 1;
            let low_at = index * low_bits as usize;
            // The first bit of a low part is its least significant one.
            let low = (0..low_bits).map(|at| bit(low_at + at as usize) << at).sum::<u32>();
            indices.push(high << low_bits | low);
        }
        indices
    }
}

/// Adds outpoints to one of the two sums, one at a time or a block at once. Items are outpoints.
mod aggregate {
    use super::*;
    use apus_hash::KeyedHasher;

    #[divan::bench]
    fn ours_by_the_thousand(bencher: Bencher) {
        let hasher = KeyedHasher::new(&[7; 64]);
        let outpoints = vec![[0x5a; 36]; 1024];
        let mut sum = [0; 4];
        let bencher = bencher.counter(ItemsCount::new(outpoints.len()));
        bencher.bench_local(|| hasher.sum_many(black_box(&outpoints), &mut sum));
    }

    #[divan::bench]
    fn one_by_one(bencher: Bencher) {
        let hasher = KeyedHasher::new(&[7; 64]);
        let outpoints = vec![[0x5a; 36]; 1024];
        let mut sum = [0; 4];
        let bencher = bencher.counter(ItemsCount::new(outpoints.len()));
        bencher.bench_local(|| {
            black_box(&outpoints)
                .chunks(1)
                .for_each(|outpoint| hasher.sum_many(outpoint, &mut sum));
        });
    }
}
