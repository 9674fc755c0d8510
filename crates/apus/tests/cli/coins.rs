//! `--coins`: the set by coins on real servers is the set, and what cannot be is told by name.

use crate::desk::{Desk, MAIN, REGTEST};
use apus_testkit::effort::rounds;
use apus_testkit::postgres::PostgresServer;
use apus_testkit::redis::RedisCluster;
use apus_testkit::rng::Rng;
use std::thread::sleep;
use std::time::Duration;

const RUN: &str = "sync --chain regtest --blocksdir blocks --engine utxo";

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

/// Servers that do nothing for a moment are waited for; those that do nothing for longer are not, and the same run can
/// be started again once they do. What was written by then is among the tests of the stores.
#[cfg(feature = "kernel")]
#[test]
fn servers_that_stop_are_waited_for_and_then_given_up() {
    let (cluster, server) = (RedisCluster::start(), PostgresServer::start());
    let desk = Desk::with(REGTEST);
    let local = format!("{RUN} --assumevalid 0 --out snapshot:local.dat");
    desk.apus(&local).succeeds();
    let stop = |stop: bool| match stop {
        true => (cluster.stop(), server.stop()),
        false => (cluster.go_on(), server.go_on()),
    };
    for (number, coins) in [cluster.url("stop"), server.url("stop")].into_iter().enumerate() {
        let line = format!("{RUN} --assumevalid 0 --workdir work-{number} --coins {coins}");
        stop(true);
        let ended = desk.apus(&format!("{line} --coins-timeout 1 --out snapshot:set-{number}.dat"));
        let asked = desk.apus(&format!(
            "coins get {UNSPENT} --coins {coins} --coins-timeout 1 --chain regtest"
        ));
        stop(false);
        cluster.wait();
        let stays = "What the run has written stays there";
        assert!(ended.stderr.contains(stays) && !asked.stderr.contains(stays), "{asked}");
        for ended in [ended, asked] {
            let said = [&coins[..], "not heard for", "can be reached", "--coins-timeout"];
            ended.fails(3, &said);
        }
        stop(true);
        let running = desk.start(&format!("{line} --out snapshot:set-{number}.dat"));
        sleep(Duration::from_secs(1));
        stop(false);
        let ended = running.wait();
        assert!(ended.code == Some(0), "{ended}");
        assert!(desk.read(&format!("set-{number}.dat")) == desk.read("local.dat"));
    }
    desk.apus(&format!("{RUN} --coins-timeout 5")).fails(1, &["--coins"]);
    desk.apus(&format!("{RUN} --coins {} --coins-timeout 0", server.url("x"))).fails(1, &["0"]);
}

#[cfg(feature = "kernel")]
fn coins_make_the_same_set(coins: &str) {
    let desk = Desk::with(REGTEST);
    let line = |rest: &str| format!("{RUN} --assumevalid 0 --workdir work --coins {coins} {rest}");
    desk.apus(&line(&format!("--stopatheight {SOME} --out snapshot:some.dat"))).succeeds();
    let local = format!("{RUN} --assumevalid 0 --out snapshot:local.dat");
    desk.apus(&format!("{local} --stopatheight {SOME}")).succeeds();
    assert!(desk.read("some.dat") == desk.read("local.dat"));
    // What is known of them is for no other coins.
    assert_eq!(desk.names("work"), ["connected", "ended"]);
    let other = line("--out snapshot:all.dat").replace("/set", "/other");
    for other in [&other, &format!("{RUN} --assumevalid 0 --workdir work --out null")] {
        desk.apus(other)
            .fails(1, &["work has what is known of the coins at ", "another --workdir"]);
    }
    // The same command goes on, once there are more blocks and when there are none.
    desk.remove("local.dat");
    desk.apus(&local).succeeds();
    for (number, said) in [format!("{SOME}"), "315".to_owned()].into_iter().enumerate() {
        let all = format!("all-{number}.dat");
        let out = format!("--out snapshot:{all} --report report-{number}.json");
        // It changes what it knows of the coins.
        let ended = desk.start(&line(&out)).wait().succeeds();
        assert!(ended.stderr.contains("goes on from block 315"), "{ended}");
        assert!(desk.read(&all) == desk.read("local.dat"));
        let resumed = &desk.json(&format!("report-{number}.json"))["segments_resumed"];
        assert_eq!(resumed.to_string(), said);
    }
    // Without it no run knows of them.
    desk.remove("work");
    let said = ["/set is at block", "of height 315 already", "after the slash"];
    desk.apus(&line("--out snapshot:none.dat")).fails(1, &said);
    desk.apus(&other).succeeds();
    assert!(desk.read("all.dat") == desk.read("local.dat"));
}

#[test]
fn coins_that_cannot_be_had_are_told_by_name() {
    let desk = Desk::with(REGTEST);
    for (rest, code, said) in [
        ("--coins redis://:hidden@a:1", 1, &["APUS_COINS_PASSWORD"][..]),
        ("--coins redis://a:1/x?pwd=hidden", 1, &["--coins", "question mark"]),
        ("--coins redis://a:1,hidden!:2/x", 1, &["--coins", "server 2 "]),
        ("--coins http://a:1", 1, &["--coins", "redis://HOST:PORT", "postgres://USER@HOST"]),
        ("--coins redis://a:1/x --coins-password-file gone", 3, &["gone"]),
        ("--coins redis://a:1/x --coins-password-file empty", 1, &["its first line is empty"]),
        ("--coins-password-file empty", 1, &["--coins"]),
        ("--coins redis://127.0.0.1:1/x", 3, &["redis://127.0.0.1:1/x", "can be reached"]),
        ("--coins postgres://me:hidden@a/db", 1, &["APUS_COINS_PASSWORD"]),
        ("--coins postgres://a/db?pass=hidden", 1, &["--coins", "sslmode=verify-full"]),
        ("--coins postgres://a/hidden!", 1, &["--coins", "database"]),
        ("--coins postgres://127.0.0.1:1/db/x", 3, &["127.0.0.1:1/db/x", "can be reached"]),
    ] {
        desk.write("empty", b"\n");
        let ended = desk.apus(&format!("{RUN} --workdir work {rest}")).fails(code, said);
        assert!(!ended.stderr.contains("hidden"), "{ended}");
    }
    // A password goes to no other machine without TLS, and none is asked for a server that is not there.
    desk.write("password", b"hidden");
    for rest in
        ["--coins redis://192.0.2.1:1/x", "--coins postgres://me@192.0.2.1:1/db/x?sslmode=disable"]
    {
        let line = format!("{RUN} --workdir work {rest} --coins-password-file password");
        let said =
            ["192.0.2.1 in the clear", "rediss://", "sslmode=verify-full", "--coins-private-line"];
        let ended = desk.apus(&line).fails(1, &said);
        assert!(!ended.stderr.contains("hidden"), "{ended}");
        let get = format!("coins get {UNSPENT} {rest} --coins-password-file password");
        desk.apus(&get).fails(1, &said);
    }
    for line in [
        "coins copy --from redis://a/x?pwd=hidden --to redis://a:1/x",
        "coins copy --from snapshot:gone.dat --to redis://a/x?pwd=hidden",
        &format!("coins get {UNSPENT} --coins postgres://a/db/hidden!"),
    ] {
        let ended = desk.apus(line).fails(1, &[]);
        assert!(!ended.stderr.contains("hidden"), "{ended}");
    }
    let line = RUN.replace("utxo", "mergesync --coins redis://127.0.0.1:1/x");
    desk.apus(&line).fails(1, &["leave out --engine, or --coins"]);
}

/// The first coinbase that can be spent, which never was, and that of block 9, spent in block 170.
const UNSPENT: &str = "0e3e2357e806b6cdb1f70b54c3a3a17b6714ee1f0e68bebb44a74b1efd512098:0";
const SPENT: &str = "0437cd7f8525ceed2324359c2d0ba26006d92d856a9c20fa0241106ee5a497c9:0";

/// What Bitcoin Core says of the set of the fixture.
const MUHASH: &str = "ef572d992f09ddbab60d3ba06c4dcc9ccc6b9374fc1c884c0695fc8bc8c6d3bd";

fn expect_coins(desk: &Desk, place: &str) {
    let ended = desk.apus(&format!("coins get {UNSPENT} {SPENT} --coins {place}")).succeeds();
    let said: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(said["height"], 4521);
    let hash = "00000000ac08f7d984f6b36027395e654a5f1e3bb006cd9df9c60b9897ea4c40";
    assert_eq!((&said["chain"], &said["hash"]), (&"main".into(), &hash.into()));
    let [unspent, spent] = [0, 1].map(|index| &said["coins"][index]);
    assert_eq!(unspent["txid"].as_str(), UNSPENT.strip_suffix(":0"));
    assert_eq!((&unspent["vout"], &unspent["coin"]["height"]), (&0.into(), &1.into()));
    assert_eq!(unspent["coin"]["coinbase"], true);
    assert_eq!(unspent["coin"]["amount_sat"], 5_000_000_000_u64);
    let script = unspent["coin"]["script_pubkey"].as_str().unwrap();
    assert!(script.starts_with("410496b538e853519c72") && script.ends_with("ac"), "{script}");
    assert!(spent["coin"].is_null() && spent["txid"].is_string(), "{spent}");
}

#[test]
fn sets_of_coins_are_copied_between_all_kinds_of_places() {
    let (server, cluster, desk) =
        (PostgresServer::start(), RedisCluster::start(), Desk::with(MAIN));
    let (one, two) = (server.url("one"), cluster.url("two"));
    let none = ["no coins under this name"];
    for place in [&one, &two] {
        desk.apus(&format!("coins get {UNSPENT} --coins {place}")).fails(3, &none);
    }
    let all = [MUHASH, "4,348", "4521 00000000ac08f7d984f6"];
    let copy = |from: &str, to: &str| desk.apus(&format!("coins copy --from {from} --to {to}"));
    copy("snapshot:node.dat", &one).succeeds().says(&all);
    copy(&one, &two).succeeds().says(&all);
    // What is there already is looked at again, and another set does not mix with it.
    copy(&two, &one).succeeds().says(&all);
    for place in [&one, &two] {
        expect_coins(&desk, place);
        desk.apus(&format!("coins get {UNSPENT} --coins {place} --chain regtest"))
            .fails(1, &["is of the main chain, not of regtest"]);
    }
    copy(&one, &one).fails(1, &["the same store"]);
    damage_is_refused(&server, &desk);

    let sync = "sync --blocksdir blocks --hints snapshot:node.dat --out chainstate:chainstate";
    desk.apus(sync).succeeds();
    let three = server.url("three");
    copy("chainstate:chainstate", &three).succeeds().says(&all);
    expect_coins(&desk, &three);
    server.sql(
        "UPDATE three.coins SET coin = '\\x8fcf9a8b00' WHERE outpoint IN \
                (SELECT outpoint FROM three.coins LIMIT 1)",
    );
    let ended = copy("snapshot:node.dat", &three);
    assert!(ended.code == Some(4), "{ended}");
    server.sql("UPDATE three.record SET height = 4520, hash = decode(repeat('11', 32), 'hex')");
    copy("snapshot:node.dat", &three).fails(1, &["has the coins of block 4520", "another store"]);
}

fn damage_is_refused(server: &PostgresServer, desk: &Desk) {
    let place = server.url("damaged");
    let mut snapshot = desk.read("node.dat");
    snapshot.truncate(snapshot.len() / 2);
    desk.write("half.dat", &snapshot);
    let line = format!("coins copy --from snapshot:half.dat --to {place}");
    desk.apus(&line).fails(4, &["half.dat"]);
    desk.apus(&format!("coins get {UNSPENT} --coins {place}")).fails(3, &["no coins"]);
    for (from, code, said) in [
        ("snapshot:gone.dat", 3, "gone.dat"),
        ("chainstate:gone", 4, "no chainstate in gone"),
        ("hints:node.dat", 1, "snapshot:FILE, chainstate:DIR"),
    ] {
        desk.apus(&format!("coins copy --from {from} --to {place}")).fails(code, &[said]);
    }
    desk.apus("coins get 00:1 --coins redis://a:1").fails(1, &["TXID:VOUT"]);
}

#[test]
fn a_killed_copy_is_all_of_it_or_nothing_and_can_be_given_again() {
    let (server, cluster, desk) =
        (PostgresServer::start(), RedisCluster::start(), Desk::with(MAIN));
    let mut rng = Rng::new(61);
    for round in 0..rounds(3, 50) {
        for place in [server.url(&format!("k{round}")), cluster.url(&format!("k{round}"))] {
            let line = format!("coins copy --from snapshot:node.dat --to {place}");
            let running = desk.start(&line);
            sleep(Duration::from_millis(rng.between(20, 250)));
            running.signal(&["KILL"]);
            running.wait();
            desk.apus(&line).succeeds().says(&[MUHASH, "4,348"]);
            expect_coins(&desk, &place);
        }
    }
}
