//! The coins cache: look-ups, applying blocks, and flushing.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed measurement")]

use apus_chain::{BlockHash, CoinRef, KnownBlock, OutPoint, Txid};
use apus_engine::utxo::store::EachCoin;
use apus_engine::utxo::{
    CoinBytes, CoinsCache, CoinsDelta, CoinsStore, CoinsView, Flush, StoreError,
};
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use std::sync::Arc;

fn main() {
    divan::main();
}

/// A store without coins that accepts all changes.
struct Nothing;

impl CoinsStore for Nothing {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        Ok(None)
    }

    fn get(&self, _: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        Ok(None)
    }

    fn write(&self, flush: &Flush<'_>) -> Result<(), StoreError> {
        flush.changes.for_each(&mut |outpoint, coin| {
            black_box((outpoint, coin));
            Ok(())
        })
    }

    fn undo(&self, _: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(None)
    }

    fn for_each(&self, _: &mut EachCoin<'_>) -> Result<(), StoreError> {
        Ok(())
    }
}

const TIP: KnownBlock = KnownBlock { height: 1, hash: BlockHash([0; 32]) };

/// Number of changes in a block.
const BLOCK: u64 = 10_000;

fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 27
}

fn outpoint(number: u64) -> OutPoint {
    let mut txid = [0; 32];
    for (at, word) in txid.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&mix(number * 4 + at as u64).to_le_bytes());
    }
    OutPoint { txid: Txid(txid), vout: number as u32 % 4 }
}

fn coin() -> CoinBytes {
    let script = [0x51; 22];
    CoinBytes::new(CoinRef { height: 800_000, coinbase: false, amount: 123_456, script: &script })
}

/// Creates new coins with these numbers.
fn created(numbers: std::ops::Range<u64>) -> CoinsDelta {
    let mut delta = CoinsDelta::with_capacity(BLOCK as usize);
    let coin = coin();
    numbers.for_each(|number| delta.create(outpoint(number), coin.clone(), true));
    delta
}

fn spent(numbers: std::ops::Range<u64>) -> CoinsDelta {
    let mut delta = CoinsDelta::with_capacity(BLOCK as usize);
    numbers.for_each(|number| delta.spend(outpoint(number)));
    delta
}

/// Creates a cache with this many young coins.
fn cache(coins: u64) -> CoinsCache {
    let cache = CoinsCache::new(Arc::new(Nothing), 450 << 20);
    for start in (0..coins).step_by(BLOCK as usize) {
        cache.apply(&created(start..start + BLOCK)).unwrap();
    }
    cache
}

/// Coins in the cache: a number that fits a processor's cache, and a common `--dbcache`.
const SIZES: [u64; 2] = [50_000, 2_500_000];

#[divan::bench(args = SIZES)]
fn look_up_hit(bencher: Bencher<'_, '_>, coins: u64) {
    let cache = cache(coins);
    let names: Vec<OutPoint> = (0..BLOCK).map(|at| outpoint(mix(at) % coins)).collect();
    bencher.counter(ItemsCount::new(BLOCK)).bench_local(|| {
        names.iter().for_each(|name| drop(black_box(cache.coin(name))));
    });
}

#[divan::bench(args = SIZES)]
fn look_up_miss(bencher: Bencher<'_, '_>, coins: u64) {
    let cache = cache(coins);
    let names: Vec<OutPoint> = (0..BLOCK).map(|at| outpoint(coins + mix(at) % coins)).collect();
    bencher.counter(ItemsCount::new(BLOCK)).bench_local(|| {
        names.iter().for_each(|name| drop(black_box(cache.coin(name))));
    });
}

/// Building the changes of a block, before they are applied.
#[divan::bench]
fn build_delta(bencher: Bencher<'_, '_>) {
    let names: Vec<OutPoint> = (0..BLOCK).map(outpoint).collect();
    let coin = coin();
    bencher.counter(ItemsCount::new(BLOCK)).bench_local(|| {
        let mut delta = CoinsDelta::with_capacity(names.len());
        names.iter().for_each(|name| delta.create(*name, coin.clone(), true));
        delta
    });
}

#[divan::bench(args = SIZES, sample_count = 20, sample_size = 1)]
fn apply_create(bencher: Bencher<'_, '_>, coins: u64) {
    let cache = cache(coins);
    let mut next = coins;
    let inputs = bencher.counter(ItemsCount::new(BLOCK)).with_inputs(|| {
        next += BLOCK;
        created(next - BLOCK..next)
    });
    inputs.bench_local_refs(|delta| cache.apply(delta).unwrap());
}

#[divan::bench(args = SIZES, sample_count = 5, sample_size = 1)]
fn apply_spend_of_fresh(bencher: Bencher<'_, '_>, coins: u64) {
    let cache = cache(coins);
    let mut next = 0;
    let inputs = bencher.counter(ItemsCount::new(BLOCK)).with_inputs(|| {
        next += BLOCK;
        spent(next - BLOCK..next)
    });
    inputs.bench_local_refs(|delta| cache.apply(delta).unwrap());
}

#[divan::bench(args = SIZES, sample_count = 20, sample_size = 1)]
fn apply_spend_of_stored(bencher: Bencher<'_, '_>, coins: u64) {
    let cache = cache(coins);
    let mut next = coins;
    let inputs = bencher.counter(ItemsCount::new(BLOCK)).with_inputs(|| {
        next += BLOCK;
        spent(next - BLOCK..next)
    });
    inputs.bench_local_refs(|delta| cache.apply(delta).unwrap());
}

/// Freezing and sorting, with a store that does nothing.
#[divan::bench(args = SIZES, sample_count = 3, sample_size = 1)]
fn flush(bencher: Bencher<'_, '_>, coins: u64) {
    let inputs = bencher.counter(ItemsCount::new(coins)).with_inputs(|| cache(coins));
    inputs.bench_local_refs(|cache| cache.flush(TIP, Vec::new(), 0).unwrap());
}
