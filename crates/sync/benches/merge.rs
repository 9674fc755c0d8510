//! Benchmarks three ways to merge sorted runs of coins: the method of `runs.rs`, a simpler heap, and sorting
//! all records.
//!
//! The merge itself is private to the crate and reads files. This benchmark applies its method to records in
//! memory, without hashing and checks, so that only the order of work differs.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed measurement")]

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

fn main() {
    divan::main();
}

/// Number of transactions in all runs together.
const RECORDS: usize = 12_800;
const RUNS: [usize; 3] = [2, 16, 256];

/// Makes runs in the form that segments write: `txid[32] ‖ u32le length ‖ group` by ascending txid.
fn runs(count: usize) -> Vec<Vec<u8>> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        // The upper half only: the lower bits repeat after short cycles.
        ((state >> 32) as u32).to_be_bytes()
    };
    let mut run = || {
        let txid = |_| -> [u8; 32] { std::array::from_fn(|_| next()[0]) };
        let mut txids: Vec<[u8; 32]> = (0..RECORDS / count).map(txid).collect();
        txids.sort_unstable();
        let mut bytes = Vec::new();
        for txid in txids {
            // One or two coins.
            let length = 30 + 30 * u32::from(txid[31] % 2);
            bytes.extend_from_slice(&txid);
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.resize(bytes.len() + length as usize, 0x5a);
        }
        bytes
    };
    (0..count).map(|_| run()).collect()
}

/// The remaining records of a run.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn txid(&self) -> Option<[u8; 32]> {
        self.0.first_chunk().copied()
    }

    /// Removes and returns the first record, including its txid and length.
    fn take(&mut self) -> &'a [u8] {
        let length = u32::from_le_bytes(*self.0[32..].first_chunk().unwrap());
        let (record, rest) = self.0.split_at(36 + length as usize);
        self.0 = rest;
        record
    }
}

fn measure(bencher: Bencher, count: usize, merge: impl Fn(&[Vec<u8>], &mut dyn FnMut(&[u8]))) {
    let runs = runs(count);
    let bytes: usize = runs.iter().map(Vec::len).sum();
    let bencher = bencher.counter(ItemsCount::new(RECORDS)).counter(BytesCount::new(bytes));
    let mut out = Vec::with_capacity(bytes);
    bencher.bench_local(|| {
        out.clear();
        merge(black_box(&runs), &mut |record| out.extend_from_slice(record));
        assert_eq!(out.len(), bytes);
    });
}

/// Merges with a heap of each run's first record, replacing the top in place.
fn replace_top<H: Ord>(
    runs: &[Vec<u8>],
    head: impl Fn([u8; 32], usize) -> H,
    index_of: impl Fn(&H) -> usize,
    each: &mut dyn FnMut(&[u8]),
) {
    let mut rests: Vec<Rest<'_>> = runs.iter().map(|run| Rest(run)).collect();
    let first = |(index, rest): (usize, &Rest<'_>)| Some(Reverse(head(rest.txid()?, index)));
    let mut heads: BinaryHeap<Reverse<H>> = rests.iter().enumerate().filter_map(first).collect();
    while let Some(mut top) = heads.peek_mut() {
        let index = index_of(&top.0);
        let rest = &mut rests[index];
        each(rest.take());
        match rest.txid() {
            Some(txid) => *top = Reverse(head(txid, index)),
            None => _ = PeekMut::pop(top),
        }
    }
}

/// The method of `runs.rs`: eight bytes of the txid nearly always determine the order.
#[divan::bench(args = RUNS)]
fn ours(bencher: Bencher, runs: usize) {
    let head = |txid: [u8; 32], index| {
        let prefix = txid.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        (prefix, txid, index)
    };
    measure(bencher, runs, |runs, each| replace_top(runs, head, |head| head.2, each));
}

#[divan::bench(args = RUNS)]
fn whole_txids_compared(bencher: Bencher, runs: usize) {
    measure(bencher, runs, |runs, each| {
        replace_top(runs, |txid, index| (txid, index), |head| head.1, each);
    });
}

#[divan::bench(args = RUNS)]
fn popped_and_pushed(bencher: Bencher, runs: usize) {
    measure(bencher, runs, |runs, each| {
        let mut rests: Vec<Rest<'_>> = runs.iter().map(|run| Rest(run)).collect();
        let first = |(index, rest): (usize, &Rest<'_>)| Some(Reverse((rest.txid()?, index)));
        let mut heads: BinaryHeap<_> = rests.iter().enumerate().filter_map(first).collect();
        while let Some(Reverse((_, index))) = heads.pop() {
            let rest = &mut rests[index];
            each(rest.take());
            heads.extend(rest.txid().map(|txid| Reverse((txid, index))));
        }
    });
}

/// Sorts all records in memory at once.
#[divan::bench(args = RUNS)]
fn sorted_again(bencher: Bencher, runs: usize) {
    measure(bencher, runs, |runs, each| {
        let mut records: Vec<&[u8]> = Vec::with_capacity(RECORDS);
        for run in runs {
            let mut rest = Rest(run);
            while rest.txid().is_some() {
                records.push(rest.take());
            }
        }
        records.sort_unstable();
        records.into_iter().for_each(each);
    });
}
