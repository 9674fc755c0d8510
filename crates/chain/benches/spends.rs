//! Benchmarks the rules for a block's transactions and their coins against the naive way with the `bitcoin`
//! crate. All blocks and coins are from the main chain.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed measurement")]

use apus_chain::{
    BlockLayout, CoinRef, Height, Network, Params, Txid, check_tx_inputs, transaction_sigop_cost,
};
use bitcoin::{Amount, ScriptBuf, TxOut};
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use flate2::read::GzDecoder;
use std::io::{BufRead, BufReader};
use std::path::Path;

fn main() {
    divan::main();
}

/// The heights of the measured blocks: before, at the start of and well after segwit.
const HEIGHTS: [Height; 3] = [277_647, 481_824, 692_261];

struct Spent {
    height: Height,
    coinbase: bool,
    amount: u64,
    script: Vec<u8>,
}

impl Spent {
    fn of(row: &serde_json::Value) -> Self {
        Self {
            height: row["height"].as_u64().unwrap() as Height,
            coinbase: row["coinbase"].as_bool().unwrap(),
            amount: row["value"].as_u64().unwrap(),
            script: ScriptBuf::from_hex(row["script"].as_str().unwrap()).unwrap().into_bytes(),
        }
    }

    fn coin(&self) -> CoinRef<'_> {
        let Self { height, coinbase, amount, ref script } = *self;
        CoinRef { height, coinbase, amount, script }
    }
}

/// A block's bytes, and the coins of its transactions except the coinbase.
fn block(height: Height) -> (Vec<u8>, Vec<Vec<Spent>>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/main-blocks");
    let (mut raw, mut txs) = (None, Vec::<Vec<Spent>>::new());
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.starts_with(&format!("{height}_")) {
            continue;
        }
        if name.ends_with(".raw") {
            raw = Some(std::fs::read(&path).unwrap());
            continue;
        }
        let file = BufReader::new(GzDecoder::new(std::fs::File::open(&path).unwrap()));
        for line in file.lines() {
            let row: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
            let tx = row["tx"].as_u64().unwrap() as usize;
            txs.resize_with(txs.len().max(tx), Vec::new);
            txs[tx - 1].push(Spent::of(&row));
        }
    }
    (raw.unwrap(), txs)
}

/// Computes the fees of all transactions. An item is an input.
#[divan::bench(args = HEIGHTS)]
fn amounts(bencher: Bencher, height: Height) {
    let (raw, spent) = block(height);
    let mut layout = BlockLayout::new();
    let view = layout.read(&raw).unwrap();
    let coins: Vec<Vec<CoinRef<'_>>> =
        spent.iter().map(|tx| tx.iter().map(Spent::coin).collect()).collect();
    let bencher = bencher.counter(ItemsCount::new(view.input_count()));
    bencher.bench_local(|| {
        let txs = black_box(&view).txs().skip(1).zip(&coins);
        let fee =
            |(tx, coins): (_, &Vec<_>)| check_tx_inputs(&tx, 1, Txid::ZERO, coins, height).unwrap();
        txs.map(fee).sum::<u64>()
    });
}

/// Computes the cost of the signature operations of all transactions. An item is an input.
mod sigop_cost {
    use super::*;

    #[divan::bench(args = HEIGHTS)]
    fn ours(bencher: Bencher, height: Height) {
        let (raw, spent) = block(height);
        let mut layout = BlockLayout::new();
        let view = layout.read(&raw).unwrap();
        let flags = Params::of(Network::Main).block_script_flags(height, &view.hash());
        let bencher = bencher.counter(ItemsCount::new(view.input_count()));
        bencher.bench_local(|| {
            let txs = black_box(&view).txs().skip(1).zip(&spent);
            txs.map(|(tx, spent)| {
                let scripts = spent.iter().map(|spent| spent.script.as_slice());
                transaction_sigop_cost(&tx, scripts, flags)
            })
            .sum::<u64>()
        });
    }

    #[divan::bench(args = HEIGHTS)]
    fn bitcoin_crate(bencher: Bencher, height: Height) {
        let (raw, spent) = block(height);
        let block: bitcoin::Block = bitcoin::consensus::deserialize(&raw).unwrap();
        let out = |spent: &Spent| TxOut {
            value: Amount::from_sat(spent.amount),
            script_pubkey: ScriptBuf::from_bytes(spent.script.clone()),
        };
        let outs: Vec<Vec<TxOut>> = spent.iter().map(|tx| tx.iter().map(out).collect()).collect();
        let bencher = bencher.counter(ItemsCount::new(outs.iter().map(Vec::len).sum::<usize>()));
        bencher.bench_local(|| {
            let txs = black_box(&block).txdata.iter().skip(1).zip(&outs);
            txs.map(|(tx, outs)| {
                let mut next = outs.iter().cycle();
                tx.total_sigop_cost(|_| next.next().cloned())
            })
            .sum::<usize>()
        });
    }
}
