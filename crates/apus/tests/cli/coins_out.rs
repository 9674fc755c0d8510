//! `--out coins:URL`: the set of any engine on real servers.

use crate::sandbox::{MAIN, REGTEST, Sandbox};
use apus_testkit::effort::rounds;
use apus_testkit::postgres::PostgresServer;
use apus_testkit::redis::RedisCluster;
use apus_testkit::rng::Rng;
use std::thread::sleep;
use std::time::Duration;

/// Bitcoin Core's MuHash of the main chain's fixture.
const MUHASH: &str = "ef572d992f09ddbab60d3ba06c4dcc9ccc6b9374fc1c884c0695fc8bc8c6d3bd";

/// Asserts that a store has the node's set.
fn expect_set(sandbox: &Sandbox, coins: &str, copy: &str) {
    let line = format!("coins copy --from {coins} --to {copy}");
    sandbox.apus(&line).succeeds().says(&[MUHASH, "4,348", "4521 00000000ac08f7d984f6"]);
}

#[test]
fn each_engine_writes_its_set_to_servers() {
    let (cluster, server) = (RedisCluster::start(), PostgresServer::start());
    let sandbox = Sandbox::with(MAIN);
    for (number, how) in
        ["--engine mergesync", "--hints snapshot:node.dat --assumevalid hints", "--engine utxo"]
            .into_iter()
            .enumerate()
    {
        let [one, two, copy] = ["set", "set", "copy"].map(|name| format!("{name}-{number}"));
        let [one, two, copy] = [cluster.url(&one), server.url(&two), server.url(&copy)];
        let line = format!("sync --blocksdir blocks {how} --out coins:{one} --out coins:{two}");
        sandbox.apus(&line).succeeds();
        expect_set(&sandbox, &one, &copy);
        expect_set(&sandbox, &two, &copy);
        // Apus replaces no set.
        sandbox.apus(&line).fails(1, &["already has the coins of block 4521", "another name"]);
    }
}

/// A later sync continues from the set, knows whether these are still the coins, and says that it did not check them.
#[cfg(feature = "kernel")]
#[test]
fn a_written_set_is_brought_to_later_blocks() {
    let (cluster, server) = (RedisCluster::start(), PostgresServer::start());
    for coins in [cluster.url("set"), server.url("set")] {
        let sandbox = Sandbox::with(REGTEST);
        let sync = "sync --chain regtest --blocksdir blocks --assumevalid 0";
        sandbox
            .apus(&format!("{sync} --engine mergesync --stopatheight 200 --out coins:{coins}"))
            .succeeds();
        let line = format!("{sync} --coins {coins} --workdir work --out snapshot:all.dat");
        let ended = sandbox.start(&line).wait().succeeds();
        assert!(ended.stdout.contains("the coins of block 200 were right as they were found"));
        assert!(sandbox.read("all.dat") == sandbox.read("node.dat"));
    }
}

#[test]
fn a_killed_sync_is_rerun_until_the_set_is_whole() {
    let (cluster, server, sandbox) =
        (RedisCluster::start(), PostgresServer::start(), Sandbox::with(MAIN));
    let mut rng = Rng::new(71);
    for round in 0..rounds(3, 50) {
        let name = format!("k{round}");
        for (coins, copy) in [
            (cluster.url(&name), server.url(&format!("{name}-copy"))),
            (server.url(&name), cluster.url(&format!("{name}-copy"))),
        ] {
            let line = format!(
                "sync --blocksdir blocks --engine mergesync --workdir work --out coins:{coins}"
            );
            let running = sandbox.start(&line);
            sleep(Duration::from_millis(rng.between(50, 900)));
            running.signal(&["KILL"]);
            let killed = running.wait();
            if killed.code != Some(0) && sandbox.has("work") {
                sandbox.start(&line).wait().succeeds();
            } else if killed.code != Some(0) {
                // It had ended, or had not begun.
                drop(sandbox.start(&line).wait());
            }
            expect_set(&sandbox, &coins, &copy);
        }
    }
}

#[test]
fn stores_that_cannot_be_written_are_refused_before_the_sync() {
    let sandbox = Sandbox::with(MAIN);
    for (out, code, said) in [
        ("coins:redis://:hidden@a:1", 1, &["APUS_COINS_PASSWORD"][..]),
        ("coins:postgres://a/db?pass=hidden", 1, &["--out coins", "sslmode=verify-full"]),
        ("coins:redis://127.0.0.1:1/x", 3, &["redis://127.0.0.1:1/x", "can be reached"]),
        ("coins:", 1, &["coins:URL"]),
        ("redis://u:hidden@a:1/x", 1, &["--out", "coins:URL"]),
    ] {
        let ended = sandbox.apus(&format!("sync --blocksdir blocks --out {out}")).fails(code, said);
        assert!(!ended.stderr.contains("hidden"), "{ended}");
    }
}
