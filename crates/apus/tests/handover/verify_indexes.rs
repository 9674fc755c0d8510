//! `apus verify` on the optional indexes of a node.

use crate::handover::database::entries;
use crate::handover::verify::{files, verify};
use crate::lived::Lived;
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::leveldb::disorder;
use serde_json::{Value, json};
use std::fs;
use std::time::{Duration, Instant};

const INDEXES: [&str; 3] = ["-txindex", "-blockfilterindex", "-coinstatsindex"];

/// The node has two reorganisations behind it, which leave entries of other branches in its indexes.
#[test]
fn indexes_of_a_node_are_compared_and_damage_is_located() {
    let lived = Lived::new(120, &INDEXES);
    let (sandbox, height) = (&lived.sandbox, lived.set.height);
    let before = files(&sandbox.path("node"));
    assert!(verify(sandbox, "").is_empty());
    assert!(files(&sandbox.path("node")) == before);
    let report = sandbox.json("report.json");
    // The node's version decides which form of coinstatsindex it has.
    let is_newer = sandbox.has("node/regtest/indexes/coinstatsindex");
    let indexes = |height: u32, newer: Option<u32>, older: Option<u32>| -> Value {
        let all = [
            ("txindex", "txindex", Some(height)),
            ("blockfilterindex", "blockfilter", Some(height)),
            ("coinstatsindex", "coinstatsindex", newer),
            ("coinstatsindex", "coinstats", older),
        ];
        let there = all.into_iter().filter_map(|(name, folder, height)| {
            height.map(|height| json!({"index": name, "folder": folder, "height": height}))
        });
        there.collect()
    };
    assert_eq!(report["proven"], true);
    let expected = indexes(height, is_newer.then_some(height), (!is_newer).then_some(height));
    assert_eq!(report["indexes"], expected);

    // A filter of a block in the middle of the chain.
    let file = sandbox.path("node/regtest/indexes/blockfilter/basic/fltr00000.dat");
    let mut bytes = fs::read(&file).unwrap();
    let hash = lived.below_tip(30);
    let hash: &[u8; 32] = hash.as_ref();
    let at = bytes.windows(32).position(|it| it == hash).unwrap();
    bytes[at + 35] ^= 1;
    fs::write(&file, bytes).unwrap();
    let found = verify(sandbox, "");
    assert_eq!(found.len(), 1, "{found:?}");
    let finding = &found["blockfilterindex"];
    assert_eq!((&finding["count"], &finding["height"]), (&json!(1), &json!(height - 30)));
    let remedy = finding["remedy"].as_str().unwrap();
    assert!(remedy.contains("--index blockfilterindex --replace"), "{remedy}");
    let rebuilt =
        "index --chain regtest --datadir node --index blockfilterindex,coinstatsindex --replace";
    let said = sandbox.start_as_typed(rebuilt).wait();
    assert_eq!(said.code, Some(0), "{said}");
    // Both forms of coinstatsindex are there now.
    assert!(verify(sandbox, "").is_empty());
    let report = sandbox.json("report.json");
    assert_eq!(report["indexes"], indexes(height, Some(height), Some(height)));

    // The node continues from there.
    let node = Bitcoind::start_in(&sandbox.path("node"), "regtest", &INDEXES).unwrap();
    node.mine(2);
    let begun = Instant::now();
    let synced = |it: &Value| it["best_block_height"] == height + 2;
    while !node.call("getindexinfo", &[]).as_object().unwrap().values().all(synced) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the indexes stay behind");
    }
    // A running node changes its indexes.
    assert!(verify(sandbox, "").is_empty());
    let report = sandbox.json("report.json");
    let why = report["unproven"].as_str().unwrap();
    assert!(why.contains("indexes were not compared") && why.contains("running node"), "{why}");
    node.stop();
    assert!(verify(sandbox, "").is_empty());
    // The node continues its own form only.
    let (new, old) = (Some(height + 2), Some(height));
    let (newer, older) = if is_newer { (new, old) } else { (old, new) };
    assert_eq!(sandbox.json("report.json")["indexes"], indexes(height + 2, newer, older));
}

/// LevelDB goes by sequence numbers, and not by the order of entries in its log.
#[test]
fn a_record_that_only_leveldb_sees_is_found() {
    let lived = Lived::new(127, &["-coinstatsindex"]);
    let (sandbox, height) = (&lived.sandbox, lived.set.height);
    let folders = ["coinstatsindex", "coinstats"].map(|it| format!("node/regtest/indexes/{it}/db"));
    let folder = folders.iter().find(|folder| sandbox.has(folder)).unwrap();
    let dir = sandbox.path(folder);
    let key = [b"t", &(height - 5).to_be_bytes()[..]].concat();
    let right = entries(&dir)[&key].clone();
    let mut wrong = right.clone();
    *wrong.last_mut().unwrap() ^= 1;
    disorder(&key, [&wrong, &right], &dir);
    let found = verify(sandbox, "");
    assert_eq!(found.keys().collect::<Vec<_>>(), ["coinstatsindex"], "{found:?}");
}
