//! Writes down what a real utreexod says of a chain: how `fixtures/utreexo/*-proofs.jsonl*` came about.
//!
//! `utreexo_proofs OUT DATADIR` of the chain in a bitcoind's data directory on regtest, which is used up;
//! `utreexo_proofs OUT SEED BLOCKS` of a chain with empty blocks first, then thrice as many random ones, with
//! two between and at the end that leave trees without a leaf; it writes each block too.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed run")]

use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::chain::{ChainBuilder, ScriptKind, Shape, coins_of};
use apus_testkit::utreexod::Utreexod;
use bitcoin::TxOut;
use bitcoin::consensus::encode::serialize_hex;
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// A coinbase can be spent after so many blocks.
const EMPTY_BLOCKS: usize = 100;

/// The last leaves of a block, which the next one spends: all those of the lower trees are among them.
const LAST_LEAVES: usize = 64;

/// Two blocks, of which the second deletes what the first adds at its end.
fn delete_the_last(chain: &mut ChainBuilder) {
    let coin = chain.mature_coin();
    let many: Vec<TxOut> =
        (0..LAST_LEAVES).map(|_| chain.output(100, ScriptKind::OpTrue)).collect();
    let made = chain.spend_coins(&[coin], many);
    let nothing = vec![chain.output(0, ScriptKind::OpReturn)];
    let spent = chain.spend_coins(&coins_of(&made), nothing);
    chain.block_with(vec![made]);
    chain.block_with(vec![spent]);
}

/// A node that has the chain.
fn node(words: &[String]) -> Bitcoind {
    // The blocks are of another day, and the node waits for newer ones unless told so.
    let args = ["-maxtipage=2000000000"];
    if let [datadir] = words {
        return Bitcoind::start_in(Path::new(datadir), "regtest", &args).unwrap();
    }
    let (seed, blocks): (u64, usize) = (words[0].parse().unwrap(), words[1].parse().unwrap());
    let (node, mut chain) = (Bitcoind::start(&args), ChainBuilder::new(seed));
    chain.empty_blocks(EMPTY_BLOCKS);
    for _ in 0..3 {
        chain.random_blocks(blocks, Shape { transactions_max: 8, inputs_max: 4, outputs_max: 4 });
        delete_the_last(&mut chain);
    }
    for block in chain.blocks().iter().skip(1) {
        node.submit_block(block).unwrap();
    }
    node
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (out, chain) = words.split_first().expect("a file to write");
    let node = node(chain);
    let bridge = Utreexod::with_blocks_of(&node);
    let mut out = BufWriter::new(File::create(out).unwrap());
    for height in 1..=node.height() {
        let mut record = bridge.record(height);
        if chain.len() > 1 {
            record["block"] = json!(serialize_hex(&node.block_at(height)));
        }
        writeln!(out, "{record}").unwrap();
    }
    out.flush().unwrap();
}
