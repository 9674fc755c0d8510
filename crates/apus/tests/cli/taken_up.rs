//! `--coins` without the work folder of the sync that filled the store: later syncs take the coins up where they are,
//! and say what is proven.

use crate::sandbox::{Ended, REGTEST, Sandbox};
use apus_testkit::chain::ChainBuilder;
use apus_testkit::postgres::PostgresServer;
use apus_testkit::redis::RedisCluster;
use serde_json::Value;

/// Runs a sync of the regtest fixture in a work folder; it may change the folder.
fn sync(sandbox: &Sandbox, workdir: &str, rest: &str) -> Ended {
    sandbox
        .start(&format!(
            "sync --chain regtest --blocksdir blocks --engine utxo --assumevalid 0 --workdir {workdir} {rest}"
        ))
        .wait()
}

fn on_both(test: impl Fn(&Sandbox, &str)) {
    let (cluster, server) = (RedisCluster::start(), PostgresServer::start());
    for url in [cluster.url("set"), server.url("set")] {
        test(&Sandbox::with(REGTEST), &url);
    }
}

#[test]
fn a_store_is_brought_to_the_tip_in_three_steps() {
    on_both(|sandbox, coins| {
        let step = |workdir: &str, rest: &str| {
            let rest = format!("--coins {coins} --report report.json {rest}");
            let ended = sync(sandbox, workdir, &rest).succeeds();
            let report = sandbox.json("report.json");
            sandbox.remove("report.json");
            // Nothing is lost with the work folder: all blocks count as this sync's.
            assert_eq!(
                (&report["connected_from"], &report["validation"], &report["trusted"]),
                (&1.into(), &"full".into(), &Value::Null)
            );
            assert_eq!(report["blocks"], report["stop_height"]);
            assert!(!ended.stderr.contains("as found"), "{ended}");
            let is_taken_up = ended.stderr.contains("is on the same servers");
            assert_eq!(is_taken_up, workdir != "one", "{ended}");
        };
        step("one", "--stopatheight 100 --out null");
        step("two", "--stopatheight 200 --out null");
        step("two", "--stopatheight 250 --out null");
        // Anyone who can write to the servers could change coins and record.
        let folder = format!("--coins {coins} --out chainstate:state");
        let said = ["is on the same servers", "use the --workdir of the sync that made the coins"];
        sync(sandbox, "new", &folder).fails(1, &said);
        // A work folder remembers that it took the coins up.
        sync(sandbox, "two", &folder).fails(1, &said);
        // A copy of a store can be continued in the same way.
        let copy = coins.replace("/set", "/copy");
        sandbox.apus(&format!("coins copy --chain regtest --from {coins} --to {copy}")).succeeds();
        step("three", "--out snapshot:all.dat");
        assert!(sandbox.read("all.dat") == sandbox.read("node.dat"));
        let rest = format!("--coins {copy} --out snapshot:copied.dat --report copied.json");
        sync(sandbox, "four", &rest).succeeds();
        assert!(sandbox.read("copied.dat") == sandbox.read("node.dat"));
        assert_eq!(sandbox.json("copied.json")["connected_from"], 1);
        // No folder has progress that could be removed.
        let low = format!("--coins {coins} --stopatheight 100 --out null");
        let said = ["is already at block 315", "leave out --stopatheight", "another name"];
        sync(sandbox, "low", &low).fails(1, &said);
        // The first folder no longer knows where the store is.
        let said = ["was written by another sync", "at height 315", "a new --workdir"];
        sync(sandbox, "one", &format!("--coins {coins} --out null")).fails(1, &said);
    });
}

#[test]
fn the_copy_of_a_snapshot_is_continued_and_the_report_says_what_nothing_proves() {
    on_both(|sandbox, coins| {
        let local = "--stopatheight 200 --out snapshot:some.dat";
        sync(sandbox, "local", local).succeeds();
        let copy = format!("coins copy --chain regtest --from snapshot:some.dat --to {coins}");
        sandbox.apus(&copy).succeeds();
        let rest = format!("--coins {coins} --stopatheight 250");
        let refused = sync(sandbox, "work", &format!("{rest} --out chainstate:state"));
        refused.fails(1, &["at block 200", "nothing proves them", "leave out the chainstate"]);
        for (workdir, out) in [("work", "null"), ("work", "null"), ("new", "snapshot:all.dat")] {
            let rest = match out {
                "null" => rest.clone(),
                _ => format!("--coins {coins}"),
            };
            let ended = sync(sandbox, workdir, &format!("{rest} --report report.json --out {out}"));
            let ended = ended.succeeds();
            let said = "the coins of block 200 were right as they were found";
            assert!(ended.stdout.contains(said), "{ended}");
            let report = sandbox.json("report.json");
            sandbox.remove("report.json");
            assert_eq!(
                (&report["connected_from"], &report["trusted"]["height"]),
                (&201.into(), &200.into())
            );
            for rule in ["blocks", "witnesses", "scripts", "amounts", "order", "supply", "bip30"] {
                assert_eq!(report["verified"][rule], false, "{rule}");
            }
            let refused = format!("--coins {coins} --out datadir:node");
            sync(sandbox, workdir, &refused).fails(1, &["nothing proves them"]);
        }
        assert!(sandbox.read("all.dat") == sandbox.read("node.dat"));
    });
}

#[test]
fn a_store_of_another_chain_is_refused() {
    let mut chain = ChainBuilder::new(77);
    chain.empty_blocks(120);
    let other = Sandbox::of(&chain);
    on_both(|sandbox, coins| {
        let rest = format!("--coins {coins} --out null");
        sync(&other, "work", &rest).succeeds();
        other.remove("work");
        let said =
            ["has the coins of block 120", "not on the chain", "another name after the slash"];
        sync(sandbox, "work", &rest).fails(1, &said);
        // The coins are still there.
        sync(&other, "work", &rest).succeeds();
        other.remove("work");
    });
}

/// A server that lost or changed coins after the sync is noticed before any block is checked against them.
#[test]
fn changed_coins_are_not_taken_up() {
    let server = PostgresServer::start();
    let sandbox = Sandbox::with(REGTEST);
    let rest = format!("--coins {} --out null", server.url("set"));
    sync(&sandbox, "work", &format!("{rest} --stopatheight 200")).succeeds();
    server.sql("DELETE FROM set.coins WHERE outpoint IN (SELECT outpoint FROM set.coins LIMIT 1)");
    sync(&sandbox, "new", &rest).fails(3, &["differ from the result of the blocks"]);
}
