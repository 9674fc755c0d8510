//! Chainstates of every shape and with every kind of lie, given to `apus verify` and to a real node.
//!
//! If the program finds nothing, the node starts and has the coins that the blocks leave, both in a walk over all coins
//! and in look-ups of each. If nothing is wrong, the program finds nothing.

use crate::handover::database;
use crate::lived::{CHAIN, Lived, chain_dir};
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::leveldb::{LevelDbFolder, Lie, Write};
use apus_testkit::rng::Rng;
use serde_json::json;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

const VERIFY: &str = "verify --chain regtest --datadir node --progress none";

#[derive(Debug, Default)]
struct Counts {
    sound: u64,
    lying_yet_healthy: u64,
    damaged: u64,
}

/// Random writes that lead to these entries, via others.
fn history(entries: &database::Entries, rng: &mut Rng) -> Vec<Write> {
    let mut last: Vec<Write> =
        entries.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
    rng.shuffle(&mut last);
    let mut writes = Vec::new();
    for at in 0..last.len() {
        let other = last[rng.index(last.len())].1.clone();
        match rng.below(6) {
            // The coin was spent, and a reorganization restored it.
            0 => writes.push((last[at].0.clone(), other.clone())),
            1 => writes.push((last[at].0.clone(), None)),
            _ => {}
        }
        if rng.one_in(9) {
            let key = [b"C", &rng.bytes(32)[..], &[0]].concat();
            writes.insert(rng.index(writes.len() + 1), (key.clone(), other));
            writes.push((key, None));
        }
        writes.push(last[at].clone());
    }
    writes
}

fn case(lived: &Lived, entries: &database::Entries, seed: u64, counts: &mut Counts) {
    let mut rng = Rng::new(seed);
    // Apus finds most lies, so use none in some cases: nodes only check folders without findings.
    let lies: Vec<Lie> = (0..u64::from(rng.below(10) < 7)).map(|_| Lie::any(&mut rng)).collect();
    let folder = LevelDbFolder::new(&history(entries, &mut rng), &lies, &mut rng);
    let sandbox = &lived.sandbox;
    let dir = chain_dir(&sandbox.path("node")).join("chainstate");
    fs::remove_dir_all(&dir).unwrap();
    fs::create_dir(&dir).unwrap();
    folder.write(&dir);
    let said = sandbox.start_as_typed(VERIFY).wait();
    let context = format!("seed {seed}, {lies:?}");
    assert!(matches!(said.code, Some(0..=4)), "{context}: {said}");
    if said.code != Some(0) {
        assert!(!lies.is_empty(), "{context}: {said}");
        counts.damaged += 1;
        return;
    }
    *if lies.is_empty() { &mut counts.sound } else { &mut counts.lying_yet_healthy } += 1;
    sandbox.copy(&sandbox.path("node"), "checked");
    let checked = catch_unwind(AssertUnwindSafe(|| {
        let node = Bitcoind::start_in(&sandbox.path("checked"), CHAIN, &[]).unwrap();
        assert_eq!(node.txoutset_info(), lived.set);
        for outpoint in lived.chain.utxo().keys() {
            let asked = [json!(outpoint.txid.to_string()), json!(outpoint.vout), json!(false)];
            assert!(!node.call("gettxout", &asked).is_null(), "{outpoint} is hidden");
        }
        node.stop();
    }));
    assert!(checked.is_ok(), "{context}: the node has other coins");
    sandbox.remove("checked");
}

/// `scripts/soak --kind leveldb` runs this after the cases that need no node.
#[test]
#[ignore = "as many as wanted: scripts/soak --kind leveldb"]
fn nodes_judge_chainstates_that_lie() {
    let number = |name, other| super::from_environment(name).unwrap_or(other);
    let (from, count) = (number("SOAK_SEED", 1), number("SOAK_NODE_CASES", 200));
    let lived = Lived::new(120, &[]);
    let entries = database::entries(&chain_dir(&lived.sandbox.path("node")).join("chainstate"));
    let mut counts = Counts::default();
    for seed in from..from + count {
        case(&lived, &entries, seed, &mut counts);
    }
    println!("nodes checked chainstates, of {count}: {counts:?}");
}
