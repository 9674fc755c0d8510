//! Tests which stores are not opened and why, and which changes a store refuses.

use super::servers::{How, Servers, open};
use super::support::{Step, assert_same, block, coin, coins_of, outpoint, random_step};
use apus_chain::Network;
use apus_coins::{ClusterOptions, ClusterStore, ClusterUrl};
use apus_engine::utxo::store::{EachChange, MemoryStore};
use apus_engine::utxo::{Changes, CoinsStore, Flush, StoreError};
use apus_testkit::postgres::PostgresServer;
use apus_testkit::redis::{RedisCluster, RedisServer};
use apus_testkit::rng::Rng;
use std::net::TcpListener;
use std::sync::Mutex;
use std::time::Duration;

const PASSWORD: &str = "right-word";

/// Checks the errors for passwords, another writer, and another chain.
fn problems_are_reported_by_name<S: Servers>(servers: &S) {
    let url = servers.url("refused");
    for password in [None, Some("wrong-word")] {
        let error = How { password, ..How::default() }.refusal(&url).to_string();
        assert!(error.contains("APUS_COINS_PASSWORD") && error.contains("127.0.0.1"), "{error}");
        assert!(!error.contains("wrong-word"), "{error}");
    }
    let right = How { password: Some(PASSWORD), ..How::default() };
    let store = right.open(&url).unwrap();
    let mut rng = Rng::new(51);
    let step = Step::new(1).with(outpoint(0), Some(coin(&mut rng)));
    step.write(&*store).unwrap();
    let short = Duration::from_millis(300);
    let error = How { lease: short, waits: short, ..right.clone() }.refusal(&url);
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    drop(store);

    let error = How { network: Network::Main, ..right }.refusal(&url);
    let message = "belongs to the regtest chain, not to main";
    assert!(matches!(error, StoreError::OtherNetwork { .. }), "{error}");
    assert!(
        error.to_string().contains(message) && error.to_string().contains("/refused"),
        "{error}"
    );
}

#[test]
fn problems_on_a_cluster_are_reported_by_name() {
    let cluster = RedisCluster::with_password(Some(PASSWORD));
    problems_are_reported_by_name(&cluster);
    let right = How { password: Some(PASSWORD), ..How::default() };
    // Another program's record, and one that no store wrote.
    let other = cluster.url("strange");
    let set = |value: &str| {
        let answers = cluster
            .ports()
            .map(|port| cluster.tell(port, &format!("SET strange:record {value}")).unwrap());
        assert!(answers.iter().any(|answer| answer.starts_with("+OK")), "{answers:?}");
    };
    set("hello");
    let error = right.refusal(&other);
    assert!(matches!(&error, StoreError::Damaged { what, .. } if what.contains("strange:record")));
    let newer = [&b"APUSRCOI"[..], &9u32.to_le_bytes(), b"more"].concat();
    let digest = apus_hash::sha256(&newer);
    let escaped = newer.iter().chain(&digest[..8]).map(|byte| format!("\\x{byte:02x}"));
    set(&format!("\"{}\"", escaped.collect::<String>()));
    let error = right.refusal(&other);
    assert!(matches!(error, StoreError::Newer { found: 9, known: 1, .. }), "{error}");
}

#[test]
fn problems_on_postgresql_are_reported_by_name() {
    let server = PostgresServer::with_password(Some(PASSWORD));
    problems_are_reported_by_name(&server);
    let (url, right) = (server.url("refused"), How { password: Some(PASSWORD), ..How::default() });
    let error = right.refusal(&url.replace("/postgres/", "/gone/")).to_string();
    assert!(error.contains("createdb"), "{error}");

    server.sql("UPDATE refused.record SET format = 9");
    let error = right.refusal(&url);
    assert!(matches!(error, StoreError::Newer { found: 9, known: 1, .. }), "{error}");
    for damage in ["format = 0", "format = 1, hash = NULL", "format = 1, network = ''"] {
        server.sql(&format!("UPDATE refused.record SET {damage}"));
        let error = right.refusal(&url);
        assert!(matches!(error, StoreError::Damaged { .. }), "{damage}: {error}");
    }
    server.sql("DELETE FROM refused.record");
    let error = right.refusal(&url);
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");

    // Another program's table.
    server.sql("CREATE SCHEMA strange; CREATE TABLE strange.record (what text)");
    let error = right.refusal(&server.url("strange"));
    assert!(
        matches!(&error, StoreError::Damaged { what, .. } if what.contains("strange")),
        "{error}"
    );
    server.sql("CREATE SCHEMA half; CREATE TABLE half.coins (what text)");
    let error = right.refusal(&server.url("half"));
    assert!(matches!(&error, StoreError::Damaged { what, .. } if what.contains("half")), "{error}");
    assert_eq!(server.sql("SELECT to_regclass('half.record') IS NULL"), "t");
}

#[test]
fn missing_or_forgetful_clusters_are_reported_by_name() {
    missing_or_forgetful_servers_are_reported_by_name::<RedisCluster>("redis://");
}

#[test]
fn missing_or_forgetful_postgresql_servers_are_reported_by_name() {
    missing_or_forgetful_servers_are_reported_by_name::<PostgresServer>("postgres://apus@");
}

fn missing_or_forgetful_servers_are_reported_by_name<S: Servers>(scheme: &str) {
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let database = if scheme.starts_with("postgres") { "/postgres" } else { "" };
    let url = format!("{scheme}127.0.0.1:{port}{database}/none");
    let patience = Duration::from_millis(100);
    let error = How { patience, ..How::default() }.refusal(&url);
    assert!(matches!(error, StoreError::Away { .. }), "{error}");
    let error = error.to_string();
    assert!(error.starts_with(&url) && error.contains("can be reached from here"), "{error}");

    let (servers, setting) = S::forgetful();
    let error = How::default().refusal(&servers.url("x")).to_string();
    assert!(error.contains("127.0.0.1") && error.contains(setting), "{error}");
}

/// A standalone server can keep coins; all settings that it lacks are reported at once.
#[test]
fn one_server_alone_keeps_coins() {
    let message = How::default().refusal(&RedisServer::start(&[]).url("alone")).to_string();
    assert!(
        message.contains("appendonly yes, appendfsync always.") && message.contains("CONFIG SET"),
        "{message}"
    );
    let mut server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let url = server.url("alone");
    let (model, mut rng) = (MemoryStore::new(), Rng::new(54));
    for height in 1..4 {
        let step = random_step(height, 300, 60, &mut rng);
        let store = open(&url);
        step.write(&*store).unwrap();
        step.write(&model).unwrap();
        server.kill_and_restart();
        assert_same(&*store, &model, height + 1);
    }
    // It is not a valid seed of a cluster.
    let port = url.trim_end_matches("/alone").rsplit(':').next().unwrap();
    let twice = url.replace("/alone", &format!(",localhost:{port}/alone"));
    let message = How::default().refusal(&twice).to_string();
    assert!(message.contains("give one server alone"), "{message}");
}

/// With the default setting, a server delays writing its log while the disk is busy, but answers.
#[test]
fn a_cluster_that_answers_before_it_writes_is_reported_by_name() {
    let cluster = RedisCluster::start();
    let [_, port, _] = cluster.ports();
    let set = |to: &str| cluster.tell(port, &format!("CONFIG SET appendfsync {to}")).unwrap();
    assert_eq!(set("everysec"), "+OK\r\n");
    let error = How::default().refusal(&cluster.url("x")).to_string();
    assert!(error.contains(&port.to_string()) && error.contains("appendfsync always"), "{error}");
    for kept in ["no", "always"] {
        assert_eq!(set(kept), "+OK\r\n");
        open(&cluster.url("x"));
    }
    changes_out_of_order_are_refused_and_leave_nothing(&cluster);
    for port in cluster.ports() {
        assert_eq!(cluster.tell(port, "KEYS order:w:*").unwrap(), "*0\r\n");
    }
}

#[test]
fn rows_that_are_not_coins_are_reported() {
    let server = PostgresServer::start();
    changes_out_of_order_are_refused_and_leave_nothing(&server);
    let store = open(&server.url("rows"));
    let mut rng = Rng::new(53);
    let step = Step::new(1).with(outpoint(0), Some(coin(&mut rng)));
    step.write(&*store).unwrap();
    server.sql("UPDATE rows.coins SET coin = '\\x00'");
    assert!(matches!(store.get(&outpoint(0)), Err(StoreError::Coin { .. })));
    assert!(matches!(coins_of(&*store), Err(StoreError::Coin { .. })));
    server.sql("UPDATE rows.coins SET outpoint = '\\x0102'");
    assert_eq!(store.get(&outpoint(0)).unwrap(), None);
    let error = coins_of(&*store).unwrap_err();
    assert!(
        matches!(&error, StoreError::Damaged { what, .. } if what.contains("coins")),
        "{error}"
    );
}

struct Backwards;

impl Changes for Backwards {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        let (low, high) = (outpoint(0).min(outpoint(1)), outpoint(0).max(outpoint(1)));
        each(&high, None)?;
        each(&low, None)
    }
}

fn changes_out_of_order_are_refused_and_leave_nothing<S: Servers>(servers: &S) {
    let store = open(&servers.url("order"));
    let out_of_order = |height| {
        let flush = Flush { tip: block(height), changes: &Backwards, undo: &[], undo_from: 0 };
        assert!(matches!(store.write(&flush), Err(StoreError::Unordered { .. })));
    };
    out_of_order(1);
    assert_eq!(store.tip().unwrap(), None);
    let mut rng = Rng::new(52);
    random_step(1, 100, 200, &mut rng).write(&*store).unwrap();
    let coins = coins_of(&*store).unwrap();
    out_of_order(2);
    assert_eq!(store.tip().unwrap(), Some(block(1)));
    assert!(coins_of(&*store).unwrap() == coins);
    random_step(2, 0, 1, &mut rng).write(&*store).unwrap();
}

/// What the store said that it could not check.
static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A user of a standalone server who may not see its settings can keep coins there, and learns what is not checked.
#[test]
fn a_user_who_may_not_see_settings_learns_what_is_not_checked() {
    let arguments = "--appendonly yes --appendfsync always --user me on >right-word ~keep:* +@all -info -config";
    let server = RedisServer::start(&arguments.split(' ').collect::<Vec<_>>());
    let url = server.url("keep").replace("redis://", "redis://me@");
    let place: ClusterUrl = url.parse().unwrap();
    let notice = |text: &str| NOTICES.lock().unwrap().push(text.to_owned());
    let right = How { password: Some(PASSWORD), ..How::default() };
    let options = ClusterOptions { notice, ..right.cluster() };
    let store = ClusterStore::open(&place, Network::Regtest, &options).unwrap();
    let mut rng = Rng::new(55);
    let step = Step::new(1).with(outpoint(0), Some(coin(&mut rng)));
    step.write(&store).unwrap();
    drop(store);
    assert!(
        ClusterStore::open(&place, Network::Regtest, &options).unwrap().tip().unwrap().is_some()
    );
    let said = NOTICES.lock().unwrap().concat();
    assert!(said.contains("appendonly yes, appendfsync always, maxmemory-policy"), "{said}");
    let wrong = How { password: Some("wrong-word"), ..How::default() };
    let error = wrong.refusal(&url).to_string();
    assert!(error.contains("that of the user in the URL"), "{error}");
}

#[test]
fn all_settings_that_postgresql_lacks_are_reported_at_once() {
    let (server, _) = PostgresServer::forgetful();
    server.sql("ALTER SYSTEM SET full_page_writes = off");
    server.sql("SELECT pg_reload_conf()");
    let until = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let message = How::default().open(&server.url("x")).err().map(|error| error.to_string());
        if message.is_some_and(|message| message.contains("set fsync and full_page_writes to on")) {
            break;
        }
        assert!(std::time::Instant::now() < until);
    }
}

#[test]
fn postgresql_is_reached_through_a_socket() {
    let server = PostgresServer::start();
    let folder = server.sql("SHOW unix_socket_directories");
    let url = server.url("socket").replace("127.0.0.1", "") + "?host=" + &folder;
    let store = open(&url);
    let mut rng = Rng::new(56);
    Step::new(1).with(outpoint(0), Some(coin(&mut rng))).write(&*store).unwrap();
    assert_eq!(server.sql("SELECT height FROM socket.record"), "1");
}
