//! Benchmarks every operation of the selected kernel against the `sha2` crate, which hashes one message at a
//! time.
//!
//! `APUS_SHA256_KERNEL=avx2 cargo bench -p apus-hash` measures another kernel; the example `kernels` measures all of
//! them. An item is a message.

use apus_hash::{KeyedHasher, Message, sha256, sha256d_many, sha256d_pairs};
use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use sha2::{Digest, Sha256};

fn main() {
    divan::main();
}

fn double(pieces: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    pieces.iter().for_each(|piece| hash.update(piece));
    Sha256::digest(hash.finalize()).into()
}

/// Hashes one long message. Nothing can run in parallel, so this measures the single kernel.
mod one_message_of_64_kib {
    use super::*;

    #[divan::bench]
    fn ours(bencher: Bencher) {
        let bytes = vec![0x5a; 1 << 16];
        let count = BytesCount::of_slice(&bytes);
        bencher.counter(count).bench(|| sha256(black_box(&bytes)));
    }

    #[divan::bench]
    fn sha2(bencher: Bencher) {
        let bytes = vec![0x5a; 1 << 16];
        let count = BytesCount::of_slice(&bytes);
        bencher.counter(count).bench(|| Sha256::digest(black_box(&bytes)));
    }
}

/// Hashes transactions, each message in the three pieces of the stripped form.
mod transaction_ids {
    use super::*;

    /// The messages of a full block, a small block, and a block with one giant transaction among ordinary
    /// ones.
    const SHAPES: [&str; 4] =
        ["2500 as in a block", "2500 of 250 bytes", "12 of a block", "one of 100 kB"];

    fn lengths(shape: &str) -> Vec<usize> {
        let mut state = 1u64;
        let mut below = |limit: u64| {
            state =
                state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
            ((state >> 33) % limit) as usize
        };
        // Mostly 190 to 400 bytes; one in ten up to 2 kB.
        let mut transaction = || match below(10) {
            0 => 400 + below(1_600),
            _ => 190 + below(210),
        };
        match shape {
            "2500 as in a block" => (0..2500).map(|_| transaction()).collect(),
            "12 of a block" => (0..12).map(|_| transaction()).collect(),
            "one of 100 kB" => [&[100_000][..], &[250; 2000]].concat(),
            _ => vec![250; 2500],
        }
    }

    fn messages<'a>(bytes: &'a [u8], lengths: &[usize]) -> Vec<Message<'a>> {
        let mut rest = bytes;
        let mut messages = Vec::with_capacity(lengths.len());
        for length in lengths {
            let (message, later) = rest.split_at(*length);
            let (version, inner) = message.split_at(4);
            let (inner, lock_time) = inner.split_at(inner.len() - 4);
            messages.push(Message([version, inner, lock_time]));
            rest = later;
        }
        messages
    }

    fn measure(bencher: Bencher, shape: &str, hash: impl Fn(&[Message<'_>], &mut [[u8; 32]])) {
        let lengths = lengths(shape);
        let bytes = vec![0x5a; lengths.iter().sum()];
        let messages = messages(&bytes, &lengths);
        let mut ids = vec![[0; 32]; messages.len()];
        let counted =
            bencher.counter(ItemsCount::new(messages.len())).counter(BytesCount::of_slice(&bytes));
        counted.bench_local(|| hash(black_box(&messages), black_box(&mut ids)));
    }

    #[divan::bench(args = SHAPES)]
    fn ours(bencher: Bencher, shape: &str) {
        measure(bencher, shape, sha256d_many);
    }

    #[divan::bench(args = SHAPES)]
    fn sha2(bencher: Bencher, shape: &str) {
        measure(bencher, shape, |messages, ids| {
            for (message, id) in messages.iter().zip(ids) {
                *id = double(&message.0);
            }
        });
    }
}

/// Hashes one level of a merkle tree.
mod merkle_level {
    use super::*;

    const PAIRS: [usize; 3] = [2048, 16, 1];

    #[divan::bench(args = PAIRS)]
    fn ours(bencher: Bencher, count: usize) {
        let pairs = vec![[0x5a; 64]; count];
        let mut out = vec![[0; 32]; count];
        let bencher = bencher.counter(ItemsCount::new(count));
        bencher.bench_local(|| sha256d_pairs(black_box(&pairs), black_box(&mut out)));
    }

    #[divan::bench(args = PAIRS)]
    fn sha2(bencher: Bencher, count: usize) {
        let pairs = vec![[0x5a; 64]; count];
        let mut out = vec![[0; 32]; count];
        let bencher = bencher.counter(ItemsCount::new(count));
        bencher.bench_local(|| {
            for (pair, out) in black_box(&pairs).iter().zip(black_box(&mut out)) {
                *out = double(&[pair]);
            }
        });
    }
}

/// Hashes outpoints with a key: one compression each, because the key fills the first block.
mod outpoints {
    use super::*;

    const COUNTS: [usize; 3] = [8192, 16, 2];

    #[divan::bench(args = COUNTS)]
    fn ours_digests(bencher: Bencher, count: usize) {
        let hasher = KeyedHasher::new(&[7; 64]);
        let outpoints = vec![[0x5a; 36]; count];
        let mut out = vec![[0; 32]; count];
        let bencher = bencher.counter(ItemsCount::new(count));
        bencher.bench_local(|| hasher.hash_many(black_box(&outpoints), black_box(&mut out)));
    }

    #[divan::bench(args = COUNTS)]
    fn ours_sum(bencher: Bencher, count: usize) {
        let hasher = KeyedHasher::new(&[7; 64]);
        let outpoints = vec![[0x5a; 36]; count];
        let mut sum = [0; 4];
        let bencher = bencher.counter(ItemsCount::new(count));
        bencher.bench_local(|| hasher.sum_many(black_box(&outpoints), black_box(&mut sum)));
    }

    #[divan::bench(args = COUNTS)]
    fn sha2_digests(bencher: Bencher, count: usize) {
        let keyed = Sha256::new_with_prefix([7; 64]);
        let outpoints = vec![[0x5a; 36]; count];
        let mut out = vec![[0; 32]; count];
        let bencher = bencher.counter(ItemsCount::new(count));
        bencher.bench_local(|| {
            for (outpoint, out) in black_box(&outpoints).iter().zip(black_box(&mut out)) {
                *out = keyed.clone().chain_update(outpoint).finalize().into();
            }
        });
    }
}
