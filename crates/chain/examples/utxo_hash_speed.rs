//! Measures the speed of hashing coins: MuHash one by one and in batches, its final division,
//! `hash_serialized_3`, and the stored form of coins.
//!
//! `cargo run --release -p apus-chain --example utxo_hash_speed`

#![allow(clippy::print_stdout)]

use apus_chain::{
    CoinRef, HashSerialized3, MuHash, MuHashBatch, OutPoint, Reader, Txid, read_coin_strict,
    skip_coin, write_coin, write_utxo_element,
};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Returns the fastest of many rounds: the time that the code needs when nothing else runs.
fn best(rounds: u32, mut work: impl FnMut()) -> Duration {
    let time = |_| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    (0..rounds).map(time).min().unwrap_or_default()
}

fn report(name: &str, count: u32, bytes: usize, time: Duration) {
    let each = time.as_nanos() as f64 / f64::from(count);
    let rate = bytes as f64 / time.as_secs_f64() / 1e6;
    println!("{name:<34} {each:>12.1} ns each {rate:>8.0} MB/s");
}

const COINS: u32 = 2_000;

fn main() {
    // Pay to witness public key hash, the most common kind.
    let script: Vec<u8> = [0x00, 0x14].into_iter().chain(0x30..0x44).collect();
    let coins: Vec<(OutPoint, CoinRef<'_>)> = (0..COINS)
        .map(|i| {
            let mut txid = [0x5a; 32];
            txid[..4].copy_from_slice(&i.to_be_bytes());
            let amount = 123_456 + u64::from(i);
            let coin = CoinRef { height: 800_000 + i, coinbase: false, amount, script: &script };
            (OutPoint { txid: Txid(txid), vout: i % 4 }, coin)
        })
        .collect();

    let mut element = Vec::new();
    let mut elements = 0;
    let time = best(50, || {
        let mut hash = MuHash::new();
        elements = 0;
        for (outpoint, coin) in &coins {
            element.clear();
            write_utxo_element(&mut element, outpoint, *coin);
            elements += element.len();
            hash.insert(&element);
        }
        black_box(hash);
    });
    report("muhash insert", COINS, elements, time);

    let time = best(200, || {
        let mut batch = MuHashBatch::new();
        for (outpoint, coin) in &coins {
            element.clear();
            write_utxo_element(&mut element, outpoint, *coin);
            batch.insert(&element);
        }
        black_box(batch.finish());
    });
    report("muhash batch of coins", COINS, elements, time);

    let time = best(200, || {
        let mut batch = MuHashBatch::new();
        for (outpoint, _) in &coins {
            batch.insert(&outpoint.to_bytes());
            batch.remove(&outpoint.to_bytes());
        }
        black_box(batch.finish());
    });
    report("muhash batch of outpoints, both", 2 * COINS, 72 * COINS as usize, time);

    let mut hash = MuHash::new();
    hash.remove(b"something to divide by");
    report("muhash finalize", 1, 0, best(20, || _ = black_box(hash.finalize())));

    let time = best(200, || {
        let mut hash = HashSerialized3::new();
        coins.iter().for_each(|(outpoint, coin)| hash.push(outpoint, *coin));
        black_box(hash.finish());
    });
    report("hash_serialized_3", COINS, elements, time);

    let mut stored = Vec::new();
    let time = best(200, || {
        stored.clear();
        coins.iter().for_each(|(_, coin)| write_coin(&mut stored, *coin));
    });
    report("write_coin", COINS, stored.len(), time);
    let time = best(200, || {
        let mut reader = Reader::new(&stored);
        while let Ok(coin) = read_coin_strict(&mut reader) {
            black_box(coin);
        }
    });
    report("read_coin_strict", COINS, stored.len(), time);
    let time = best(200, || {
        let mut reader = Reader::new(&stored);
        while let Ok(coin) = skip_coin(&mut reader) {
            black_box(coin);
        }
    });
    report("skip_coin", COINS, stored.len(), time);
}
