//! Indexes against the indexes that a real node makes of the same blocks.

use crate::filters::entries;
use crate::support::{TestChain, coin_stats_index, filter_index, fixture, new_folder, rows_of};
use apus_chain::{MuHash, Network};
use apus_indexes::CoinStatsForm;
use apus_testkit::bitcoind::Bitcoind;
use serde_json::json;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Lets a node index the blocks of a fixture; compares its indexes with ours.
fn agrees_with_a_node(blocks: &str, network: Network, chain: &str, folder: &str) {
    let ours = TestChain::of_fixture(blocks, network);
    let datadir = new_folder();
    let netdir = datadir.path().join(folder);
    copy_blocks(&fixture(blocks), &netdir.join("blocks"));
    let args =
        ["-reindex", "-blockfilterindex", "-coinstatsindex", "-stopatheight=0", "-assumevalid=0"];
    let node = Bitcoind::start_in(datadir.path(), chain, &args).unwrap();
    let tip = ours.blocks.len() as u64 - 1;
    wait(|| {
        let info = node.call("getindexinfo", &[]);
        ["basic block filter index", "coinstatsindex"]
            .iter()
            .all(|index| info[index]["synced"] == true && info[index]["best_block_height"] == tip)
    });
    // Before version 30, a node has the older form.
    let indexes = netdir.join("indexes");
    let (form, theirs) = match indexes.join("coinstats/db").exists() {
        true => (CoinStatsForm::Narrow, indexes.join("coinstats/db")),
        false => (CoinStatsForm::Wide, indexes.join("coinstatsindex/db")),
    };
    let (last, coin_stats) = coin_stats_index(&ours, &[tip as usize / 3], form);
    let info = node.call("gettxoutsetinfo", &[json!("muhash"), json!(tip / 2)]);
    let record = &coin_stats.rows[&[&b"t"[..], &(tip as u32 / 2).to_be_bytes()].concat()];
    let shown: String = record[32..64].iter().rev().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(info["muhash"], shown);
    node.stop();

    let theirs = rows_of(&theirs);
    let [ours_of, theirs_of] =
        [&coin_stats.rows, &theirs].map(|rows| rows.iter().filter(|(key, _)| key[0] == b't'));
    assert!(ours_of.eq(theirs_of), "records of coin statistics");
    let state: [u8; 768] = theirs[&b"M"[..]][..].try_into().unwrap();
    assert_eq!(MuHash::from_bytes(&state).unwrap().finalize(), last.muhash);

    let files = new_folder();
    let filters = filter_index(&ours, &[tip as usize / 2], files.path());
    let basic = indexes.join("blockfilter/basic");
    let theirs = entries(&rows_of(&basic.join("db")), &basic);
    assert_eq!(theirs.len() as u64, tip + 1);
    assert_eq!(entries(&filters.rows, files.path()), theirs);
}

fn copy_blocks(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for name in ["blk00000.dat", "xor.dat"] {
        if from.join(name).exists() {
            fs::copy(from.join(name), to.join(name)).unwrap();
        }
    }
}

pub(crate) fn wait(done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(120), "the node does not finish its indexes");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_node_makes_the_same_indexes_of_regtest() {
    agrees_with_a_node("regtest-315/regtest/blocks", Network::Regtest, "regtest", "regtest");
}

#[test]
fn a_node_makes_the_same_indexes_of_signet() {
    agrees_with_a_node("signet-120/blocks", Network::Signet, "signet", "signet");
}

#[test]
fn a_node_makes_the_same_indexes_of_the_main_chain() {
    agrees_with_a_node("main-4521/blocks", Network::Main, "main", "");
}
