//! Sets that end below their source's tip: Apus always warns, and never replaces a newer set with one.

use crate::sandbox::{Sandbox, fixtures};
use std::fs;

/// A node with 315 blocks.
fn node() -> Sandbox {
    let sandbox = Sandbox::empty();
    fs::create_dir(sandbox.path("node")).unwrap();
    sandbox.copy(&fixtures().join("regtest-315/regtest"), "node/regtest");
    lock(&sandbox);
    sandbox
}

/// Creates the lock files that a node leaves, which remain after another program has locked the node out.
fn lock(sandbox: &Sandbox) {
    sandbox.write("node/regtest/.lock", b"");
    sandbox.write("node/regtest/blocks/.lock", b"");
}

/// Offset of the record of block 301 in the node's only file.
const AFTER_300: usize = 70_966;

const SYNC: &str =
    "sync --chain regtest --blocksdir node/regtest/blocks --engine utxo --assumevalid 0";
const REINDEX: &str = "reindex --chain regtest --datadir node";

/// A block file that ends too early, with and without the index.
#[test]
fn missing_last_blocks_of_a_node_are_reported() {
    let sandbox = node();
    sandbox.edit("node/regtest/blocks/blk00000.dat", |bytes| bytes.truncate(AFTER_300));
    let at_315 = "Warning: the coins of the node that has these blocks are at block 315 (";
    let by_index =
        "lists 15 further block(s), up to height 315, whose files are missing or end too early";
    let ended = sandbox.apus(&format!("{SYNC} --out snapshot:a --progress none")).succeeds();
    ended.says(&[at_315, by_index, "Warning: the chain ends at block 300 ("]);
    let said =
        ["276072 bytes of blk00000.dat are in use, but the file has 70966", "restore the folder"];
    sandbox.apus(&format!("{REINDEX} --replace")).fails(4, &said);
    sandbox.apus(&format!("{REINDEX} --replace-with-older")).fails(4, &said);
    sandbox.remove("node/regtest/blocks/index");
    let ended = sandbox.apus(&format!("{SYNC} --out snapshot:b --progress none")).succeeds();
    ended.says(&[
        "the node that has these blocks are at block 38bf44cc63d0",
        "its index does not have",
    ]);
}

/// The node's index ends at an older block than its coins.
#[test]
fn older_coins_replace_newer_ones_only_with_the_option() {
    let sandbox = node();
    fs::rename(sandbox.path("node"), sandbox.path("newer")).unwrap();
    let line = SYNC.replace("node/", "newer/");
    sandbox.apus(&format!("{line} --stopatheight 300 --out datadir:node")).succeeds();
    lock(&sandbox);
    sandbox.remove("node/regtest/chainstate");
    sandbox.copy(&sandbox.path("newer/regtest/chainstate"), "node/regtest/chainstate");
    let said = [
        "the node's coins are at block 38bf44cc63d0",
        "lead to block 300 (",
        "--replace-with-older",
    ];
    sandbox.apus(&format!("{REINDEX} --replace")).fails(1, &said);
    assert!(!sandbox.has("node/regtest/chainstate.old"));
    let ended = sandbox.start(&format!("{REINDEX} --replace-with-older")).wait().succeeds();
    ended.says(&["continues from block 300", "Warning: the coins of the node"]);
    assert!(sandbox.has("node/regtest/chainstate.old/CURRENT"));
}

/// The key in xor.dat fits only some files.
#[test]
fn a_file_that_the_key_does_not_fit_is_reported() {
    let sandbox = node();
    let key = sandbox.read("node/regtest/blocks/xor.dat");
    assert!(key.iter().any(|byte| *byte != 0));
    let mut plain = sandbox.read("node/regtest/blocks/blk00000.dat");
    plain.iter_mut().zip(key.iter().cycle()).for_each(|(byte, key)| *byte ^= key);
    sandbox.write("node/regtest/blocks/blk00001.dat", &plain);
    sandbox.remove("node/regtest/blocks/index");
    let said = ["blk00001.dat is a plain file", "xor.dat"];
    sandbox.apus(&format!("{SYNC} --out snapshot:a")).fails(4, &said);
    // Obfuscate the file with another key.
    plain.iter_mut().for_each(|byte| *byte ^= 0x5a);
    sandbox.write("node/regtest/blocks/blk00001.dat", &plain);
    let ended = sandbox.apus(&format!("{SYNC} --out snapshot:b --progress none")).succeeds();
    ended.says(&["Warning: ", "no block can be read in blk00001.dat"]);
}
