//! `--coins`: the set with coins on real servers equals the local one, and errors name the server.

use crate::sandbox::{MAIN, REGTEST, Sandbox};
use apus_testkit::chain::{ChainBuilder, ScriptKind, coins_of};
use apus_testkit::effort::rounds;
use apus_testkit::line::LineRelay;
use apus_testkit::postgres::PostgresServer;
use apus_testkit::programs::wait_until;
use apus_testkit::redis::RedisCluster;
use apus_testkit::rng::Rng;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::thread::sleep;
use std::time::Duration;

const RUN: &str = "sync --chain regtest --blocksdir blocks --engine utxo";

#[cfg(feature = "kernel")]
/// A block far below the tip, so that some blocks remain to connect.
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

/// Apus waits for servers that hang briefly, and gives up on servers that hang for longer. The user can restart the
/// same run once they respond. The stores' own tests check what was written by then.
#[cfg(feature = "kernel")]
#[test]
fn apus_waits_for_stopped_servers_and_then_gives_up() {
    let (cluster, server) = (RedisCluster::start(), PostgresServer::start());
    let sandbox = Sandbox::with(REGTEST);
    let local = format!("{RUN} --assumevalid 0 --out snapshot:local.dat");
    sandbox.apus(&local).succeeds();
    let stop = |stop: bool| match stop {
        true => (cluster.stop(), server.stop()),
        false => (cluster.go_on(), server.go_on()),
    };
    for (number, coins) in [cluster.url("stop"), server.url("stop")].into_iter().enumerate() {
        let line = format!("{RUN} --assumevalid 0 --workdir work-{number} --coins {coins}");
        stop(true);
        let ended =
            sandbox.apus(&format!("{line} --coins-timeout 1 --out snapshot:set-{number}.dat"));
        let asked = sandbox.apus(&format!(
            "coins get {UNSPENT} --coins {coins} --coins-timeout 1 --chain regtest"
        ));
        stop(false);
        cluster.wait();
        let stays = "The coins written so far stay on the servers";
        assert!(ended.stderr.contains(stays) && !asked.stderr.contains(stays), "{asked}");
        for ended in [ended, asked] {
            let said = [&coins[..], "no answer for", "can be reached", "--coins-timeout"];
            ended.fails(3, &said);
        }
        stop(true);
        let running = sandbox.start(&format!("{line} --out snapshot:set-{number}.dat"));
        sleep(Duration::from_secs(1));
        stop(false);
        let ended = running.wait();
        assert!(ended.code == Some(0), "{ended}");
        assert!(sandbox.read(&format!("set-{number}.dat")) == sandbox.read("local.dat"));
    }
    sandbox.apus(&format!("{RUN} --coins-timeout 5")).fails(1, &["--coins"]);
    sandbox.apus(&format!("{RUN} --coins {} --coins-timeout 0", server.url("x"))).fails(1, &["0"]);
}

#[cfg(feature = "kernel")]
/// Statements and sessions that the server counted, once it has counted those of this program.
fn counted(server: &PostgresServer) -> (u64, u64) {
    wait_until("the program's sessions have ended", || {
        server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'apus'") == "0"
    });
    let line = "SELECT xact_commit, sessions FROM pg_stat_database WHERE datname = 'postgres'";
    let said = server.sql(line);
    let (commits, sessions) = said.split_once('|').unwrap();
    (commits.parse().unwrap(), sessions.parse().unwrap())
}

#[cfg(feature = "kernel")]
/// A block spends 400 coins that are only on the server, which is far away, so that requests are under way together.
#[test]
fn the_user_chooses_how_many_coins_share_a_request_and_how_many_requests_are_under_way() {
    const COINS: u64 = 400;
    let mut chain = ChainBuilder::new(91);
    chain.empty_blocks(101);
    let (coin, _) = chain.mature_coin();
    let outputs = (0..COINS).map(|_| chain.output(5_000, ScriptKind::OpTrue)).collect();
    let split = chain.spend(&[coin], outputs);
    let coins = coins_of(&split);
    chain.block_with(vec![split]);
    let output = chain.output(5_000, ScriptKind::OpTrue);
    let joined = chain.spend_coins(&coins, vec![output]);
    chain.block_with(vec![joined]);
    let sandbox = Sandbox::of(&chain);
    let server = PostgresServer::start();
    let line = LineRelay::far(server.port(), Duration::from_millis(20));
    let run = |name: &str, options: &str| {
        let url = server.url_at(line.address().port(), name);
        let sync = |rest: &str| {
            let line =
                format!("{RUN} --assumevalid 0 --workdir {name} --coins {url} --out null {rest}");
            sandbox.start(&line).wait().succeeds();
        };
        sync("--stopatheight 102");
        let before = counted(&server);
        sync(options);
        let after = counted(&server);
        (after.0 - before.0, after.1 - before.1)
    };
    let (few, _) = run("few", "");
    let (many, sessions) = run("many", "--coins-batch 10");
    let (many_one_by_one, one) = run("one", "--coins-batch 10 --coins-requests 1");
    // Four requests or fewer, and forty; everything else is equal.
    assert!(many >= few + 30 && many_one_by_one >= few + 30, "{few} {many} {many_one_by_one}");
    assert!(sessions >= one + 4, "{sessions} {one}");
}

#[test]
fn sizes_of_requests_that_make_no_sense_are_refused() {
    let sandbox = Sandbox::with(REGTEST);
    for (option, value, said) in [
        ("--coins-batch", "0", "is not in 1..=10000"),
        ("--coins-batch", "10001", "is not in 1..=10000"),
        ("--coins-batch", "many", "invalid digit"),
        ("--coins-requests", "0", "is not in 1..=256"),
        ("--coins-requests", "257", "is not in 1..=256"),
    ] {
        let line = format!("{RUN} --coins redis://a:1/x {option} {value}");
        sandbox.apus(&line).fails(1, &[option, said]);
    }
    for option in ["--coins-batch 5", "--coins-requests 5"] {
        sandbox.apus(&format!("{RUN} {option}")).fails(1, &["add --coins URL, or --out coins:URL"]);
    }
}

/// A listener accepts connections and never answers, as a server does that hangs.
#[test]
fn apus_gives_up_on_a_server_that_never_answers() {
    let sandbox = Sandbox::with(REGTEST);
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let _socket = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
    let place = port.local_addr().unwrap();
    for url in [
        format!("redis://{place}/x"),
        format!("postgres://me@{place}/db/x"),
        format!("postgres://me@:5432/db/x?host={}", folder.path().display()),
    ] {
        let line = format!("{RUN} --workdir work --coins {url} --coins-timeout 1 --out null");
        sandbox.apus(&line).fails(3, &[&url, "no answer for", "--coins-timeout"]);
    }
}

#[cfg(feature = "kernel")]
fn coins_make_the_same_set(coins: &str) {
    let sandbox = Sandbox::with(REGTEST);
    let line = |rest: &str| format!("{RUN} --assumevalid 0 --workdir work --coins {coins} {rest}");
    sandbox.apus(&line(&format!("--stopatheight {SOME} --out snapshot:some.dat"))).succeeds();
    let local = format!("{RUN} --assumevalid 0 --out snapshot:local.dat");
    sandbox.apus(&format!("{local} --stopatheight {SOME}")).succeeds();
    assert!(sandbox.read("some.dat") == sandbox.read("local.dat"));
    // The work folder belongs to these coins: Apus refuses it for any others.
    assert_eq!(sandbox.names("work"), ["connected", "ended"]);
    let other = line("--out snapshot:all.dat").replace("/set", "/other");
    for other in [&other, &format!("{RUN} --assumevalid 0 --workdir work --out null")] {
        sandbox
            .apus(other)
            .fails(1, &["work holds the state of the coins at ", "another --workdir"]);
    }
    // The same command continues, whether or not there are more blocks.
    sandbox.remove("local.dat");
    sandbox.apus(&local).succeeds();
    for (number, said) in [format!("{SOME}"), "315".to_owned()].into_iter().enumerate() {
        let all = format!("all-{number}.dat");
        let out = format!("--out snapshot:{all} --report report-{number}.json");
        // The run changes the coins' state, so `start` does not check that files stay the same.
        let ended = sandbox.start(&line(&out)).wait().succeeds();
        assert!(ended.stderr.contains("to continue from block 315"), "{ended}");
        assert!(sandbox.read(&all) == sandbox.read("local.dat"));
        let resumed = &sandbox.json(&format!("report-{number}.json"))["segments_resumed"];
        assert_eq!(resumed.to_string(), said);
    }
    sandbox.remove("work");
    sandbox.apus(&other).succeeds();
    assert!(sandbox.read("all.dat") == sandbox.read("local.dat"));
}

#[test]
fn errors_name_the_store_that_cannot_be_used() {
    let sandbox = Sandbox::with(REGTEST);
    for (rest, code, said) in [
        ("--coins redis://:hidden@a:1", 1, &["APUS_COINS_PASSWORD"][..]),
        ("--coins redis://a:1/x?pwd=hidden", 1, &["--coins", "question mark"]),
        ("--coins redis://a:1,hidden!:2/x", 1, &["--coins", "server 2 "]),
        ("--coins http://a:1", 1, &["--coins", "redis://HOST:PORT", "postgres://USER@HOST"]),
        ("--coins redis://a:1/x --coins-password-file gone", 3, &["gone"]),
        ("--coins redis://a:1/x --coins-password-file empty", 1, &["the first line is empty"]),
        ("--coins-password-file empty", 1, &["--coins"]),
        ("--coins redis://127.0.0.1:1/x", 3, &["redis://127.0.0.1:1/x", "can be reached"]),
        ("--coins postgres://me:hidden@a/db", 1, &["APUS_COINS_PASSWORD"]),
        ("--coins postgres://a/db?pass=hidden", 1, &["--coins", "sslmode=verify-full"]),
        ("--coins postgres://a/hidden!", 1, &["--coins", "database"]),
        ("--coins postgres://127.0.0.1:1/db/x", 3, &["127.0.0.1:1/db/x", "can be reached"]),
    ] {
        sandbox.write("empty", b"\n");
        let ended = sandbox.apus(&format!("{RUN} --workdir work {rest}")).fails(code, said);
        assert!(!ended.stderr.contains("hidden"), "{ended}");
    }
    // Apus sends a password to another machine only over TLS, and asks for none if the server is unreachable.
    sandbox.write("password", b"hidden");
    for rest in
        ["--coins redis://192.0.2.1:1/x", "--coins postgres://me@192.0.2.1:1/db/x?sslmode=disable"]
    {
        let line = format!("{RUN} --workdir work {rest} --coins-password-file password");
        let said =
            ["192.0.2.1 in the clear", "rediss://", "sslmode=verify-full", "--coins-private-line"];
        let ended = sandbox.apus(&line).fails(1, &said);
        assert!(!ended.stderr.contains("hidden"), "{ended}");
        let get = format!("coins get {UNSPENT} {rest} --coins-password-file password");
        sandbox.apus(&get).fails(1, &said);
    }
    for line in [
        "coins copy --from redis://a/x?pwd=hidden --to redis://a:1/x",
        "coins copy --from snapshot:gone.dat --to redis://a/x?pwd=hidden",
        &format!("coins get {UNSPENT} --coins postgres://a/db/hidden!"),
        &format!("coins get redis://u:hidden@a:1/x {UNSPENT} --coins redis://a:1/x"),
        &format!("coins get {UNSPENT} -coins=redis://u:hidden@a:1/x"),
        "coins copy redis://u:hidden@a:1/x --to redis://a:1/x",
    ] {
        let ended = sandbox.apus(line).fails(1, &[]);
        assert!(!ended.stderr.contains("hidden"), "{ended}");
    }
    let line = RUN.replace("utxo", "mergesync --coins redis://127.0.0.1:1/x");
    sandbox.apus(&line).fails(1, &["leave out --engine, or --coins"]);
}

/// The first spendable coinbase, which was never spent, and the coinbase of block 9, spent in block 170.
const UNSPENT: &str = "0e3e2357e806b6cdb1f70b54c3a3a17b6714ee1f0e68bebb44a74b1efd512098:0";
const SPENT: &str = "0437cd7f8525ceed2324359c2d0ba26006d92d856a9c20fa0241106ee5a497c9:0";

/// Bitcoin Core's MuHash of the fixture's set.
const MUHASH: &str = "ef572d992f09ddbab60d3ba06c4dcc9ccc6b9374fc1c884c0695fc8bc8c6d3bd";

fn expect_coins(sandbox: &Sandbox, place: &str) {
    let ended = sandbox.apus(&format!("coins get {UNSPENT} {SPENT} --coins {place}")).succeeds();
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
    let (server, cluster, sandbox) =
        (PostgresServer::start(), RedisCluster::start(), Sandbox::with(MAIN));
    let (one, two) = (server.url("one"), cluster.url("two"));
    let none = ["no coins under this name"];
    for place in [&one, &two] {
        sandbox.apus(&format!("coins get {UNSPENT} --coins {place}")).fails(3, &none);
    }
    // A mistyped source is not created.
    let copy_from = |from: &str| sandbox.apus(&format!("coins copy --from {from} --to {one}"));
    for from in [&one.replace("/one", "/mistyped"), &two.replace("/two", "/mistyped")] {
        copy_from(from).fails(3, &none);
    }
    assert_eq!(server.sql("SELECT to_regnamespace('mistyped') IS NULL"), "t");
    for port in cluster.ports() {
        assert_eq!(cluster.tell(port, "KEYS mistyped:*").unwrap(), "*0\r\n");
    }
    let all = [MUHASH, "4,348", "4521 00000000ac08f7d984f6"];
    let copy = |from: &str, to: &str| sandbox.apus(&format!("coins copy --from {from} --to {to}"));
    copy("snapshot:node.dat", &one).succeeds().says(&all);
    copy(&one, &two).succeeds().says(&all);
    // Apus checks existing coins again, and does not mix another set with them.
    copy(&two, &one).succeeds().says(&all);
    for place in [&one, &two] {
        expect_coins(&sandbox, place);
        sandbox
            .apus(&format!("coins get {UNSPENT} --coins {place} --chain regtest"))
            .fails(1, &["belongs to the main chain, not to regtest"]);
    }
    copy(&one, &one).fails(1, &["the same store"]);
    damage_is_refused(&server, &sandbox);

    let sync = "sync --blocksdir blocks --hints snapshot:node.dat --out chainstate:chainstate";
    sandbox.apus(sync).succeeds();
    let three = server.url("three");
    copy("chainstate:chainstate", &three).succeeds().says(&all);
    expect_coins(&sandbox, &three);
    server.sql(
        "UPDATE three.coins SET coin = '\\x8fcf9a8b00' WHERE outpoint IN \
                (SELECT outpoint FROM three.coins LIMIT 1)",
    );
    let ended = copy("snapshot:node.dat", &three);
    assert!(ended.code == Some(4), "{ended}");
    server.sql("UPDATE three.record SET height = 4520, hash = decode(repeat('11', 32), 'hex')");
    copy("snapshot:node.dat", &three).fails(1, &["has the coins of block 4520", "another NAME"]);
}

fn damage_is_refused(server: &PostgresServer, sandbox: &Sandbox) {
    let place = server.url("damaged");
    let mut snapshot = sandbox.read("node.dat");
    snapshot.truncate(snapshot.len() / 2);
    sandbox.write("half.dat", &snapshot);
    let line = format!("coins copy --from snapshot:half.dat --to {place}");
    sandbox.apus(&line).fails(4, &["half.dat"]);
    sandbox.apus(&format!("coins get {UNSPENT} --coins {place}")).fails(3, &["no coins"]);
    for (from, code, said) in [
        ("snapshot:gone.dat", 3, "gone.dat"),
        ("chainstate:gone", 4, "no chainstate in gone"),
        ("hints:node.dat", 1, "snapshot:FILE, chainstate:DIR"),
    ] {
        sandbox.apus(&format!("coins copy --from {from} --to {place}")).fails(code, &[said]);
    }
    sandbox.apus("coins get 00:1 --coins redis://a:1").fails(1, &["TXID:VOUT"]);
}

#[test]
fn a_killed_copy_is_complete_or_absent_and_can_be_repeated() {
    let (server, cluster, sandbox) =
        (PostgresServer::start(), RedisCluster::start(), Sandbox::with(MAIN));
    let mut rng = Rng::new(61);
    for round in 0..rounds(3, 50) {
        for place in [server.url(&format!("k{round}")), cluster.url(&format!("k{round}"))] {
            let line = format!("coins copy --from snapshot:node.dat --to {place}");
            let running = sandbox.start(&line);
            sleep(Duration::from_millis(rng.between(20, 250)));
            running.signal(&["KILL"]);
            running.wait();
            sandbox.apus(&line).succeeds().says(&[MUHASH, "4,348"]);
            expect_coins(&sandbox, &place);
        }
    }
}
