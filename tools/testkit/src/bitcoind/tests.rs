use super::*;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

fn block_files(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_blk = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("blk");
    files.filter(is_blk).collect()
}

#[test]
fn a_node_mines_forks_and_restarts() {
    let mut node = Bitcoind::start(&[]);
    assert_eq!(node.mine(5).len(), 5);
    let tip = node.best_block_hash();
    assert_eq!(node.block_at(5).block_hash(), tip);
    node.invalidate_block(tip);
    assert_eq!(node.height(), 4);
    node.reconsider_block(tip);
    assert_eq!(node.best_block_hash(), tip);
    node.restart(&["-txindex=1"]);
    assert_eq!(node.best_block_hash(), tip);
    assert!(node.log().contains("txindex"));
    let error = node.try_call("getblockhash", &[json!(6)]).unwrap_err();
    assert_eq!(error.code, -8);
    let folder = node.stop();
    assert!(folder.path().join("regtest/blocks/blk00000.dat").exists());
}

#[test]
fn block_files_are_plain_or_xored() {
    for (arg, plain) in [("-blocksxor=0", true), ("-blocksxor=1", false)] {
        let node = Bitcoind::start(&[arg]);
        node.mine(3);
        let blocks = node.blocks_dir();
        node.call("gettxoutsetinfo", &[]);
        let start = fs::read(blocks.join("blk00000.dat")).unwrap()[..4].to_vec();
        assert_eq!(start == [0xfa, 0xbf, 0xb5, 0xda], plain);
        let key = fs::read(blocks.join("xor.dat")).unwrap();
        assert_eq!((key.len(), key == [0; 8]), (8, plain));
    }
}

#[test]
fn the_option_fastprune_makes_small_files() {
    let node = Bitcoind::start(&["-fastprune"]);
    node.mine(600);
    let folder = node.blocks_dir();
    let files = block_files(&folder);
    assert!(files.len() > 1, "{files:?}");
    drop(node);
    assert!(!folder.exists());
}

#[test]
fn a_refused_start_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let refusal = Bitcoind::start_in(folder.path(), "regtest", &["-nosuchoption=1"]).unwrap_err();
    assert!(refusal.contains("nosuchoption"), "{refusal}");
    let node = Bitcoind::start_in(folder.path(), "main", &[]).unwrap();
    assert_eq!(node.height(), 0);
    assert_eq!(node.kill().path(), folder.path());
    assert!(folder.path().join("blocks").exists());
}
