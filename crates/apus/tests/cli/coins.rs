//! `--coins`: the set by coins on real servers is the set, and what cannot be is told by name.

use crate::desk::{Desk, REGTEST};
#[cfg(feature = "kernel")]
use apus_testkit::postgres::PostgresServer;
#[cfg(feature = "kernel")]
use apus_testkit::redis::RedisCluster;

const RUN: &str = "sync --chain regtest --blocksdir blocks --engine utxo --validation assumevalid";

#[cfg(feature = "kernel")]
/// A block far below the tip, so that some blocks are left to connect.
const SOME: u32 = 100;

#[cfg(feature = "kernel")]
#[test]
fn coins_on_a_cluster_make_the_same_set() {
    let cluster = RedisCluster::start();
    coins_make_the_same_set(&cluster.url("set"));
}

#[cfg(feature = "kernel")]
#[test]
fn coins_on_postgresql_make_the_same_set() {
    let server = PostgresServer::start();
    coins_make_the_same_set(&server.url("set"));
}

#[cfg(feature = "kernel")]
fn coins_make_the_same_set(coins: &str) {
    let desk = Desk::with(REGTEST);
    let line = |rest: &str| format!("{RUN} --assumevalid 0 --workdir work --coins {coins} {rest}");
    desk.apus(&line(&format!("--stopatheight {SOME} --out snapshot:some.dat"))).succeeds();
    let local = format!("{RUN} --assumevalid 0 --out snapshot:local.dat");
    desk.apus(&format!("{local} --stopatheight {SOME}")).succeeds();
    assert!(desk.read("some.dat") == desk.read("local.dat"));
    // The coins are still there, and no run knows of them.
    let said = ["/set is at block", &format!("of height {SOME} already"), "after the slash"];
    desk.apus(&line("--out snapshot:all.dat")).fails(1, &said);
    let other = line("--out snapshot:all.dat").replace("/set", "/other");
    desk.apus(&other).succeeds();
    desk.remove("local.dat");
    desk.apus(&local).succeeds();
    assert!(desk.read("all.dat") == desk.read("local.dat"));
}

#[test]
fn coins_that_cannot_be_had_are_told_by_name() {
    let desk = Desk::with(REGTEST);
    for (rest, code, said) in [
        ("--coins redis://:hidden@a:1", 1, &["APUS_COINS_PASSWORD"][..]),
        ("--coins http://a:1", 1, &["--coins", "redis://HOST:PORT", "postgres://USER@HOST"]),
        ("--coins redis://a:1/x --coins-password-file gone", 3, &["gone"]),
        ("--coins redis://a:1/x --coins-password-file empty", 1, &["its first line is empty"]),
        ("--coins-password-file empty", 1, &["--coins"]),
        ("--coins redis://127.0.0.1:1/x", 3, &["redis://127.0.0.1:1/x", "can be reached"]),
        ("--coins postgres://me:hidden@a/db", 1, &["APUS_COINS_PASSWORD"]),
        ("--coins postgres://127.0.0.1:1/db/x", 3, &["127.0.0.1:1/db/x", "can be reached"]),
    ] {
        desk.write("empty", b"\n");
        let ended = desk.apus(&format!("{RUN} --workdir work {rest}")).fails(code, said);
        assert!(!ended.stderr.contains("hidden"), "{ended}");
    }
    let line = RUN.replace("--engine utxo", "--coins redis://127.0.0.1:1/x");
    desk.apus(&line).fails(1, &["--engine utxo"]);
}
