//! `--out utreexo:FILE`: the roots that Floresta has for the first blocks of signet, by every engine.

use crate::desk::{Desk, fixtures};
use apus_testkit::blkfile::BlockFiles;
use bitcoin::consensus::encode::deserialize_hex;
use bitcoin::{Block, Network};
use serde_json::{Value, json};

fn signet(name: &str) -> Vec<Value> {
    let text = std::fs::read(fixtures().join("floresta").join(name)).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// A folder with the first blocks of signet, and the roots after each.
fn desk() -> (Desk, Vec<Value>) {
    let blocks = signet("signet_blocks.json");
    let block = |block: &Value| deserialize_hex(block["block"].as_str().unwrap()).unwrap();
    let blocks: Vec<Block> = blocks.iter().map(block).collect();
    let desk = Desk::empty();
    let mut files = BlockFiles::new(Network::Signet.magic().to_bytes());
    files.blocks(&blocks);
    files.write(&desk.path("blocks"));
    (desk, signet("signet_roots.json"))
}

/// The file of these roots.
fn file(roots: &Value) -> Vec<u8> {
    let hashes = roots["roots"].as_array().unwrap();
    let hash = |hex: &Value| {
        let hex = hex.as_str().unwrap();
        (0..32).map(|at| u8::from_str_radix(&hex[2 * at..][..2], 16).unwrap()).collect::<Vec<_>>()
    };
    let mut bytes = roots["numleaves"].as_u64().unwrap().to_le_bytes().to_vec();
    bytes.extend((hashes.len() as u64).to_le_bytes());
    hashes.iter().for_each(|hex| bytes.extend(hash(hex)));
    bytes
}

#[test]
fn the_roots_of_signets_first_blocks() {
    let (desk, roots) = desk();
    let sync = "sync --chain signet --blocksdir blocks --report report.json --out utreexo:roots";
    // The first roots are those after block 1.
    for height in [1, 2, 77, 120] {
        let expected = &roots[height - 1];
        for way in ["--engine mergesync --out hints:h", "--engine utxo", "--hints h"] {
            let line = format!("{sync} --stopatheight {height} {way}");
            let said = desk.apus(&line).succeeds();
            assert!(said.stdout.contains("utreexo leaves"), "{said}");
            assert!(desk.read("roots") == file(expected), "at {height}, {way}");
            let report = &desk.json("report.json")["utreexo"];
            assert_eq!(
                report,
                &json!({
                    "leaves": expected["numleaves"],
                    "roots": expected["roots"],
                })
            );
            ["roots", "report.json"].iter().for_each(|name| desk.remove(name));
        }
        desk.remove("h");
    }
}
