//! The leaf data of real blocks: which scripts their inputs reveal, and that all coins read back unchanged.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use apus_chain::{BlockLayout, CoinRef, Reader};
use apus_utreexo::{CompactLeaf, Spender, write_compact_leaf};
use bitcoin::ScriptBuf;
use flate2::read::GzDecoder;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

struct Spent {
    height: u32,
    coinbase: bool,
    amount: u64,
    script: Vec<u8>,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/main-blocks")
}

fn path(height: u32, end: &str) -> PathBuf {
    let mut files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with(&format!("{height}_")) && name.ends_with(end)
    };
    files.find(is_it).unwrap()
}

/// The coins that the block spends, in the order of its inputs.
fn spent(height: u32) -> Vec<Spent> {
    let file = std::fs::File::open(path(height, ".prevouts.jsonl.gz")).unwrap();
    let lines = BufReader::new(GzDecoder::new(file)).lines();
    let of_line = |line: String| {
        let line: Value = serde_json::from_str(&line).unwrap();
        let number = |field: &str| line[field].as_u64().unwrap();
        Spent {
            height: number("height") as u32,
            coinbase: line["coinbase"].as_bool().unwrap(),
            amount: number("value"),
            script: ScriptBuf::from_hex(line["script"].as_str().unwrap()).unwrap().into_bytes(),
        }
    };
    lines.map(|line| of_line(line.unwrap())).collect()
}

/// The number of leaf data of each form in a block, and their total bytes.
fn forms(height: u32) -> ([usize; 5], usize) {
    let raw = std::fs::read(path(height, ".raw")).unwrap();
    let mut layout = BlockLayout::new();
    let block = layout.read(&raw).unwrap();
    let (mut coins, mut forms, mut bytes) = (spent(height).into_iter(), [0; 5], 0);
    for tx in block.txs().skip(1) {
        for (input, witness) in tx.inputs().zip(tx.witnesses()) {
            let Spent { height, coinbase, amount, script } = coins.next().unwrap();
            let coin = CoinRef { height, coinbase, amount, script: &script };
            let (spender, mut out) = (Spender::new(&input, &witness), Vec::new());
            write_compact_leaf(&mut out, coin, &spender).unwrap();
            let leaf = CompactLeaf::read(&mut Reader::new(&out), &spender).unwrap();
            assert_eq!(leaf.coin(), coin);
            forms[usize::from(out[12])] += 1;
            bytes += out.len();
        }
    }
    assert!(coins.next().is_none());
    (forms, bytes)
}

/// Counts by form; scripts sent in full come first.
#[test]
fn scripts_of_real_blocks_are_rebuilt() {
    for (height, expected) in [
        (277_647, ([0, 732, 0, 0, 0], 9_516)),
        (388_381, ([0, 1_394, 0, 291, 0], 21_905)),
        (481_824, ([0, 4_673, 1, 518, 0], 67_496)),
        (692_261, ([4, 2_054, 1_724, 2_674, 176], 86_356)),
    ] {
        assert_eq!(forms(height), expected, "{height}");
    }
}
