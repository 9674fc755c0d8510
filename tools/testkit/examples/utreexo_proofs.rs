//! Records the answers of a real utreexod for a chain: this made `fixtures/utreexo/*-proofs.jsonl*`.
//!
//! `utreexo_proofs OUT DATADIR` uses the chain in a bitcoind's regtest data directory, which the node changes;
//! `utreexo_proofs OUT SEED BLOCKS` makes a chain: empty blocks, then three times BLOCKS
//! random ones; after each series, two blocks leave trees without a leaf. It also writes each
//! block.
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

/// A coinbase can be spent after this many blocks.
const EMPTY_BLOCKS: usize = 100;

/// The last leaves of a block, which the next block spends: they include all leaves of the lower trees.
const LAST_LEAVES: usize = 64;

/// Adds two blocks; the second deletes what the first adds at its end.
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

/// Starts a node that has the chain.
fn node(words: &[String]) -> Bitcoind {
    // The blocks are old, and by default the node waits for newer ones.
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
