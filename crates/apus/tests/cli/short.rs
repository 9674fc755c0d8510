//! Sets that end below what their source has: told whatever is shown of a run, and put in the place of none that is newer.

use crate::desk::{Desk, fixtures};
use std::fs;

/// A node with 315 blocks.
fn node() -> Desk {
    let desk = Desk::empty();
    fs::create_dir(desk.path("node")).unwrap();
    desk.copy(&fixtures().join("regtest-315/regtest"), "node/regtest");
    lock(&desk);
    desk
}

/// What a node leaves, and is there when another program has kept it out.
fn lock(desk: &Desk) {
    desk.write("node/regtest/.lock", b"");
    desk.write("node/regtest/blocks/.lock", b"");
}

/// Where the record of block 301 begins in the node's only file.
const AFTER_300: usize = 70_966;

const SYNC: &str =
    "sync --chain regtest --blocksdir node/regtest/blocks --engine utxo --assumevalid 0";
const REINDEX: &str = "reindex --chain regtest --datadir node";

/// Files that end too early, and one that is not there: by the index, and without it.
#[test]
fn a_node_whose_last_blocks_are_gone() {
    let desk = node();
    desk.edit("node/regtest/blocks/blk00000.dat", |bytes| bytes.truncate(AFTER_300));
    let at_315 = "Warning: the coins of the node beside these blocks are at block 315 (";
    let by_index = "there are 15 further block(s), up to height 315, whose files are not there or end too early";
    let ended = desk.apus(&format!("{SYNC} --out snapshot:a --progress none")).succeeds();
    ended.says(&[at_315, by_index, "Warning: the chain ends at block 300 ("]);
    let said = ["276072 bytes of blk00000.dat are in use, and it has 70966", "restore the folder"];
    desk.apus(&format!("{REINDEX} --replace")).fails(4, &said);
    desk.apus(&format!("{REINDEX} --replace-with-older")).fails(4, &said);
    desk.remove("node/regtest/blocks/index");
    let ended = desk.apus(&format!("{SYNC} --out snapshot:b --progress none")).succeeds();
    ended.says(&[
        "the node beside these blocks are at block 38bf44cc63d0",
        "its index does not have",
    ]);
}

/// A node's index leads to an older block than its coins are at.
#[test]
fn older_coins_take_the_place_of_newer_ones_by_order_alone() {
    let desk = node();
    fs::rename(desk.path("node"), desk.path("newer")).unwrap();
    let line = SYNC.replace("node/", "newer/");
    desk.apus(&format!("{line} --stopatheight 300 --out datadir:node")).succeeds();
    lock(&desk);
    desk.remove("node/regtest/chainstate");
    desk.copy(&desk.path("newer/regtest/chainstate"), "node/regtest/chainstate");
    let said = [
        "the node's coins are at block 38bf44cc63d0",
        "lead to block 300 (",
        "--replace-with-older",
    ];
    desk.apus(&format!("{REINDEX} --replace")).fails(1, &said);
    assert!(!desk.has("node/regtest/chainstate.old"));
    let ended = desk.start(&format!("{REINDEX} --replace-with-older")).wait().succeeds();
    ended.says(&["goes on from block 300", "Warning: the coins of the node"]);
    assert!(desk.has("node/regtest/chainstate.old/CURRENT"));
}

/// The key in xor.dat fits some files alone.
#[test]
fn a_plain_file_among_those_that_are_obfuscated() {
    let desk = node();
    let key = desk.read("node/regtest/blocks/xor.dat");
    assert!(key.iter().any(|byte| *byte != 0));
    let mut plain = desk.read("node/regtest/blocks/blk00000.dat");
    plain.iter_mut().zip(key.iter().cycle()).for_each(|(byte, key)| *byte ^= key);
    desk.write("node/regtest/blocks/blk00001.dat", &plain);
    desk.remove("node/regtest/blocks/index");
    let said = ["blk00001.dat is a plain file", "xor.dat"];
    desk.apus(&format!("{SYNC} --out snapshot:a")).fails(4, &said);
    // Of another key.
    plain.iter_mut().for_each(|byte| *byte ^= 0x5a);
    desk.write("node/regtest/blocks/blk00001.dat", &plain);
    let ended = desk.apus(&format!("{SYNC} --out snapshot:b --progress none")).succeeds();
    ended.says(&["Warning: ", "no block can be read in blk00001.dat"]);
}
